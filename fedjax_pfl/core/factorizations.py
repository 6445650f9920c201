"""Factorizations of one matrix; on a CPU, `vmap` loops over the matrices.

Except for `solve`, not differentiable in reverse mode.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg

from fedjax_pfl.core.aliases import Tree

__all__ = [
    "cholesky",
    "cholesky_solve",
    "eigh",
    "eigvalsh",
    "orthonormal",
    "qr",
    "solve",
    "svd",
]


def _one_by_one(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of single matrices; accelerators have kernels for batches."""
    looped = jax.custom_batching.custom_vmap(fn)

    @looped.def_vmap
    def rule(axis_size: int, is_batched: Sequence[bool], *args: jax.Array):  # pyright: ignore[reportUnusedFunction]
        del axis_size
        if not any(is_batched):  # if only derivatives are batched
            outputs = fn(*args)
            return outputs, jax.tree.map(lambda _: False, outputs)
        rows = [x for x, is_row in zip(args, is_batched, strict=True) if is_row]

        def call_row(row: list[jax.Array]) -> Tree:
            batched = iter(row)
            pairs = zip(args, is_batched, strict=True)
            return looped(*[next(batched) if is_row else x for x, is_row in pairs])

        # LAPACK factorizes one matrix at a time. For a batch, jaxlib 0.10.0 to 0.11.0
        # submit tasks to XLA's thread pool, and the call waits for them on a thread of
        # that pool. If all threads wait in such calls, from two devices on two cores or
        # from independent parts of one program, no thread is left for the tasks, and
        # the process hangs forever. A call for one matrix submits no task.
        outputs = lax.map(call_row, rows)
        return outputs, jax.tree.map(lambda _: True, outputs)

    @functools.wraps(fn)
    def call(*args: jax.Array) -> Tree:
        return looped(*args) if jax.default_backend() == "cpu" else fn(*args)

    return call


@_one_by_one
def cholesky(matrix: jax.Array) -> jax.Array:
    """Returns the lower factor `[J, J]`; reads the lower triangle of `[J, J]` only."""
    return lax.linalg.cholesky(matrix, symmetrize_input=False)


@_one_by_one
def cholesky_solve(factor: jax.Array, right: jax.Array) -> jax.Array:
    """Solves for `[J]`, given the lower factor `[J, J]` and the right-hand side."""
    return linalg.cho_solve((factor, True), right)


@_one_by_one
def _solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solves for `[J]`, given a matrix `[J, J]` and the right-hand side."""
    return jnp.linalg.solve(matrix, right)


def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solves for `[J]`, given `[J, J]`; differentiable forward and in reverse."""
    # Derivatives are linear systems, too, which also go through `_solve`.
    return lax.custom_linear_solve(
        lambda x: matrix @ x,
        right,
        lambda _, b: _solve(matrix, b),
        lambda _, b: _solve(matrix.T, b),
    )


@_one_by_one
def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns eigenvalues `[J]`, the largest last, and eigenvectors as columns."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_one_by_one
def eigvalsh(matrix: jax.Array) -> jax.Array:
    """Returns the eigenvalues `[J]` of a symmetric matrix, the largest last."""
    return jnp.linalg.eigvalsh(matrix)


@_one_by_one
def orthonormal(matrix: jax.Array) -> jax.Array:
    """Returns orthonormal columns `[D, J]` with the span of the given ones `[D, J]`."""
    return jnp.linalg.qr(matrix)[0]


@_one_by_one
def qr(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns orthonormal columns `[D, J]` and the upper `[J, J]`; D is at least J."""
    columns, upper = jnp.linalg.qr(matrix)
    return columns, upper


@_one_by_one
def svd(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns `[D, m]`, values `[m]`, largest first, and `[m, J]`; m = min(D, J)."""
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    return left, values, right
