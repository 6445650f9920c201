"""Single rounds of Fed+: Propositions 1, 2 and 4.

With `H(W, Z, c) = sum_k p_k [f_k(w_k) + alpha/2 |w_k - z_k|^2 + mu phi(z_k - c)]` and
`F_k(w) = f_k(w) + alpha/2 |w - z_k|^2 + mu phi(z_k - c)`:

    Proposition 1  F(W) = min_{Z, c} H, at the anchors z_k and the aggregate c
    Proposition 2  a local step is one of gradient descent on F_k with the step size
                   `eta / (1 + alpha eta)`
    Proposition 4  F_k(w+) <= F_k(w) - |grad F_k(w)|^2 / (2 (L + alpha)) for members
                   that take any number of steps `eta = 1 / L`, if lam = 0

H is bounded below, over all Z and c, by duality: for any `g_k` of sum 0,

    mu/K sum_k [<g_k, w_k> - rho/2 |g_k|^2 - phi*(g_k)]

Here `phi*` is `|g|^2 / 2` for `sq` and 0 for `indicator`; for `l2` and `l1` it is 0 if
no norm, or coordinate, of g is above 1.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import fedjax_pfl as fp
from experiments.theory import fedplus_quadratics as quadratics
from experiments.theory import rows
from fedjax_pfl.figures import drawing

__all__ = ["EPOCHS", "descents", "gained", "process", "rounds", "split", "stepped"]

EPOCHS = (1, 5, 2, 3)
"""Local steps of client k, modulo 4."""
_SIZE = 3  # members of a round
_LAM = 0.05  # share of the center in a start: Proposition 4 fails
_FEDERATIONS = 5  # at most
_SMALL = 1e-10  # a decrease that is not rounding


def process(
    name: str, problem: quadratics.Quadratics, **fields: Any
) -> fp.FederatedProcess:
    """Returns Fed+ with `EPOCHS` steps of full gradients of size 1 / L."""
    # As in exact rounds, except for local work and cohorts.
    exact_process = quadratics.exact(name, problem)
    local = fp.SGD(
        learning_rate=1 / problem.eigenvalues[1],
        epochs=max(EPOCHS),
        batch_size=quadratics.EXAMPLES,
    )
    algorithm = fp.FedPlus(
        phi=exact_process.algorithm.phi,
        alpha=quadratics.ALPHA,
        rho=quadratics.RADII[name],
        aggregate_over="all",
        local=local,
        **fields,
    )
    return fp.FederatedProcess(
        algorithm=algorithm,
        aggregator=exact_process.aggregator,
        participation=fp.UniformCohort(size=_SIZE),
        work=fp.local.ClientBudgets(epochs=EPOCHS),
    )


def rounds(options: rows.Options) -> rows.Findings:
    """Checks Propositions 1, 2 and 4 along runs with few members."""
    seeds = range(min(options.seeds, _FEDERATIONS))
    problems = [quadratics.Quadratics.draw(seed) for seed in seeds]
    count = 60 if options.quick else 100
    findings = rows.Findings("fedplus_rounds")
    axes = findings.axes
    names = ("l2", "l1") if options.quick else ("sq", "l2", "l1", "indicator")
    for k, name in enumerate(names):
        # Few members a round: the propositions hold for any participation.
        runs = [p.visited(process(name, p), count, s) for s, p in enumerate(problems)]
        findings.rows += split(name, problems, runs)
        findings.rows.append(stepped(name, problems, runs))
        gains = np.concatenate(
            [gained(*pair) for pair in zip(problems, runs, strict=True)], axis=1
        )
        findings.rows.append(descents(name, 0.0, gains))
        style: dict[str, Any] = {"color": drawing.COLORS[k], "markersize": 4}
        axes.loglog(*gains, drawing.MARKERS[k], label=name, **style)
    name = "l2"
    runs = [
        p.visited(process(name, p, lam=_LAM), count, s) for s, p in enumerate(problems)
    ]
    gains = np.concatenate(
        [gained(*pair) for pair in zip(problems, runs, strict=True)], axis=1
    )
    findings.rows.append(descents(name, _LAM, gains))
    low, high = axes.get_xlim()
    axes.loglog(*gains, "x", color="black", markersize=3, label=f"l2, lam = {_LAM:g}")
    axes.plot([low, high], [low, high], "--", color="black", label="bound")
    axes.set(xlim=(low, high), xlabel="|grad F_k|^2 / (2 (L + alpha))")
    axes.set(ylim=(low, 10 * high), ylabel="decrease of F_k in a round")
    return findings.titled("Proposition 4: above the line if lam = 0")


def split(
    name: str, problems: list[quadratics.Quadratics], runs: list[quadratics.Visited]
) -> list[rows.Row]:
    """Checks Proposition 1 at all states of runs; for `l1` also the printed prox."""
    gap, bound, printed = 0.0, 0.0, np.inf
    for run in runs:
        values = np.asarray(_coupling(name, run.w, run.c))
        gap = max(gap, np.abs(_split(name, run.w, run.z, run.c) - values).max())
        bound = max(bound, np.abs(values - _lower_bound(name, run)).max())
        offsets = run.w - run.c[:, None]
        one_sided = np.maximum(0, offsets - quadratics.RADII[name] * np.sign(offsets))
        excess = _split(name, run.w, run.c[:, None] + one_sided, run.c) - values
        printed = min(printed, excess[len(excess) // 2 :].min())
    settings = {"phi": name}
    # Values are between 1 and 100, and c has an error of INNER.
    tolerance = max(p.rounding for p in problems)
    results = rows.Rows()
    text = "Proposition 1: H at the anchors less F"
    results.add(text, settings, 0.0, gap, tolerance=tolerance)
    text = "Proposition 1: F less a lower bound of H"
    results.add(text, settings, 0.0, bound, tolerance=tolerance)
    if name == "l1":
        text = "Proposition 1 not: H at anchors of the printed prox less F"
        results.add(text, settings, tolerance, printed, ">=")
    return results


@functools.partial(jax.jit, static_argnums=0)
def _coupling(name: str, w: jax.Array, c: jax.Array) -> jax.Array:
    """Returns F without the losses, by the simulator's envelopes, `[R + 1]`."""
    penalty = fp.algorithms.PHIS[name]().penalty
    penalties = jax.vmap(jax.vmap(lambda x: penalty(x, quadratics.RADII[name])))
    return quadratics.ALPHA * penalties(w - c[:, None]).mean(axis=1)


