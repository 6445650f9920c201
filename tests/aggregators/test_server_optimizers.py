"""Server optimizers: formulas in NumPy, memory in the state, who may have one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets.experiment import apply_settings
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import simulation
from fedjax_pfl.testing import toy
from tests import problems
from tests.lanes import wide

KEY = jax.random.key(3)
SGD = fp.SGD(learning_rate=0.1, epochs=1, batch_size=4)
HALF = problems.full_gradient_steps(1, 0.5)  # halfway to a client's minimizer
MOMENTUM = fp.aggregators.ServerMomentum(learning_rate=0.7, momentum=0.6)
ADAM = fp.aggregators.ServerAdam(learning_rate=0.2, b1=0.8, b2=0.9, eps=0.05)
MODELS = "fedavg fedprox ditto pfedme per_fedavg apfl fedper fedrep fedrod".split()
MODELS += "fedala fednova fedsam moon fedbabu knn_per".split()


def _process(optimizer, **fields):
    given = {"algorithm": fp.FedAvg(local=HALF), **fields}
    return fp.FederatedProcess(server_optimizer=optimizer, **given)


def _momentum(w, g, m=0.0):
    """A step of FedAvgM by its definition; the model and the memory."""
    m = 0.6 * m + g
    return w - 0.7 * m, (m,)


def _adam(w, g, m=0.0, v=0.05**2):
    """A step of FedAdam, Algorithm 2 of its paper with v_{-1} = tau^2."""
    m = 0.8 * m + 0.2 * g
    v = 0.9 * v + 0.1 * g * g
    return w - 0.2 * m / (np.sqrt(v) + 0.05), (m, v)


@pytest.mark.parametrize(
    ("optimizer", "oracle"), [(MOMENTUM, _momentum), (ADAM, _adam)], ids=["m", "adam"]
)
def test_formulas_against_numpy(optimizer, oracle):
    problem = problems.random_quadratics()
    states, _, _ = problems.run(_process(optimizer), problem, 6)
    # Everybody goes halfway to its minimizer, so the mean goes halfway to theirs.
    center = np.average(problem.estimates, axis=0, weights=problem.alpha("examples"))
    w, memory = states.server["theta"][0], ()
    for found in states.server["theta"][1:]:
        w, memory = oracle(w, (w - center) / 2, *memory)
        np.testing.assert_allclose(found, w, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, None])
@pytest.mark.parametrize("name", ["fedavg", wide("ditto")])
def test_without_momentum_it_is_the_plain_method(name, momentum):
    algorithm = fp.algorithms.ALGORITHMS[name](local=HALF)
    problem = problems.random_quadratics()
    plain, _, _ = problems.run(_process(None, algorithm=algorithm), problem, 4)
    other = fp.aggregators.ServerMomentum(learning_rate=1.0, momentum=momentum)
    found, _, _ = problems.run(_process(other, algorithm=algorithm), problem, 4)
    assert "optimizer" not in plain.memory
    same = found.with_memory(optimizer=None)
    for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-14, atol=1e-15)


@struct.pytree_dataclass
class Follower(fp.SingleExchange):
    """Clients keep the server's new model; it or the memory breaks in round `at`."""

    at: object = 99.0
    bad: object = jnp.nan

    @property
    def server_is_model(self):
        return True

    def init(self, key, model, population, data):
        params = model.init(key)
        return params, params, None

    def client_update(self, view, down, client, model):
        pull = jax.tree.map(lambda w: w / 2 + view.data.client_id + 1.0, down.shared)
        return client, fp.Upload(message=pull, weight=jnp.ones(())), {}

    def server_update(self, ctx, server, aggregate, uploads):
        bad = ctx.round == self.at
        return jax.tree.map(lambda a: jnp.where(bad, self.bad, a), aggregate)

    def finish(self, ctx, server, clients):
        return jax.tree.map(lambda c, s: 0 * c + s[None], clients, server)

    def predictors(self, view, server, client, model):
        return {"global": lambda x: model.apply(server, x)}


def test_what_comes_after_the_server_sees_the_step():
    problem = problems.random_quadratics()
    states, _, _ = problems.run(_process(MOMENTUM, algorithm=Follower()), problem, 3)
    kept, server = states.clients["theta"], states.server["theta"]
    np.testing.assert_array_equal(kept, np.tile(server[:, None], (1, 6, 1)))


