"""Values of every client's own, and derivatives in them by going back."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks, loops, struct
from fedjax_pfl.engine import grids, simulation
from fedjax_pfl.engine.derivatives import reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options
from tests import problems
from tests.engine import specs
from tests.lanes import few

KEY = jax.random.key(0, impl="threefry2x32")
SGD = fp.SGD(learning_rate=0.2, epochs=2, batch_size=4)
SPEC = specs.validated(5, examples=12)
MODEL = fp.MLP(widths=(4,))
METHODS = {
    "ditto": (fp.Ditto(lam=0.5, local=SGD), "lam"),
    "flame": (fp.Flame(lam=0.5, rho=0.1, local=SGD), "lam"),
    "apfl": (fp.APFL(alpha=0.4, local=SGD), "alpha"),
    "pfedme": (fp.PFedMe(lam=3.0, num_steps=3, batch_size=6), "lam"),
    "fedplus": (fp.FedPlus(alpha=0.3, local=SGD), "alpha"),
}


def process(algorithm, name, values, **parts):
    own = {f"algorithm.{name}": np.asarray(values)}
    return fp.FederatedProcess(algorithm=algorithm, per_client=own, **parts)


def losses(trained, rounds=4):
    options = {"evaluate_on": "validation", "progress": False}
    result = fp.grid(KEY, trained, MODEL, SPEC, {}, rounds, **options)
    return result.groups[0].metrics["loss"][0, -1]


@pytest.mark.wide
@pytest.mark.parametrize("method", few(("flame",), METHODS))
def test_equal_values_are_one_value(method):
    algorithm, name = METHODS[method]
    value = struct.get_field(algorithm, name)
    common = losses(fp.FederatedProcess(algorithm=algorithm))
    own = losses(process(algorithm, name, np.full(5, value)))
    np.testing.assert_array_equal(own, common)


def test_a_value_acts_on_its_client_alone():
    """A personal model of Ditto depends on its own lam, and the global one on none."""
    before = losses(process(*METHODS["ditto"], [0.1, 0.2, 0.3, 0.4, 0.5]))
    after = losses(process(*METHODS["ditto"], [0.1, 0.2, 3.0, 0.4, 0.5]))
    changed = (before != after).any(axis=1)  # [models, clients]: global, personal
    np.testing.assert_array_equal(
        changed, [[False] * 5, [False, False, True, False, False]]
    )


@pytest.mark.wide  # by default going back has central differences for layers
@pytest.mark.parametrize("method", ["flame", "apfl"])
def test_back_and_forward_agree(method):
    """The derivative in one value for all is the sum of those in the clients' own."""
    algorithm, name = METHODS[method]
    value = struct.get_field(algorithm, name)
    field, options = f"algorithm.{name}", {"progress": False, "axes": {"seed": [0, 1]}}
    with jax.enable_x64(True):
        forward = fp.hypergradients(
            KEY,
            fp.FederatedProcess(algorithm=algorithm),
            *(MODEL, SPEC, field, 5),
            **options,
        )
        back = fp.hypergradients(
            KEY,
            process(algorithm, name, np.full(5, value)),
            *(MODEL, SPEC, f"per_client.{field}", 5),
            **options,
        )
    assert back.result is None and back.objective == forward.objective
    np.testing.assert_allclose(back.value, forward.value, rtol=1e-12)
    per_client = back.derivatives[f"per_client.{field}"]
    assert per_client.shape == (2, 5)
    np.testing.assert_allclose(
        per_client.sum(axis=1), forward.derivatives[field], rtol=1e-7, atol=1e-12
    )


@pytest.mark.wide
@pytest.mark.skipif(jax.__version_info__ < (0, 10, 1), reason="a fault of JAX")
def test_derivatives_are_central_differences():
    """With cohorts, stragglers and a median, each client's value by itself."""
    algorithm, name = METHODS["flame"]
    parts = {
        "participation": fp.UniformCohort(size=4),
        "work": fp.Stragglers(fraction=0.5, max_epochs=2),
        "aggregator": fp.GeometricMedian(rho=0.1),
    }
    values = np.linspace(0.3, 0.9, 5)
    field = "per_client.algorithm.lam"

    trained = process(algorithm, name, values, **parts)
    what = trainer.Differentiation((field,), Objective.parse("validation:loss"))
    with jax.enable_x64(True):
        found = grids.groups_of(KEY, trained, MODEL, SPEC, {})
        options = Options(num_rounds=6, execution="chunk=2")
        (planned,) = simulation.check_groups(found, options, trainer=what)
        back = reverse.Backward(planned, what)
        found = back()[1][field][0]
        for client in range(5):
            step = 1e-5 * np.eye(5)[client]
            ends = [back({field: (values + s * step)[None]})[0] for s in (1, -1)]
            difference = (ends[0][0] - ends[1][0]) / 2e-5
            np.testing.assert_allclose(found[client], difference, rtol=1e-4, atol=1e-9)


