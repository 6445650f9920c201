"""Values per client and layer, and derivatives in them by going back."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import common
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, simulation
from fedjax_pfl.engine.derivatives import descent, reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options
from tests.engine.derivatives.test_per_client import (
    KEY,
    MODEL,
    SGD,
    SPEC,
    losses,
    process,
)
from tests.lanes import few

LAYERED = {
    "ditto": (fp.Ditto(lam=0.5, local=SGD), ["lam", "local.learning_rate"]),
    "flame": (fp.Flame(lam=0.5, rho=0.1, local=SGD), ["lam"]),
    "fedavg": (fp.FedAvg(local=SGD), ["local.learning_rate"]),
    "fedprox": (fp.FedProx(mu=0.5, local=SGD), ["local.learning_rate"]),
}


@functools.cache
def planned(method, layers):
    """Three rounds of two seeds, with equal values for clients, and maybe layers."""
    algorithm, names = LAYERED[method]
    shape = (5, 4) if layers else (5,)
    values = {
        f"algorithm.{name}": np.full(shape, struct.get_field(algorithm, name))
        for name in names
    }
    process = fp.FederatedProcess(algorithm=algorithm, per_client=values)
    what = trainer.Differentiation(
        tuple(f"per_client.{name}" for name in values),
        Objective.parse("validation:loss"),
    )
    (group,) = grids.groups_of(KEY, process, MODEL, SPEC, {"seed": [0, 1]})
    (found,) = simulation.check_groups([group], Options(num_rounds=3), trainer=what)
    return found, what


@functools.cache
def backward(method, layers=True):
    return reverse.Backward(*planned(method, layers))


def check_differences(slope, ends):
    """That slopes are those of objectives at both ends, 1e-5 away."""
    above, below = ends
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("method", few(("ditto",), LAYERED))
def test_derivatives_in_values_of_layers_are_central_differences(method):
    """Of four arrays of an MLP."""
    layers = backward(method)
    rng = np.random.default_rng(0)
    values = {
        name: value * rng.uniform(0.8, 1.2, value.shape)
        for name, value in layers.values().items()
    }
    slopes = layers(values)[1]
    for name, place in itertools.product(values, ((0, 1, 0), (0, 3, 1), (1, 4, 3))):
        step = np.zeros((2, 5, 4))
        step[place] = 1e-5
        check_differences(
            slopes[name][place],
            [
                layers(values | {name: values[name] + s * step})[0][place[0]]
                for s in (1, -1)
            ],
        )


@pytest.mark.wide
@pytest.mark.parametrize("method", LAYERED)
def test_slopes_of_equal_layers_add_up_to_those_of_clients_and_of_all(method):
    objective, slopes = backward(method)()
    whole, of_clients = backward(method, layers=False)()
    np.testing.assert_allclose(objective, whole, rtol=1e-13)
    for name, slope in slopes.items():
        np.testing.assert_allclose(
            slope.sum(axis=2), of_clients[name], rtol=1e-9, atol=1e-14
        )
    if "per_client.algorithm.lam" not in slopes:
        return  # the server's own learning rate is no client's
    forward = fp.hypergradients(
        *(KEY, fp.FederatedProcess(algorithm=LAYERED[method][0]), MODEL, SPEC),
        *("algorithm.lam", 3),
        axes={"seed": [0, 1]},
        progress=False,
    )
    np.testing.assert_allclose(objective, forward.value, rtol=1e-12)
    np.testing.assert_allclose(
        slopes["per_client.algorithm.lam"].sum(axis=(1, 2)),
        forward.derivatives["algorithm.lam"],
        rtol=1e-7,
    )


def test_layers_have_the_proximal_points_of_their_own():
    """Of 1/2 ||x - a||^2 + sum_l lam_l/2 ||x_l - c_l||^2, in closed form."""
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([[3.0]])}
    center = jax.tree.map(jnp.zeros_like, params)
    lam = jnp.array([0.5, 3.0])

    def objective(x):
        near = sum(
            jax.tree.leaves(
                jax.tree.map(lambda u, v: ((u - v) ** 2).sum() / 2, x, params)
            )
        )
        return near + common.pull(lam, x, center)

    solution = {"a": params["a"] / 1.5, "b": params["b"] / 4.0}
    for leaf in jax.tree.leaves(jax.grad(objective)(solution)):
        np.testing.assert_allclose(leaf, 0, atol=1e-15)


def test_a_row_per_client_and_layer():
    slopes = np.arange(20.0).reshape(1, 5, 4)
    found = fp.engine.Hypergradients(
        fields=("per_client.algorithm.lam",),
        objective="validation:loss:personal",
        points=({"seed": 0},),
        values={"per_client.algorithm.lam": np.full((1, 5, 4), 0.5)},
        value=np.ones(1),
        derivatives={"per_client.algorithm.lam": slopes},
        held_fixed=(),
    )
    table = found.table()
    assert len(table) == 20 and {"client", "layer"} <= {*table}
    row = table[(table.client == 3) & (table.layer == 2)]
    assert row["d per_client.algorithm.lam"].item() == slopes[0, 3, 2]


@pytest.mark.parametrize(
    ("algorithm", "name", "shape", "sentence"),
    [
        (fp.Ditto(local=SGD), "lam", (5, 3), r"per layer of a model with 4 \(.*got 3"),
        (fp.Ditto(local=SGD), "lam", (5, 4, 1), r"a value per layer, got an array of"),
        (fp.APFL(local=SGD), "alpha", (5, 4), r"layers can have .*\(none\), got alpha"),
        (fp.Ditto.official(), "local.learning_rate", (5, 4), r"\(lam\), got local"),
    ],
)
def test_values_that_layers_cannot_have_are_refused(algorithm, name, shape, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        losses(process(algorithm, name, np.full(shape, 0.1)))


@pytest.mark.parametrize("method", few(("ditto",), LAYERED))
def test_what_moves_shared_values_are_central_differences(method):
    """Of the mean over two seeds."""
    layers = backward(method)
    made = descent.Descent(layers, optax.sgd(1.0), 1)
    _, slopes = made.gathered(*layers(made.spread(made.best)))
    name, values = next(iter(made.best.items()))
    for layer, unit in enumerate(1e-5 * np.eye(4)):
        check_differences(
            slopes[name][0, layer],
            [
                layers(made.spread(made.best | {name: values + s * unit}))[0].mean()
                for s in (1, -1)
            ],
        )


def test_layers_learn_values_that_all_clients_and_seeds_share(monkeypatch, tmp_path):
    """The last training is that of the best values, and a finished call is read."""
    counted = backward("ditto").kept  # of the same program, which takes seconds
    monkeypatch.setattr(reverse, "kept", lambda planned, names: counted)
    algorithm, names = LAYERED["ditto"]
    fields = [f"algorithm.{name}" for name in names]
    given = (KEY, fp.FederatedProcess(algorithm=algorithm), MODEL, SPEC)
    options = {"seeds": [0, 1], "num_trainings": 4, "progress": False}
    options["checkpoints"] = fp.Checkpoints(tmp_path, min_seconds=0)
    learned, again = (
        fp.learn(*given, fields, 3, per="layer", **options) for _ in range(2)
    )
    pd.testing.assert_frame_equal(again.path, learned.path, check_exact=True)
    steps = learned.path["objective"]
    assert len(steps) == 4 and steps.min() < steps[0]
    for name in fields:
        values = learned.best[name]
        np.testing.assert_array_equal(again.best[name], values)
        assert len({*values}) == 4
        of_clients = learned.process.per_client[name]
        np.testing.assert_array_equal(of_clients, np.tile(values, (5, 1)))
    (group,) = learned.result.groups
    model, column = group.models.index("personal"), group.data.index("validation")
    reached = group.metrics["loss"][:, -1, model, column].mean()
    np.testing.assert_allclose(reached, steps.min(), rtol=1e-12)
    table = learned.values
    assert list(table["parameters"]) == [3, 12, 4, 12]
    assert list(table["layer"])[:2] == ["head/bias", "head/kernel"]
    assert str(learned).endswith("at best.") and "kernel" in str(learned)


@pytest.mark.parametrize(
    ("algorithm", "field", "sentence"),
    [
        (fp.APFL(local=SGD), "alpha", r"layers can have .*\(none\), got alpha"),
        (fp.Ditto.official(), "local.learning_rate", r"\(lam\), got local.learning"),
        (fp.Ditto(local=SGD), "local.epochs", "to be a traced number"),
        (fp.Ditto(lam=0.0, local=SGD), "lam", "begin strictly between its limits"),
        (fp.Flame(local=SGD), "lam", "Expected rho"),
    ],
)
def test_fields_that_layers_cannot_learn_are_refused(algorithm, field, sentence):
    trained = fp.FederatedProcess(algorithm=algorithm)
    with pytest.raises(checks.InputError, match=sentence):
        fp.learn(KEY, trained, MODEL, SPEC, f"algorithm.{field}", 5, per="layer")
