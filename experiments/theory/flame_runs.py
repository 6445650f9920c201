"""FLAME's trainings on quadratics: descent, rates, and the identity at kappa = 1."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows
from fedjax_pfl.core import struct
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import history

__all__ = ["descent", "identity", "rates"]

_LAM = 1.0
_CENTERS = {"local": "local", "received": "global"}  # algorithm's name -> theory's
_RISE = 1e-10  # of the Lagrangian, which is of order 1: more than rounding


def _spec(curvature: float = 1.0, num_clients: int = 10) -> fp.FederationSpec:
    """Isotropic regressions, all examples for training but one test example."""
    source = fp.data.DATASETS["linear_regression"](
        dim=3, examples_per_client=4, curvature=curvature
    )
    return fp.FederationSpec(
        source,
        "by_client",
        num_clients=num_clients,
        validation_fraction=0.0,
        test_fraction=0.0,
    )


def _exact(largest_curvature: float) -> fp.local.ToTolerance:
    """Solves until rounding stops it; steps fit the largest curvature of a grid."""
    return fp.local.ToTolerance(
        learning_rate=1 / (largest_curvature + _LAM), tolerance=1e-24, max_steps=200
    )


def _train(process, spec, axes, num_rounds: int) -> fp.results.History:
    """Runs a grid with diagnostics after every round; one static group."""
    result = fp.grid(
        jax.random.key(0, impl="threefry2x32"),
        process,
        fp.models.LinearRegression(),
        spec,
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
    """Share of seeds in which L rises in some round, over kappa and L / lam."""
    kappas = (1.0, 4.5) if options.quick else (0.5, 1.0, 1.5, 2.0, 2.6, 4.5, 8.0)
    ratios = (0.1, 1.2) if options.quick else (0.1, 0.3, 0.5, 0.8, 1.2)
    num_rounds = 30 if options.quick else 60
    flame = fp.Flame(lam=_LAM, kappa=1.0, eps_decay=0.0, local=_exact(ratios[-1]))
    process = fp.FederatedProcess(
        algorithm=flame, participation=fp.UniformCohort(size=2)
    )
    axes = {
        "seed": range(options.seeds),
        "federation.dataset.curvature": ratios,
        "algorithm.kappa": kappas,
    }
    group = _train(process, _spec(), axes, num_rounds)
    rises = np.diff(group.diagnostics["lagrangian"], axis=1) > _RISE
    shape = (options.seeds, len(ratios), len(kappas))
    share = rises.any(axis=1).reshape(shape).mean(axis=0)
    found = [
        _descent_row(ratio, kappa, share[r, k])
        for r, ratio in enumerate(ratios)
        for k, kappa in enumerate(kappas)
    ]
    title = f"{options.seeds} seeds, {num_rounds} rounds, 2 of 10 clients per round"
    figure = _descent_figure(kappas, ratios, share, title)
    return rows.Findings(found, {"flame_descent": figure})


def _descent_row(ratio: float, kappa: float, share: float) -> rows.Row:
    """Where a condition holds for these quadratics, no seed may show a rise."""
    settings = {"L / lam": ratio, "kappa": kappa}
    is_simple = ratio < 1 and kappa > 4 / (1 - ratio)
    is_convex = kappa > closed_forms.smallest_kappa(-ratio)
    condition = "none"
    if is_convex:
        condition = "any f and convex f" if is_simple else "convex f"
    return rows.Row(
        quantity="share of seeds in which L rises",
        settings=settings | {"sufficient condition": condition},
        theory=0.0,
        simulation=float(share),
        relation="<=" if is_convex else "",
    )


def _descent_figure(kappas, ratios, share: np.ndarray, title: str):
    """Circles whose filling is the share; lines of the sufficient conditions."""
    figure, (axes,) = drawing.panels(1)
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
    axes.set_xscale("log")
    axes.set_xlim(0.4, 12)
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_ylim(0, 1.4)
    axes.set_xlabel("kappa", fontsize=9)
    axes.set_ylabel("L / lam", fontsize=9)
    legend = f"right of a line, descent is proved for:\n({title})"
    drawing.legend(figure, legend)
    return figure


def rates(options: rows.Options) -> rows.Findings:
    """Error factors per round of both prox centers, measured against predicted."""
    kappas = (1.0, 2.0, 4.0) if options.quick else (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    ratios = (1.0,) if options.quick else (0.5, 1.0, 4.0)
    centers = ("local",) if options.quick else tuple(_CENTERS)
    figure, panels = drawing.panels(len(centers))
    found: list[rows.Row] = []
    for axes, center in zip(panels, centers, strict=True):
        flame = fp.Flame(
            lam=_LAM,
            kappa=1.0,
            prox_centre=center,
            eps_decay=0.0,
            local=_exact(ratios[-1]),
        )
        grid = {
            "seed": range(min(options.seeds, 3)),
            "federation.dataset.curvature": ratios,
            "algorithm.kappa": kappas,
        }
        process = fp.FederatedProcess(algorithm=flame)
        group = _train(process, _spec(), grid, 120)
        measured = _factors(group).reshape(-1, len(ratios), len(kappas))
        for r, ratio in enumerate(ratios):
            new = [
                _rate_row(center, ratio, kappa, measured[:, r, k])
                for k, kappa in enumerate(kappas)
            ]
            found += new
            fine = np.geomspace(0.15, 4.5, 200)
            radii = (
                closed_forms.convergence_factors(k, ratio, _CENTERS[center])
                for k in fine
            )
            color = drawing.COLORS[r]
            axes.plot(fine, [max(pair) for pair in radii], color=color)
            values = [row.simulation for row in new]
            axes.plot(
                kappas,
                values,
                drawing.MARKERS[r],
                color=color,
                markersize=5,
                label=f"b / lam = {ratio:g}",
            )
        axes.set_title(f"prox center: {center}", **drawing.TEXT)
        axes.set_xlabel("kappa", fontsize=9)
    panels[0].set_ylabel("error factor per round", fontsize=9)
    title = "curves: largest spectral radius, points: measured"
    drawing.legend(figure, title)
    return rows.Findings(found, {"flame_rates": figure})


def _factors(group: history.History) -> np.ndarray:
    """Factor per round `[G]` of `|w_i - w|`, fitted where it is far from rounding."""
    distance = group.diagnostics["consensus_distance"]
    factors = []
    for values in distance:
        steps = np.arange(len(values))
        is_used = (steps >= 5) & (values > 1e-12) & (values < 1e-3)
        slope, _ = np.polyfit(steps[is_used], np.log(values[is_used]), 1)
        factors.append(np.exp(slope))
    return np.array(factors)


def _rate_row(center: str, ratio: float, kappa: float, values: np.ndarray) -> rows.Row:
    """The median over seeds; complex pairs and double eigenvalues blur it."""
    radius = max(closed_forms.convergence_factors(kappa, ratio, _CENTERS[center]))
    return rows.Row(
        quantity="error factor per round",
        settings={"prox center": center, "b / lam": ratio, "kappa": kappa},
        theory=radius,
        simulation=float(np.median(values)),
        tolerance=0.03,
    )


def identity(options: rows.Options) -> rows.Findings:
    """`u - theta = (kappa - 1) / (1 + kappa) (w - p - theta)` for random duals."""
    kappas = (0.5, 1.0, 4.0) if options.quick else (0.1, 0.3, 0.6, 1.0, 1.7, 4.0, 10.0)
    centers = ("local", "received") if options.quick else ("local", "received", "joint")
    federation = _spec().build()
    model = fp.models.LinearRegression().for_federation(federation)
    found = []
    for center in centers:
        for kappa in kappas:
            flame = fp.Flame(
                lam=_LAM,
                kappa=kappa,
                prox_centre=center,
                local=fp.SGD(learning_rate=0.3),
            )
            process = fp.FederatedProcess(algorithm=flame)
            process = struct.as_arrays(process, jnp.zeros(()).dtype)
            worst = _largest_ratio(
                process, federation, num_seeds=options.seeds, model=model
            )
            found.append(
                rows.Row(
                    quantity="largest |u - theta| / |w - p - theta|",
                    settings={"prox center": center, "kappa": kappa},
                    theory=abs(kappa - 1) / (1 + kappa),
                    simulation=float(worst),
                    tolerance=1e-12,
                )
            )
    figure, (axes,) = drawing.panels(1)
    for k, center in enumerate(centers):
        chosen = [row for row in found if row.settings["prox center"] == center]
        axes.plot(
            [row.settings["kappa"] for row in chosen],
            [row.simulation for row in chosen],
            drawing.MARKERS[k],
            color=drawing.COLORS[k],
            markersize=8 - 2 * k,
            label=f"simulation, prox center {center}",
        )
    fine = np.geomspace(0.09, 11, 401)
    axes.plot(fine, abs(fine - 1) / (1 + fine), color="black", label="theory")
    axes.set_xscale("log")
    axes.set_xlabel("kappa", fontsize=9)
    axes.set_ylabel("largest |u - theta| / |w - p - theta|", fontsize=9)
    worst = max(row.simulation for row in found if row.settings["kappa"] == 1.0)
    title = f"one round from random duals; at kappa = 1 at most {worst:.1e}"
    drawing.legend(figure, title)
    return rows.Findings(found, {"flame_identity": figure})


@functools.partial(jax.jit, static_argnames=("model", "num_seeds"))
def _largest_ratio(process, federation, *, num_seeds, model):
    """Largest ratio over seeds and clients after one round from a random state."""

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
