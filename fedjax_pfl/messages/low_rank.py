"""Matrices of a message, replaced by ones of low rank."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.messages import base
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["LowRank"]


@struct.pytree_dataclass
class LowRank(base.Compression):
    """Sends two thin factors of every matrix of a message.

    An array M, as a matrix `[m, n]` with the first axis against all others, becomes
    `P P^T M` with P `[m, r]` an orthonormal basis of `M M^T M G`, G Gaussian: one step
    of subspace iteration from a random start. Exact for matrices of rank r at most, and
    a contraction for all. P and `P^T M` are sent, `r (m + n)` numbers; arrays that have
    no more numbers, such as vectors, are sent whole.

    Attributes:
      rank: static r, at least 1.
      error_feedback: static; whether clients add the last error to the next message.

    Example:
      >>> x = jax.numpy.outer(jax.numpy.arange(9.0), jax.numpy.arange(5.0))
      >>> bool(abs(LowRank(rank=1).fit(jax.random.key(0), x) - x).max() < 1e-4)
      True

    Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient
    Compression". There all workers share one P, which takes two exchanges, and the
    iteration starts from the last round's factor.
    """

    rank: int = struct.static_field(default=2, at_least=1)
    chooses: ClassVar[str] = "the random start of a subspace"

    def _sides(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Returns m and n of an array that is sent as factors, else None."""
        if len(shape) < 2:
            return None
        m, n = shape[0], math.prod(shape[1:])
        return (m, n) if self.rank * (m + n) < m * n else None

    def fit(self, key: core.Key, message: core.Message) -> core.Message:
        """Projects every matrix onto a subspace of r columns."""
        leaves, structure = jax.tree.flatten(message)

        def projected(key: core.Key, x: jax.Array) -> jax.Array:
            sides = self._sides(x.shape)
            if sides is None:
                return x
            # Over a power of two: M M^T M G has cubes of the numbers.
            matrix, unit = client_rows.rescale(x.reshape(sides))
            start = jax.random.normal(key, (sides[1], self.rank), x.dtype)
            basis = _orthonormal(client_rows.dot(matrix, start))
            # One step of subspace iteration, from a random start.
            basis = client_rows.dot(matrix, client_rows.dot(matrix.T, basis))
            basis = _orthonormal(basis)
            factor = client_rows.dot(basis.T, matrix)
            return unit * client_rows.dot(basis, factor).reshape(x.shape)

        keys = jax.random.split(key, len(leaves))
        return structure.unflatten(map(projected, keys, leaves))

    def encoding(self, before: Encoding) -> Encoding:
        """Counts the numbers of factors, and of arrays that are sent whole."""
        before.check_whole("LowRank")
        sides = ((self._sides(shape), math.prod(shape)) for shape in before.shapes)
        values = sum(self.rank * sum(s) if s else size for s, size in sides)
        return dataclasses.replace(before, values=values)


def _orthonormal(columns: jax.Array) -> jax.Array:
    """Orthonormalizes columns `[m, r]` by Gram and Schmidt; null ones become zero."""
    basis: list[jax.Array] = []
    cut = 100 * jnp.finfo(columns.dtype).eps
    for number in range(columns.shape[1]):
        column, _ = client_rows.rescale(columns[:, number])
        size = jnp.sqrt(client_rows.dot(column, column))
        # Once leaves errors of nearly parallel columns; twice is enough.
        for _ in range(2):
            for vector in basis:
                column = column - client_rows.dot(vector, column) * vector
        norm = jnp.sqrt(client_rows.dot(column, column))
        # A column in the span of the others leaves only rounding errors. Negated, so
        # that NaN stays NaN.
        is_new = ~(norm <= cut * size)
        basis.append(jnp.where(is_new, column / jnp.where(is_new, norm, 1), 0))
    return jnp.stack(basis, axis=1)
