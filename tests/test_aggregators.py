"""Aggregators: equivariance, breakdown, masks, and NumPy or SciPy as judges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from fedjax_pfl import aggregators, checks

KEY = jax.random.key(0)
RULES = {name: cls() for name, cls in aggregators.AGGREGATORS.items()}
RULES["geometric_median, prox"] = aggregators.GeometricMedian(
    rho=2.0, method="prox", weighting="examples", max_iterations=2000
)
ROBUST = ["coordinate_median", "geometric_median"]
each_rule = pytest.mark.parametrize("name", RULES)
each_robust_rule = pytest.mark.parametrize("name", ROBUST)

_run = jax.jit(lambda rule, *args: rule(KEY, *args))


def _matrix(rows, weights=None, *, name="geometric_median", rule=None, dtype=float):
    """Aggregates `[K, D]` by a rule whose messages have two leaves."""
    rows = np.asarray(rows, dtype)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights)
    split = rows.shape[1] // 2
    messages = {"a": jnp.asarray(rows[:, :split]), "b": jnp.asarray(rows[:, split:])}
    reference = {"a": jnp.full(split, 7.0, dtype)}
    reference["b"] = jnp.full(rows.shape[1] - split, 7.0, dtype)
    rule = RULES[name] if rule is None else rule
    out, info = _run(rule, messages, jnp.asarray(weights, dtype), reference)
    assert out["a"].dtype == dtype
    return np.concatenate([out["a"], out["b"]]), info


def _rows(count=7, size=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


WEIGHTS = np.array([3.0, 1, 4, 1, 5, 9, 2])


def _objective(center, rows, p, rho):
    """The smoothed objective `G` in NumPy."""
    distance = np.linalg.norm(rows - center, axis=1)
    huber = np.where(distance <= rho, distance**2 / (2 * rho), distance - rho / 2)
    return p @ huber


def _oracle(rows, p, rho):
    """Minimizes the smoothed objective by a quasi-Newton method."""
    result = scipy.optimize.minimize(
        _objective, np.average(rows, axis=0, weights=p), (rows, p, rho), tol=1e-14
    )
    return result.x


@each_rule
def test_the_order_of_rows_does_not_matter(name):
    rows, order = _rows(), np.array([3, 0, 6, 1, 5, 2, 4])
    one, _ = _matrix(rows, WEIGHTS, name=name)
    other, _ = _matrix(rows[order], WEIGHTS[order], name=name)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)


@each_rule
def test_translation(name):
    rows, shift = _rows(), np.arange(6) * 10.0
    one, _ = _matrix(rows, WEIGHTS, name=name)
    other, _ = _matrix(rows + shift, WEIGHTS, name=name)
    np.testing.assert_allclose(one + shift, other, rtol=0, atol=1e-8)


@each_rule
@pytest.mark.parametrize("scale", [2.0**-40, -(2.0**40)])
def test_scale(name, scale):
    rows, rule = _rows(), RULES[name]
    one, _ = _matrix(rows, WEIGHTS, rule=rule)
    if "prox" in name:
        rule = aggregators.GeometricMedian(
            rho=2 * abs(scale), method="prox", weighting="examples", max_iterations=2000
        )
    other, _ = _matrix(scale * rows, WEIGHTS, rule=rule)
    np.testing.assert_allclose(scale * one, other, rtol=1e-8, atol=1e-8 * abs(scale))


@each_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_identical_rows_return_that_row(name, dtype):
    row = np.array([1 / 3, -1e3, 0, 5, 1e-3, 2], dtype)
    out, _ = _matrix(np.tile(row, (7, 1)), name=name, dtype=dtype)
    np.testing.assert_allclose(
        out, row, rtol=4 * np.finfo(dtype).eps, atol=1e-4 * np.finfo(dtype).eps
    )


@each_rule
def test_a_single_row_is_returned(name):
    out, _ = _matrix(_rows(1), name=name)
    np.testing.assert_allclose(out, _rows(1)[0], rtol=1e-15)


@each_rule
def test_dropped_rows_may_hold_anything(name):
    rows = np.concatenate([_rows(), [[np.nan] * 6, [1e38] * 6, [np.inf] * 6]])
    one, _ = _matrix(_rows(), WEIGHTS, name=name)
    other, _ = _matrix(rows, [*WEIGHTS, 0, 0, 0], name=name)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)
    out, _ = _matrix(rows, [*WEIGHTS, 0, 0, 0], name=name, dtype=np.float32)
    np.testing.assert_allclose(one, out, rtol=0, atol=1e-5)


@each_rule
def test_without_any_row_the_reference_is_returned(name):
    out, info = _matrix(np.full((3, 6), np.nan), np.zeros(3), name=name)
    assert (out == 7).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(info))


@each_robust_rule
def test_robust_rules_leave_out_nonfinite_rows(name):
    rows = np.concatenate([_rows(), [[np.nan] + [0.0] * 5, [0.0] * 5 + [-np.inf]]])
    one, _ = _matrix(_rows(), name=name)
    other, _ = _matrix(rows, name=name)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-8)


@each_robust_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e2, 1e6, 1e15, 1e30])
def test_robust_rules_stay_with_the_majority(name, size, dtype):
    honest = _rows(6)
    rows = np.concatenate([honest, np.full((4, 6), size)])
    out, _ = _matrix(rows, name=name, dtype=dtype)
    radius = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    # The geometric median moves at most 2 (1 - f) / (1 - 2 f) radii, here f = 0.4.
    assert np.linalg.norm(out - honest.mean(axis=0)) <= 6 * radius


@pytest.mark.parametrize("size", [1e3, 1e12])
def test_geometric_median_breaks_down_at_one_half(size):
    honest = _rows(11)
    rows = np.concatenate([honest, np.full((9, 6), size)])
    out, info = _matrix(rows, dtype=np.float32)
    radius = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert info.converged
    assert np.linalg.norm(out - honest.mean(axis=0)) <= 2 * 0.55 / 0.1 * radius


def test_means_do_not_stay_with_the_majority():
    rows = np.concatenate([_rows(6), np.full((4, 6), 1e6)])
    assert _matrix(rows, name="mean")[0].min() > 1e5


@each_rule
def test_a_vmap_equals_a_loop(name):
    rows = jnp.asarray(np.stack([_rows(seed=s) * 10**s for s in range(3)]))
    weights = jnp.asarray(np.stack([WEIGHTS, np.ones(7), np.eye(7)[2]]))
    rule = RULES[name]
    together, _ = jax.jit(jax.vmap(lambda r, w: rule(KEY, r, w, jnp.zeros(6))))(
        rows, weights
    )
    for i in range(3):
        alone, _ = _run(rule, rows[i], weights[i], jnp.zeros(6))
        np.testing.assert_allclose(together[i], alone, rtol=1e-9, atol=1e-12)


def test_means_against_numpy():
    rows = _rows()
    weights = np.where(np.arange(7) == 2, 0, WEIGHTS)
    out, info = _matrix(rows, weights, name="weighted_mean")
    np.testing.assert_allclose(
        out, np.average(rows, axis=0, weights=weights), rtol=1e-12
    )
    out, _ = _matrix(rows, weights, name="mean")
    np.testing.assert_allclose(out, rows[weights > 0].mean(axis=0), rtol=1e-12)
    assert info is None
    assert [RULES[n].incremental for n in ("mean", "weighted_mean", *ROBUST)] == [
        "uniform",
        "weighted",
        None,
        None,
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13, 33])
def test_coordinate_median_against_numpy(count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, 5)).round(1)  # with ties
    out, _ = _matrix(rows, name="coordinate_median")
    np.testing.assert_array_equal(out, np.median(rows, axis=0))
    weights = rng.integers(0, 2, count)
    weights[0] = 1
    out, _ = _matrix(rows, weights, name="coordinate_median")
    np.testing.assert_array_equal(out, np.median(rows[weights > 0], axis=0))


def test_coordinate_median_of_several_blocks_and_of_huge_values():
    rows = np.random.default_rng(1).normal(size=(6, 4999))
    rows = np.clip(rows * 1e38, -3e38, 3e38).astype(np.float32)
    out, _ = _matrix(rows, name="coordinate_median", dtype=np.float32)
    expected = np.median(rows.astype(float), axis=0).astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("rho", [0.01, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_geometric_median_minimizes_the_smoothed_objective(rho, weighting):
    rows = _rows()
    p = np.ones(7) / 7 if weighting == "uniform" else WEIGHTS / WEIGHTS.sum()
    rule = aggregators.GeometricMedian(
        rho=rho, weighting=weighting, max_iterations=20000
    )
    out, info = _matrix(rows, WEIGHTS, rule=rule)
    best = _oracle(rows, p, rho)
    assert info.converged and info.residual <= 1e-10
    assert _objective(out, rows, p, rho) <= _objective(best, rows, p, rho) + 1e-13
    np.testing.assert_allclose(out, best, atol=1e-6)
    distance = np.linalg.norm(rows - out, axis=1)
    assert np.isclose(info.fraction_outside, np.mean(distance > rho))
    unit = (rows - out) / np.maximum(distance, rho)[:, None]
    assert np.linalg.norm(p @ unit) < 1e-9


@pytest.mark.parametrize("rho", [0.3, 1.5])
def test_prox_and_weiszfeld_have_one_fixed_point(rho):
    rows = _rows()
    one, fast = _matrix(rows, rule=aggregators.GeometricMedian(rho=rho))
    rule = aggregators.GeometricMedian(rho=rho, method="prox", max_iterations=2000)
    other, slow = _matrix(rows, rule=rule)
    assert fast.converged and slow.converged and slow.iterations > fast.iterations
    np.testing.assert_allclose(one, other, atol=1e-8)


@pytest.mark.parametrize("method", ["weiszfeld", "prox"])
def test_single_steps_against_numpy(method):
    rows, rho = _rows(), 0.8
    rule = aggregators.GeometricMedian(rho=rho, method=method, max_iterations=3)
    out, info = _matrix(rows, rule=rule)
    center = rows.mean(axis=0)
    for _ in range(3):
        eta = 1 / np.maximum(np.linalg.norm(rows - center, axis=1), rho)
        if method == "prox":  # equation (34), with the proximal operator of the norm
            difference = rows - center
            center = rows.mean(axis=0) - np.mean(
                (1 - np.minimum(1, rho * eta))[:, None] * difference, axis=0
            )
        else:
            center = eta @ rows / eta.sum()
    assert info.iterations == 3 and not info.converged
    np.testing.assert_allclose(out, center, rtol=1e-12, atol=1e-13)


def test_a_large_radius_gives_the_mean_without_a_step():
    rows = _rows()
    for method in ("weiszfeld", "prox"):
        rule = aggregators.GeometricMedian(rho=100.0, method=method)
        out, info = _matrix(rows, rule=rule)
        np.testing.assert_allclose(out, rows.mean(axis=0), atol=1e-14)
        assert info.iterations == 0 and info.fraction_outside == 0 and info.converged


def test_default_radius_is_the_median_itself():
    rows = _rows(9, 4)
    out, info = _matrix(rows)
    p = np.ones(9) / 9
    best = _oracle(rows, p, 1e-9)
    assert info.converged and info.fraction_outside == 1
    np.testing.assert_allclose(out, best, atol=1e-5)


def test_median_on_a_line_is_the_middle_row():
    rows = np.outer([0.0, 1, 2, 50, 60], np.ones(4))
    out, info = _matrix(rows)
    np.testing.assert_allclose(out, rows[2], atol=1e-4)
    assert info.fraction_outside == 0.8  # the median row itself lies within the radius


def test_a_majority_of_equal_rows_wins():
    rows = np.concatenate([np.zeros((6, 6)), _rows(4)])
    out, _ = _matrix(rows)
    np.testing.assert_allclose(out, 0, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_float32_with_a_common_offset(offset):
    rows = (_rows(10, 600) + offset).astype(np.float32)
    out, info = _matrix(rows, dtype=np.float32)
    exact, _ = _matrix(rows.astype(float))
    typical = np.linalg.norm(rows - exact, axis=1).mean()
    rounding = np.finfo(np.float32).eps * np.linalg.norm(exact)
    assert info.converged
    assert np.linalg.norm(out - exact) < 1e-5 * typical + rounding


@pytest.mark.parametrize("size", [1e3, 1e6, 1e12])
def test_float32_with_far_outliers_is_accurate(size):
    # About the mean, float32 does not resolve the distances of honest rows.
    outliers = size * (1 + _rows(4, 50, seed=1))
    rows = np.concatenate([_rows(10, 50), outliers]).astype(np.float32)
    out, info = _matrix(rows, dtype=np.float32)
    exact = _oracle_fixed_point(rows.astype(float))
    assert info.converged
    assert np.linalg.norm(out - exact) < 1e-4


def _oracle_fixed_point(rows):
    """Geometric median by Weiszfeld steps in model space from the honest mean."""
    center = rows[:10].mean(axis=0)
    for _ in range(500):
        eta = 1 / np.linalg.norm(rows - center, axis=1)
        center = eta @ rows / eta.sum()
    return center


def test_the_norm_is_over_the_whole_tree():
    rows = _rows()
    out, _ = _matrix(rows)
    alone = np.concatenate([_matrix(rows[:, :3])[0], _matrix(rows[:, 3:])[0]])
    assert np.abs(out - alone).max() > 1e-2


def test_radius_and_tolerance_are_traced():
    run = jax.jit(
        lambda rule: rule(KEY, jnp.asarray(_rows()), jnp.ones(7), jnp.zeros(6))
    )
    for rho in (0.1, 1.0):
        rule = aggregators.GeometricMedian(
            rho=jnp.asarray(rho), tolerance=jnp.asarray(0.1)
        )
        assert run(rule)[1].converged
    assert run._cache_size() == 1


def test_a_loose_tolerance_stops_early():
    _, loose = _matrix(_rows(), rule=aggregators.GeometricMedian(tolerance=0.05))
    _, tight = _matrix(_rows())
    assert (
        loose.iterations < tight.iterations and tight.residual < loose.residual < 0.05
    )


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"rho": 0.0}, "rho .* above 0, got 0.0"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"method": "weizfeld"}, "did you mean 'weiszfeld'"),
        ({"weighting": "sizes"}, "allowed: examples, uniform"),
        ({"max_iterations": 0}, "max_iterations"),
    ],
)
def test_wrong_fields_are_named(fields, match):
    with pytest.raises(checks.InputError, match=match):
        aggregators.GeometricMedian(**fields)
