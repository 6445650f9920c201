"""Closed forms and conditions that simulations are compared with.

Shapes: m clients, d features or D parameters. NumPy in float64; nothing is traced.
"""

from experiments.theory.closed_forms.descent import (
    PaperConditions,
    convergence_factors,
    descent_factors,
    paper_conditions,
    smallest_kappa,
)
from experiments.theory.closed_forms.mixing import (
    doubly_stochastic,
    incremental_bound,
    mixing_gradient,
)
from experiments.theory.closed_forms.regression import (
    OneRound,
    Regression,
    isotropic_optimum,
    regression_optimum,
    shrinkage,
)

__all__ = [
    "OneRound",
    "PaperConditions",
    "Regression",
    "convergence_factors",
    "descent_factors",
    "doubly_stochastic",
    "incremental_bound",
    "isotropic_optimum",
    "mixing_gradient",
    "paper_conditions",
    "regression_optimum",
    "shrinkage",
    "smallest_kappa",
]
