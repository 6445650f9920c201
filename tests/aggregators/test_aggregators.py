"""Aggregators: equivariance, breakdown, masks, and NumPy or SciPy as judges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators
from tests.aggregators import medians, rules
from tests.lanes import wide


@rules.each_rule
def test_the_order_of_rows_does_not_matter(name):
    if name == "bucketing":
        pytest.skip("places are drawn")
    rows, order = rules.random_rows(), np.array([3, 0, 6, 1, 5, 2, 4])
    one, _ = rules.matrix(rows, rules.WEIGHTS, name=name)
    other, _ = rules.matrix(rows[order], rules.WEIGHTS[order], name=name)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)


@rules.each_free_rule
def test_translation(name):
    rows, shift = rules.random_rows(), np.arange(6) * 10.0
    one, _ = rules.matrix(rows, rules.WEIGHTS, name=name)
    other, _ = rules.matrix(rows + shift, rules.WEIGHTS, name=name)
    np.testing.assert_allclose(one + shift, other, rtol=0, atol=1e-8)


@rules.each_free_rule
@pytest.mark.parametrize("scale", [2.0**-40, -(2.0**40)])
def test_scale(name, scale):
    rows, rule = rules.random_rows(), rules.RULES[name]
    one, _ = rules.matrix(rows, rules.WEIGHTS, rule=rule)
    if "prox" in name:
        rule = aggregators.GeometricMedian(
            rho=2 * abs(scale), method="prox", weighting="examples", max_iterations=2000
        )
    other, _ = rules.matrix(scale * rows, rules.WEIGHTS, rule=rule)
    np.testing.assert_allclose(scale * one, other, rtol=1e-8, atol=1e-8 * abs(scale))


@rules.each_free_rule
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_identical_rows_return_that_row(name, dtype):
    row = np.array([1 / 3, -1e3, 0, 5, 1e-3, 2], dtype)
    out, _ = rules.matrix(np.tile(row, (7, 1)), name=name, dtype=dtype)
    np.testing.assert_allclose(
        out, row, rtol=4 * np.finfo(dtype).eps, atol=1e-4 * np.finfo(dtype).eps
    )


@rules.each_free_rule
def test_a_single_row_is_returned(name):
    out, _ = rules.matrix(rules.random_rows(1), name=name)
    np.testing.assert_allclose(out, rules.random_rows(1)[0], rtol=1e-15)


@rules.each_rule
def test_dropped_rows_may_hold_anything(name):
    if name == "bucketing":
        pytest.skip("draws other buckets from more rows")
    rows = np.concatenate(
        [rules.random_rows(), [[np.nan] * 6, [1e38] * 6, [np.inf] * 6]]
    )
    expected, _ = rules.matrix(rules.random_rows(), rules.WEIGHTS, name=name)
    for dtype, atol in ((np.float64, 1e-8), (np.float32, 1e-5)):
        weights = [*rules.WEIGHTS, 0, 0, 0]
        out, _ = rules.matrix(rows, weights, name=name, dtype=dtype)
        np.testing.assert_allclose(expected, out, rtol=0, atol=atol)


@rules.each_rule
def test_without_any_row_the_reference_is_returned(name):
    for rows, weight in ((np.nan, 0), (1e38, 0), (np.nan, 1), (np.inf, 1)):
        out, info = rules.matrix(np.full((3, 6), rows), np.full(3, weight), name=name)
        assert (out == 7).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(info))


@rules.each_rule
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_nonfinite_rows_take_no_part(name, dtype):
    bad = [
        [np.nan] * 6,
        [np.inf] * 6,
        [np.nan, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, -np.inf],
    ]
    rows = np.concatenate([rules.random_rows(), bad])
    dropped, _ = rules.matrix(
        rows, [*rules.WEIGHTS, 0, 0, 0, 0], name=name, dtype=dtype
    )
    other, _ = rules.matrix(rows, [*rules.WEIGHTS, 8, 1, 2, 9], name=name, dtype=dtype)
    np.testing.assert_array_equal(dropped, other)


@rules.each_rule
def test_a_vmap_equals_a_loop(name):
    rows = np.stack([rules.random_rows(13, seed=s) * 10**s for s in range(3)])
    weights = np.stack([np.resize(rules.WEIGHTS, 13), np.ones(13), np.eye(13)[2]])
    rule, reference = rules.RULES[name], jnp.full(6, 7.0)
    together, _ = jax.jit(jax.vmap(lambda r, w: rule(rules.KEY, r, w, reference)))(
        rows, weights
    )
    for i in range(3):
        alone, _ = rules.matrix(rows[i], weights[i], name=name)
        np.testing.assert_allclose(together[i], alone, rtol=1e-9, atol=1e-12)


def test_means_against_numpy():
    rows = rules.random_rows()
    weights = np.where(np.arange(7) == 2, 0, rules.WEIGHTS)
    out, info = rules.matrix(rows, weights, name="weighted_mean")
    np.testing.assert_allclose(
        out, np.average(rows, axis=0, weights=weights), rtol=1e-12
    )
    out, _ = rules.matrix(rows, weights, name="mean")
    np.testing.assert_allclose(out, rows[weights > 0].mean(axis=0), rtol=1e-12)
    assert info is None
    incremental = {name: rule.incremental for name, rule in rules.RULES.items()}
    assert [incremental.pop(n) for n in rules.MEANS] == ["uniform", "weighted"]
    assert set(incremental.values()) == {None}


@pytest.mark.parametrize("count", [1, 2, 13, 33, *map(wide, (3, 8, 101, 130))])
def test_coordinate_median_against_numpy(count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, 5)).round(1)  # with ties
    out, _ = rules.matrix(rows, name="coordinate_median")
    np.testing.assert_array_equal(out, np.median(rows, axis=0))
    weights = rng.integers(0, 2, count)
    weights[0] = 1
    out, _ = rules.matrix(rows, weights, name="coordinate_median")
    np.testing.assert_array_equal(out, np.median(rows[weights > 0], axis=0))


@pytest.mark.parametrize("count", [6, wide(103)])
def test_coordinate_median_of_several_blocks_and_of_huge_values(count):
    rows = np.random.default_rng(1).normal(size=(count, 999))
    rows = np.clip(rows * 1e38, -3e38, 3e38).astype(np.float32)
    out, _ = rules.matrix(rows, name="coordinate_median", dtype=np.float32)
    expected = np.median(rows.astype(float), axis=0).astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("rho", [0.01, 1.5, *map(wide, (0.5, 3.0))])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_geometric_median_minimizes_the_smoothed_objective(rho, weighting):
    rows = rules.random_rows()
    p = (
        np.ones(7) / 7
        if weighting == "uniform"
        else rules.WEIGHTS / rules.WEIGHTS.sum()
    )
    rule = aggregators.GeometricMedian(rho=rho, weighting=weighting)
    out, info = rules.matrix(rows, rules.WEIGHTS, rule=rule)
    best = medians.optimized(rows, p, rho)
    assert info.converged and info.residual <= 1e-10
    value, least = (medians.objective(point, rows, p, rho) for point in (out, best))
    assert value <= least + 1e-13
    np.testing.assert_allclose(out, best, atol=1e-6)
    distance = np.linalg.norm(rows - out, axis=1)
    assert np.isclose(info.fraction_outside, np.mean(distance > rho))
    unit = (rows - out) / np.maximum(distance, rho)[:, None]
    assert np.linalg.norm(p @ unit) < 1e-9


def test_a_large_radius_gives_the_mean_without_a_step():
    rows = rules.random_rows()
    out, info = rules.matrix(rows, rule=aggregators.GeometricMedian(rho=100.0))
    np.testing.assert_allclose(out, rows.mean(axis=0), atol=1e-14)
    assert info.iterations == 0 and info.fraction_outside == 0 and info.converged


def test_median_on_a_line_is_the_middle_row():
    rows = np.outer([0.0, 1, 2, 50, 60], np.ones(6))
    out, info = rules.matrix(rows)
    np.testing.assert_allclose(out, rows[2], atol=1e-4)
    assert info.fraction_outside == 0.8  # the median row itself lies within the radius


@pytest.mark.parametrize("offset", [wide(0.0), 1e3, wide(1e5)])
def test_float32_with_a_common_offset(offset):
    rows = (rules.random_rows(10, 600) + offset).astype(np.float32)
    out, info = rules.matrix(rows, dtype=np.float32)
    exact, _ = medians.iterate(
        medians.weiszfeld_step, rows.astype(float), np.full(10, 0.1), info.radius
    )
    typical = np.linalg.norm(rows - exact, axis=1).mean()
    rounding = np.finfo(np.float32).eps * np.linalg.norm(exact)
    assert info.converged
    assert np.linalg.norm(out - exact) < 1e-5 * typical + rounding


def test_the_norm_is_over_the_whole_tree():
    rows = rules.random_rows()
    out, _ = rules.matrix(rows)
    half = np.arange(6) < 3
    alone = rules.matrix(rows * half)[0] + rules.matrix(rows * ~half)[0]
    assert np.abs(out - alone).max() > 1e-2


def test_a_loose_tolerance_stops_early_in_the_same_program():
    def report(rho, tolerance):
        rule = aggregators.GeometricMedian(rho=rho, tolerance=tolerance)
        return rules.matrix(rules.random_rows(), rule=rule)[1]

    loose = report(0.1, 0.05)
    programs = rules.run._cache_size()
    tight, wider = report(0.1, 1e-10), report(1.0, 0.1)
    assert rules.run._cache_size() == programs
    assert tight.residual < 1e-10 < loose.residual < 0.05 and wider.converged
    assert loose.iterations < tight.iterations
