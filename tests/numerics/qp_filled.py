"""Problems filled up to one size, so that tests share compiled programs."""

import jax
import numpy as np

from fedjax_pfl.numerics import quadratic_programs

SIZE = 101
MINIMUM, BOX, CONE = map(
    jax.jit,
    (
        quadratic_programs.minimum_norm,
        quadratic_programs.box_minimum_norm,
        quadratic_programs.cone,
    ),
)
DTYPES = (np.float32, np.float64)
PRECISION = {np.float32: 1e-6, np.float64: 1e-14}  # of the gap, over the mean of diag A


def filled(rows, dtype=np.float64):
    """Gram matrix and mask `[SIZE]` of the rows; what is masked is NaN."""
    rows = np.asarray(rows, dtype)
    gram = np.full((SIZE, SIZE), np.nan, dtype)
    gram[: len(rows), : len(rows)] = rows @ rows.T
    return gram, np.arange(SIZE) < len(rows)


def longer(vector, dtype=np.float64):
    """A vector with one entry per row, filled up with NaN."""
    return np.append(vector, np.full(SIZE - len(vector), np.nan)).astype(dtype)


def shortest(rows, dtype=np.float64):
    """Weights in float64, their sum of rows, and the solution."""
    solution = MINIMUM(*filled(rows, dtype))
    x = np.asarray(solution.x, np.float64)[: len(rows)]
    return x, x @ np.asarray(rows, np.float64), solution


def protected(rows, vector, dtype=np.float64):
    """`vector + Q^T x` of the cone, x, and the solution."""
    rows, vector = np.asarray(rows, dtype), np.asarray(vector, dtype)
    gram, mask = filled(rows, dtype)
    solution = CONE(gram, longer(rows @ vector, dtype), vector @ vector, mask)
    x = np.asarray(solution.x, np.float64)[: len(rows)]
    return vector + x @ rows.astype(np.float64), x, solution


def in_box(rows, lower, upper, dtype=np.float64):
    """Weights in float64 and the solution."""
    gram, mask = filled(rows, dtype)
    solution = BOX(gram, longer(lower, dtype), longer(upper, dtype), mask)
    return np.asarray(solution.x, np.float64)[: len(rows)], solution


def mean_square(rows):
    return (np.asarray(rows, np.float64) ** 2).sum(axis=1).mean()
