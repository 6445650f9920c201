"""Factorizations: NumPy's numbers under nested vmaps, and no wait for XLA's threads."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.core import factorizations

ROOT = pathlib.Path(__file__).parents[2]
BOUND = 60  # seconds for what takes four
POINTS, CLIENTS, SIZE = 2, 3, 4


def systems():
    """Positive definite matrices `[G, K, J, J]` and right-hand sides `[G, K, J]`."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(POINTS, CLIENTS, SIZE, 2 * SIZE))
    return rows @ rows.swapaxes(-1, -2), rng.normal(size=(POINTS, CLIENTS, SIZE))


def rebuilt(matrix):
    """A matrix from its eigenvalues and eigenvectors, of which signs are free."""
    values, vectors = factorizations.eigh(matrix)
    return (vectors * values[None]) @ vectors.T


def multiplied(factorize):
    """A function that puts a matrix's factors together, of which signs are free."""

    def product(matrix):
        first, *others = factorize(matrix[:, :3])
        if len(others) == 2:
            return (first * others[0][None]) @ others[1]
        return first @ jnp.triu(others[0])

    return product


def solved(matrix, right):
    """A solution by the lower factor."""
    return factorizations.cholesky_solve(factorizations.cholesky(matrix), right)


def projected(matrix, right):
    """A vector's part in the span of a matrix's first two columns."""
    basis = factorizations.orthonormal(matrix[:, :2])
    return basis @ (basis.T @ right)


def projected_by_numpy(matrix, right):
    columns = matrix[..., :2]
    return (columns @ np.linalg.pinv(columns) @ right[..., None])[..., 0]


def solved_by_numpy(matrix, right):
    return np.linalg.solve(matrix, right[..., None])[..., 0]


CASES = {
    "cholesky": (factorizations.cholesky, np.linalg.cholesky),
    "eigh": (rebuilt, np.asarray),
    "eigvalsh": (factorizations.eigvalsh, np.linalg.eigvalsh),
    "cholesky_solve": (solved, solved_by_numpy),
    "solve": (factorizations.solve, solved_by_numpy),
    "orthonormal": (projected, projected_by_numpy),
    "qr": (multiplied(factorizations.qr), lambda matrix: matrix[..., :3]),
    "svd": (multiplied(factorizations.svd), lambda matrix: matrix[..., :3]),
}


def arguments(case):
    return systems()[: 2 if case in ("cholesky_solve", "solve", "orthonormal") else 1]


@pytest.mark.parametrize("case", CASES)
def test_clients_of_points_get_what_numpy_computes(case):
    fn, expected = CASES[case]
    found = jax.vmap(jax.vmap(fn))(*map(jnp.asarray, arguments(case)))
    # Condition numbers are below 100.
    np.testing.assert_allclose(found, expected(*arguments(case)), rtol=0, atol=1e-12)


def test_a_right_hand_side_may_be_shared():
    matrices, right = systems()
    found = jax.vmap(factorizations.solve, in_axes=(0, None))(matrices[0], right[0, 0])
    shared = np.broadcast_to(right[0, 0], (CLIENTS, SIZE))
    np.testing.assert_allclose(found, solved_by_numpy(matrices[0], shared), atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_lapack_is_called_for_one_matrix(case):
    """Batches are what jaxlib 0.10.0 to 0.11.0 give to threads and wait for."""
    mapped = jax.jit(jax.vmap(jax.vmap(CASES[case][0])))
    program = mapped.lower(*arguments(case)).as_text()
    calls = re.findall(r"custom_call @lapack_\w+\(.*: \(tensor<([\dx]+)xf64>", program)
    assert calls and all(shape.count("x") == 1 for shape in calls)


TWO_DEVICES = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import jax, jax.numpy as jnp
from fedjax_pfl.core import client_map, sharding
from fedjax_pfl.numerics import quadratic_programs

def cones(seed, _):
    rows = jax.random.normal(jax.random.key(seed), (60, 80))
    gram = rows @ rows.T / 80
    def one(own):
        mask = jnp.arange(60) != own
        return quadratic_programs.cone(gram, gram[own], gram[own, own], mask).x
    return jax.vmap(one)(jnp.arange(60))

shard = sharding.Execution(mode="shard")
run = jax.jit(lambda seeds: client_map.map_clients(cones, seeds, None, shard))
for first in range(3):
    jax.block_until_ready(run(first + jnp.arange(2)))
"""


@pytest.mark.wide  # as LAPACK is called for one matrix
def test_two_devices_on_two_threads_end():
    """They hung: each held a thread of the pool, and waited for one."""
    flags = "--xla_force_host_platform_device_count=2"
    subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        timeout=BOUND,
        check=True,
    )
