"""Quadratic programs: the shortest combination of rows, ours and SciPy's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from fedjax_pfl.numerics import quadratic_programs

__all__ = ["PEERS", "PROGRAMS", "OurProgram", "Program"]


@dataclasses.dataclass(frozen=True)
class Program:
    """The shortest points of the hulls of J rows, of several sets at once.

    Attributes:
      name: for example `Q1`.
      title: what it is, for people.
      num_rows: J.
      num_problems: sets of rows.
      peers: names of what it can be compared with.
    """

    name: str
    title: str
    num_rows: int
    num_problems: int = 1
    peers: tuple[str, ...] = ("scipy",)
    rounds: int = 1
    steps_per_round: float | None = None
    flops_per_round: float | None = None

    def rows(self) -> np.ndarray:
        """Draws `float32[problems, J, J]`, unit rows about a common one.

        The last opposes most of the others, so that the shortest point is short.
        """
        rng = np.random.default_rng(0)
        shape = (self.num_problems, self.num_rows, self.num_rows)
        drawn = rng.standard_normal(shape) / 2 + rng.standard_normal(self.num_rows)
        against = 1 + rng.standard_normal(self.num_rows - 1)
        drawn[:, -1] = -against @ drawn[:, :-1]
        return (drawn / np.linalg.norm(drawn, axis=2, keepdims=True)).astype(np.float32)


class OurProgram:
    """From Gram matrices to weights, compiled, all problems under one `vmap`."""

    execution = "vmap"

    def __init__(self, program: Program):
        self._rows = program.rows()
        self._grams = jnp.asarray(self._rows @ self._rows.transpose(0, 2, 1))
        self._solve = jax.jit(jax.vmap(quadratic_programs.minimum_norm))

    def run(self) -> None:
        """Solves every problem once."""
        self._weights = self._solve(self._grams).x
        self._weights.block_until_ready()

    def result(self) -> np.ndarray:
        """Returns the shortest points `[problems, J]`."""
        return _points(self._weights, self._rows)


class SciPyProgram:
    """Non-negative least squares in float64, one problem after the other.

    The x >= 0 of least `||Q^T x||^2 + (sum(x) - 1)^2` are the weights times a number.
    """

    execution = ""

    def __init__(self, program: Program):
        self._rows = program.rows()
        ones = np.ones((program.num_problems, 1, program.num_rows))
        self._matrices = np.concatenate([self._rows.transpose(0, 2, 1), ones], axis=1)
        self._right = np.append(np.zeros(program.num_rows), 1.0)

    def run(self) -> None:
        """Solves every problem once."""
        points = [scipy.optimize.nnls(one, self._right)[0] for one in self._matrices]
        self._weights = np.stack([x / x.sum() for x in points])

    def result(self) -> np.ndarray:
        """Returns the shortest points `[problems, J]`."""
        return _points(self._weights, self._rows)


def _points(weights: Any, rows: np.ndarray) -> np.ndarray:
    """Combinations of the rows, in float64."""
    weights = np.asarray(weights, np.float64)
    return np.einsum("pj,pjd->pd", weights, rows.astype(np.float64))


PEERS: dict[str, Callable[[Program], Any]] = {"scipy": SciPyProgram}
"""Makers of the peers of programs."""

_ALL = (
    Program("Q1", "shortest combination of 11 rows", 11),
    Program("Q2", "shortest combination of 101 rows", 101),
    Program("Q3", "shortest combination of 501 rows", 501),
    Program("Q4", "shortest combinations of 8 sets of 66 rows", 66, 8),
)
PROGRAMS = {program.name: program for program in _ALL}
