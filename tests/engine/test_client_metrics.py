"""Metrics of all examples of a client, in batches, chunks, grids, tables and files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import auto_execution, evaluation
from fedjax_pfl.models import objectives
from tests.lanes import wide
from tests.models import test_counting as oracles

SIZES = (40, 90, 25, 60)
PROCESS = fp.FederatedProcess(algorithm=fp.Ditto(local=fp.SGD(learning_rate=0.5)))
BINARY = ("precision", "recall", "f1", "auc")


def arrays(classes, seed=0):
    """Labels of rare classes; the clients 0 and 2 have the first class alone."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    y = np.where(
        rng.random(len(client)) < 0.6, 0, rng.integers(classes, size=sum(SIZES))
    )
    y[(client == 0) | (client == 2)] = 0
    x = rng.normal(size=(len(client), 3)) + y[:, None] / classes
    return x.astype(np.float32), y, client


def federation_of(classes=2, order=None, **options):
    x, y, client = arrays(classes)
    if order is not None:
        client = np.asarray(order)[client]
    return fp.Federation.from_arrays(
        x, y, client, num_classes=classes, test_fraction=0.4, **options
    )


def simulate(federation, model=None, **options):
    options = {"num_rounds": 2, "eval_every": 1, "progress": False} | options
    model = model or fp.LogisticRegression()
    return fp.simulate(jax.random.key(0), PROCESS, model, federation, **options)


def measured(federation, model=None, data=("test",), params=None, members=None):
    """Metrics `[data, clients]` of fixed parameters."""
    model = (model or fp.LogisticRegression()).for_federation(federation)
    members = None if members is None else jnp.array(members)

    @jax.jit
    def run(federation, params):
        state = PROCESS.init(jax.random.key(1), model, federation)
        state = dataclasses.replace(state, server=params or drawn(state.server))
        given = PROCESS, state, model, federation
        return evaluation.evaluate(*given, data=data, members=members)[0]

    metrics = jax.tree.map(np.asarray, run(federation, params))
    return {name: value[0] for name, value in metrics.items()}  # of the global model


def drawn(params):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    draws = [jax.random.normal(k, v.shape) for k, v in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, draws)


def outputs_of(federation, model):
    """Outputs and targets of every client's own test examples."""
    model = model.for_federation(federation)
    state = PROCESS.init(jax.random.key(1), model, federation)
    params, test = drawn(state.server), federation.test

    @jax.jit
    @jax.vmap
    def of_client(rows):
        positions = jnp.arange(test.index.shape[1])
        shown = test.pool().with_rows(rows)
        batch = shown.gather(positions, jnp.ones(len(positions)))
        return model.apply(params, batch.x), batch.y

    outputs, targets = map(np.asarray, of_client(test.rows()))
    counts = np.asarray(test.num_examples)
    return [(outputs[k, :n], targets[k, :n]) for k, n in enumerate(counts)]


def wanted_of(outputs, labels):
    """All metrics of a classifier in NumPy."""
    classes = outputs.shape[1]
    matrix = oracles.confusion(labels, outputs.argmax(axis=1), classes)
    found = oracles.rates(matrix)
    if classes == 2:
        found["auc"] = oracles.pairs(outputs[:, 1] - outputs[:, 0], labels == 1)
    return found


def pooled(found, clients):
    parts = [found[client] for client in clients]
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@pytest.mark.parametrize(
    ("batch", "together", "classes"),
    [(7, 3, 2), wide(128, 16, 5), wide(7, 3, 5), wide(128, 16, 2)],
)
def test_every_value_is_that_of_a_loop(monkeypatch, classes, batch, together):
    monkeypatch.setattr(evaluation, "BATCH", batch)
    monkeypatch.setattr(auto_execution, "evaluated_at_once", lambda *_: together)
    federation = federation_of(classes, num_others=2)
    found = measured(federation, data=("test", "others", "everybody"))
    outputs = outputs_of(federation, fp.LogisticRegression())
    everyone = range(len(SIZES))
    for client in everyone:
        others = [client, *np.asarray(federation.others[client]).tolist()]
        for d, who in enumerate(([client], others, everyone)):
            for name, value in wanted_of(*pooled(outputs, who)).items():
                np.testing.assert_allclose(
                    found[name][d, client], value, rtol=1e-6, err_msg=f"{name} {who}"
                )
    assert found.keys() >= set(BINARY) if classes == 2 else not found.keys() & {"auc"}


