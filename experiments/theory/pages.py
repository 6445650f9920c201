"""Pages that compare simulations with theory: parts with rows and figures."""

from experiments.theory import (
    common_descent,
    common_descent_rate,
    descent_of_mixing,
    fedplus_descent,
    fedplus_failure,
    fedplus_fixed_points,
    fedplus_iterations,
    fedplus_rounds,
    flame_convergence,
    flame_optimum,
    flame_powers,
    flame_runs,
    one_round,
    portfolio,
    rows,
    similarities,
)

__all__ = ["PAGES"]

PAGES: dict[str, tuple[rows.Part, ...]] = {
    "flame": (
        one_round.losses_over_q,
        one_round.losses_over_malicious,
        one_round.fairness,
        flame_optimum.optimum,
        flame_runs.descent,
        flame_runs.identity,
        flame_runs.rates,
        flame_convergence.convergence,
        flame_powers.powers,
    ),
    "fedacs": (
        descent_of_mixing.constant_steps,
        descent_of_mixing.decreasing_steps,
        descent_of_mixing.gradient,
        similarities.precision,
        similarities.neighbours,
    ),
    "fedplus": (
        fedplus_rounds.rounds,
        fedplus_fixed_points.fixed_points,
        fedplus_descent.decrease,
        fedplus_iterations.iterations,
        fedplus_failure.failure,
    ),
    "fedpg": (
        common_descent_rate.linear_rate,
        common_descent.stuck,
        common_descent.hovering,
        common_descent.front,
    ),
    "portfolio": (portfolio.aggregation,),
}
