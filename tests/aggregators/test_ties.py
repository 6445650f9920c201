"""Ties: no order of rows matters, also where several results are equally good."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators
from fedjax_pfl.aggregators import Bucketing, ProductMean
from fedjax_pfl.algorithms import registry
from tests.aggregators import medians, robust_oracles, rules
from tests.lanes import few, wide

COUNT, SIZE = 8, 3  # rows in all, of which some take no part
Geometric = aggregators.GeometricMedian
RULES = {
    **{name: cls() for name, cls in registry.AGGREGATORS.items()},
    "multi_krum": aggregators.Krum(num_selected=None),
    "bulyan, one shot": aggregators.Bulyan(one_shot=True),
    "geometric_median": Geometric(weighting="examples"),
    "geometric_median, reference": Geometric(start="reference", rho=0.4),
}
del RULES["bucketing"]  # draws places: below
del RULES["product_mean"]  # of adapters only: below
SELECTING = ["krum", "multi_krum", "bulyan", "nearest_neighbor_mixing"]
SELECTING += [name for name in RULES if "geometric" in name]

# Places of rows on a line, and their weights.
LINES = {
    "pair": ([0, 1], [1, 1]),
    "unequal pair": ([0, 1], [3, 2]),
    "even split": ([0, 1, 5, 9], [1, 1, 1, 1]),
    "even split with an outlier": ([0, 1, 5, 100], [1, 1, 1, 1]),
    "outlier below": ([-100, 0, 5, 5], [1, 1, 1, 1]),
    "halves": ([0, 0, 1, 1], [1, 1, 1, 1]),
    "equal steps": ([0, 1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 1]),
    "weighted": ([0, 5, 9], [2, 1, 1]),
    "odd": ([0, 1, 1, 2, 7], [1, 1, 1, 1, 1]),
}
FLAT = [name for name in LINES if name not in ("unequal pair", "odd")]
DIRECTIONS = np.array([[1, 2, 2], [0.3, -0.5, 0.77]])


def _families():
    for name, (places, weights) in LINES.items():
        for direction, offset in itertools.product(DIRECTIONS, (0, 10)):
            yield name, np.outer(places, direction) + offset, weights
    corners = np.array([[0, 0, 1], [0, 2, 1], [2, 0, 1], [2, 2, 1]])
    yield "corners", corners, [1] * 4
    yield "corners twice", np.concatenate([corners, corners]), [1] * 8
    yield "opposed", np.concatenate([np.eye(3), -np.eye(3)]), [1] * 6


def _permuted(rows, weights, dtype):
    """Rows `[4, COUNT, SIZE]` and weights in four orders; others are NaN."""
    rng, fill = np.random.default_rng(0), COUNT - len(rows)
    rows = np.pad(rows * 1.0, ((0, fill), (0, 0)), constant_values=np.nan)
    weights = np.pad(weights, (0, fill)).astype(float)
    orders = [np.arange(COUNT), np.arange(COUNT)[::-1]]
    orders = np.stack(orders + [rng.permutation(COUNT) for _ in range(2)])
    return jnp.asarray(rows[orders], dtype), jnp.asarray(weights[orders], dtype)


@pytest.mark.parametrize("name", few(SELECTING, RULES))
@pytest.mark.parametrize("dtype", [np.float64, wide(np.float32)])
def test_no_order_of_rows_matters(name, dtype):
    reference = jnp.asarray([3.0, -1, 2], dtype)
    run = jax.jit(jax.vmap(lambda *rows: RULES[name](rules.KEY, *rows, reference)[0]))
    for family, rows, weights in _families():
        results = np.asarray(run(*_permuted(rows, weights, dtype)), np.float64)
        # A residual of 1e-10, 1e-6 in float32, may be left where the median curves.
        atol = {np.float64: 1e-8, np.float32: 1e-5}[dtype] * (1 + np.abs(rows).max())
        assert np.isfinite(results).all(), family
        assert np.ptp(results, axis=0).max() <= atol, family


def test_no_order_matters_within_buckets_that_are_given():
    rows, weights = _permuted(*list(_families())[-2][1:], np.float64)
    order = np.random.default_rng(1).permutation(COUNT)
    rule, turn = Bucketing(), np.arange(COUNT)[::-1]
    mix = jax.jit(rule.mix)
    mixed = mix(rules.KEY, rows[0], weights[0], order=order)[0]
    again = mix(rules.KEY, rows[1], weights[1], order=turn[order])[0]
    np.testing.assert_allclose(mixed, again, atol=1e-15)


def test_no_order_matters_for_products_of_factors():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 5, 1)), rng.normal(size=(2, 1, 4))
    a, b = np.concatenate([a, a, -a[:1]]), np.concatenate([b, b, b[:1]])
    products, average = [], jax.jit(ProductMean())
    for order in (np.arange(5), np.arange(5)[::-1]):
        rows = {"adapters": {"kernel": {"a": a[order], "b": b[order]}}}
        zeros = jax.tree.map(lambda leaf: 0 * leaf[0], rows)
        mean = average(rules.KEY, rows, np.ones(5), zeros)[0]
        products.append(mean["adapters"]["kernel"])
    first, second = (np.asarray(x["a"]) @ np.asarray(x["b"]) for x in products)
    np.testing.assert_allclose(first, second, atol=1e-12)


# Flat minima of the geometric median.


def _nearest_to_mean(places, weights, rho):
    """The minimizer on a line that is nearest to the mean, by bisection."""
    places, p = np.array(places, float)[:, None], np.array(weights) / np.sum(weights)
    low, high = medians.coordinate_median(places, p, rho)
    return np.clip(p @ places, low, high)[0]


@pytest.mark.parametrize("start", ["mean", wide("reference")])
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_of_a_flat_minimum_the_point_nearest_to_the_mean_is_taken(dtype, start):
    for name, rho in itertools.product(LINES, (None, 0.3, 1.9)):
        places, weights = LINES[name]
        direction = DIRECTIONS[1] / np.linalg.norm(DIRECTIONS[1])
        rows = np.pad(np.outer(places, direction), ((0, COUNT - len(places)), (0, 0)))
        rule = Geometric(rho=rho, weighting="examples", start=start)
        padded = np.pad(weights, (0, COUNT - len(places)))
        out, info = rules.unpadded(rows, padded, rule=rule, dtype=dtype)
        expected = _nearest_to_mean(places, weights, float(info.radius))
        # Curvature is p / rho at least where the minimizer is unique.
        rounding = 40 * np.finfo(dtype).eps * np.abs(places).max()
        atol = {np.float32: 2e-6, np.float64: 2e-10}[dtype] * (1 + (rho or 0)) * 8
        np.testing.assert_allclose(
            out, expected * direction, atol=atol + rounding, err_msg=f"{name}, {rho}"
        )
        assert info.converged, (name, rho)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float64, wide(np.float32)])
@pytest.mark.parametrize("name", FLAT)
def test_a_flat_minimum_moves_with_the_rows(name, dtype):
    places, weights = LINES[name]
    direction = DIRECTIONS[1] / np.linalg.norm(DIRECTIONS[1])
    places, p = np.array(places, float), np.array(weights) / np.sum(weights)

    def median(rows, weights):
        rule = Geometric(rho=0.3, weighting="examples")
        return rule(rules.KEY, rows, weights, jnp.zeros(SIZE, rows.dtype))[0]

    rows = jnp.asarray(np.outer(places, direction), dtype)
    of_rows, of_weights = jax.jit(jax.jacrev(median, (0, 1)))(
        rows, jnp.asarray(weights, dtype)
    )
    atol = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(of_rows.sum(axis=1), np.eye(SIZE), atol=atol)
    # Along the line the median is a function of the places, of the mean or of an end.
    along = np.einsum("i,ikj,j->k", direction, of_rows, direction)
    expected = medians.finite_differences(
        lambda x: _nearest_to_mean(x, weights, 0.3), places
    )
    if name in ("halves", "outlier below"):  # equal rows share what one of them moves
        expected = np.where(expected.any(), along, expected)
        assert (along >= -atol).all()
    np.testing.assert_allclose(along, expected, atol=1e-4)
    inside = abs(_nearest_to_mean(places, weights, 0.3) - p @ places) < 1e-9
    if inside:
        shift = (places - p @ places) / np.sum(weights)
        np.testing.assert_allclose(direction @ of_weights, shift, atol=100 * atol)


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_rows_of_which_half_are_zero_keep_their_lengths(dtype):
    rows = np.concatenate([np.zeros((3, 6)), rules.random_rows(3)])
    out, info = rules.matrix(rows, rule=aggregators.Krum(), dtype=dtype)
    expected = robust_oracles.krum_scores(rows, 1)
    np.testing.assert_allclose(info.scores[:6], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out, 0)
    pair, _ = rules.matrix(rows[2:4], dtype=dtype)
    np.testing.assert_allclose(pair, rows[3] / 2, rtol=4 * np.finfo(dtype).eps)
