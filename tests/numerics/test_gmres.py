"""Restarted GMRES against dense solves, and what becomes of systems without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.numerics import gmres

SOLVE = jax.jit(
    lambda matrix, right, start: gmres.solve(
        lambda x: jnp.matmul(matrix, x, precision="highest"), right, start
    )
)


def contraction(size, radius, seed=0):
    """A matrix of a given spectral radius, far from normal."""
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix * radius / np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1, 7, 150])  # below a cycle's length, and above
def test_dense_systems(size, dtype):
    rng = np.random.default_rng(1)
    matrix = np.eye(size) - contraction(size, 0.9)
    right, start = rng.normal(size=(2, size))
    x, residual = SOLVE(*(value.astype(dtype) for value in (matrix, right, start)))
    assert x.dtype == dtype and residual <= gmres.tolerance(dtype)
    left = np.linalg.norm(right - matrix @ x)
    first = np.linalg.norm(right - matrix @ start)
    scale = max(np.linalg.norm(right), first)
    rounding = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(residual, left / scale, rtol=0.1, atol=rounding)


def test_trees_are_solved_as_one_vector():
    right = {"a": jnp.ones(3), "b": 2 * jnp.ones((2, 2))}
    zero = jax.tree.map(jnp.zeros_like, right)

    def product(x):
        return {"a": 2 * x["a"] + x["b"].sum(), "b": x["b"] + x["a"][0]}

    x, residual = gmres.solve(product, right, zero)
    assert residual <= gmres.tolerance(float)
    after = product(x)
    for name, value in right.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-9)


def test_what_the_start_has_in_the_kernel_is_kept():
    """As by the iteration `v <- J v + b`, whose last entry never moves."""
    jacobian = np.zeros((5, 5))
    jacobian[:4, :4] = contraction(4, 0.8)
    jacobian[:, 4] = [1.0, -2, 0.5, 3, 1]
    right, start = np.array([1.0, 0, 2, 0, 0]), np.array([3.0, 1, 4, 1, 0.7])
    x, residual = SOLVE(np.eye(5) - jacobian, right, start)
    v = start
    for _ in range(500):
        v = jacobian @ v + right
    np.testing.assert_allclose(x, v, rtol=1e-9)
    assert residual <= gmres.tolerance(float)


def test_a_system_without_a_solution_has_its_least_residual():
    matrix, right = np.diag([2.0, 0.5, 0.0]), np.array([1.0, 1.0, 1.0])
    x, residual = SOLVE(matrix, right, np.zeros(3))
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x[:2], [0.5, 2.0])
    np.testing.assert_allclose(residual, 1 / np.sqrt(3))


def test_nothing_to_solve():
    x, residual = SOLVE(np.eye(3), np.zeros(3), np.zeros(3))
    assert residual == 0 and (np.asarray(x) == 0).all()


def test_a_vmap_equals_a_loop():
    """Systems that are done wait for the others unchanged."""
    matrices = np.stack(
        [np.eye(30), np.eye(30) - contraction(30, 0.95), 4 * np.eye(30)]
    )
    rights = np.random.default_rng(2).normal(size=(3, 30))
    together, residuals = jax.vmap(SOLVE)(matrices, rights, 0 * rights)
    for number in range(3):
        alone, residual = SOLVE(matrices[number], rights[number], 0 * rights[number])
        np.testing.assert_allclose(together[number], alone, rtol=1e-7)
        assert max(residual, residuals[number]) <= gmres.tolerance(float)


def test_many_lanes_in_single_precision_come_to_an_end():
    """Where sums round, a loop that asks a lane twice may hear two answers."""
    rng = np.random.default_rng(3)
    matrices = np.stack([np.eye(40) - contraction(40, 0.97, seed=k) for k in range(20)])
    rights = rng.normal(size=(20, 40))
    given = matrices.astype(np.float32), rights.astype(np.float32)
    x, residuals = jax.vmap(SOLVE)(*given, 0 * given[1])
    assert (residuals <= gmres.tolerance(np.float32)).all()
    left = rights - np.einsum("kij,kj->ki", matrices, x)
    scale = np.linalg.norm(rights, axis=1)
    limit = 10 * gmres.tolerance(np.float32)
    assert (np.linalg.norm(left, axis=1) <= limit * scale).all()
