"""Fed+'s fixed points on quadratics: Theorem 1, Corollary 1 and Proposition 3."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import fedjax_pfl as fp
from experiments.theory import rows
from experiments.theory.fedplus_quadratics import (
    ALPHA,
    CLIENTS,
    DIM,
    INNER,
    RADII,
    Quadratics,
    Visited,
    exact,
    num_rounds,
)
from fedjax_pfl.algorithms import phi
from fedjax_pfl.figures import drawing

__all__ = ["RULES", "fixed_points", "proposition_3", "statements", "with_rule"]

RULES = {
    "mean": fp.aggregators.Mean(),
    "geometric median": fp.GeometricMedian(tolerance=INNER),
    "coordinate median": fp.CoordinateMedian(),
}
_FACTORS = (0.5, 1.0, 2.0, 3.0, 0.25, 1.5)  # q_i, coordinates that differ in gamma
_FEDERATIONS = 5  # at most; every one is a run of exact rounds


def fixed_points(options: rows.Options) -> rows.Findings:
    """Checks Theorem 1, Corollary 1 and Proposition 3 at the end of exact rounds."""
    seeds = range(min(options.seeds, _FEDERATIONS))
    problems = [Quadratics.draw(seed) for seed in seeds]
    count = num_rounds(problems)
    findings = rows.Findings("fedplus_fixed_points")
    axes = findings.axes
    names = ("l2", "l1", "indicator") if options.quick else tuple(RADII)
    for k, name in enumerate(names):
        runs = [p.visited(exact(name, p), count) for p in problems]
        findings.rows += _worst(
            map(functools.partial(statements, name), problems, runs)
        )
        _draw(axes, k, name, problems[0], runs[0])
    for name in list(RULES)[-1:] if options.quick else list(RULES):
        runs = [p.visited(with_rule(name, p), count) for p in problems]
        findings.rows += _worst(
            map(functools.partial(proposition_3, name), problems, runs)
        )
    axes.set(xlabel="round", ylabel="envelopes ft at the anchors")
    return findings.titled("Theorem 1: gradients tend to 0; the paper prints ft itself")


def _worst(by_seed: Iterable[list[rows.Row]]) -> list[rows.Row]:
    """Picks for every statement the seed that is nearest to breaking it."""

    def badness(row: rows.Row) -> tuple[bool, float]:
        sign = -1 if row.relation == ">=" else 1
        return row.holds == "no", sign * row.simulation

    return [max(group, key=badness) for group in zip(*by_seed, strict=True)]


def _draw(axes: Axes, k: int, name: str, problem: Quadratics, run: Visited) -> None:
    """Draws norms of the mean gradient over rounds; for the indicator also values."""
    if name == "zero":
        return
    gradients = [problem.envelope_gradients(z).mean(axis=0) for z in run.z]
    axes.semilogy(
        np.linalg.norm(gradients, axis=1),
        color=drawing.COLORS[k],
        marker=drawing.MARKERS[k],
        markevery=(6 * k, 24),
        markersize=4,
        label=f"|mean of grad ft|, {name}",
    )
    if name == "indicator":
        values = [problem.envelopes(z).mean() for z in run.z]
        axes.semilogy(values, ":", color="black", label=f"mean of ft, {name}")


def statements(name: str, problem: Quadratics, run: Visited) -> list[rows.Row]:
    """Checks the last exact round of a run, and printed statements if they differ."""
    w, c, z = run.w[-1], run.c[-1], run.z[-1]
    gradients, rounding = problem.envelope_gradients(z), problem.rounding
    results = rows.Rows()

    def add(
        quantity: str,
        simulation: float,
        theory: float = 0.0,
        relation: str = "=",
        tolerance: float = rounding,
    ) -> None:
        results.add(quantity, {"phi": name}, theory, simulation, relation, tolerance)

    residual = _largest(w - z + gradients / ALPHA)
    add("Theorem 1: |w - z + grad ft(z) / alpha|", residual)
    add("stationarity: |grad F|", _largest(_gradients(name, problem, w, c)))
    if name == "zero":
        add("Corollary 1 (a): |w - argmin f|", _largest(w - problem.targets))
        return results
    mean = float(np.linalg.norm(gradients.mean(axis=0)))
    add("Theorem 1: |mean of grad ft(z)|", mean)
    values = float(problem.envelopes(z).mean())
    add("Theorem 1 as printed: mean of ft(z)", values, relation="", tolerance=0.0)
    if name == "indicator":  # the center minimizes the mean of the envelopes
        of_center = problem.envelope_gradients(np.tile(c, (CLIENTS, 1)))
        residual = _largest(w - c + of_center)
        add("Corollary 1 (b): |w - c + grad ft(c) / alpha|", residual)
        shrunk = np.linalg.inv(problem.curvature + ALPHA * np.eye(DIM))
        optimum = problem.best_common(ALPHA * problem.curvature @ shrunk)
        smallest = problem.eigenvalues[0]
        steepness = ALPHA * smallest / (ALPHA + smallest)  # least, of the envelopes
        error, distance = rounding / steepness, _largest(c - optimum)
        add("Corollary 1 (b): |c - argmin mean ft|", distance, tolerance=error)
        distance = _largest(c - problem.best_common(problem.curvature))
        add("Corollary 1 (b) not: |c - argmin mean f|", distance, error, ">=", 0.0)
    if name == "sq":
        gamma = RADII[name] / (1 + RADII[name])
        residual = _largest(w - c + gradients / (ALPHA * gamma))
        quantity = "Corollary 1 (c): |w - c + grad ft(z) / (alpha gamma)|"
        add(quantity, residual, tolerance=rounding / gamma)
    return results


def _largest(vectors: np.ndarray) -> float:
    """Returns the largest norm of the rows."""
    return float(np.linalg.norm(np.atleast_2d(vectors), axis=1).max())


def _gradients(
    name: str, problem: Quadratics, w: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """Returns gradients `[K + 1, d]` of `sum_k f_k(w_k) + mu Phi(w_k - c)`."""
    of_w, of_c = _coupling_gradients(fp.algorithms.PHIS[name](), RADII[name], w, c)
    local = np.einsum("kij,kj->ki", problem.curvature, w - problem.targets)
    return np.concatenate([local + of_w, of_c[None] / CLIENTS])


@jax.jit
def _coupling_gradients(
    phi_: Any, rho: float, w: jax.Array, c: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Differentiates `sum_k mu Phi(w_k - c)` in w and c."""

    def coupling(w: jax.Array, c: jax.Array) -> jax.Array:
        return ALPHA * jax.vmap(lambda x: phi_.penalty(x, rho))(w - c[None]).sum()

    return jax.grad(coupling, argnums=(0, 1))(w, c)


