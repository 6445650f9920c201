"""The page of FLAME: losses, fairness, descent, the upload at kappa = 1, rates."""

from experiments.theory import flame_runs, one_round, rows

__all__ = ["PARTS"]

PARTS: tuple[rows.Part, ...] = (
    one_round.losses_over_q,
    one_round.losses_over_malicious,
    one_round.fairness,
    flame_runs.descent,
    flame_runs.identity,
    flame_runs.rates,
)
