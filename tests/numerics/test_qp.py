"""Shortest combinations of rows: golden values, oracles, certificates."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.numerics import quadratic_programs
from tests.lanes import wide
from tests.numerics import qp_filled as qp
from tests.numerics import qp_oracles

# Golden values: three clients of which two oppose each other, with unequal losses.

GRADIENTS = np.array([[1, -0.3, 0], [-1, 1, -0.2], [-1, -1, 1]])
LOSSES = np.array([1.0, 2.0, 3.0])


def fairness_coefficients():
    """dF/dL of F = -cos(L, 1)."""
    norm, ones = np.linalg.norm(LOSSES), np.ones(3) / np.sqrt(3)
    unit = LOSSES / norm
    return ((ones @ unit) * unit - ones) / norm


def scaled(rows, length):
    return rows * (length / np.linalg.norm(rows, axis=1, keepdims=True))


def settings():
    """Rows, weights, direction and its norm of the five settings."""
    norms, h = np.linalg.norm(GRADIENTS, axis=1), fairness_coefficients()
    mean, median = norms.mean(), np.median(norms)
    raw, equal = (h @ GRADIENTS)[None], scaled(GRADIENTS, median)
    fair = scaled((h @ equal)[None], median)
    return {
        "published": (
            np.vstack([GRADIENTS, scaled(raw, mean)]),
            [0.527539, 0.271792, 0, 0.200669],
            [-0.187496, -0.424716, -0.885698],
            0.06008080,
        ),
        "without fairness": (
            GRADIENTS,
            [0.511045, 0.343986, 0.144969],
            [-0.241323, -0.499290, -0.832150],
            0.09153645,
        ),
        "fairness unscaled": (
            np.vstack([GRADIENTS, raw]),
            [0.171244, 0.087201, 0, 0.741555],
            [-0.117099, -0.324551, -0.938592],
            0.01973357,
        ),
        "scaled": (
            np.vstack([equal, fair]),
            [0.465130, 0.272590, 0, 0.262280],
            [-0.163034, -0.401525, -0.901220],
            0.05824706,
        ),
        "scaled without fairness": (
            equal,
            [0.417284, 0.384922, 0.197794],
            [-0.222936, -0.493514, -0.840680],
            0.10244217,
        ),
    }


@pytest.mark.parametrize("name", settings())
def test_golden_directions(name):
    rows, weights, direction, norm = settings()[name]
    x, point, solution = qp.shortest(rows)
    np.testing.assert_allclose(x, weights, atol=6e-7)
    np.testing.assert_allclose(-point / np.linalg.norm(point), direction, atol=6e-7)
    np.testing.assert_allclose(np.sqrt(solution.value), norm, atol=6e-9)


def test_golden_protected_directions():
    rows = scaled(GRADIENTS, np.median(np.linalg.norm(GRADIENTS, axis=1)))
    p = [
        [-0.07920287, -0.11880430, -0.19800717],
        [-0.04748201, -0.15827338, -0.20575540],
        [-0.04079835, -0.13599449, -0.47598071],
    ]
    nu = [[0.909033, 0.460592], [1.062270, 0.492051], [1.906818, 1.743202]]
    for i in range(3):
        left, x, solution = qp.protected(np.delete(rows, i, axis=0), rows[i])
        np.testing.assert_allclose(-left, p[i], atol=6e-9)
        np.testing.assert_allclose(x, nu[i], atol=6e-7)
        np.testing.assert_allclose(solution.value, np.square(p[i]).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("eps", "weights", "slopes"),
    [
        (0.1, [0.402422, 0.364245, 0.233333], [0.005689, 0.007783, -0.083326]),
        (1.0, [0.417284, 0.384922, 0.197794], None),
    ],
)
def test_golden_weights_in_a_box(eps, weights, slopes):
    rows, share = scaled(GRADIENTS, 1.0), 1 / 3
    lower, upper = np.full(3, max(0, share - eps)), np.full(3, min(1, share + eps))
    x, _ = qp.in_box(rows, lower, upper)
    np.testing.assert_allclose(x, weights, atol=6e-7)
    found = GRADIENTS @ -(x @ rows)
    if slopes is None:
        assert (found < 0).all()
    else:
        np.testing.assert_allclose(found, slopes, atol=2e-6)


# Solutions of oracles. With ||d||^2 / 2 within gap of the least, ||d - d*||^2 <= 2 gap.


@pytest.mark.parametrize("dtype", qp.DTYPES)
def test_solutions_are_those_of_oracles(dtype):
    for name, rows, point, left, boxed in qp_oracles.solved():
        scale = qp.mean_square(rows)
        allowed = qp.PRECISION[dtype] * scale
        _, found, solution = qp.shortest(rows, dtype)
        assert float(solution.gap) <= allowed, name
        assert np.linalg.norm(found - point) <= np.sqrt(2 * allowed), name
        assert abs(float(solution.value) - point @ point) <= 3 * allowed, name
        bounds = qp_oracles.box_of(len(rows))
        x, solution = qp.in_box(rows, *bounds, dtype)
        assert np.linalg.norm(x @ rows - boxed) <= np.sqrt(2 * allowed), name
        assert float(solution.gap) <= allowed, name
        found, x, solution = qp.protected(rows[1:], rows[0], dtype)
        # The rounding of A x; much of it where the cone is nearly the whole space.
        limit = (10 if "opposed" in name else 3) * allowed * (1 + x.sum())
        assert float(solution.gap) <= limit * (1 + x.sum()), name
        # Less than (slope @ (x - x*)) each, by the certificate.
        _, best = qp_oracles.left_over(rows[1:], rows[0])
        slope = rows[1:] @ found
        sums = np.abs(slope).sum() + scale * (x.sum() + best.sum())
        bound = 2 * limit / scale * sums
        assert np.square(found - left).sum() <= bound, name


@pytest.mark.parametrize("size", [2, 11])
def test_sizes_of_their_own_agree_with_masked_ones(size):
    rows = qp_oracles.families(size, np.random.default_rng(size))["common"]
    solution = jax.jit(quadratic_programs.minimum_norm)(rows @ rows.T)
    np.testing.assert_allclose(solution.x, qp.shortest(rows)[0], atol=1e-12)


# What a shortest point is.


def test_every_row_descends_at_least_as_much_as_the_shortest_point_is_long():
    for size in (2, 11, 66):
        sets = qp_oracles.families(size, np.random.default_rng(size))
        for name, rows in sets.items():
            x, point, solution = qp.shortest(rows)
            square, scale = point @ point, qp.mean_square(rows)
            slopes = rows @ point
            assert slopes.min() >= square - 1e-14 * scale, name
            assert (x >= 0).all() and abs(x.sum() - 1) <= 1e-14 * size, name
            # Complementary: rows with weight are level.
            assert (x * (slopes - square)).max() <= 1e-13 * scale, name
            weights = np.random.default_rng(0).dirichlet(np.ones(size), 20)
            others = np.linalg.norm(weights @ rows, axis=1)
            assert np.sqrt(square) <= others.min() * (1 + 1e-14), name
            np.testing.assert_allclose(solution.value, square, atol=1e-14 * scale)


def test_the_value_is_zero_exactly_if_zero_is_in_the_hull():
    rng = np.random.default_rng(1)
    for size in (3, 11, 40):
        rows = rng.normal(size=(size, 2 * size))
        around = np.vstack([rows, -rng.dirichlet(np.ones(size)) @ rows])
        assert float(qp.shortest(around)[2].value) <= 1e-14 * qp.mean_square(around)
        above = np.hstack([rows, np.full((size, 1), 0.1)])
        assert float(qp.shortest(above)[2].value) >= 0.01


@pytest.mark.parametrize("dtype", qp.DTYPES)
def test_the_gap_of_a_cone_includes_rounding(dtype):
    """Certificate and value in more digits, of the rows themselves, in units of g."""
    worst = 0.0
    for size, seed in itertools.product((3, 11, 66), range(2)):
        sets = qp_oracles.families(size, np.random.default_rng(size + seed))
        rng = np.random.default_rng(seed)
        sides = rng.normal(size=(size // 2, 40))
        sets["opposing pairs"] = np.vstack(
            [np.eye(40)[:1], sides, -sides + 0.01 * rng.normal(size=sides.shape)]
        )
        for name, rows in sets.items():
            rows = rows.astype(dtype).astype(float)
            _, x, solution = qp.protected(rows[1:], rows[0], dtype)
            # Else the rounding of the oracle would be as large as the solver's.
            rows, x = rows.astype(np.longdouble), x.astype(np.longdouble)
            left = rows[0] + x @ rows[1:]
            square, length = rows[0] @ rows[0], np.sqrt((rows[1:] ** 2).sum(axis=1))
            slope = rows[1:] @ left / length
            gap = max(
                x * length @ np.abs(slope), np.linalg.norm(left) * max(-slope.min(), 0)
            )
            assert gap <= float(solution.gap), name
            total = 1 + x @ length / np.sqrt(square)
            error = abs(float(solution.value) - left @ left) / square
            assert error <= 4 * np.finfo(dtype).eps * total**2, name
            worst = max(worst, gap / square)
    assert worst > 1000 * np.finfo(dtype).eps  # some of these are hard


def test_a_cone_leaves_what_no_row_opposes():
    for name, rows in qp_oracles.families(21, np.random.default_rng(3)).items():
        if name == "lengths":
            continue  # a row of 1e-3 among rows of 100
        left, x, solution = qp.protected(rows[1:], rows[0])
        slopes = rows[1:] @ left  # of the direction -left: no row ascends
        assert slopes.min() >= -max(1e-12, float(solution.gap)), name
        assert np.abs(x * slopes).max() <= 1e-10 * max(1, x.max()), name
        assert abs(rows[0] @ left - left @ left) <= 1e-10 * max(1, x.sum()), name


def test_cones_of_nearly_dependent_rows():
    """49 rows of 66 nearly in one plane, which only large weights leave: p is short."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 66)
    off = 1e-4 * rng.normal(size=(66, 64))
    off[:17] += rng.normal(size=(17, 64)) / 8
    rows = scaled(np.column_stack([np.cos(angle), np.sin(angle), off]), 1.0)
    for i in (0, 8, 40):
        others = np.delete(rows, i, axis=0)
        left, x, solution = qp.protected(others, rows[i])
        exact, _ = qp_oracles.left_over(others, rows[i])
        assert (x.sum() > 100) == (i < 17)
        length = np.linalg.norm(exact)
        assert np.linalg.norm(left - exact) <= 1e-6 * length
        assert (others @ left).min() >= -1e-10 * length
        assert float(solution.gap) <= 1e-7 * float(solution.value)