def with_rule(name: str, problem: Quadratics) -> fp.FederatedProcess:
    """Returns exact rounds with `z = (1 - gamma) w + gamma c` and any rule for c."""
    process = exact("sq", problem, aggregator=RULES[name])
    weights = phi.Diagonal(q={"theta": jnp.asarray(_FACTORS)})
    algorithm = dataclasses.replace(process.algorithm, phi=weights)
    return dataclasses.replace(process, algorithm=algorithm)


def proposition_3(name: str, problem: Quadratics, run: Visited) -> list[rows.Row]:
    """Checks one relation to c for every rule, which maps scaled gradients to 0."""
    w, c, z = run.w[-1], run.c[-1], run.z[-1]
    strength = RADII["sq"] * np.array(_FACTORS)
    gamma = strength / (1 + strength)
    scaled = problem.envelope_gradients(z) / (ALPHA * gamma)
    rule = RULES[name]
    key, weights = jax.random.key(0), jnp.ones(CLIENTS)
    center, _ = jax.jit(rule)(key, jnp.asarray(scaled), weights, jnp.zeros(DIM))
    tolerance = problem.rounding / gamma.min()
    residuals = {
        "Proposition 3: |w - c + grad ft(z) / (alpha gamma)|": w - c + scaled,
        "Proposition 3: |A(grad ft(z) / (alpha gamma))|": np.asarray(center),
    }
    setting = {"aggregate": name}
    return [
        rows.Row(quantity, setting, 0.0, _largest(value), tolerance=tolerance)
        for quantity, value in residuals.items()
    ]
