"""Results of users' hooks that do not fit: one sentence instead of a traceback."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.engine import hooks
from fedjax_pfl.testing import toy

KEY = jax.random.key(0)


@fp.pytree_dataclass
class Mine(fp.SingleExchange):
    """FedAvg, as a user would write it."""

    local: fp.core.Solver = fp.SGD(learning_rate=0.1)

    def first(self, params):
        return params, None, None

    def client_update(self, view, down, client, model):
        params, _, info = self.local.solve(view, fp.local.DataLoss(model), down.shared)
        return client, view.upload(params), info.report()

    def parameters(self, server, client):
        return {"global": server}


def with_hooks(**changes):
    kind = type("Mine", (Mine,), changes)
    return fp.FederatedProcess(algorithm=fp.pytree_dataclass(kind)())


def updating(make):
    """The method whose client update ends otherwise."""

    def client_update(self, view, down, client, model):
        solved = self.local.solve(view, fp.local.DataLoss(model), down.shared)
        return make(view, client, solved)

    return with_hooks(client_update=client_update)


def refusal(process, model=None, federation=None):
    """The sentence of a training that cannot be traced."""
    model = fp.LogisticRegression() if model is None else model
    given = (process, model, federation or toy.make_federation())
    with pytest.raises(fp.InputError) as error:
        fp.simulate(KEY, *given, 2, progress=False, execution="vmap")
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("process", "sentence"),
    [
        (
            with_hooks(first=lambda self, params: (params, None)),
            "init (or first) of Mine to return three values, (server, client, message),"
            " with None for those that are not needed, got 2 values.",
        ),
        (
            updating(lambda view, client, s: (client, s[0], {})),
            "the result of view.upload(message) as its second value, got a dictionary"
            " of 'head'.",
        ),
        (
            updating(lambda view, client, s: (client, view.upload(s), {})),
            "got 3 values in place of a dictionary of 'head'. A solver returns three"
            " values: params, context, info.",
        ),
        (
            updating(lambda view, client, s: (view.upload(s[0]), {})),
            "client_update of Mine to return three values, (client, upload, report),"
            " got 2 values.",
        ),
        (
            updating(lambda view, client, s: ({"own": s[0]}, view.upload(s[0]), {})),
            "a client state like the one that it received, got a dictionary of 'own'"
            " in place of None.",
        ),
        (
            updating(lambda view, client, s: (client, view.upload(s[0]), s[2])),
            "as its third value a report, a dictionary of numbers [], got an object of"
            " the class LocalInfo.",
        ),
        (
            updating(
                lambda view, client, s: (
                    client,
                    view.upload(s[0]),
                    {"norms": jnp.ones(3)},
                )
            ),
            "one number [] as 'norms' of its report, got float64[3].",
        ),
        (
            with_hooks(down=lambda self, ctx, server, clients, messages: server),
            "down of Mine to return a Downlink, such as core.Downlink(shared=server),"
            " got a dictionary of 'head'.",
        ),
        (
            with_hooks(server_update=lambda self, ctx, server, aggregate, uploads: 0.0),
            "server_update of Mine to return a server state like the one before, got",
        ),
        (
            with_hooks(parameters=lambda self, server, client: None),
            'a dictionary of parameters by name, such as {"global": server}, got None.',
        ),
    ],
    ids=lambda value: None,
)
def test_hooks_of_methods_are_named(process, sentence):
    assert sentence in refusal(process)


@fp.pytree_dataclass
class NoInfo(fp.core.Aggregator):
    """Forgets its report."""

    def __call__(self, key, messages, weights, reference):
        return jax.tree.map(lambda rows: rows.mean(axis=0), messages)


@fp.pytree_dataclass
class AllAxes(fp.core.Aggregator):
    """Takes the mean over coordinates, too."""

    def __call__(self, key, messages, weights, reference):
        return jax.tree.map(jnp.mean, messages), {}


@fp.pytree_dataclass
class NoState(fp.core.Attack):
    """An attack that forgets its state."""

    def __call__(self, key, state, messages, malicious, reference):
        return messages


@fp.pytree_dataclass
class OtherSize(fp.core.Participation):
    """Draws fewer clients than it says."""

    def cohort_size(self, num_clients):
        return 3

    def __call__(self, key, num_clients):
        return jnp.arange(2, dtype=jnp.int32)


class Rule:
    """An aggregator that does not extend the base."""

    def __call__(self, key, messages, weights, reference):
        return reference, {}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"aggregator": NoInfo()}, "NoInfo to return two values, (aggregate, info)"),
        (
            {"aggregator": AllAxes()},
            "AllAxes to return an aggregate like one message, got float64[] in place of"
            " float64[3] at 'head/bias'.",
        ),
        ({"aggregator": Rule()}, "of a subclass of fp.core.Aggregator, got an object"),
        ({"attack": NoState()}, "NoState to return two values, (messages, state)"),
        (
            {"participation": OtherSize()},
            "OtherSize to draw as many clients as its cohort_size says, int32[3], got"
            " int32[2].",
        ),
    ],
    ids=lambda value: None,
)
def test_other_parts_are_named(fields, sentence):
    process = fp.FederatedProcess(algorithm=Mine(), **fields)
    federation = toy.make_federation(malicious=(1,))
    assert sentence in refusal(process, federation=federation)


def test_hooks_are_named_in_virtual_time():
    """Whose cohorts are not known before a training."""
    process = dataclasses.replace(
        with_hooks(parameters=lambda self, server, client: None),
        participation=fp.local.Synchronous(size=3),
    )
    assert "parameters of Mine" in refusal(process)


class NoMetrics(fp.MLP):
    """A model without metrics."""

    def metrics(self, outputs, batch):
        return None


class LossOfEach(fp.MLP):
    """A model whose loss is not yet a mean."""

    def loss(self, outputs, batch):
        return outputs.sum(axis=-1)


class MeanOfMetric(fp.MLP):
    """A model whose own metric is a mean already."""

    def metrics(self, outputs, batch):
        found = super().metrics(outputs, batch)
        return found | {"largest": outputs.max()}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (NoMetrics(), "metrics of NoMetrics to return a dictionary of arrays [B] with"),
        (LossOfEach(), "loss of LossOfEach to return the mean over a batch, one num"),
        (MeanOfMetric(), "'largest', of MeanOfMetric to have the shape [B]"),
    ],
    ids=lambda value: None,
)
def test_hooks_of_models_are_named(model, sentence):
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    assert sentence in refusal(process, model)


def test_a_partition_that_returns_lists_is_refused():
    class Lists:
        name = "lists"

        def __call__(self, rng, dataset, num_clients):
            rows = range(len(dataset.y))
            return [list(rows[i::num_clients]) for i in range(num_clients)]

    with pytest.raises(fp.InputError) as error:
        fp.load_federation("digits", Lists(), num_clients=5)
    assert str(error.value).endswith(".")


def test_an_error_inside_of_a_hook_stays_what_it_is():
    def client_update(self, view, down, client, model):
        return self.nothing

    with pytest.raises(AttributeError, match="nothing"):
        fp.simulate(
            *(KEY, with_hooks(client_update=client_update), fp.LogisticRegression()),
            *(toy.make_federation(), 2),
            progress=False,
        )


@pytest.mark.parametrize("name", sorted(algorithms.ALGORITHMS))
def test_no_method_of_the_package_is_refused(name):
    """What an error elsewhere is answered with must not blame a method that fits."""
    federation = toy.make_federation()
    network = fp.MLP(widths=(4,)).for_federation(federation)
    process = fp.FederatedProcess(algorithm=algorithms.ALGORITHMS[name]())
    hooks.check(process, network, federation)