@pytest.mark.parametrize("dtype", qp.DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_cones_of_rows_of_very_different_length(dtype, seed):
    """Lengths from 1e-3 to 100; a row's length changes its weight and nothing else."""
    rows = qp_oracles.families(11, np.random.default_rng(seed))["lengths"]
    for i in range(11):
        others = np.delete(rows, i, axis=0)
        left, _, solution = qp.protected(others, rows[i], dtype)
        exact, _ = qp_oracles.left_over(scaled(others, 1.0), rows[i])
        length, eps = np.linalg.norm(exact), np.finfo(dtype).eps
        assert np.linalg.norm(left - exact) <= 1e3 * eps * length
        assert (scaled(others, 1.0) @ left).min() >= -20 * eps * length
        assert float(solution.gap) <= 20 * eps * float(solution.value)


# float32.


@pytest.mark.parametrize("draws", [1, wide(3)])
def test_gaps_in_single_precision(draws):
    """Certified from the rows in float64, as is the certificate itself."""
    for size in (2, 3, 11, 21, 66, 101):
        for draw in range(draws):
            rng = np.random.default_rng(1000 * size + draw)
            for name, rows in qp_oracles.families(size, rng).items():
                rows = rows.astype(np.float32)
                scale = qp.mean_square(rows)
                x, point, solution = qp.shortest(rows, np.float32)
                gap = qp_oracles.gap_of(rows, x / x.sum())
                assert gap < 1e-6 * scale, (name, size)
                assert abs(float(solution.gap) - gap) < 1e-6 * scale, (name, size)
                exact = qp.shortest(rows)[1]
                assert np.linalg.norm(point - exact) < 1.5e-3 * np.sqrt(scale)


@pytest.mark.parametrize("draws", [1, wide(5)])
def test_cones_in_single_precision(draws):
    limits = {"near-stationary": 5e-6}
    for size in (3, 11, 101):
        for draw in range(draws):
            rng = np.random.default_rng(1000 * size + draw)
            sets = qp_oracles.families(size, rng)
            for name in ("normal", "dependent", "clusters", "common", *limits):
                vector, *rows = sets[name]
                left, x, solution = qp.protected(rows, vector, np.float32)
                violation = -(rows @ left).min()
                limit = limits.get(name, 1e-6)
                assert violation <= limit, (name, size)
                assert float(solution.gap) <= limit * (1 + x.sum()), (name, size)


@pytest.mark.parametrize("draws", [20, wide(200)])
def test_cones_of_rows_that_span_the_space_leave_nothing(draws):
    for draw in range(draws):
        rows = scaled(np.random.default_rng(draw).normal(size=(11, 4)), 1.0)
        left, x, solution = qp.protected(rows[1:], rows[0], np.float32)
        if np.linalg.norm(qp_oracles.left_over(rows[1:], rows[0])[0]) < 1e-9:
            rounding = np.finfo(np.float32).eps * (1 + x.sum())  # of A x
            assert float(solution.gap) <= 4 * rounding * (1 + x.sum()), draw
            assert np.linalg.norm(left) <= 1e-3, draw


@pytest.mark.parametrize("kind", ["hull", "cone"])
def test_derivatives_are_those_of_the_rows_that_count(kind):
    """Implicit ones: with weights that are not 0, the solution is a linear system's.

    Forward through the iterations, of which the last ones forget how they began.
    """
    dot = functools.partial(jnp.matmul, precision="highest")
    g = np.random.default_rng(9).normal(size=8)

    def weights(rows):
        gram = dot(rows, rows.T)
        if kind == "hull":
            return quadratic_programs.minimum_norm(gram).x
        return quadratic_programs.cone(gram, dot(rows, g), dot(g, g)).x

    def point(rows, x):
        return dot(x, rows) + (kind == "cone") * g

    def active(rows):
        gram = dot(rows, rows.T)
        if kind == "hull":
            x = jnp.linalg.solve(gram, jnp.ones(len(rows)))
            return point(rows, x / x.sum())
        return point(rows, -jnp.linalg.solve(gram, dot(rows, g)))

    forward = jax.jit(
        lambda r, t: jax.jvp(lambda rows: point(rows, weights(rows)), (r,), (t,))
    )
    find = jax.jit(weights)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows = jnp.asarray(rng.normal(size=(5, 8)) + 0.7 * rng.normal(size=8))
        tangent = jnp.asarray(rng.normal(size=rows.shape))
        counts = np.asarray(find(rows)) > 1e-6
        found, moved = forward(rows, tangent)
        expected = jax.jvp(active, (rows[counts],), (tangent[counts],))
        scale = np.linalg.norm(expected[1]) or 1.0
        np.testing.assert_allclose(found, expected[0], atol=1e-9)
        np.testing.assert_allclose(moved, expected[1], atol=1e-8 * scale)
