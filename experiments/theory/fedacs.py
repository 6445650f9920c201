"""The page of FedACS: its theorem, its gradient, precision and selection."""

from experiments.theory import descent_of_mixing, rows, similarities

__all__ = ["PARTS"]

PARTS: tuple[rows.Part, ...] = (
    descent_of_mixing.constant_steps,
    descent_of_mixing.decreasing_steps,
    descent_of_mixing.gradient,
    similarities.precision,
    similarities.neighbours,
)
