"""Reverse-mode derivatives of both medians against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators
from tests.aggregators import medians, rules
from tests.lanes import wide

WEIGHTS = np.array([3.0, 1, 4, 0, 5, 9, 2])
COTANGENT = np.array([0.3, -1.2, 0.7, 2.0, -0.4, 1.1])


def _geometric(rho, **fields):
    return aggregators.GeometricMedian(
        rho=rho, weighting="examples", tolerance=1e-15, max_iterations=5000, **fields
    )


def _coordinate(rho, **fields):
    return aggregators.CoordinateMedian(rho=rho, weighting="examples", **fields)


def _value(make, rows, weights, rho):
    """A number that depends on the median of `[K, 6]` in two leaves."""
    messages = {"a": rows[:, :2], "b": rows[:, 2:].reshape(-1, 2, 2)}
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], rows.dtype), messages)
    out, _ = make(rho)(rules.KEY, messages, weights, zero)
    flat = jnp.concatenate([out["a"], out["b"].reshape(-1)])
    return jnp.asarray(COTANGENT, rows.dtype) @ flat


_jitted_value = jax.jit(_value, static_argnums=0)
_jitted_grads = jax.jit(jax.grad(_value, (1, 2, 3)), static_argnums=0)


def _padded(rows, weights):
    """Rows and weights with others of weight 0, so that tests share programs."""
    fill = 13 - len(rows)
    return np.pad(rows, ((0, fill), (0, 0))), np.pad(weights, (0, fill))


def _values(make, rows, weights, rho):
    return _jitted_value(make, *_padded(rows, weights), rho)


def _grads(make, rows, weights, rho):
    of_rows, of_weights, of_rho = _jitted_grads(make, *_padded(rows, weights), rho)
    return of_rows[: len(rows)], of_weights[: len(rows)], of_rho


_smooth = pytest.mark.parametrize("make", [_geometric, _coordinate])
_mostly_geometric = pytest.mark.parametrize("make", [_geometric, wide(_coordinate)])
_radii = pytest.mark.parametrize("rho", [*map(wide, (0.4, 2.2)), 1.0])


@_smooth
@_radii
def test_derivatives_against_finite_differences(make, rho):
    rows = rules.random_rows()
    of_rows, of_weights, of_rho = _grads(make, rows, WEIGHTS, rho)
    expected = medians.finite_differences(
        lambda x: _values(make, x, WEIGHTS, rho), rows
    )
    np.testing.assert_allclose(of_rows, expected, atol=1e-9)
    assert (of_rows[3] == 0).all()  # of weight 0
    inside = medians.finite_differences(
        lambda w: _values(make, rows, np.where(WEIGHTS > 0, w, 0), rho), WEIGHTS
    )
    np.testing.assert_allclose(of_weights, inside, atol=1e-9)
    expected = medians.finite_differences(
        lambda r: _values(make, rows, WEIGHTS, r), np.array(rho)
    )
    np.testing.assert_allclose(of_rho, expected, atol=1e-9)


@jax.jit
@jax.jacrev  # a vmap over cotangents
def _jacobian(rows, rule):
    weights, zero = jnp.ones(len(rows)), jnp.zeros(rows.shape[1])
    return rule(rules.KEY, rows, weights, zero)[0]


@pytest.mark.parametrize(
    "rule",
    [
        wide(aggregators.GeometricMedian(rho=0.7)),  # examples: by differences above
        aggregators.GeometricMedian(rho=0.7, start="reference", acceleration=5),
        wide(aggregators.GeometricMedian(rho=1.5, method="prox")),
        aggregators.GeometricMedian(rho_quantile=0.5),
        aggregators.GeometricMedian(),
        aggregators.CoordinateMedian(),
        aggregators.CoordinateMedian(rho=0.5),
        aggregators.CoordinateMedian(rho=1e-6),
        aggregators.CoordinateMedian(rho_quantile=0.5),
        wide(aggregators.CoordinateMedian(weighting="examples")),
    ],
)
@pytest.mark.parametrize("count", [8, wide(9)])
def test_derivatives_over_all_rows_sum_to_the_identity(rule, count):
    jacobian = _jacobian(jnp.asarray(rules.random_rows(count, 4)), rule)
    np.testing.assert_allclose(jacobian.sum(axis=1), np.eye(4), atol=1e-7)
    assert np.isfinite(jacobian).all()


def test_the_exact_median_moves_with_the_two_middle_values():
    columns = np.array([[5.0, 1, 2, 9], [2, 2, 2, 7], [4, 1, 1, 6]]).T

    def total(rule, rows):
        return rule(rules.KEY, rows, jnp.ones(4), jnp.zeros(3))[0].sum()

    expected = np.array(
        [[0.5, 0, 0.5, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0.5, 0.25, 0.25, 0]]
    ).T
    for fields in ({}, {"weighting": "examples"}, {"rho": 1e-3}):
        rule = aggregators.CoordinateMedian(**fields)
        found = jax.jit(jax.grad(total, 1))(rule, jnp.asarray(columns))
        # Within a radius, equal rows share by their weights: here also equally.
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_weighted_derivatives_of_the_exact_median():
    rows = rules.random_rows(6)
    weights = np.array([1.0, 2, 1, 4, 3, 1])
    found, of_weights, _ = _grads(_without_radius, rows, weights, 1.0)
    expected = medians.finite_differences(
        lambda x: _values(_without_radius, x, weights, 1.0), rows, 1e-6
    )
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_array_equal(of_weights, 0)


def _without_radius(rho):
    del rho
    return aggregators.CoordinateMedian(weighting="examples")


@_smooth
def test_a_row_at_the_center_and_equal_rows_have_finite_derivatives(make):
    rows = rules.random_rows(6)
    rows = np.concatenate([rows, -rows, np.zeros((1, 6))])  # the center is 0
    for cloud in (rows, np.zeros_like(rows), np.ones_like(rows)):
        weights = np.ones(13)
        for rho in (1e-3, 0.5, 50.0):
            of_rows, of_weights, of_rho = _grads(make, cloud, weights, rho)
            np.testing.assert_allclose(of_rows.sum(axis=0), COTANGENT, rtol=1e-8)
            assert np.isfinite(of_weights).all() and np.isfinite(of_rho)
    np.testing.assert_allclose(of_rows, np.tile(COTANGENT / 13, (13, 1)), rtol=1e-8)


@_smooth
@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_rows_that_take_no_part_get_zeros(make, dtype):
    rows = rules.random_rows(9).astype(dtype)
    clean, _, _ = _grads(make, rows[:6], np.ones(6, dtype), dtype(0.7))
    rows[6:] = np.array([np.nan, np.inf, np.finfo(dtype).max])[:, None]
    weights = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0], dtype)
    of_rows, of_weights, of_rho = _grads(make, rows, weights, dtype(0.7))
    np.testing.assert_array_equal(of_rows[6:], 0)
    np.testing.assert_array_equal(of_weights[6:], 0)
    np.testing.assert_allclose(of_rows[:6], clean, atol=200 * np.finfo(dtype).eps)
    for found in _grads(make, rows, 0 * weights, dtype(0.7)):
        np.testing.assert_array_equal(found, 0)


@_mostly_geometric
def test_float32_and_rows_with_an_offset(make):
    rows = rules.random_rows(10) + 1e3
    weights = np.ones(10)
    exact = _grads(make, rows.astype(np.float32).astype(float), weights, 0.7)
    found = _grads(
        make, rows.astype(np.float32), weights.astype(np.float32), np.float32(0.7)
    )
    # An offset of 1e3 hides eps 1e3 = 1e-4 of the differences.
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.wide
@_mostly_geometric
def test_a_vmap_of_derivatives_equals_a_loop(make):
    rows = np.stack([rules.random_rows(seed=seed) for seed in range(3)])
    radii = np.array([0.3, 0.8, 3.0])
    weights = np.stack([WEIGHTS, np.ones(7), np.eye(7)[2]])
    together = jax.jit(jax.vmap(jax.grad(lambda *a: _value(make, *a), (0, 1, 2))))(
        rows, weights, radii
    )
    for i in range(3):
        alone = _grads(make, rows[i], weights[i], radii[i])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[i], b, atol=1e-9)


def test_the_reference_gets_the_cotangent_where_no_row_takes_part():
    rows, weights = jnp.asarray(rules.random_rows()), jnp.zeros(7)

    def total(reference, weights, rule):
        return rule(rules.KEY, rows, weights, reference)[0].sum()

    for rule in (
        aggregators.GeometricMedian(start="reference"),
        aggregators.CoordinateMedian(rho=1.0),
        aggregators.CoordinateMedian(),
    ):
        grad = jax.jit(jax.grad(total))
        np.testing.assert_array_equal(grad(jnp.zeros(6), weights, rule), 1)
        np.testing.assert_array_equal(grad(jnp.zeros(6), weights + 1, rule), 0)


def test_a_report_is_a_constant():
    def radius(rows):
        rule = aggregators.GeometricMedian(rho_quantile=0.5)
        return rule(rules.KEY, rows, jnp.ones(7), jnp.zeros(6))[1].radius

    np.testing.assert_array_equal(
        jax.jit(jax.grad(radius))(jnp.asarray(rules.random_rows())), 0
    )


def test_nearly_collinear_rows_have_finite_derivatives():
    rows = np.outer([-2.0, -1.5, 1.5, 2.0], np.ones(6))
    for found in _grads(_geometric, rows, np.ones(4), 0.1):
        assert np.isfinite(found).all()


@_mostly_geometric
def test_derivatives_are_the_implicit_ones(make):
    """At the zero c of `sum_k p_k (x_k - c) / max(|x_k - c|, rho)`, as a dense system.

    Of the coordinate median every coordinate is such a zero of its own.
    """
    rho, rows = 1.0, jnp.asarray(rules.random_rows())
    p = jnp.asarray(WEIGHTS / WEIGHTS.sum())

    @jax.jit
    def pull(center, rows, rho):
        away = rows - center[None]
        size = jnp.abs(away)
        if make is _geometric:
            size = jnp.broadcast_to(
                jnp.linalg.norm(away, axis=1, keepdims=True), away.shape
            )
        return p @ (away / jnp.maximum(size, rho))

    def median(rows, rho):
        zero = jnp.zeros(rows.shape[1])
        return make(rho)(rules.KEY, rows, jnp.asarray(WEIGHTS), zero)[0]

    tangents = jnp.asarray(rules.random_rows(seed=1)), jnp.asarray(0.7)
    given = rows, jnp.asarray(rho)
    center, moved = jax.jit(lambda *t: jax.jvp(median, given, t))(*tangents)
    np.testing.assert_allclose(pull(center, *given), 0, atol=1e-9)
    _, right = jax.jvp(lambda *g: pull(center, *g), given, tangents)
    matrix = jax.jacobian(pull)(center, *given)
    np.testing.assert_allclose(moved, -np.linalg.solve(matrix, right), rtol=1e-6)
