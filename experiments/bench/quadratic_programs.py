"""Quadratic programs: the shortest combination of rows, ours and SciPy's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from experiments.bench.contenders import Repeated, Timed
from fedjax_pfl.numerics import quadratic_programs

__all__ = ["PROGRAMS", "Program"]


@dataclasses.dataclass(frozen=True)
class Program(Timed):
    """The shortest points of the hulls of J rows, of several sets at once."""

    num_rows: int  # J
    num_problems: int = 1  # sets of rows

    def rows(self) -> np.ndarray:
        """Draws `float32[problems, J, J]`, unit rows about a common one."""
        rng = np.random.default_rng(0)
        shape = (self.num_problems, self.num_rows, self.num_rows)
        rows = rng.standard_normal(shape) / 2 + rng.standard_normal(self.num_rows)
        # The last opposes most of the others, so that the shortest point is short.
        against = 1 + rng.standard_normal(self.num_rows - 1)
        rows[:, -1] = -against @ rows[:, :-1]
        return (rows / np.linalg.norm(rows, axis=2, keepdims=True)).astype(np.float32)

    def contender(self, name: str) -> Repeated:
        """Makes a contender; its result are the shortest points `[problems, J]`."""
        rows = self.rows()

        def points(weights: Any) -> np.ndarray:
            weights = np.asarray(weights, np.float64)
            return np.einsum("pj,pjd->pd", weights, rows.astype(np.float64))

        if name == "ours":
            return Repeated(_ours(rows), points, "vmap")
        return Repeated(_scipy(rows), points)

    def loss(self, result: np.ndarray) -> float:
        """Returns the mean length of the shortest points."""
        return float(np.linalg.norm(result, axis=1).mean())


def _ours(rows: np.ndarray) -> Any:
    """Returns a program from Gram matrices to weights, all under one `vmap`."""
    grams = jnp.asarray(rows @ rows.transpose(0, 2, 1))
    solve = jax.jit(jax.vmap(quadratic_programs.minimum_norm))
    return lambda: solve(grams).x.block_until_ready()


def _scipy(rows: np.ndarray) -> Any:
    """Returns non-negative least squares in float64, one problem after the other."""
    count, size, _ = rows.shape
    ones = np.ones((count, 1, size))
    matrices = np.concatenate([rows.transpose(0, 2, 1), ones], axis=1)
    # The x >= 0 of least `||Q^T x||^2 + (sum(x) - 1)^2` are the weights times a number.
    right = np.append(np.zeros(size), 1.0)

    def solve() -> np.ndarray:
        points = [scipy.optimize.nnls(matrix, right)[0] for matrix in matrices]
        return np.stack([x / x.sum() for x in points])

    return solve


_SCIPY = ("scipy",)
_ALL = (
    Program("Q1", "shortest combination of 11 rows", _SCIPY, 11),
    Program("Q2", "shortest combination of 101 rows", _SCIPY, 101),
    Program("Q3", "shortest combination of 501 rows", _SCIPY, 501),
    Program("Q4", "shortest combinations of 8 sets of 66 rows", _SCIPY, 66, 8),
)
PROGRAMS = {program.name: program for program in _ALL}