@pytest.mark.wide
def test_32_bit_values_are_those_of_64_bits():
    rng = np.random.default_rng(0)
    head = {"kernel": rng.normal(size=(2, 3)), "bias": np.zeros(2)}
    wide = measured(federation_of(), params={"head": head})
    with jax.enable_x64(False):
        params = jax.tree.map(jnp.asarray, {"head": head})
        found = measured(federation_of(), params=params)
    for name, values in found.items():
        assert values.dtype == np.float32
        # No two scores lie within rounding, so that counts and ranks are the same.
        np.testing.assert_allclose(values, wide[name], rtol=1e-5, err_msg=name)


@pytest.mark.wide
def test_clients_of_one_class_leave_the_mean_to_the_others(tmp_path):
    result = simulate(federation_of())
    (group,) = result.groups
    d = group.data.index("test")
    values = group.metrics["auc"][0, -1, group.models.index("personal"), d]
    np.testing.assert_array_equal(np.isnan(values), [True, False, True, False])
    table = result.table()
    table = table[(table["when"] == "last") & (table["model"] == "personal")]
    table = table[(table["data"] == "own test") & (table["metric"] == "auc")]
    found = table.set_index("stat")["value"]
    assert found["mean"] == pytest.approx(np.nanmean(values))
    known = ~np.isnan(values)
    weights = group.num_test[0][known]
    weighted = np.average(values[known], weights=weights)
    assert found["weighted mean"] == pytest.approx(weighted) != found["mean"]
    clients = result.clients()
    assert set(clients[clients["metric"] == "auc"]["client"]) == {1, 3}
    result.save(tmp_path / "saved")
    assert fp.Result.load(tmp_path / "saved") == result


def test_files_without_numbers_of_examples_have_no_weighted_mean():
    result = simulate(federation_of())
    record = dataclasses.replace(result.groups[0], num_test=None)
    table = dataclasses.replace(result, groups=(record,)).table()
    stats = set(table[table["data"] == "own test"]["stat"])
    assert "mean" in stats and "weighted mean" not in stats


def test_regressions_have_errors_and_explained_variance():
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    x = rng.normal(size=(len(client), 3)).astype(np.float32)
    y = 2 + x.sum(axis=1) + rng.normal(size=len(client))
    y[client == 1] = 2.0  # no variance to explain
    federation = fp.Federation.from_arrays(x, y, client, test_fraction=0.4)
    model = fp.models.LinearRegression(intercept=True)
    found = measured(federation, model)
    assert found.keys() == {"loss", "rmse", "mae", "r2"}
    for k, (outputs, targets) in enumerate(outputs_of(federation, model)):
        errors = outputs - targets
        variance = np.var(targets)
        wanted = {
            "rmse": np.sqrt(np.mean(errors**2)),
            "mae": np.abs(errors).mean(),
            "r2": 1 - np.mean(errors**2) / variance if k != 1 else np.nan,
        }
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][0, k], value, rtol=1e-6)
    result = simulate(federation, model)
    assert result.headline == "loss" and result.by_metric("r2").headline == "r2"


@dataclasses.dataclass(frozen=True)
class Own(fp.LogisticRegression):
    """Reports the share of hits among examples whose loss is below 1."""

    def metric_sums(self, outputs, batch):
        losses = self.metrics(outputs, batch)["loss"]
        easy = (batch.weight > 0) & (losses < 1)
        hits = easy & (jnp.argmax(outputs, axis=1) == batch.y)
        return jnp.stack([hits.sum(), easy.sum()])

    def finish_metrics(self, sums, count):
        return {"easy_hits": sums[0] / sums[1], "easy_share": sums[1] / count}


@pytest.mark.wide
def test_a_model_may_have_sums_of_its_own():
    federation = federation_of()
    found = measured(federation, Own())
    for k, (logits, labels) in enumerate(outputs_of(federation, Own())):
        losses = (
            np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
        )
        easy = losses < 1
        hits = (logits.argmax(axis=1) == labels)[easy].mean()
        np.testing.assert_allclose(found["easy_hits"][0, k], hits, rtol=1e-6)
        np.testing.assert_allclose(found["easy_share"][0, k], easy.mean(), rtol=1e-6)
    assert "macro_f1" not in found
    result = simulate(federation, Own(), metric="easy_hits")
    assert result.headline == "easy_hits"


@pytest.mark.parametrize("kind", ["roles", *map(wide, ("adapters", "functions"))])
def test_wrappers_pass_metrics_through(kind):
    federation = federation_of()

    def apply(params, x):
        return x.reshape(len(x), -1) @ params["w"]

    model = {
        "roles": fp.ParameterRoles(fp.MLP(widths=(4,)), personal="^head/"),
        "adapters": fp.lora(fp.MLP(widths=(4,)), targets="^hidden_0/", rank=1),
        "functions": fp.from_functions(
            lambda key, x: {"w": jnp.zeros((x[0].size, 2))}, apply
        ),
    }[kind]
    assert measured(federation, model).keys() >= {"macro_f1", *BINARY}


