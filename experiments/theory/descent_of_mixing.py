"""FedACS's convergence theorem on quadratics with frozen similarities.

The objective is `F(W) = sum_i 1/2 (w_i - t_i)' A_i (w_i - t_i)` plus `lam R(W)`, with a
symmetric doubly stochastic S; all computations are in NumPy.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import closed_forms, rows, training
from fedjax_pfl.figures import drawing

__all__ = ["Problem", "constant_steps", "decreasing_steps", "gradient", "run"]

_CLIENTS, _DIM = 6, 3
_LAMS = (0.5, 2.0)
_FAR_OFF = 0.1  # relative error of a gradient, far above rounding


@dataclasses.dataclass(frozen=True)
class Problem:
    """Quadratic problem."""

    curvature: np.ndarray  # `[m, D, D]` matrices `A_i`
    targets: np.ndarray  # `[m, D]` minimizers `t_i`
    similarity: np.ndarray  # `[m, m]` S
    lam: float  # weight of R

    @classmethod
    def draw(cls, seed: int, lam: float) -> "Problem":
        """Draws a problem; all eigenvalues of the curvatures are in (0, 1)."""
        rng = np.random.default_rng(seed)
        curvature = training.curvatures(rng, _CLIENTS, _DIM, 0.1, 1.0)
        weights = rng.uniform(0.1, 1.0, size=(_CLIENTS, _CLIENTS))
        return cls(
            curvature=curvature,
            targets=2 * rng.normal(size=(_CLIENTS, _DIM)),
            similarity=closed_forms.doubly_stochastic(weights + weights.T),
            lam=lam,
        )

    def local_gradient(self, models: np.ndarray) -> np.ndarray:
        """Returns `grad F`, `[m, D]`."""
        return np.einsum("ijk,ik->ij", self.curvature, models - self.targets)

    def mixing_gradient(self, models: np.ndarray) -> np.ndarray:
        """Returns `grad R = (I - S) W`, `[m, D]`."""
        return models - self.similarity @ models

    def value(self, models: np.ndarray) -> float:
        """Returns `F + lam R`; R is `<W, (I - S) W> / 2`."""
        error = models - self.targets
        fit = np.einsum("ij,ijk,ik->", error, self.curvature, error) / 2
        return float(fit + self.lam / 2 * (models * self.mixing_gradient(models)).sum())

    @functools.cached_property
    def minimum(self) -> float:
        """Returns the smallest value, by one linear system."""
        size = _CLIENTS * _DIM
        pull = np.eye(_CLIENTS) - self.similarity
        system = self.lam * np.einsum("ij,kl->ikjl", pull, np.eye(_DIM))
        for i in range(_CLIENTS):
            system[i, :, i] += self.curvature[i]
        rhs = np.einsum("ijk,ik->ij", self.curvature, self.targets)
        optimum = np.linalg.solve(system.reshape(size, size), rhs.reshape(size))
        return self.value(optimum.reshape(_CLIENTS, _DIM))

    @property
    def smoothness(self) -> float:
        """Returns L, a Lipschitz constant of `grad F` and of `lam grad R`."""
        pull = np.eye(_CLIENTS) - self.similarity
        largest = np.linalg.eigvalsh(self.curvature).max()
        return float(max(largest, self.lam * np.abs(np.linalg.eigvalsh(pull)).max()))


def run(
    problem: Problem, num_rounds: int, step: Callable[[int], float]
) -> tuple[np.ndarray, float]:
    """Alternates both gradient steps; returns `[K + 1]` squared norms, and B."""
    models = np.zeros((_CLIENTS, _DIM))
    norms, largest = np.zeros(num_rounds + 1), 0.0
    for k in range(num_rounds + 1):
        local = problem.local_gradient(models)
        mixing = problem.lam * problem.mixing_gradient(models)
        # The norms are of the gradient of F + lam R at the start of each round.
        norms[k] = np.square(local + mixing).sum()
        largest = max(largest, np.square(local).sum(), np.square(mixing).sum())
        if k < num_rounds:
            beta = step(k + 1)
            models = models - beta * mixing  # alpha grad R = beta lam grad R
            local = problem.local_gradient(models)
            largest = max(largest, np.square(local).sum())
            models = models - beta * local
    return norms, math.sqrt(largest)


def constant_steps(options: rows.Options) -> rows.Findings:
    """Compares the smallest squared gradient with T1's bound, for several K."""
    counts = (10, 100, 1000) if options.quick else (10, 100, 1000, 10000)
    findings = rows.Findings("fedacs_constant_steps")
    axes = findings.axes
    quantity = "T1: smallest squared gradient, seed nearest its bound"
    for k, lam in enumerate(_LAMS):
        worst = []
        for count in counts:
            pairs = [_bound_and_smallest(s, lam, count) for s in range(_count(options))]
            worst.append(max(pairs, key=lambda pair: pair[1] / pair[0]))
            findings.add(quantity, {"lam": lam, "K": count}, *worst[-1], "<=")
        bounds, smallest = zip(*worst, strict=True)
        color, line = drawing.COLORS[k], drawing.MARKERS[k] + "-"
        axes.plot(counts, bounds, "--", color=color, label=f"bound, lam = {lam:g}")
        label = f"simulation, lam = {lam:g}"
        axes.plot(counts, smallest, line, color=color, label=label)
        ratio = max(b / a for a, b in itertools.pairwise(smallest))
        text = "T1: largest ratio of the value at K to that at K / 10"
        findings.add(text, {"lam": lam}, 1.0, ratio, "<=")
    axes.set(xscale="log", xlabel="K, rounds in all")
    axes.set(yscale="log", ylabel="min over rounds of |grad (F + lam R)|^2")
    return findings.titled(
        "beta = 1 / sqrt(K), alpha = lam / sqrt(K); the seed nearest its bound"
    )