def _split(name: str, w: np.ndarray, z: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Returns H without the losses, by the definition of phi, `[R + 1]`."""
    offsets = z - c[:, None]
    phi = {
        "sq": np.square(offsets).sum(axis=2) / 2,
        "l2": np.linalg.norm(offsets, axis=2),
        "l1": np.abs(offsets).sum(axis=2),
        "indicator": np.where((offsets == 0).all(axis=2), 0, np.inf),
    }[name]
    pull = np.square(w - z).sum(axis=2) / 2
    return quadratics.ALPHA * (pull + quadratics.RADII[name] * phi).mean(axis=1)


def _lower_bound(name: str, run: quadratics.Visited) -> np.ndarray:
    """Bounds H without the losses over all Z and c from below, `[R + 1]`."""
    rho = quadratics.RADII[name]
    g = (run.w - run.z) / rho
    g = g - g.mean(axis=1, keepdims=True)
    size = {"l2": np.linalg.norm(g, axis=2, keepdims=True), "l1": np.abs(g)}
    if name in size:
        g = g / np.maximum(1, size[name].max(axis=(1, 2), keepdims=True))
    square = np.square(g).sum(axis=2)
    conjugate = square / 2 if name == "sq" else 0
    value = (g * run.w).sum(axis=2) - rho / 2 * square - conjugate
    return quadratics.ALPHA * rho * value.mean(axis=1)


def _steps(run: quadratics.Visited) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields old and new models, anchors and active members of every round."""
    # Other clients' models do not change.
    active = (np.diff(run.w, axis=0) != 0).any(axis=2)
    return zip(run.w[:-1], run.w[1:], run.z[:-1], active, strict=True)


def stepped(
    name: str, problems: list[quadratics.Quadratics], runs: list[quadratics.Visited]
) -> rows.Row:
    """Compares members' models with the closed form of Proposition 2's descent."""
    largest, alpha = 0.0, quadratics.ALPHA
    for problem, run in zip(problems, runs, strict=True):
        eta = 1 / problem.eigenvalues[1]
        bend = problem.curvature + alpha * np.eye(quadratics.DIM)
        # E steps of size `s = eta / (1 + alpha eta)` from w about the minimizer v of
        # F_k end at `v + (I - s (A_k + alpha))^E (w - v)`.
        once = np.eye(quadratics.DIM) - eta / (1 + alpha * eta) * bend
        powers = [
            np.linalg.matrix_power(matrix, EPOCHS[k % len(EPOCHS)])
            for k, matrix in enumerate(once)
        ]
        for old, new, z, active in _steps(run):
            optimum = problem.solutions(z)
            expected = optimum + np.einsum("kij,kj->ki", powers, old - optimum)
            largest = max(largest, np.abs(new - expected)[active].max())
    text = "Proposition 2: |w - the closed form of its gradient descent|"
    # About ten products of numbers near 10, and targets from a system of equations.
    return rows.Row(text, {"phi": name}, 0.0, largest, tolerance=1e-11)


def gained(problem: quadratics.Quadratics, run: quadratics.Visited) -> np.ndarray:
    """Returns Proposition 4's bound and the decrease of F_k, for members `[2, n]`."""
    alpha, pairs = quadratics.ALPHA, []

    def value(w: np.ndarray, z: np.ndarray) -> np.ndarray:
        return problem.losses(w) + alpha / 2 * np.square(w - z).sum(axis=1)

    for old, new, z, active in _steps(run):
        slope = np.einsum("kij,kj->ki", problem.curvature, old - problem.targets)
        slope = slope + alpha * (old - z)
        bound = np.square(slope).sum(axis=1) / 2 / (problem.eigenvalues[1] + alpha)
        pairs.append(np.stack([bound, value(old, z) - value(new, z)])[:, active])
    gains = np.concatenate(pairs, axis=1)
    return gains[:, gains[0] > _SMALL]


def descents(name: str, lam: float, gains: np.ndarray) -> rows.Row:
    """Compares decreases of F_k with Proposition 4, from gains `[2, n]`."""
    return rows.Row(
        "Proposition 4: least decrease of F_k over its bound",
        {"phi": name, "lam": lam},
        1.0,
        float((gains[1] / gains[0]).min()),
        # If lam > 0 the proposition fails: some decrease has to be too small.
        "<=" if lam else ">=",
    )
