"""Values per client and layer, and derivatives in them by going back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import common
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, simulation
from fedjax_pfl.engine.derivatives import reverse, trainer
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

LAYERED = {
    "ditto": (fp.Ditto(lam=0.5, local=SGD), "lam"),
    "flame": (fp.Flame(lam=0.5, rho=0.1, local=SGD), "lam"),
    "fedprox": (fp.FedProx(mu=0.5, local=SGD), "local.learning_rate"),
}


@pytest.mark.parametrize(
    "method",
    [
        name if name == "ditto" else pytest.param(name, marks=pytest.mark.wide)
        for name in LAYERED
    ],
)
def test_derivatives_in_values_of_layers_are_central_differences(method):
    """Of four arrays of an MLP; those of equal values add up to a client's own."""
    algorithm, name = LAYERED[method]
    field = f"per_client.algorithm.{name}"
    what = trainer.Differentiation((field,), Objective.parse("validation:loss"))

    def backward(values):
        (group,) = grids.groups_of(
            KEY, process(algorithm, name, values), MODEL, SPEC, {}
        )
        (planned,) = simulation.check_groups(
            [group], Options(num_rounds=3), trainer=what
        )
        return reverse.Backward(planned, what)

    value = struct.get_field(algorithm, name)
    layers = backward(np.full((5, 4), value))
    objective, slopes = layers()
    own, of_clients = backward(np.full(5, value))()
    np.testing.assert_allclose(objective, own, rtol=1e-13)
    np.testing.assert_allclose(
        slopes[field].sum(axis=2), of_clients[field], rtol=1e-9, atol=1e-14
    )
    values = np.random.default_rng(0).uniform(0.8, 1.2, (1, 5, 4)) * value
    found = layers({field: values})[1][field]
    for place in ((0, 1, 0), (0, 3, 1), (0, 4, 3)):
        step = np.zeros_like(values)
        step[place] = 1e-5
        ends = [layers({field: values + s * step})[0][0] for s in (1, -1)]
        np.testing.assert_allclose(
            found[place], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-9
        )


def test_layers_have_the_proximal_points_of_their_own():
    """Of 1/2 ||x - a||^2 + sum_l lam_l/2 ||x_l - c_l||^2, in closed form."""
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([[3.0]])}
    centre = jax.tree.map(jnp.zeros_like, params)
    lam = jnp.array([0.5, 3.0])

    def objective(x):
        near = sum(
            jax.tree.leaves(
                jax.tree.map(lambda u, v: ((u - v) ** 2).sum() / 2, x, params)
            )
        )
        return near + common.pull(lam, x, centre)

    solution = {"a": params["a"] / 1.5, "b": params["b"] / 4.0}
    for leaf in jax.tree.leaves(jax.grad(objective)(solution)):
        np.testing.assert_allclose(leaf, 0, atol=1e-15)


def test_a_row_per_client_and_layer():
    found = fp.hypergradients(
        KEY,
        process(*LAYERED["ditto"], np.full((5, 4), 0.5)),
        *(MODEL, SPEC, "per_client.algorithm.lam", 1),
        progress=False,
    )
    table = found.table()
    assert len(table) == 20 and {"client", "layer"} <= {*table}
    row = table[(table.client == 3) & (table.layer == 2)]
    slopes = found.derivatives["per_client.algorithm.lam"]
    assert row["d per_client.algorithm.lam"].item() == slopes[0, 3, 2]


@pytest.mark.parametrize(
    ("algorithm", "name", "shape", "sentence"),
    [
        (
            fp.Ditto(local=SGD),
            "lam",
            (5, 3),
            r"a value per layer of a model with 4 \(.*got 3",
        ),
        (fp.Ditto(local=SGD), "lam", (5, 4, 1), r"a value per layer, got an array of"),
        (fp.APFL(local=SGD), "alpha", (5, 4), r"layers can have .*\(none\), got alpha"),
        (fp.Ditto.official(), "local.learning_rate", (5, 4), r"\(lam\), got local"),
    ],
)
def test_values_that_layers_cannot_have_are_refused(algorithm, name, shape, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        losses(process(algorithm, name, np.full(shape, 0.1)))
