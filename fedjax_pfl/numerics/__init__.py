"""Quadratic programs on Gram matrices of rows."""

from fedjax_pfl.numerics.quadratic_programs import (
    Solution,
    box_minimum_norm,
    cone,
    minimum_norm,
)

__all__ = ["Solution", "box_minimum_norm", "cone", "minimum_norm"]
