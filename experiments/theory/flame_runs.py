"""FLAME's trainings on quadratics: descent, rates, and the identity at kappa = 1."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows, training
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import history

__all__ = ["descent", "identity", "rates"]

_LAM = 1.0
_CENTERS = {"local": "local", "received": "global"}  # algorithm's name -> theory's
_RISE = 1e-10  # of the Lagrangian, which is of order 1: more than rounding


def _spec() -> fp.FederationSpec:
    """Returns ten isotropic regressions."""
    return training.regressions(10, dim=3, examples_per_client=4)


def _exact(largest_curvature: float) -> fp.local.ToTolerance:
    """Returns a solver that rounding stops, with steps for the largest curvature."""
    return fp.local.ToTolerance(
        learning_rate=1 / (largest_curvature + _LAM), tolerance=1e-24, max_steps=200
    )


def _train(
    process: fp.FederatedProcess, axes: dict[str, Any], num_rounds: int
) -> fp.results.History:
    """Runs a grid, one static group, with diagnostics after every round."""
    result = fp.grid(
        jax.random.key(0, impl="threefry2x32"),
        process,
        fp.models.LinearRegression(),
        _spec(),
        axes,
        num_rounds,
        eval_every=1,
        evaluate_on=("train",),
        diagnostics=True,
        points_per_chunk=1024,
        progress=False,
    )
    (group,) = result.groups
    return group


def descent(options: rows.Options) -> rows.Findings:
    """Measures the share of seeds in which L rises, over kappa and L / lam."""
    kappas = (1.0, 4.5) if options.quick else (0.5, 1.0, 1.5, 2.0, 2.6, 4.5, 8.0)
    ratios = (0.1, 1.2) if options.quick else (0.1, 0.3, 0.5, 0.8, 1.2)
    num_rounds = 30 if options.quick else 60
    flame = fp.Flame(lam=_LAM, kappa=1.0, eps_decay=0.0, local=_exact(ratios[-1]))
    process = fp.FederatedProcess(
        algorithm=flame, participation=fp.UniformCohort(size=2)
    )
    grid = {
        "seed": range(options.seeds),
        "federation.dataset.curvature": ratios,
        "algorithm.kappa": kappas,
    }
    lagrangian = _train(process, grid, num_rounds).diagnostics["lagrangian"]
    rises = (np.diff(lagrangian, axis=1) > _RISE).any(axis=1)
    share = rises.reshape(options.seeds, len(ratios), len(kappas)).mean(axis=0)
    statements = [
        _descent_row(ratio, kappa, share[r, k])
        for r, ratio in enumerate(ratios)
        for k, kappa in enumerate(kappas)
    ]
    title = f"{options.seeds} seeds, {num_rounds} rounds, 2 of 10 clients per round"
    legend = f"right of a line, descent is proved for:\n({title})"
    figure = _descent_figure(kappas, ratios, share)
    return rows.findings(statements, "flame_descent", figure, legend)


def _descent_row(ratio: float, kappa: float, share: float) -> rows.Row:
    """Claims that no seed shows a rise where a sufficient condition holds."""
    is_simple = ratio < 1 and kappa > 4 / (1 - ratio)
    is_convex = kappa > closed_forms.smallest_kappa(-ratio)
    condition = "none"
    if is_convex:
        condition = "any f and convex f" if is_simple else "convex f"
    settings = {"L / lam": ratio, "kappa": kappa, "sufficient condition": condition}
    relation = "<=" if is_convex else ""
    return rows.Row("share of seeds in which L rises", settings, 0.0, share, relation)


def _descent_figure(
    kappas: Sequence[float], ratios: Sequence[float], share: np.ndarray
) -> Figure:
    """Draws circles filled by the share, and lines of the sufficient conditions."""
    figure, axes = rows.panel()
    x, y = np.meshgrid(kappas, ratios)
    dots = axes.scatter(
        x, y, c=share, cmap="Reds", vmin=0, vmax=1, s=90, edgecolors="black", zorder=3
    )
    bar = figure.colorbar(dots, ax=axes)
    bar.set_label("share of seeds with a rise of L", **drawing.TEXT)
    bar.ax.tick_params(labelsize=8)
    fine = np.linspace(0.01, 0.99, 200)
    wide = np.linspace(0.01, 1.4, 200)
    convex = [closed_forms.smallest_kappa(-r) for r in wide]
    best = [closed_forms.smallest_kappa(r) for r in fine]
    axes.plot(convex, wide, color=drawing.COLORS[0], label="these quadratics")
    axes.plot(best, fine, "--", color=drawing.COLORS[2], label="any f, best k")
    simple = 4 / (1 - fine)
    axes.plot(simple, fine, ":", color=drawing.COLORS[3], label="any f, k = 1")
    axes.set(xscale="log", xlim=(0.4, 12), xlabel="kappa")
    axes.set(ylim=(0, 1.4), ylabel="L / lam")
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    return figure


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
    figure, panels = rows.panels(len(centers))
    statements: list[rows.Row] = []
    for axes, center in zip(panels, centers, strict=True):
        flame = fp.Flame(
            lam=_LAM,
            kappa=1.0,
            prox_centre=center,
            eps_decay=0.0,
            local=_exact(ratios[-1]),
        )
        group = _train(fp.FederatedProcess(algorithm=flame), grid, 120)
        factors = _factors(group).reshape(-1, len(ratios), len(kappas))
        # The median: complex pairs and double eigenvalues blur the factors.
        medians = np.median(factors, axis=0)
        for r, ratio in enumerate(ratios):
            statements += [
                rows.Row(
                    "error factor per round",
                    {"prox center": center, "b / lam": ratio, "kappa": kappa},
                    _radius(kappa, ratio, center),
                    median,
                    tolerance=0.03,
                )
                for kappa, median in zip(kappas, medians[r], strict=True)
            ]
            color, label = drawing.COLORS[r], f"b / lam = {ratio:g}"
            axes.plot(fine, [_radius(k, ratio, center) for k in fine], color=color)
            style = {"color": color, "markersize": 5, "label": label}
            axes.plot(kappas, medians[r], drawing.MARKERS[r], **style)
        axes.set_title(f"prox center: {center}", **drawing.TEXT)
        axes.set(xlabel="kappa")
    panels[0].set(ylabel="error factor per round")
    title = "curves: largest spectral radius, points: measured"
    return rows.findings(statements, "flame_rates", figure, title)


def _radius(kappa: float, ratio: float, center: str) -> float:
    """Returns the larger predicted error factor per round."""
    return max(closed_forms.convergence_factors(kappa, ratio, _CENTERS[center]))


def _factors(group: history.History) -> np.ndarray:
    """Fits factors per round `[G]` of `|w_i - w|` where it is far from rounding."""
    distance = group.diagnostics["consensus_distance"]
    factors = []
    for values in distance:
        steps = np.arange(len(values))
        is_used = (steps >= 5) & (values > 1e-12) & (values < 1e-3)
        slope, _ = np.polyfit(steps[is_used], np.log(values[is_used]), 1)
        factors.append(np.exp(slope))
    return np.array(factors)


def identity(options: rows.Options) -> rows.Findings:
    """Checks FLAME's upload identity from random duals."""
    kappas = (0.5, 1.0, 4.0) if options.quick else (0.1, 0.3, 0.6, 1.0, 1.7, 4.0, 10.0)
    centers = ("local", "received") if options.quick else ("local", "received", "joint")
    federation = _spec().build()
    model = fp.models.LinearRegression().for_federation(federation)
    quantity = "largest |u - theta| / |w - p - theta|"
    figure, axes = rows.panel()
    statements: list[rows.Row] = []
    for k, center in enumerate(centers):
        ratios = []
        for kappa in kappas:
            solver = fp.SGD(learning_rate=0.3)
            flame = fp.Flame(lam=_LAM, kappa=kappa, prox_centre=center, local=solver)
            process = training.with_arrays(fp.FederatedProcess(algorithm=flame))
            ratio = _largest_ratio(
                process, federation, num_seeds=options.seeds, model=model
            )
            ratios.append(float(ratio))
        statements += [
            rows.Row(
                quantity,
                {"prox center": center, "kappa": kappa},
                abs(kappa - 1) / (1 + kappa),
                ratio,
                tolerance=1e-12,
            )
            for kappa, ratio in zip(kappas, ratios, strict=True)
        ]
        style = {"color": drawing.COLORS[k], "markersize": 8 - 2 * k}
        label = f"simulation, prox center {center}"
        axes.plot(kappas, ratios, drawing.MARKERS[k], label=label, **style)
    fine = np.geomspace(0.09, 11, 401)
    axes.plot(fine, abs(fine - 1) / (1 + fine), color="black", label="theory")
    axes.set(xscale="log", xlabel="kappa", ylabel=quantity)
    worst = max(row.simulation for row in statements if row.settings["kappa"] == 1.0)
    title = f"one round from random duals; at kappa = 1 at most {worst:.1e}"
    return rows.findings(statements, "flame_identity", figure, title)


@functools.partial(jax.jit, static_argnames=("model", "num_seeds"))
def _largest_ratio(process, federation, *, num_seeds, model):
    """Returns the largest ratio over seeds and clients after one round."""

    def one(key):
        state = process.init(key, model, federation)
        keys = jax.random.split(key, 3)
        shape = state.clients.p["theta"].shape
        start = dataclasses.replace(
            state.clients,
            p={"theta": jax.random.normal(keys[0], shape)},
            w_local={"theta": jax.random.normal(keys[1], shape)},
        )
        w = jax.random.normal(keys[2], shape[1:])
        state = dataclasses.replace(state, server={"theta": w}, clients=start)
        new, _ = process.round(state, model, federation)
        theta = new.clients.theta["theta"]
        gap = jnp.linalg.norm(new.messages["theta"] - theta, axis=1)
        scale = jnp.linalg.norm(w[None] - start.p["theta"] - theta, axis=1)
        return (gap / scale).max()

    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), num_seeds)
    return jax.lax.map(one, keys).max()