@pytest.mark.wide
def test_a_wrapped_model_without_hooks_has_means_alone():
    quadratic = fp.ParameterRoles(Plain())
    result = simulate(federation_of(), quadratic)
    assert result.groups[0].metrics.keys() == {"loss", "accuracy"}


class Plain(fp.core.Model):
    """A model of before, without sums or rows."""

    num_classes = 2

    def for_federation(self, federation):
        return self

    def init(self, key):
        return {"head": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}

    def apply(self, params, x, *, key=None, constants=None):
        return x @ params["head"] + params["bias"][None]

    def loss(self, outputs, batch):
        return objectives.Classification().loss(outputs, batch)

    def metrics(self, outputs, batch):
        return objectives.Classification().metrics(outputs, batch)


class Scalar(Plain):
    """Averages over its batches itself."""

    def metrics(self, outputs, batch):
        return {n: v.mean() for n, v in super().metrics(outputs, batch).items()}


class Wide(Plain):
    """Finishes sums to more than a number."""

    def metric_sums(self, outputs, batch):
        return batch.weight.sum()

    def finish_metrics(self, sums, count):
        return {"share": jnp.stack([sums, count])}


class Twice(Wide):
    """Has two metrics of one name."""

    def finish_metrics(self, sums, count):
        return {"loss": sums / count}


class Short(Plain):
    """Keeps one row for a batch."""

    def metric_rows(self, outputs, batch):
        return outputs.sum(axis=0)

    def finish_rows(self, rows, weight):
        return {"sum": rows.sum()}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Scalar(), r"metrics, 'loss', of Scalar .* shape \[B\], a value per example"),
        (Wide(), r"finish_metrics of Wide .* 'share' has the shape \[2\]"),
        (Twice(), "finish_metrics of Twice .* 'loss' is measured already"),
        (Short(), r"metric_rows of Short .* \[B, ...\], a value per .* got \[2\]"),
    ],
)
def test_hooks_that_return_something_else_get_one_sentence(model, message):
    with pytest.raises(checks.InputError, match=message):
        simulate(federation_of(), model)


def test_the_metric_chooses_rounds_hybrids_and_settings():
    x, y, client = arrays(2)
    federation = fp.Federation.from_arrays(
        x, y, client, num_classes=2, validation_fraction=0.3
    )
    plain = simulate(federation, num_rounds=6)
    chosen = simulate(federation, num_rounds=6, metric="recall")
    assert plain.headline == "accuracy" and chosen.headline == "recall"
    assert chosen.groups[0].config["metric"] == "recall"
    assert "metric" not in plain.groups[0].config
    again = plain.by_metric("recall")
    for method in ("table", "summary"):
        ours, theirs = getattr(again, method)(), getattr(chosen, method)()
        assert ours.equals(theirs), method
    assert "recall" in again.summary() and "accuracy" not in again.summary()
    curve = chosen.curves().query("model == 'personal' and metric == 'recall'")
    curve = curve[curve["data"] == "own validation"].set_index("round")["value"]
    table = chosen.table().query("model == 'personal' and metric == 'recall'")
    table = table[(table["stat"] == "mean") & (table["when"] == "best (validation)")]
    best = table[table["data"] == "own validation"]["value"].item()
    assert best == pytest.approx(curve.max())
    assert (chosen.to_target(0.0)["metric"] == "recall").all()


@pytest.mark.parametrize("ask", ["simulate", "by_metric", "stop_when"])
def test_metrics_that_are_not_measured_get_one_sentence(ask):
    with pytest.raises(checks.InputError, match="measured, accuracy, .*, got 'f2'"):
        if ask == "by_metric":
            simulate(federation_of()).by_metric("f2")
        elif ask == "simulate":
            simulate(federation_of(), metric="f2")
        else:
            rule = fp.StopWhen(patience=1, data="test", metric="f2")
            simulate(federation_of(), stop_when=rule)


def test_early_stopping_watches_the_metric():
    rule = fp.StopWhen(patience=1, data="test", min_delta=2.0)
    result = simulate(federation_of(), stop_when=rule, metric="macro_f1", num_rounds=4)
    assert result.status == ("stopped at round 1",)
    options = fp.engine.Options(num_rounds=2, stop_when=rule, metric="macro_f1")
    assert options.stop_when.metric == "macro_f1"
    assert (
        fp.engine.Options(num_rounds=2, stop_when=rule).stop_when.metric == "accuracy"
    )
