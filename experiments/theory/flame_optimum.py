"""FLAME at its optimum: the solution in closed form, and its expected test losses.

The fixed points of exact rounds are the minimizers of the regression problem (FLAME's
Proposition 1 in the regression example). For general designs `regression_optimum`
returns w, which the paper prints with a wrong factor `lam` (FLAME-11). For isotropic
designs `optimum_losses` returns expected losses; the paper prints `b + lam^2` for
`(b + lam)^2` in the loss of theta (FLAME-12).
"""

import math

import jax
import numpy as np

import fedjax_pfl as fp
from experiments.theory import closed_forms, one_round, rows, training
from experiments.theory import fedplus_quadratics as quadratics
from fedjax_pfl.figures import drawing

__all__ = ["optimum", "printed_loss", "solution_rows"]

_ROUNDS = 80  # of isotropic clients, until the error is far below a standard error
_FEDERATIONS = 5  # at most
_LAM = 0.5  # of general designs
_GRADIENT = 1e-12  # of local problems, at the end of a solve


def optimum(options: rows.Options) -> rows.Findings:
    """Compares trained models with the optimum, and their losses over lam."""
    lams = (0.5, 2.0) if options.quick else (0.25, 0.5, 1.0, 2.0, 4.0)
    params = 0.5 + 0.3 * np.random.default_rng(0).normal(size=(10, 5))
    findings = rows.Findings("flame_optimum")
    problems = [closed_forms.Regression(params, 10, 4.0, 2.0, lam) for lam in lams]
    points = []
    for number, problem in enumerate(problems):
        draws = one_round.Draws(problem, _ROUNDS)
        share = problem.curvature / (problem.curvature + problem.lam)  # kappa = 1
        count, malicious = options.seeds * one_round.DRAWS, np.zeros(10, bool)
        losses = draws.losses(share, count, 300 + number, None, malicious)
        settings = {"lam": problem.lam}
        points.append(
            [
                findings.add(f"loss of {name} at the optimum", settings, *pair)
                for name, *pair in zip(
                    ("w", "theta"),
                    problem.optimum_losses(),
                    [values.mean(axis=1) for values in losses],
                    strict=True,
                )
            ]
        )
        simulated, text = (
            points[-1][1].simulation,
            "loss of theta as printed (FLAME-12)",
        )
        findings.add(text, settings, printed_loss(problem), simulated, "")
    seeds = range(min(options.seeds, _FEDERATIONS))
    findings.rows += solution_rows([quadratics.Quadratics.draw(k) for k in seeds])
    _draw(findings, params, points)
    return findings


def printed_loss(problem: closed_forms.Regression) -> float:
    """Returns the loss of theta with the paper's denominator."""
    m, b, lam = len(problem.params), problem.curvature, problem.lam
    spread = np.square(problem.params - problem.params.mean(axis=0)).sum()
    bias = b * lam**2 / (2 * m) * spread
    loss = problem.optimum_losses()[1]
    return float(loss - bias / (b + lam) ** 2 + bias / (b + lam**2))


def solution_rows(problems: list[quadratics.Quadratics]) -> list[rows.Row]:
    """Compares the end of exact rounds with the optimum of general designs."""
    errors, paper_errors = [], []
    for problem in problems:
        w = _end(problem)
        best, _ = closed_forms.regression_optimum(
            problem.curvature, problem.targets, _LAM
        )
        errors.append(np.linalg.norm(w - best))
        # The printed solution has to be off: its smallest distance is claimed.
        paper_errors.append(np.linalg.norm(w - _LAM * best))
    settings = {"lam": _LAM}
    # Errors of a solve add up over the rounds that the slowest mode remembers.
    smallest = min(problem.eigenvalues[0] for problem in problems)
    tolerance = 100 * _GRADIENT / smallest
    results = rows.Rows()
    text = "general designs: |w - w*|"
    results.add(text, settings, 0.0, max(errors), tolerance=tolerance)
    text = "general designs: |w - printed w*| (FLAME-11)"
    results.add(text, settings, tolerance, min(paper_errors), ">=")
    return results


def _end(problem: quadratics.Quadratics) -> np.ndarray:
    """Returns FLAME's w `[d]` after exact rounds at kappa = 1."""
    smallest, largest = problem.eigenvalues
    solver = fp.local.ToTolerance(
        learning_rate=1 / (largest + _LAM), tolerance=_GRADIENT**2, max_steps=1000
    )
    flame = fp.Flame(lam=_LAM, kappa=1.0, eps_decay=0.0, local=solver)
    run = training.Training.of(fp.FederatedProcess(algorithm=flame), problem.federation)
    factor = max(closed_forms.convergence_factors(1.0, smallest / _LAM, "local"))
    return np.asarray(_last(run, math.ceil(math.log(1e-16) / math.log(factor))))


@training.compiled
def _last(run: training.Training, count: int) -> jax.Array:
    """Returns w after `count` rounds."""
    return run.after(run.init(training.key(0)), count).server["theta"]


def _draw(
    findings: rows.Findings, params: np.ndarray, points: list[list[rows.Row]]
) -> None:
    """Draws losses over lam."""
    axes, lams = findings.axes, np.geomspace(0.2, 5, 100)
    problems = [closed_forms.Regression(params, 10, 4.0, 2.0, lam) for lam in lams]
    curves = np.array([problem.optimum_losses() for problem in problems])
    for k, name in enumerate(("w", "theta")):
        axes.plot(lams, curves[:, k], color=drawing.COLORS[k])
        x = [pair[k].settings["lam"] for pair in points]
        y = [pair[k].simulation for pair in points]
        error = [2 * pair[k].standard_error for pair in points]
        style = {"color": drawing.COLORS[k], "fmt": drawing.MARKERS[k], "capsize": 2}
        axes.errorbar(x, y, error, label=f"loss of {name}", **style)
    printed = [printed_loss(problem) for problem in problems]
    axes.plot(lams, printed, ":", color=drawing.COLORS[1], label="theta, as printed")
    axes.set(xscale="log", xlabel="lam", ylabel="mean test loss at the optimum")
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes.minorticks_off()
    findings.titled("curves: theory, points: simulation ± 2 standard errors")
