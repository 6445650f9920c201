"""The page of Fed+: fixed points, descent, the median's steps, training failure."""

from experiments.theory import (
    fedplus_descent,
    fedplus_failure,
    fedplus_fixed_points,
    fedplus_iterations,
    rows,
)

__all__ = ["PARTS"]

PARTS: tuple[rows.Part, ...] = (
    fedplus_fixed_points.fixed_points,
    fedplus_descent.decrease,
    fedplus_iterations.iterations,
    fedplus_failure.failure,
)
