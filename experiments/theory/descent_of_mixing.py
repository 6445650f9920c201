"""FedACS's convergence theorem on quadratics with frozen similarities.

`F(W) = sum_i 1/2 (w_i - t_i)' A_i (w_i - t_i)` plus `lam R(W)`, with a symmetric doubly
stochastic S; everything is NumPy, vectorized over seeds.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import closed_forms, rows
from fedjax_pfl.figures import drawing

__all__ = ["Problem", "constant_steps", "decreasing_steps", "gradient", "run"]

_CLIENTS, _DIM = 6, 3
_LAMS = (0.5, 2.0)
_FAR_OFF = 0.1  # relative error of a gradient that is surely not rounding


@dataclasses.dataclass(frozen=True)
class Problem:
    """One quadratic problem.

    Attributes:
      curvature: `[m, D, D]` matrices `A_i`.
      targets: `[m, D]` minimizers `t_i`.
      similarity: `[m, m]` S.
      lam: weight of R.
    """

    curvature: np.ndarray
    targets: np.ndarray
    similarity: np.ndarray
    lam: float

    @classmethod
    def draw(cls, seed: int, lam: float) -> "Problem":
        """A random problem; all eigenvalues of the curvatures are in (0, 1)."""
        rng = np.random.default_rng(seed)
        bases = np.linalg.qr(rng.normal(size=(_CLIENTS, _DIM, _DIM))).Q
        values = rng.uniform(0.1, 1.0, size=(_CLIENTS, 1, _DIM))
        weights = rng.uniform(0.1, 1.0, size=(_CLIENTS, _CLIENTS))
        return cls(
            curvature=(bases * values) @ bases.transpose(0, 2, 1),
            targets=2 * rng.normal(size=(_CLIENTS, _DIM)),
            similarity=closed_forms.doubly_stochastic(weights + weights.T),
            lam=lam,
        )

    def local_gradient(self, models: np.ndarray) -> np.ndarray:
        """`grad F`, `[m, D]`."""
        return np.einsum("ijk,ik->ij", self.curvature, models - self.targets)

    def mixing_gradient(self, models: np.ndarray) -> np.ndarray:
        """`grad R = (I - S) W`, `[m, D]`."""
        return models - self.similarity @ models

    def value(self, models: np.ndarray) -> float:
        """`F + lam R`; R is `<W, (I - S) W> / 2`."""
        error = models - self.targets
        fit = np.einsum("ij,ijk,ik->", error, self.curvature, error) / 2
        return float(fit + self.lam / 2 * (models * self.mixing_gradient(models)).sum())

    @functools.cached_property
    def minimum(self) -> float:
        """Smallest value, by one linear system."""
        size = _CLIENTS * _DIM
        system = np.zeros((_CLIENTS, _DIM, _CLIENTS, _DIM))
        for i in range(_CLIENTS):
            system[i, :, i] += self.curvature[i]
            for j in range(_CLIENTS):
                pull = (i == j) - self.similarity[i, j]
                system[i, :, j] += self.lam * pull * np.eye(_DIM)
        right = np.einsum("ijk,ik->ij", self.curvature, self.targets)
        best = np.linalg.solve(system.reshape(size, size), right.reshape(size))
        return self.value(best.reshape(_CLIENTS, _DIM))

    @property
    def smoothness(self) -> float:
        """L of `grad F` and of `lam grad R`."""
        pull = np.eye(_CLIENTS) - self.similarity
        largest = np.linalg.eigvalsh(self.curvature).max()
        return float(max(largest, self.lam * np.abs(np.linalg.eigvalsh(pull)).max()))


def run(
    problem: Problem, num_rounds: int, step: Callable[[int], float]
) -> tuple[np.ndarray, float]:
    """Alternates both gradient steps from zero.

    Args:
      problem: the problem.
      num_rounds: K.
      step: beta of a round, from 1; `alpha = lam beta`.

    Returns:
      `[K + 1]` squared norms of the gradient of `F + lam R`, and the largest norm B of
      either gradient (that of R times lam) at any visited point.
    """
    models = np.zeros((_CLIENTS, _DIM))
    norms, largest = np.zeros(num_rounds + 1), 0.0
    for k in range(num_rounds + 1):
        local = problem.local_gradient(models)
        mixing = problem.lam * problem.mixing_gradient(models)
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
    """T1: the smallest squared gradient against the bound, for several K."""
    counts = (10, 100, 1000) if options.quick else (10, 100, 1000, 10000)
    figure, (axes,) = drawing.panels(1)
    found: list[rows.Row] = []
    for k, lam in enumerate(_LAMS):
        new = []
        for count in counts:
            pairs = np.array(
                [_bound_and_smallest(seed, lam, count) for seed in range(_few(options))]
            )
            worst = pairs[(pairs[:, 1] / pairs[:, 0]).argmax()]
            new.append(
                rows.Row(
                    quantity="T1: smallest squared gradient, seed nearest its bound",
                    settings={"lam": lam, "K": count},
                    theory=worst[0],
                    simulation=worst[1],
                    relation="<=",
                )
            )
        found += new
        color = drawing.COLORS[k]
        bounds = [row.theory for row in new]
        smallest = [row.simulation for row in new]
        axes.plot(counts, bounds, "--", color=color, label=f"bound, lam = {lam:g}")
        axes.plot(
            counts,
            smallest,
            drawing.MARKERS[k] + "-",
            color=color,
            label=f"simulation, lam = {lam:g}",
        )
        found.append(
            rows.Row(
                quantity="T1: largest ratio of the value at K to that at K / 10",
                settings={"lam": lam},
                theory=1.0,
                simulation=max(b / a for a, b in itertools.pairwise(smallest)),
                relation="<=",
            )
        )
    _log_axes(axes, "K, rounds in all", "min over rounds of |grad (F + lam R)|^2")
    title = "beta = 1 / sqrt(K), alpha = lam / sqrt(K); the seed nearest its bound"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedacs_constant_steps": figure})


def _few(options: rows.Options) -> int:
    """Problems; long runs are loops in Python."""
    return min(options.seeds, 5)


def _bound_and_smallest(seed: int, lam: float, count: int) -> tuple[float, float]:
    """Bound of T1 and the smallest squared gradient of one problem."""
    problem = Problem.draw(seed, lam)
    beta = 1 / math.sqrt(count)
    norms, largest = run(problem, count, lambda _: beta)
    gap = problem.value(np.zeros((_CLIENTS, _DIM))) - problem.minimum
    bound = closed_forms.incremental_bound(count, gap, problem.smoothness, largest)
    return bound, float(norms.min())


def _log_axes(axes, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


def decreasing_steps(options: rows.Options) -> rows.Findings:
    """T2: with summable squares of the steps the gradient tends to zero."""
    num_rounds = 1000 if options.quick else 10000
    steps: dict[str, Callable[[int], float]] = {
        "0.5 k^-0.75": lambda k: 0.5 * k**-0.75,
        "0.1 (constant)": lambda k: 0.1,
    }
    figure, (axes,) = drawing.panels(1)
    found: list[rows.Row] = []
    marks = [m for m in (10, 100, 1000, 10000) if m <= num_rounds]
    for k, lam in enumerate(_LAMS):
        for (name, step), dash in zip(steps.items(), ("-", ":"), strict=True):
            runs = [
                run(Problem.draw(seed, lam), num_rounds, step)[0]
                for seed in range(_few(options))
            ]
            smallest = np.minimum.accumulate(np.mean(runs, axis=0))
            axes.plot(
                np.arange(1, num_rounds + 1),
                smallest[1:],
                dash,
                color=drawing.COLORS[k],
                label=f"beta = {name}, lam = {lam:g}",
            )
            is_covered = dash == "-"
            for before, after in itertools.pairwise(marks):
                settings = {"lam": lam, "beta": name, "K": after}
                found.append(
                    rows.Row(
                        quantity="T2: min |grad|^2 up to K, third of that up to K/10",
                        settings=settings,
                        theory=smallest[before] / 3,
                        simulation=smallest[after],
                        relation="<=" if is_covered else "",
                    )
                )
    _log_axes(axes, "round", "running min of |grad (F + lam R)|^2")
    title = f"alpha = lam beta; mean over {_few(options)} problems"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedacs_decreasing_steps": figure})


def gradient(options: rows.Options) -> rows.Findings:
    """`(I - S) W` against the gradient of the objective by automatic differentiation.

    It is exact for symmetric doubly stochastic s; for rows that are only scaled to sum
    1 after thresholding, as in the algorithm, it is not.
    """
    rng = np.random.default_rng(0)
    errors: dict[str, list[float]] = {"doubly stochastic": [], "row-normalized": []}
    for _ in range(options.seeds):
        models = 1 + rng.normal(size=(20, 10))
        unit = models / np.linalg.norm(models, axis=1, keepdims=True)
        cosine = np.clip(unit @ unit.T, 0.01, None)
        selected = np.where(cosine >= np.quantile(cosine, 0.8), cosine, 0)
        by_rows = selected / selected.sum(axis=1, keepdims=True)
        both = closed_forms.doubly_stochastic(cosine)
        for name, s in (("doubly stochastic", both), ("row-normalized", by_rows)):
            errors[name].append(_stated_error(s, models))
    found = [
        rows.Row(
            quantity="largest error of the stated gradient (I - S) W, relative",
            settings={"similarities": "doubly stochastic"},
            theory=0.0,
            simulation=max(errors["doubly stochastic"]),
            tolerance=1e-12,
        ),
        dataclasses.replace(
            rows.mean_row(
                "mean error of the stated gradient (I - S) W, relative",
                {"similarities": "row-normalized, upper fifth"},
                _FAR_OFF,
                np.array(errors["row-normalized"]),
            ),
            relation=">=",
        ),
    ]
    figure, (axes,) = drawing.panels(1)
    for k, (name, values) in enumerate(errors.items()):
        axes.plot(
            np.arange(1, options.seeds + 1),
            np.maximum(values, 1e-17),
            drawing.MARKERS[k],
            color=drawing.COLORS[k],
            label=name,
        )
    axes.set_yscale("log")
    axes.set_xlabel("random example", fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("|stated - true| / |true gradient|", fontsize=9)
    mean = np.mean(errors["row-normalized"])
    title = f"similarities; row-normalized ones are {mean:.0%} off on average"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedacs_gradient": figure})


def _stated_error(similarity: np.ndarray, models: np.ndarray) -> float:
    """Relative error of `(I - S) W` as the gradient of `1/4 sum s_ij |w_i - w_j|^2`."""

    def penalty(w):
        gaps = jnp.square(w[:, None] - w[None]).sum(axis=2)
        return (similarity * gaps).sum() / 4

    true = np.asarray(jax.grad(penalty)(jnp.asarray(models)))
    stated = models - similarity @ models
    return float(np.linalg.norm(stated - true) / np.linalg.norm(true))
