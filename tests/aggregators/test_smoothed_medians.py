"""Smoothed medians against other methods, their limits and their iteration counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators
from fedjax_pfl.numerics import huber, order_statistics
from tests.aggregators import medians, rules
from tests.lanes import few, wide

Geometric, Coordinate = aggregators.GeometricMedian, aggregators.CoordinateMedian
P = rules.WEIGHTS / rules.WEIGHTS.sum()


def _collinear(noise, seed=0, count=10, size=100):
    """Rows on either side of a gap on a line, and a little noise off it."""
    rng = np.random.default_rng(seed)
    half = count // 2
    place = np.concatenate([-1 - rng.random(half), 1 + rng.random(count - half)])
    line = rng.normal(size=size)
    off = rng.normal(size=(count, size)) * noise / np.sqrt(size)
    return place[:, None] * line / np.linalg.norm(line) + off


def _spread(rows):
    return np.linalg.norm(rows - rows.mean(axis=0), axis=1).mean()


@pytest.mark.parametrize("rho", [wide(0.02), 0.3, wide(1.0), wide(2.5)])
def test_weiszfeld_prox_and_an_optimizer_agree(rho):
    rows = rules.random_rows()
    weiszfeld, fast = medians.iterate(medians.weiszfeld_step, rows, P, rho)
    prox, slow = medians.iterate(medians.prox_step, rows, P, rho)
    assert slow >= fast
    best = medians.optimized(rows, P, rho)
    found = [weiszfeld, prox, best]
    prox_fields = {"method": "prox", "max_iterations": 10**5}
    for fields in ({}, {"start": "reference"}, prox_fields):
        rule = Geometric(rho=rho, weighting="examples", **fields)
        out, info = rules.matrix(rows, rules.WEIGHTS, rule=rule)
        assert info.converged, fields
        found.append(out)
    values = [medians.objective(center, rows, P, rho) for center in found]
    assert max(values) - min(values) < 1e-10


@pytest.mark.parametrize("rho", [0.3, *map(wide, (0.02, 1.0, 2.5))])
def test_single_steps_against_numpy(rho):
    """Prox is c + tau (Wz(c) - c) with tau = sum_k p_k min(1, rho / |r_k|)."""
    rows = rules.random_rows()
    relaxed = plain = P @ rows
    for _ in range(3):
        tau = P @ np.minimum(1, rho / np.linalg.norm(rows - relaxed, axis=1))
        prox = medians.prox_step(relaxed, rows, P, rho)
        step = medians.weiszfeld_step(relaxed, rows, P, rho) - relaxed
        np.testing.assert_allclose(prox, relaxed + tau * step, atol=1e-14)
        relaxed, plain = prox, medians.weiszfeld_step(plain, rows, P, rho)
    fields = {"rho": rho, "weighting": "examples", "acceleration": 0}
    for method, expected in (("prox", relaxed), ("weiszfeld", plain)):
        rule = Geometric(method=method, max_iterations=3, **fields)
        out, info = rules.matrix(rows, rules.WEIGHTS, rule=rule)
        assert info.iterations == 3 and not info.converged
        np.testing.assert_allclose(out, expected, atol=1e-13)


def _hard_rows():
    """Twelve rows and their weights by name, on which plain steps are slow."""
    rng = np.random.default_rng(2)
    ones = np.ones(12)
    heavy = rng.standard_t(1.5, size=(12, 20))
    yield "heavy tails", heavy, rng.pareto(1, 12) + 0.1
    for noise in (0.15, 1e-2):
        yield "nearly collinear", _collinear(noise, count=12, size=20), ones
    yield "ties", heavy[[0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]], ones


def _rows_about_one(weight):
    """A row in the middle, with this multiple of the weight that holds the median."""
    rng = np.random.default_rng(4)
    units = rng.normal(size=(11, 20))
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    rows = np.vstack([np.zeros(20), units * rng.uniform(1, 3, (11, 1))]) + 5
    pull = np.linalg.norm(units.sum(axis=0))
    return rows, np.append(weight * pull, np.ones(11))


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_the_default_converges_on_hard_rows(dtype):
    for name, rows, weights in _hard_rows():
        p = weights / weights.sum()
        rule = Geometric(weighting="examples")
        out, info = rules.matrix(rows, weights, rule=rule, dtype=dtype)
        assert info.converged and info.iterations < 100, name
        best, curvature = medians.newton(rows, p, float(info.radius))
        size, eps = np.linalg.norm(rows, axis=1) @ p, np.finfo(dtype).eps
        bound = {np.float32: 1e-6, np.float64: 1e-10}[dtype] / curvature
        assert np.linalg.norm(out - best) <= 2 * bound + 40 * eps * size, name


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
@pytest.mark.parametrize("weight", [1.001, 1.5])
def test_a_minimizer_on_a_row_is_found(dtype, weight):
    rows, weights = _rows_about_one(weight)
    rule = Geometric(weighting="examples")
    out, info = rules.matrix(rows, weights, rule=rule, dtype=dtype)
    assert info.converged and info.iterations < 100
    assert np.linalg.norm(out - rows[0]) <= 2 * info.radius + 40 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_a_minimizer_beside_a_row_is_found(dtype):
    rows, weights = _rows_about_one(0.9)
    rule = Geometric(weighting="examples")
    out, info = rules.matrix(rows, weights, rule=rule, dtype=dtype)
    p = weights / weights.sum()
    best, curvature = medians.newton(rows, p, float(info.radius))
    assert info.converged
    bound = {np.float32: 1e-6, np.float64: 1e-10}[dtype] / curvature
    assert np.linalg.norm(out - best) <= 2 * bound + 40 * np.finfo(dtype).eps * 25
    assert np.linalg.norm(best - rows[0]) > 1e-3


def test_acceleration_solves_nearly_collinear_rows():
    """From about a thousand steps to about ten, with the same minimizer."""
    rows = _collinear(0.15)
    p, rho = np.full(10, 0.1), 0.001 * _spread(rows)
    best, steps = medians.iterate(medians.weiszfeld_step, rows, p, rho, 1e-8)
    assert steps > 500
    for memory, most in ((0, steps + 5), (5, 30)):
        rule = Geometric(
            rho=rho, acceleration=memory, tolerance=1e-8, max_iterations=steps + 5
        )
        out, info = rules.matrix(rows, rule=rule)
        assert info.converged and info.iterations <= most
        assert abs(info.iterations - steps) <= 5 or memory
        np.testing.assert_allclose(out, best, atol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("method", ["weiszfeld", wide("prox")])
@pytest.mark.parametrize("noise", [1e-3, wide(0.1), wide(1.0)])
def test_acceleration_never_increases_the_objective(method, noise):
    rows = np.concatenate([_collinear(noise, seed=3), 10 + _collinear(0.1, count=3)])
    p, rho = np.full(13, 1 / 13), 0.01
    values = [medians.objective(p @ rows, rows, p, rho)]
    for steps in (1, 2, 5, 12):
        rule = Geometric(rho=rho, method=method, acceleration=4, max_iterations=steps)
        out, _ = rules.matrix(rows, rule=rule)
        values.append(medians.objective(out, rows, p, rho))
    # Rounding of squared distances in the Gram matrix.
    assert np.diff(values).max() <= 1e-14 * values[0] / noise
    assert values[-1] < values[0]


def test_a_flat_objective_is_reported():
    """Two groups on a line: any point of the gap is a median, none has curvature."""
    flat = np.outer([-2.0, -1.5, 1.5, 2.0], [0.6, 0.8, 0, 0])
    out, info = rules.matrix(flat, rule=Geometric(rho=0.1, curvature=True))
    p = np.full(4, 0.25)
    value = medians.objective(out, flat, p, 0.1)
    np.testing.assert_allclose(value, 1.75 - 0.05, atol=1e-12)
    assert abs(info.smallest_eigenvalue) < 1e-12
    assert rules.matrix(flat)[1].smallest_eigenvalue is None


@pytest.mark.parametrize("scale", [wide(1.0), 1024.0])
def test_the_smallest_eigenvalue_is_that_of_the_hessian(scale):
    rows, rho = scale * rules.random_rows(9, 4), scale * 1.2
    out, info = rules.matrix(rows, rule=Geometric(rho=rho, curvature=True))
    hessian = np.zeros((4, 4))
    for row in rows - out:
        length = np.linalg.norm(row)
        unit = row / length if length > rho else 0 * row
        hessian += (np.eye(4) - np.outer(unit, unit)) / max(length, rho) / 9
    expected = np.linalg.eigvalsh(hessian)[0]
    np.testing.assert_allclose(info.smallest_eigenvalue, expected, rtol=1e-8)
    np.testing.assert_allclose(info.radius, rho, rtol=1e-14)


@pytest.mark.parametrize("reference", [0.0, 5.0, 1e4, 1e300, np.nan])
def test_a_large_radius_is_the_mean_from_any_start(reference):
    rows = rules.random_rows()
    for rule in (Geometric(rho=30.0, start="reference"), Coordinate(rho=30.0)):
        out, info = rules.run(
            rule, jnp.asarray(rows), jnp.ones(7), jnp.full(6, reference)
        )
        np.testing.assert_allclose(out, rows.mean(axis=0), atol=1e-9)
        assert info.radius == 30


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
@pytest.mark.parametrize("rho", [1e2, 1e6, 1e30])
def test_the_coordinate_median_is_the_mean_however_large_the_radius(dtype, rho):
    three = np.array([[0.0], [0.0], [3.0]])
    out, info = rules.matrix(three, rule=Coordinate(rho=rho), dtype=dtype)
    np.testing.assert_allclose(out, [1.0], rtol=4 * np.finfo(dtype).eps)
    assert info.fraction_clipped == 0
    rows = rules.random_rows(9, 40) * np.geomspace(1e-6, 1.0, 40)
    out, _ = rules.matrix(rows, rule=Coordinate(rho=rho), dtype=dtype)
    error = np.abs(out - rows.mean(axis=0)) / np.abs(rows).max(axis=0)
    assert error.max() < 9 * np.finfo(dtype).eps


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_a_warm_start_saves_steps_and_finds_the_same(dtype):
    rows = jnp.asarray(rules.random_rows(10, 50), dtype)
    weights = jnp.ones(10, dtype)
    cold, first = rules.run(Geometric(rho=0.1), rows, weights, jnp.zeros(50, dtype))
    warm, second = rules.run(Geometric(rho=0.1, start="reference"), rows, weights, cold)
    assert second.iterations < first.iterations and second.converged
    np.testing.assert_allclose(warm, cold, atol=2e-6)
    for far in (1e3, 1e6, 1e30):
        out, info = rules.run(
            Geometric(rho=0.1, start="reference"), rows, weights, cold + dtype(far)
        )
        assert info.converged
        np.testing.assert_allclose(out, cold, atol=2e-6)


@pytest.mark.wide
def test_one_step_from_the_reference_keeps_the_objective_falling():
    rows, rho = rules.random_rows(), 0.5
    for method in ("weiszfeld", "prox"):
        rule = Geometric(rho=rho, method=method, start="reference", max_iterations=1)
        center, values = np.full(6, 3.0), []
        for _ in range(60):
            values.append(medians.objective(center, rows, np.full(7, 1 / 7), rho))
            args = jnp.asarray(rows), jnp.ones(7), jnp.asarray(center)
            center = np.asarray(rules.run(rule, *args)[0])
        assert np.diff(values).max() < 1e-14
        best = medians.optimized(rows, np.full(7, 1 / 7), rho)
        assert values[-1] - medians.objective(best, rows, np.full(7, 1 / 7), rho) < 1e-6


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_quantile_is_a_radius_without_units(share):
    rows = rules.random_rows(9, 4)
    _, info = rules.matrix(rows, rule=Geometric(rho_quantile=share))
    distance = np.sort(np.linalg.norm(rows - rows.mean(axis=0), axis=1))
    expected = distance[int(np.ceil(9 * share)) - 1]
    np.testing.assert_allclose(info.radius, expected, rtol=1e-12)
    _, info = rules.matrix(rows, rule=Coordinate(rho_quantile=share))
    spread = np.sqrt(np.square(rows - np.median(rows, axis=0)).mean(axis=1))
    expected = np.sort(spread)[int(np.ceil(9 * share)) - 1]
    np.testing.assert_allclose(info.radius, expected, rtol=1e-12)
    for rule in (Geometric(rho_quantile=share), Coordinate(rho_quantile=share)):
        one, _ = rules.matrix(rows, rule=rule)
        other, _ = rules.matrix(2.0**40 * rows, rule=rule)
        np.testing.assert_allclose(2.0**40 * one, other, rtol=1e-12)


@pytest.mark.parametrize("rho", [0.3, 2.5, *map(wide, (0.02, 1.0))])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_coordinate_median_minimizes_its_objective(rho, weighting):
    rows = rules.random_rows(7, 40)
    p = np.full(7, 1 / 7) if weighting == "uniform" else P
    rule = Coordinate(rho=rho, weighting=weighting)
    out, info = rules.matrix(rows, rules.WEIGHTS, rule=rule)
    low, high = medians.coordinate_median(rows, p, rho)
    assert (low - 1e-9 <= out).all() and (out <= high + 1e-9).all()
    best = medians.coordinate_objective(low, rows, p, rho)
    assert (medians.coordinate_objective(out, rows, p, rho) <= best + 1e-14).all()
    assert np.isclose(info.fraction_clipped, np.mean(np.abs(rows - out) > rho))
    exact, none = rules.matrix(
        rows, rules.WEIGHTS, rule=Coordinate(weighting=weighting)
    )
    assert none is None and (np.abs(out - exact) <= rho).all()


@pytest.mark.parametrize("count", [wide(2), 8])
def test_of_a_flat_set_the_midpoint_is_taken(count):
    rows, rho = rules.random_rows(count, 60), 1e-3
    out, _ = rules.matrix(rows, rule=Coordinate(rho=rho))
    p = np.full(count, 1 / count)
    low, high = medians.coordinate_median(rows, p, rho)
    assert (high - low > 1e-6).any()
    np.testing.assert_allclose(out, (low + high) / 2, atol=1e-12)
    ends = medians.coordinate_objective(low, rows, p, rho)
    found = medians.coordinate_objective(out, rows, p, rho)
    np.testing.assert_allclose(found, ends, atol=1e-13)


_SAMPLES = {
    "gaussian": lambda rng, shape: rng.normal(size=shape),
    "cauchy": lambda rng, shape: rng.standard_cauchy(shape),
    "log_normal": lambda rng, shape: np.exp(2 * rng.normal(size=shape)),
    "clustered": lambda rng, shape: (
        10.0 * rng.integers(0, 2, shape) + 0.01 * rng.normal(size=shape)
    ),
    "tied": lambda rng, shape: rng.integers(0, 4, shape).astype(float),
}
_centers = jax.jit(huber.centers)


@pytest.mark.wide
@pytest.mark.parametrize(
    "count", [wide(2), wide(3), wide(10), 31, wide(100), wide(301)]
)
@pytest.mark.parametrize("kind", few(("cauchy",), _SAMPLES))
def test_eight_newton_steps_are_enough(kind, count):
    rng = np.random.default_rng(count)
    rows = _SAMPLES[kind](rng, (count, 120))
    for weights in (np.ones(count), 0.01 + rng.random(count)):
        p = weights / weights.sum()
        low, high = order_statistics.weighted_middle(jnp.asarray(rows), jnp.asarray(p))
        median = low / 2 + high / 2
        for rho in np.geomspace(0.001, 30, 10):
            found = _centers(rows, p, median, rho)
            assert found.residual.max() <= 1e-12, (rho, weights[0])
            # The center that eight steps reach has no force in NumPy either, but for
            # rounding of the center itself.
            center = np.asarray(median + found.shift)
            force = medians.coordinate_force(center, rows, p, rho) / rho
            assert np.abs(force).max() <= 1e-12 + 1e-15 * np.abs(center).max() / rho


@pytest.mark.wide
@pytest.mark.parametrize("offset", [wide(0.0), 1e3, wide(1e5)])
def test_float32_with_a_common_offset(offset):
    """Relative to the spread, beside what a sum of the rows is rounded to."""
    rows = (rules.random_rows(10, 1200) + offset).astype(np.float32)
    # Half a unit for each of the rows: a compiler may add them before it centers them.
    rounding = len(rows) / 2 * np.finfo(np.float32).eps * offset
    for rule in (
        Coordinate(rho=0.3),
        Coordinate(rho_quantile=0.5),
        Geometric(rho_quantile=0.5),
    ):
        out, _ = rules.matrix(rows, rule=rule, dtype=np.float32)
        exact, _ = rules.matrix(rows.astype(float), rule=rule)
        assert np.abs(out - exact).max() < 1e-5 + rounding


@pytest.mark.parametrize("count", [1, wide(2), 7, wide(40), wide(130)])
def test_weighted_coordinate_median_against_repetition(count):
    rng = np.random.default_rng(count)
    rows, weights = rng.normal(size=(count, 300)).round(1), rng.integers(0, 6, count)
    weights[0] = 2
    rule = Coordinate(weighting="examples")
    out, _ = rules.matrix(rows, weights, rule=rule)
    np.testing.assert_array_equal(out, medians.weighted_median(rows, weights))
    rows[weights == 0] = np.nan
    out, _ = rules.matrix(rows, weights, rule=rule)
    assert np.isfinite(out).all()
    ones, _ = rules.matrix(rules.random_rows(count), rule=rule)
    exact, _ = rules.matrix(rules.random_rows(count), rule=Coordinate())
    np.testing.assert_array_equal(ones, exact)


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
@pytest.mark.parametrize(
    "rule",
    [
        Coordinate(rho=0.5),
        wide(Coordinate(rho_quantile=0.5)),
        wide(Coordinate(rho=0.5, weighting="examples")),
        Coordinate(weighting="examples"),
        Geometric(rho_quantile=0.5, start="reference", acceleration=5),
    ],
)
def test_outliers_and_rows_without_weight(rule, dtype):
    honest, largest = rules.random_rows(), np.finfo(dtype).max / 2
    plain, _ = rules.matrix(honest, rule=rule, dtype=dtype)
    for bad in (np.nan, np.inf, largest):
        rows = np.concatenate([honest, np.full((3, 6), bad)])
        out, info = rules.matrix(rows, [1] * 7 + [0] * 3, rule=rule, dtype=dtype)
        np.testing.assert_allclose(out, plain, atol=4 * np.finfo(dtype).eps)
        out, info = rules.matrix(rows, rule=rule, dtype=dtype)
        assert np.abs(out - honest.mean(axis=0)).max() < 20
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(info))
    out, info = rules.matrix(np.full((3, 6), np.nan), rule=rule, dtype=dtype)
    assert (out == 7).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(info))
    same, _ = rules.matrix(np.tile(honest[:1], (5, 1)), rule=rule, dtype=dtype)
    np.testing.assert_allclose(same, honest[0], rtol=4 * np.finfo(dtype).eps)
