"""FLAME's trainings on quadratics: descent, rates, and the identity at kappa = 1."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows, training
from fedjax_pfl.figures import drawing

__all__ = ["descent", "identity", "rates"]

_LAM = 1.0
_CENTERS = {"local": "local", "received": "global"}  # algorithm's name -> theory's
_RISE = 1e-10  # of the Lagrangian, which is near 1: more than rounding


def _spec() -> fp.FederationSpec:
    """Returns ten isotropic regressions."""
    return training.regressions(10, dim=3, examples_per_client=4)


def _diagnostics(
    algorithm: fp.Flame, axes: dict[str, Any], num_rounds: int, **parts: Any
) -> dict[str, np.ndarray]:
    """Runs a grid with exact local solves; returns diagnostics after every round."""
    largest = axes["federation.dataset.curvature"][-1]
    solver = fp.local.ToTolerance(  # rounding stops it
        learning_rate=1 / (largest + _LAM), tolerance=1e-24, max_steps=200
    )
    algorithm = dataclasses.replace(algorithm, local=solver)
    return training.grid(
        fp.FederatedProcess(algorithm=algorithm, **parts),
        fp.models.LinearRegression(),
        _spec(),
        axes,
        num_rounds,
        eval_every=1,
        evaluate_on=("train",),
        diagnostics=True,
        points_per_chunk=1024,
    ).diagnostics


def descent(options: rows.Options) -> rows.Findings:
    """Measures the share of seeds in which L rises, over kappa and L / lam."""
    kappas = (1.0, 4.5) if options.quick else (0.5, 1.0, 1.5, 2.0, 2.6, 4.5, 8.0)
    ratios = (0.1, 1.2) if options.quick else (0.1, 0.3, 0.5, 0.8, 1.2)
    num_rounds = 30 if options.quick else 60
    grid = {
        "seed": range(options.seeds),
        "federation.dataset.curvature": ratios,
        "algorithm.kappa": kappas,
    }
    flame = fp.Flame(lam=_LAM, kappa=1.0, eps_decay=0.0)
    pair = fp.UniformCohort(size=2)
    lagrangian = _diagnostics(flame, grid, num_rounds, participation=pair)["lagrangian"]
    # Any rise counts: descent is claimed for every round of every seed.
    rises = (np.diff(lagrangian, axis=1) > _RISE).any(axis=1)
    share = rises.reshape(options.seeds, len(ratios), len(kappas)).mean(axis=0)
    findings = rows.Findings("flame_descent")
    for r, ratio in enumerate(ratios):
        for k, kappa in enumerate(kappas):
            _add_share(findings, ratio, kappa, share[r, k])
    axes = findings.axes
    x, y = np.meshgrid(kappas, ratios)
    dots = axes.scatter(
        x, y, c=share, cmap="Reds", vmin=0, vmax=1, s=90, edgecolors="black", zorder=3
    )
    bar = findings.figures["flame_descent"].colorbar(dots, ax=axes)
    bar.set_label("share of seeds with a rise of L", **drawing.TEXT)
    bar.ax.tick_params(labelsize=8)
    fine = np.linspace(0.01, 0.99, 200)
    wide = np.linspace(0.01, 1.4, 200)
    convex = [closed_forms.smallest_kappa(-r) for r in wide]
    best = [closed_forms.smallest_kappa(r) for r in fine]
    axes.plot(convex, wide, color=drawing.COLORS[0], label="these quadratics")
    axes.plot(best, fine, "--", color=drawing.COLORS[2], label="any f, best k")
    axes.plot(4 / (1 - fine), fine, ":", color=drawing.COLORS[3], label="any f, k = 1")
    axes.set(xscale="log", xlim=(0.4, 12), xlabel="kappa")
    axes.set(ylim=(0, 1.4), ylabel="L / lam")
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    title = f"{options.seeds} seeds, {num_rounds} rounds, 2 of 10 clients per round"
    return findings.titled(f"right of a line, descent is proved for:\n({title})")


def _add_share(
    findings: rows.Findings, ratio: float, kappa: float, share: float
) -> None:
    """Claims that no seed shows a rise if a sufficient condition holds."""
    is_simple = ratio < 1 and kappa > 4 / (1 - ratio)
    is_convex = kappa > closed_forms.smallest_kappa(-ratio)
    condition = "none"
    if is_convex:
        condition = "any f and convex f" if is_simple else "convex f"
    settings = {"L / lam": ratio, "kappa": kappa, "sufficient condition": condition}
    relation = "<=" if is_convex else ""
    findings.add("share of seeds in which L rises", settings, 0.0, share, relation)


def rates(options: rows.Options) -> rows.Findings:
    """Compares error factors per round of both prox centers with predictions."""
    kappas = (1.0, 2.0, 4.0) if options.quick else (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    ratios = (1.0,) if options.quick else (0.5, 1.0, 4.0)
    centers = ("local",) if options.quick else tuple(_CENTERS)
    grid = {
        "seed": range(min(options.seeds, 3)),
        "federation.dataset.curvature": ratios,
        "algorithm.kappa": kappas,
    }
    fine = np.geomspace(0.15, 4.5, 200)
    findings = rows.Findings("flame_rates", len(centers))
    for axes, center in zip(findings.panels, centers, strict=True):
        flame = fp.Flame(lam=_LAM, kappa=1.0, center=center, eps_decay=0.0)
        distances = _diagnostics(flame, grid, 120)["consensus_distance"]
        factors = np.array([_factor(values) for values in distances])
        # The median: complex pairs and double eigenvalues blur the factors.
        medians = np.median(factors.reshape(-1, len(ratios), len(kappas)), axis=0)
        for r, ratio in enumerate(ratios):
            for kappa, median in zip(kappas, medians[r], strict=True):
                findings.add(
                    "error factor per round",
                    {"prox center": center, "b / lam": ratio, "kappa": kappa},
                    _radius(kappa, ratio, center),
                    median,
                    tolerance=0.03,
                )
            color, label = drawing.COLORS[r], f"b / lam = {ratio:g}"
            axes.plot(fine, [_radius(k, ratio, center) for k in fine], color=color)
            style = {"color": color, "markersize": 5, "label": label}
            axes.plot(kappas, medians[r], drawing.MARKERS[r], **style)
        axes.set_title(f"prox center: {center}", **drawing.TEXT)
        axes.set(xlabel="kappa")
    findings.axes.set(ylabel="error factor per round")
    return findings.titled("curves: largest spectral radius, points: measured")


def _radius(kappa: float, ratio: float, center: str) -> float:
    """Returns the larger predicted error factor per round."""
    return max(closed_forms.convergence_factors(kappa, ratio, _CENTERS[center]))


def _factor(distance: np.ndarray) -> float:
    """Fits the factor per round of `|w_i - w|` `[R]`, in the range above rounding."""
    steps = np.arange(len(distance))
    is_used = (steps >= 5) & (distance > 1e-12) & (distance < 1e-3)
    slope, _ = np.polyfit(steps[is_used], np.log(distance[is_used]), 1)
    return np.exp(slope)


def identity(options: rows.Options) -> rows.Findings:
    """Checks FLAME's upload identity from random duals."""
    kappas = (0.5, 1.0, 4.0) if options.quick else (0.1, 0.3, 0.6, 1.0, 1.7, 4.0, 10.0)
    centers = ("local", "received") if options.quick else ("local", "received", "joint")
    federation = _spec().build()
    quantity = "largest |u - theta| / |w - p - theta|"
    findings, solver = rows.Findings("flame_identity"), fp.SGD(learning_rate=0.3)
    axes = findings.axes
    for k, center in enumerate(centers):
        ratios = []
        for kappa in kappas:
            flame = fp.Flame(lam=_LAM, kappa=kappa, center=center, local=solver)
            process = fp.FederatedProcess(algorithm=flame)
            run = training.Training.of(process, federation)
            ratios.append(float(_largest_ratio(run, options.seeds)))
            settings = {"prox center": center, "kappa": kappa}
            expected = abs(kappa - 1) / (1 + kappa)
            findings.add(quantity, settings, expected, ratios[-1], tolerance=1e-12)
        style = {"color": drawing.COLORS[k], "markersize": 8 - 2 * k}
        label = f"simulation, prox center {center}"
        axes.plot(kappas, ratios, drawing.MARKERS[k], label=label, **style)
    fine = np.geomspace(0.09, 11, 401)
    axes.plot(fine, abs(fine - 1) / (1 + fine), color="black", label="theory")
    axes.set(xscale="log", xlabel="kappa", ylabel=quantity)
    at_one = [r.simulation for r in findings.rows if r.settings["kappa"] == 1.0]
    worst = f"at kappa = 1 at most {max(at_one):.1e}"
    return findings.titled(f"one round from random duals; {worst}")


@functools.partial(jax.jit, static_argnames="num_seeds")
def _largest_ratio(run: training.Training, num_seeds: int) -> jax.Array:
    """Returns the largest ratio over seeds and clients after one round."""

    def one(key: jax.Array) -> jax.Array:
        state = run.init(key)
        keys = jax.random.split(key, 3)
        shape = state.clients.p["theta"].shape
        start = dataclasses.replace(
            state.clients,
            p={"theta": jax.random.normal(keys[0], shape)},
            w_local={"theta": jax.random.normal(keys[1], shape)},
        )
        w = jax.random.normal(keys[2], shape[1:])
        state = dataclasses.replace(state, server={"theta": w}, clients=start)
        new, _ = run.round(state)
        theta = new.clients.theta["theta"]
        sent = run.process.messages_of(new)
        gap = jnp.linalg.norm(sent["theta"] - theta, axis=1)
        scale = jnp.linalg.norm(w[None] - start.p["theta"] - theta, axis=1)
        return (gap / scale).max()

    return jax.lax.map(one, jax.random.split(training.key(0), num_seeds)).max()