@pytest.mark.parametrize("mode", ["drop", "freeze", "stop"])
@pytest.mark.parametrize("bad", [np.nan, 1e200])  # 1e200 leaves w finite, v is infinite
def test_the_memory_is_treated_like_the_server(mode, bad):
    problem = problems.random_quadratics()

    def run(at):
        algorithm = Follower(at=jnp.asarray(at), bad=jnp.asarray(bad))
        process = _process(ADAM, algorithm=algorithm, on_nonfinite=mode)
        return problems.run(process, problem, 4)

    (states, infos, _), (clean, _, _) = run(2.0), run(99.0)
    counts = infos.num_nonfinite
    assert counts[:2].tolist() == [0, 0] and counts[2] > 0
    memory = [(s.server, s.memory["optimizer"]) for s in (states, clean)]
    for one, two in zip(*map(jax.tree.leaves, memory), strict=True):
        np.testing.assert_array_equal(one[:3], two[:3])
        if mode != "stop":
            np.testing.assert_array_equal(one[3], one[2])
            assert np.isfinite(one).all() and (one[4] != one[3]).any()
    assert np.isfinite(states.memory["optimizer"].square["theta"][3]).all() == (
        mode != "stop"
    )


def _train(process, simulate=fp.simulate, rounds=4, **options):
    options = {"execution": "vmap", "eval_every": 2, "progress": False, **options}
    federation = toy.make_federation()
    model = fp.LogisticRegression()
    return simulate(KEY, process, model, federation, rounds, **options).groups[0]


COHORT = _process(
    ADAM, algorithm=fp.FedAvg(local=SGD), participation=fp.UniformCohort(size=3)
)


def test_a_resumed_training_is_the_same_to_the_last_bit(tmp_path, monkeypatch):
    def train(*reasons):
        reason = itertools.chain(reasons, itertools.repeat(None)).__next__
        monkeypatch.setattr(simulation, "time_limit", lambda _: reason)
        return _train(COHORT, checkpoints=fp.Checkpoints(tmp_path))

    with pytest.raises(fp.Interrupted, match="enough at round 2"):
        train(None, "enough")
    whole, resumed = _train(COHORT), train()
    np.testing.assert_array_equal(whole.metrics["loss"], resumed.metrics["loss"])


@pytest.mark.parametrize(
    "options",
    [{"simulate": fp.simulate_streamed}]
    + [wide({"execution": mode}) for mode in ("chunk=2", "loop", "shard=3")],
)
def test_executions_agree(options):
    one, other = _train(COHORT), _train(COHORT, **options)
    np.testing.assert_allclose(
        one.metrics["loss"], other.metrics["loss"], rtol=0, atol=1e-12
    )


@pytest.mark.wide
def test_points_of_a_grid_are_single_trainings():
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=5)
    rates = [0.3, 1.0]

    def train(optimizer, axes):
        process = _process(optimizer, algorithm=fp.FedAvg(local=SGD))
        given = KEY, process, fp.models.Quadratic(), spec, axes, 3
        return fp.grid(*given, progress=False, execution="vmap").groups

    (swept,) = train(MOMENTUM, {"server_optimizer.learning_rate": rates})
    assert len(swept.points) == 2
    single = fp.aggregators.ServerMomentum(learning_rate=1.0, momentum=0.6)
    (alone,) = train(single, {})
    np.testing.assert_allclose(
        swept.metrics["loss"][1], alone.metrics["loss"][0], rtol=1e-12
    )
    assert not np.allclose(swept.metrics["loss"][0], swept.metrics["loss"][1])


def test_who_has_a_model_at_the_server():
    kinds = fp.algorithms.ALGORITHMS
    assert {name for name in kinds if kinds[name]().server_is_model} == set(MODELS)
    assert not algorithms.Ditto(unsynced=True).server_is_model


@pytest.mark.parametrize("simulate", [fp.simulate, fp.simulate_streamed])
@pytest.mark.parametrize("name", ["flame", "scaffold", "local"])
def test_other_methods_are_refused(name, simulate):
    kind = fp.algorithms.ALGORITHMS[name]
    process = _process(ADAM, algorithm=kind(local=SGD))
    sentence = f"no server_optimizer with {kind.__name__}, .* got ServerAdam\\.$"
    with pytest.raises(checks.InputError, match=sentence):
        _train(process, simulate)
    problem = problems.random_quadratics()
    with pytest.raises(checks.InputError, match=sentence):
        process.init(jax.random.key(0), problem.model, problem.federation)


def test_settings_of_commands():
    experiment = apply_settings(
        presets.PRESETS["digits"](),
        [
            "algorithm=fedavg",
            "server_optimizer=none,adam",
            "server_optimizer.learning_rate=0.1,0.2",
        ],
    )
    plain, adam = experiment.grids
    assert plain.process.server_optimizer is None and not plain.axes
    assert isinstance(adam.process.server_optimizer, fp.aggregators.ServerAdam)
    assert adam.axes == {"server_optimizer.learning_rate": (0.1, 0.2)}


@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM])
def test_dtypes_stay(optimizer):
    params = {"a": jnp.ones(3, jnp.float32), "none": None}
    arrays = struct.as_arrays(optimizer, jnp.float64)
    new, memory = arrays(arrays.init(params), params, params)
    assert {leaf.dtype for leaf in jax.tree.leaves((new, memory))} == {
        jnp.dtype("float32")
    }
