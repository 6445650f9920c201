"""Fed+'s objective over rounds of gradient steps: Theorem 2 and its counterexamples.

F is the simulator's diagnostic, at the server's center. If the center is not optimal
for all models (of members only, or one step from the mean), F is above `F_mu(W)`.
"""

import dataclasses

import numpy as np

import fedjax_pfl as fp
from experiments.theory import fedplus_quadratics as quadratics
from experiments.theory import rows
from fedjax_pfl.figures import drawing

__all__ = ["VARIANTS", "decrease", "descent_rows"]

_SIZE = 2  # of the clients, for partial participation
_RHO = 0.2
_FLOOR = 1e-14  # of the figure; smaller values are rounding
_FEDERATIONS = 10  # at most
_ROUNDING = 100 * np.finfo(np.float64).eps
"""Relative rounding of an objective, a sum of fewer than 100 nonnegative numbers."""


@dataclasses.dataclass(frozen=True)
class _Variant:
    """Variant of Fed+."""

    is_monotone: bool  # whether Theorem 2 applies; if not, there is a counterexample
    size: int  # members of a round
    fields: dict = dataclasses.field(default_factory=dict)  # fields of the algorithm
    rule: dict = dataclasses.field(default_factory=dict)  # of the geometric median


_ONE_STEP = {"max_iterations": 1}
VARIANTS = {
    "all clients": _Variant(True, quadratics.CLIENTS),
    f"{_SIZE} members": _Variant(True, _SIZE),
    f"{_SIZE} members, 1 inner step, warm": _Variant(True, _SIZE, {}, _ONE_STEP),
    f"{_SIZE} members, center of members": _Variant(
        False, _SIZE, {"aggregate_over": "cohort"}
    ),
    f"{_SIZE} members, lam = 0.05": _Variant(False, _SIZE, {"lam": 0.05}),
    f"{_SIZE} members, 1 inner step, from the mean": _Variant(
        False, _SIZE, {}, _ONE_STEP | {"start": "mean"}
    ),
}


def variant_process(
    variant: _Variant, problem: quadratics.Quadratics
) -> fp.FederatedProcess:
    """Returns a variant's process: two plain steps of full gradients per round."""
    steps = fp.SGD(
        learning_rate=1 / problem.eigenvalues[1],
        epochs=2,
        batch_size=quadratics.EXAMPLES,
    )
    fields = {"aggregate_over": "all"} | variant.fields
    algorithm = fp.FedPlus.geometric_median(
        alpha=quadratics.ALPHA, rho=_RHO, local=steps, **fields
    )
    rule = {"rho": _RHO, "start": "reference"} | variant.rule
    return fp.FederatedProcess(
        algorithm=algorithm,
        aggregator=fp.GeometricMedian(**rule),
        participation=fp.UniformCohort(size=variant.size),
    )


def decrease(options: rows.Options) -> rows.Findings:
    """Shows Theorem 2, that the objective never rises, and its counterexamples."""
    seeds = range(min(options.seeds, _FEDERATIONS))
    problems = [quadratics.Quadratics.draw(seed) for seed in seeds]
    # The minima of F are where exact rounds end.
    exact_rounds = quadratics.num_rounds(problems)
    ends = [p.visited(quadratics.exact("l2", p, _RHO), exact_rounds) for p in problems]
    optima = np.array([end.objective[-1] for end in ends])
    count = 200 if options.quick else 400
    findings = rows.Findings("fedplus_decrease")
    axes = findings.axes
    variants = dict(list(VARIANTS.items())[options.quick :])  # quick: not all clients
    for k, (name, variant) in enumerate(variants.items()):
        runs = [
            problem.visited(variant_process(variant, problem), count, seed)
            for seed, problem in enumerate(problems)
        ]
        objectives = np.stack([run.objective for run in runs])
        gaps = objectives - optima[:, None]
        findings.rows += descent_rows(name, variant.is_monotone, objectives, gaps)
        axes.semilogy(
            np.maximum(gaps[0], _FLOOR),
            "-" if variant.is_monotone else "--",
            color=drawing.COLORS[k],
            label=name,
            marker=drawing.MARKERS[k],
            markevery=(3 * k, 20),
            markersize=4,
        )
    axes.set_ylim(_FLOOR)
    axes.set(xlabel="round", ylabel="F minus its minimum")
    title = f"geometric median, 2 gradient steps, {quadratics.CLIENTS} clients"
    title += "; F never rises: solid, rises: dashed"
    return findings.titled(title)


def descent_rows(
    name: str, is_monotone: bool, objectives: np.ndarray, gaps: np.ndarray
) -> list[rows.Row]:
    """Returns the largest rise of objectives `[seeds, R + 1]`, and the last gap."""
    rounding = float(_ROUNDING * objectives.max())
    rise = np.diff(objectives, axis=1).max()
    # A counterexample has to rise at least once, by more than rounding.
    claim = (0.0, rise, "<=", rounding) if is_monotone else (rounding, rise, ">=")
    quantity = "Theorem 2: largest rise of F in a round (>=: more than rounding)"
    last = f"F minus its minimum after {gaps.shape[1] - 1} rounds"
    return [
        rows.Row(quantity, {"variant": name}, *claim),
        rows.Row(last, {"variant": name}, 0.0, gaps[:, -1].max(), ""),
    ]
