"""Prox, envelope and gradient of every phi against brute force, limits and blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fedjax_pfl.algorithms import phi
from fedjax_pfl.core import checks
from tests.lanes import wide

SIMPLE = {
    "sq": phi.Squared(),
    "diagonal": phi.Diagonal(q=0.7),
    "l2": phi.L2(),
    "l1": phi.L1(),
    "indicator": phi.Indicator(),
    "zero": phi.Zero(),
}
VALUES = {  # the definitions, in NumPy
    "sq": lambda x: 0.5 * x @ x,
    "diagonal": lambda x: 0.35 * x @ x,
    "l2": lambda x: np.sqrt(x @ x),
    "l1": lambda x: np.abs(x).sum(),
    "indicator": lambda x: 0.0 if (x == 0).all() else np.inf,
    "zero": lambda x: 0.0,
}


def cases():
    """Points and radii, on both sides of every kink."""
    rng = np.random.default_rng(5)
    for number in range(40):
        yield rng.normal(size=4) * 10.0 ** rng.uniform(-1, 1), 10 ** rng.uniform(-1, 1)
        del number


def tree(x):
    """A vector of length 4 as a tree of two leaves."""
    return {"a": jnp.asarray(x[:1]).reshape(()), "b": jnp.asarray(x[1:])}


def flat(x):
    return np.concatenate([np.ravel(x["a"]), np.ravel(x["b"])])


def compiled(name, method):
    """A method of a phi as one program."""
    return jax.jit(getattr(SIMPLE[name], method))


@pytest.mark.parametrize("name", SIMPLE)
def test_prox_is_the_minimizer_and_envelope_the_minimum(name):
    """No perturbation lowers the objective that the prox is said to minimize."""
    rng = np.random.default_rng(1)
    value = VALUES[name]
    prox, minimum = (compiled(name, m) for m in ("prox", "envelope"))
    for x, rho in cases():
        point = flat(prox(tree(x), rho))

        def objective(v, x=x, rho=rho):
            return value(v) + (x - v) @ (x - v) / (2 * rho)

        best = objective(point)
        envelope = float(minimum(tree(x), rho))
        np.testing.assert_allclose(envelope, best, rtol=1e-12, atol=1e-14)
        for scale in (1e-6, 1e-3, 1e-1, 1.0):
            for _ in range(10):
                other = point + scale * rng.normal(size=4)
                assert objective(other) >= best - 1e-12 * (1 + best)


@pytest.mark.parametrize("name", SIMPLE)
def test_gradient_is_that_of_the_envelope_and_of_the_identity(name):
    gradient, prox, value = (
        compiled(name, m) for m in ("gradient", "prox", "envelope")
    )
    for x, rho in cases():
        found = flat(gradient(tree(x), rho))
        point = flat(prox(tree(x), rho))
        np.testing.assert_allclose(found, (x - point) / rho, rtol=1e-9, atol=1e-12)

        def envelope(v, rho=rho):
            return float(value(tree(v), rho))

        steps = scipy.optimize.approx_fprime(x, envelope, 1e-7)
        np.testing.assert_allclose(found, steps, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in SIMPLE if n != "indicator"])
def test_value_is_the_definition(name):
    for x, _ in cases():
        found = float(SIMPLE[name].value(tree(x)))
        np.testing.assert_allclose(found, VALUES[name](x), rtol=1e-12)
    assert float(phi.Indicator().value(tree(np.zeros(4)))) == 0.0


def test_soft_threshold_acts_on_both_signs():
    """The printed rule, `max(0, x - rho sign(x))`, gives (0, 0, 0, 1)."""
    x = jnp.array([-3.0, -1.0, 0.5, 2.0])
    assert phi.L1().prox(x, 1.0).tolist() == [-2.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [jnp.float32, wide(jnp.float64)])
@pytest.mark.parametrize("name", SIMPLE)
def test_derivatives_at_the_center_are_finite(name, dtype):
    """All clients are there in the first round, and a client may be exactly there."""
    zero = {"a": jnp.zeros((), dtype), "b": jnp.zeros(3, dtype)}

    def through(x):
        prox = SIMPLE[name].prox(x, 0.5)
        return SIMPLE[name].envelope(x, 0.5) + prox["b"].sum()

    for leaf in jax.tree.leaves(jax.jit(jax.grad(through))(zero)):
        assert leaf.dtype == dtype and jnp.isfinite(leaf).all()


@pytest.mark.parametrize("name", ["l1", "l2"])
def test_a_radius_beyond_the_distance_is_the_indicator(name):
    for x, _ in cases():
        length = np.abs(x).max() if name == "l1" else np.sqrt(x @ x)
        assert (flat(SIMPLE[name].prox(tree(x), 1.0001 * length)) == 0).all()
        assert (flat(SIMPLE[name].prox(tree(x), 0.999 * length)) != 0).any()


def test_lengths_and_clipped_say_what_the_radius_is_compared_with():
    x = tree(np.array([3.0, -4.0, 0.0, 0.0]))
    assert float(phi.L2().lengths(x)) == 5.0
    assert float(phi.L1().lengths(x)) == 2.5
    assert [float(phi.L2().clipped(x, r)) for r in (4.9, 5.1)] == [1.0, 0.0]
    assert [float(phi.L1().clipped(x, r)) for r in (2.9, 3.5, 4.5)] == [0.5, 0.25, 0.0]
    for name in ("sq", "diagonal", "indicator", "zero"):
        assert np.isnan(float(SIMPLE[name].lengths(x)))
        assert float(SIMPLE[name].clipped(x, 0.1)) == 0.0


LAYERS = phi.LayerWise(
    patterns=("^head/", "bias", ""), phis=("l2", "zero", "l1"), scales=(2.0, 1.0, 0.5)
)


def layers(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "body": {"kernel": jnp.asarray(rng.normal(size=(3, 2))), "bias": jnp.ones(3)},
        "head": {"kernel": jnp.asarray(rng.normal(size=(2, 3))), "bias": jnp.ones(2)},
    }


def test_blocks_are_separate_problems_with_scaled_radii():
    """A block's norm runs over all its leaves; the first matching pattern counts."""
    x, rho = layers(), 0.6
    found = LAYERS.prox(x, rho)
    head = phi.L2().prox(x["head"], 2.0 * rho)
    jax.tree.map(np.testing.assert_array_equal, found["head"], head)
    np.testing.assert_array_equal(found["body"]["bias"], x["body"]["bias"])
    body = phi.L1().prox(x["body"]["kernel"], 0.5 * rho)
    np.testing.assert_array_equal(found["body"]["kernel"], body)
    parts = 2 * phi.L2().envelope(x["head"], 1.2)
    parts += 0.5 * phi.L1().envelope(x["body"]["kernel"], 0.3)
    np.testing.assert_allclose(float(LAYERS.envelope(x, rho)), float(parts), rtol=1e-12)
    value = 2 * phi.L2().value(x["head"]) + 0.5 * phi.L1().value(x["body"]["kernel"])
    np.testing.assert_allclose(float(LAYERS.value(x)), float(value), rtol=1e-12)