@pytest.mark.wide
def test_learning_lowers_the_objective_and_repeats(tmp_path):
    """And a call that is finished reads what it has written, bit for bit."""
    given = (KEY, fp.FederatedProcess(algorithm=METHODS["ditto"][0]), MODEL, SPEC)
    options = {"seeds": [0, 1], "num_trainings": 4, "progress": False}
    options["per"] = "client"
    learned = fp.learn(*given, "algorithm.lam", 5, **options)
    options["checkpoints"] = fp.Checkpoints(tmp_path, min_seconds=0)
    again = fp.learn(*given, "algorithm.lam", 5, **options)
    read = fp.learn(*given, "algorithm.lam", 5, **options)
    field = "algorithm.lam"
    np.testing.assert_array_equal(read.best[field], again.best[field])
    np.testing.assert_array_equal(learned.best[field], again.best[field])
    pd.testing.assert_frame_equal(read.path, again.path, check_exact=True)
    assert learned.best[field].shape == (2, 5)
    assert learned.path["seed"].tolist() == [0] * 4 + [1] * 4
    steps = learned.path["objective"].to_numpy().reshape(2, 4)
    assert (steps.min(axis=1) < steps[:, 0]).all()
    first = int(steps.min(axis=1).argmin())
    own = learned.process.per_client[field]
    np.testing.assert_array_equal(own, learned.best[field][first])
    group = learned.result.groups[0]
    model, column = group.models.index("personal"), group.data.index("validation")
    reached = group.metrics["loss"][:, -1, model, column].mean(axis=-1)
    np.testing.assert_allclose(reached, steps.min(axis=1), rtol=1e-5)
    table = learned.values
    assert len(table) == 10
    assert {"train_examples", "label_skew", "algorithm.lam"} <= {*table}
    assert str(learned).startswith("algorithm.lam of 5 clients")


def test_a_loop_that_can_be_reversed_is_the_same_loop():
    def run(bound, start):
        return loops.bounded(bound, 7, lambda i, s: s * 1.5 + i, start)

    plain = jax.jit(run)(jnp.int32(4), 2.0)
    with loops.reversible():
        masked = jax.jit(lambda *given: run(*given))(jnp.int32(4), 2.0)
        slope = jax.grad(lambda start: run(jnp.int32(4), start))(2.0)
    assert plain == masked
    np.testing.assert_allclose(slope, 1.5**4)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"lam": np.ones(5)}, "got 'lam'"),
        ({"algorithm.local.epochs": np.ones(5)}, "got 'algorithm.local.epochs'"),
        ({"algorithm.lam": np.ones(4)}, r"Expected 5 values of algorithm.lam.*\(4,\)"),
        (np.ones(5), "Expected per_client to be values by dotted name"),
    ],
)
def test_wrong_values_are_refused(own, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        losses(fp.FederatedProcess(algorithm=fp.Ditto(), per_client=own))


@pytest.mark.parametrize(
    ("algorithm", "name", "sentence"),
    [
        (fp.Flame(), "lam", "Expected rho"),
        (fp.FedPG(), "gamma", "FedPG, whose round is not the usual one"),
    ],
)
def test_methods_say_what_clients_cannot_have(algorithm, name, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        losses(process(algorithm, name, np.ones(5)))


def test_solvers_that_end_by_a_tolerance_are_refused():
    problem = problems.quadratics([[1.0, 0.0], [0.0, 2.0]])
    solver = fp.local.ToTolerance(learning_rate=0.3)
    trained = process(fp.Ditto(lam=0.5, local=solver), "lam", np.ones(2))
    with pytest.raises(checks.InputError, match="ToTolerance, which ends by a toler"):
        fp.hypergradients(
            *(KEY, trained, problem.model, problem.federation),
            "per_client.algorithm.lam",
            num_rounds=2,
        )
    bare = dataclasses.replace(trained, per_client=None)
    with pytest.raises(checks.InputError, match="Expected values of 'algorithm.lam'"):
        fp.hypergradients(
            *(KEY, bare, problem.model, problem.federation),
            "per_client.algorithm.lam",
            num_rounds=2,
        )
