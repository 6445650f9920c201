"""Aggregators under outliers of any size: bounds, and what is exact there."""

import itertools

import numpy as np
import pytest

from fedjax_pfl import aggregators
from tests.aggregators import rules
from tests.lanes import wide

LARGEST = {np.float32: 3e38, np.float64: 1.7e308}
SIZES = {
    np.float32: [1e2, 1e6, 1e15, 1e17, 1e18, 2e18, 1e19, 1e30, 1e38, 3e38],
    np.float64: [1e2, 1e6, 1e30, 1e100, 1e153, 1e154, 1e155, 1e200, 1e308, 1.7e308],
}
KINDS = {
    "one_sign": lambda shape: np.ones(shape),
    "both_signs": lambda shape: _signs(shape[0])[:, None] * np.ones(shape),
    "one_coordinate": lambda shape: np.eye(shape[1])[[1] * shape[0]],
    "both_signs_of_one": lambda shape: (
        _signs(shape[0])[:, None] * np.eye(shape[1])[[1] * shape[0]]
    ),
    "nearly_cancelling": lambda shape: _cancelling(*shape, seed=1) / 4,
    "any_signs": lambda shape: np.sign(rules.random_rows(*shape, seed=2)),
}


def _signs(count):
    return (-1.0) ** np.arange(count)


def _cancelling(count, size, seed):
    """Rows whose mean is zero to rounding."""
    rows = rules.random_rows(count, size, seed)
    return rows - rows.mean(axis=0)


def _attacked(honest, num_bad, dtype):
    """Rows of which the last are outliers of every size and kind, one after the other.

    They are huge in some coordinates and ordinary in the others.
    """
    shape = (num_bad, honest.shape[1])
    for kind, size in itertools.product(KINDS, SIZES[dtype]):
        pattern = KINDS[kind](shape)
        bad = np.where(pattern != 0, pattern * size, rules.random_rows(*shape, seed=3))
        yield np.concatenate([honest, bad]).astype(dtype), f"{kind}, {size}"


def _ball(honest):
    """Center and radius of the honest rows."""
    center = honest.mean(axis=0)
    return center, np.linalg.norm(honest - center, axis=1).max()


@rules.each_robust_rule
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_robust_rules_stay_with_the_majority(name, dtype):
    honest = rules.random_rows(6, 50)
    center, radius = _ball(honest)
    for rows, case in _attacked(honest, 4, dtype):
        out, _ = rules.matrix(rows, name=name, dtype=dtype)
        # A rule that stays within the honest values of every coordinate is less than
        # sqrt(6) radii away, one that minimizes a sum of norms 2 (1 - f) / (1 - 2 f)
        # at most, with the share f = 0.4 of outliers.
        assert np.linalg.norm(out - center) <= 6 * radius, case


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_coordinate_median_is_within_the_honest_values(dtype):
    honest = rules.random_rows(6).astype(dtype)
    for rows, case in _attacked(honest, 4, dtype):
        out, _ = rules.matrix(rows, name="coordinate_median", dtype=dtype)
        assert (honest.min(axis=0) <= out).all(), case
        assert (out <= honest.max(axis=0)).all(), case


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_geometric_median_is_within_its_bound(weighting, dtype):
    """Outliers of mass f move it at most R / sqrt(1 - ((f + r) / (1 - f))^2).

    At distance d > R from the center of the honest rows, they pull back with at least
    (1 - f) sqrt(1 - (R / d)^2), the outliers away with at most f, and what remains is
    the residual r. Under `examples` the outliers are the more, but light.
    """
    num_bad, heavy = (4, 1.0) if weighting == "uniform" else (6, 5.0)
    honest = rules.random_rows(10 - num_bad)
    center, radius = _ball(honest)
    weights = np.where(np.arange(10) < 10 - num_bad, heavy, 1.0)
    share = num_bad / weights.sum()
    rule = aggregators.GeometricMedian(weighting=weighting)
    for rows, case in _attacked(honest, num_bad, dtype):
        out, info = rules.matrix(rows, weights, rule=rule, dtype=dtype)
        assert info.converged, case
        pull = (share + float(info.residual)) / (1 - share)
        bound = radius / np.sqrt(1 - pull**2)
        assert np.linalg.norm(out - center) <= bound, case


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_geometric_median_scales_where_squares_overflow_or_vanish(dtype):
    rows = rules.random_rows(9, 4).astype(dtype)
    one, _ = rules.matrix(rows, dtype=dtype)
    most = np.log2(LARGEST[dtype])
    for scale in 2.0 ** np.floor([-0.8 * most, 0.8 * most, most - 3]):
        other, info = rules.matrix(rows * dtype(scale), dtype=dtype)
        assert info.converged
        np.testing.assert_array_equal(other, one * dtype(scale))


def test_a_median_of_rows_that_are_mostly_zero_is_zero():
    rows = np.concatenate([np.zeros((4, 6)), [[1e17] * 6, [-1e17] * 6, [1e17] * 6]])
    out, info = rules.matrix(rows, dtype=np.float32)
    np.testing.assert_array_equal(out, 0)
    assert info.converged and np.isclose(info.fraction_outside, 3 / 7)
    rule = aggregators.GeometricMedian(rho=1e18)  # all rows are within the radius
    out, info = rules.matrix(rows, rule=rule)
    np.testing.assert_allclose(out, rows.mean(axis=0), rtol=1e-14)
    assert info.fraction_outside == 0


@pytest.mark.parametrize("name", rules.MEANS)
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_means_of_huge_rows_are_finite_and_theirs(name, dtype):
    for rows, case in _attacked(rules.random_rows(6), 4, dtype):
        out, _ = rules.matrix(rows, name=name, dtype=dtype)
        rows = rows.astype(np.longdouble)
        # Ten products with rounded shares, and nine sums.
        rounding = 20 * np.finfo(dtype).eps * np.abs(rows).mean(axis=0)
        assert (np.abs(out - rows.mean(axis=0)) <= rounding).all(), case


@pytest.mark.parametrize("size", [1e3, 1e12])
def test_geometric_median_breaks_down_at_one_half(size):
    honest = rules.random_rows(11)
    rows = np.concatenate([honest, np.full((9, 6), size)])
    out, info = rules.matrix(rows, dtype=np.float32)
    radius = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert info.converged
    assert np.linalg.norm(out - honest.mean(axis=0)) <= 2 * 0.55 / 0.1 * radius


@pytest.mark.parametrize("cancel", [False, True])
def test_float32_with_far_outliers_is_accurate(cancel):
    """About the mean, float32 does not resolve the distances of honest rows.

    Outliers that cancel leave the mean near, and a residual that rounding hides.
    """
    for size, seed in itertools.product(10.0 ** np.arange(3, 13), range(1, 6)):
        far = _cancelling(4, 50, seed) if cancel else 1 + rules.random_rows(4, 50, seed)
        rows = np.concatenate([rules.random_rows(10, 50), size * far])
        rows = rows.astype(np.float32)
        out, info = rules.matrix(rows, dtype=np.float32)
        exact = _oracle_fixed_point(rows.astype(float))
        assert info.converged and info.iterations > 0, size
        assert np.linalg.norm(out - exact) < 1e-4, size


def _oracle_fixed_point(rows):
    """Geometric median by Weiszfeld steps in model space from the honest mean."""
    center = rows[:10].mean(axis=0)
    for _ in range(100):
        eta = 1 / np.linalg.norm(rows - center, axis=1)
        center = eta @ rows / eta.sum()
    return center