def test_the_gradient_of_blocks_is_that_of_their_envelope():
    x = layers(3)
    found = LAYERS.gradient(x, 0.6)
    expected = jax.grad(lambda v: LAYERS.envelope(v, 0.6))(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_blocks_may_have_radii_of_their_own():
    x = layers(4)
    found = LAYERS.prox(x, jnp.array([0.1, 9.0, 0.2]))
    head = phi.L2().prox(x["head"], 0.2)
    jax.tree.map(np.testing.assert_array_equal, found["head"], head)
    quantiles = LAYERS.lengths(x)
    assert np.isnan(quantiles).tolist() == [False, True, False]
    radii = LAYERS.radii(7.0, quantiles) * LAYERS._scales
    np.testing.assert_allclose(radii, [quantiles[0], 7.0, quantiles[2]])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"patterns": ("(", ""), "phis": ("l2", "l1")}, "regular expressions"),
        ({"patterns": ("a",), "phis": ("l2", "l1")}, "as many phis as patterns"),
        ({"patterns": ("a",), "phis": ("l3",)}, "l3"),
        ({"patterns": (), "phis": ()}, "not empty"),
        ({"patterns": ("a",), "phis": ("l2",), "scales": (0.0,)}, "scale"),
        ({"patterns": ("a",), "phis": ("l2",), "scales": (1.0, 1.0)}, "scales"),
    ],
)
def test_wrong_layers_are_named(fields, words):
    with pytest.raises(checks.InputError, match=words):
        phi.LayerWise(**fields)


@pytest.mark.parametrize(
    ("patterns", "words"),
    [(("^haed/", ""), "haed"), (("^head/",), "body/bias"), (("", "^head/"), "head")],
)
def test_patterns_that_match_nothing_and_leaves_without_one_are_named(patterns, words):
    rules = phi.LayerWise(patterns=patterns, phis=("l2",) * len(patterns))
    with pytest.raises(checks.InputError, match=words):
        rules.check(layers())


def test_diagonal_weights_may_be_a_tree():
    q = {"a": 0.0, "b": np.array([1.0, 2.0, 3.0])}
    found = flat(phi.Diagonal(q=q).prox(tree(np.ones(4)), 2.0))
    np.testing.assert_allclose(found, [1, 1 / 3, 1 / 5, 1 / 7])
    phi.Diagonal(q=q).check(tree(np.ones(4)))
    with pytest.raises(checks.InputError, match="tree like the parameters"):
        phi.Diagonal(q={"a": 1.0}).check(tree(np.ones(4)))
    with pytest.raises(checks.InputError, match="q"):
        phi.Diagonal(q=-1.0)


@pytest.mark.parametrize("name", SIMPLE)
def test_the_penalty_is_the_envelope_times_the_radius_block_by_block(name):
    for x, rho in cases():
        found = float(SIMPLE[name].penalty(tree(x), rho))
        envelope = float(SIMPLE[name].envelope(tree(x), rho))
        np.testing.assert_allclose(found, rho * envelope, rtol=1e-12)
    x = layers(2)
    np.testing.assert_allclose(
        float(LAYERS.penalty(x, 0.6)), 0.6 * float(LAYERS.envelope(x, 0.6)), rtol=1e-12
    )