def _count(options: rows.Options) -> int:
    """Returns the number of problems; long runs are loops in Python."""
    return min(options.seeds, 5)


def _bound_and_smallest(seed: int, lam: float, count: int) -> tuple[float, float]:
    """Returns the bound of T1 and the smallest squared gradient of one problem."""
    problem = Problem.draw(seed, lam)
    beta = 1 / math.sqrt(count)
    norms, largest = run(problem, count, lambda _: beta)
    gap = problem.value(np.zeros((_CLIENTS, _DIM))) - problem.minimum
    bound = closed_forms.incremental_bound(count, gap, problem.smoothness, largest)
    return bound, float(norms.min())


def decreasing_steps(options: rows.Options) -> rows.Findings:
    """Shows T2: with summable squares of the steps the gradient tends to zero."""
    num_rounds = 1000 if options.quick else 10000
    steps: dict[str, tuple[Callable[[int], float], str, str]] = {  # line, relation
        "0.5 k^-0.75": (lambda k: 0.5 * k**-0.75, "-", "<="),
        "0.1 (constant)": (lambda k: 0.1, ":", ""),
    }
    findings = rows.Findings("fedacs_decreasing_steps")
    axes, quantity = findings.axes, "T2: min |grad|^2 up to K, third of that up to K/10"
    marks = [m for m in (10, 100, 1000, 10000) if m <= num_rounds]
    for k, lam in enumerate(_LAMS):
        for name, (step, line, relation) in steps.items():
            runs = [
                run(Problem.draw(seed, lam), num_rounds, step)[0]
                for seed in range(_count(options))
            ]
            smallest = np.minimum.accumulate(np.mean(runs, axis=0))
            label, color = f"beta = {name}, lam = {lam:g}", drawing.COLORS[k]
            x = np.arange(1, num_rounds + 1)
            axes.plot(x, smallest[1:], line, color=color, label=label)
            for mark, next_mark in itertools.pairwise(marks):
                settings = {"lam": lam, "beta": name, "K": next_mark}
                third = smallest[mark] / 3
                findings.add(quantity, settings, third, smallest[next_mark], relation)
    axes.set(xscale="log", xlabel="round")
    axes.set(yscale="log", ylabel="running min of |grad (F + lam R)|^2")
    return findings.titled(f"alpha = lam beta; mean over {_count(options)} problems")


def gradient(options: rows.Options) -> rows.Findings:
    """Compares `(I - S) W` with the gradient by automatic differentiation."""
    rng = np.random.default_rng(0)
    errors: dict[str, list[float]] = {"doubly stochastic": [], "row-normalized": []}
    for _ in range(options.seeds):
        models = 1 + rng.normal(size=(20, 10))
        unit = models / np.linalg.norm(models, axis=1, keepdims=True)
        cosine = np.clip(unit @ unit.T, 0.01, None)
        top = np.where(cosine >= np.quantile(cosine, 0.8), cosine, 0)
        # Both agree for symmetric doubly stochastic s, but not for rows that are scaled
        # to sum 1 after thresholding, as in the algorithm.
        by_rows = top / top.sum(axis=1, keepdims=True)
        stochastic = closed_forms.doubly_stochastic(cosine)
        errors["doubly stochastic"].append(_stated_error(stochastic, models))
        errors["row-normalized"].append(_stated_error(by_rows, models))
    findings = rows.Findings("fedacs_gradient")
    findings.add(
        "largest error of the stated gradient (I - S) W, relative",
        {"similarities": "doubly stochastic"},
        0.0,
        max(errors["doubly stochastic"]),
        tolerance=1e-12,
    )
    findings.add(
        "mean error of the stated gradient (I - S) W, relative",
        {"similarities": "row-normalized, upper fifth"},
        _FAR_OFF,
        np.array(errors["row-normalized"]),
        ">=",
    )
    axes, x = findings.axes, np.arange(1, options.seeds + 1)
    for k, (name, values) in enumerate(errors.items()):
        style = {"color": drawing.COLORS[k], "label": name}
        axes.plot(x, np.maximum(values, 1e-17), drawing.MARKERS[k], **style)
    label = "|stated - true| / |true gradient|"
    axes.set(yscale="log", xlabel="random example", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    mean = np.mean(errors["row-normalized"])
    title = f"similarities; row-normalized ones are {mean:.0%} off on average"
    return findings.titled(title)


def _stated_error(similarity: np.ndarray, models: np.ndarray) -> float:
    """Returns the error of `(I - S) W` as gradient of `1/4 sum s_ij |w_i - w_j|^2`."""

    def penalty(w: jax.Array) -> jax.Array:
        gaps = jnp.square(w[:, None] - w[None]).sum(axis=2)
        return (similarity * gaps).sum() / 4

    exact = np.asarray(jax.grad(penalty)(jnp.asarray(models)))
    formula = models - similarity @ models
    return float(np.linalg.norm(formula - exact) / np.linalg.norm(exact))
