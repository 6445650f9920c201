"""Iterations of the smoothed geometric median, by method and radius.

Near the solution a step of Weiszfeld shrinks the error by `kappa`, one of equation (34)
by `1 - tau (1 - kappa)`, with `eta_k = 1 / max(|r_k|, rho)`, `r_k = w_k - c`:

    tau   = sum_k p_k min(1, rho / |r_k|)
    kappa = largest eigenvalue of
            (sum_{|r_k| > rho} p_k eta_k u_k u_k') / sum_k p_k eta_k
"""

import dataclasses
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import rows, training
from fedjax_pfl.figures import drawing

__all__ = ["METHODS", "iterations", "local_rates", "row_sets", "step_rows"]

_COUNT, _DIM = 20, 100
_RESIDUAL = 1e-8
METHODS = {
    "equation (34)": {"method": "prox", "acceleration": 0},
    "Weiszfeld": {"acceleration": 0},
    "accelerated Weiszfeld": {"acceleration": 5},
}
_DASHES = dict(zip(METHODS, ("-", "--", ":"), strict=True))
_RATIOS = (1.0, 0.1, 0.01, 1e-3, 1e-4)  # rho / D
_FIXED = _RATIOS.index(0.1)  # from here on a fall of 1000 times


def row_sets() -> dict[str, np.ndarray]:
    """Draws models `[K, d]` by kind."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(_COUNT, _DIM))
    shift = np.where(np.arange(_COUNT) < 0.3 * _COUNT, 10.0, 0.0)
    is_second = np.arange(_COUNT) >= 0.4 * _COUNT
    line = np.linspace(1.0, 2.0, _COUNT // 2)
    positions = np.concatenate([line, -line])
    direction = np.eye(_DIM)[0]
    return {
        "Gaussian": noise,
        "30 % far outliers": noise + shift[:, None] * (1 + rng.normal(size=_DIM)),
        "two clusters 40/60": noise + np.where(is_second, 3.0, 0.0)[:, None],
        "nearly collinear": 10 * positions[:, None] * direction + 0.1 * noise,
    }


def local_rates(
    models: np.ndarray, center: np.ndarray, rho: float
) -> tuple[float, float]:
    """Returns `(tau, kappa)`, both in (0, 1], about the smoothed median `[d]`."""
    offsets = models - center
    length = np.linalg.norm(offsets, axis=1)
    eta = 1 / np.maximum(length, rho)
    directions = offsets[length > rho] / length[length > rho, None]
    weighted = np.sqrt(eta[length > rho] / eta.sum())[:, None] * directions
    kappa = np.linalg.norm(weighted, 2) ** 2 if len(weighted) else 0.0
    return float(np.minimum(1, rho / length).mean()), float(kappa)


def iterations(options: rows.Options) -> rows.Findings:
    """Counts steps to one residual over the radius, by method and kind of models."""
    limit = 20_000 if options.quick else 500_000
    sets = row_sets()
    models = np.stack(list(sets.values()))
    ratios = np.array(_RATIOS)
    centers, typical = _solutions(models, ratios, limit)
    radii = typical[:, None] * ratios
    counts: dict[str, np.ndarray] = {}  # NaN if the residual is not reached
    for name, fields in METHODS.items():
        rule = fp.GeometricMedian(
            rho=1.0, tolerance=_RESIDUAL, max_iterations=limit, **fields
        )
        _, steps, residuals = _search(rule, radii, models)
        counts[name] = np.where(residuals <= _RESIDUAL, steps.astype(float), np.nan)
    findings = rows.Findings("fedplus_iterations")
    axes, quantity = findings.axes, f"steps to the residual (none: more than {limit:,})"
    for k, kind in enumerate(sets):
        of_kind = {name: values[k] for name, values in counts.items()}
        predicted = [
            _predicted(models[k], center, rho)
            for center, rho in zip(centers[k], radii[k], strict=True)
        ]
        # The counts have no claim, since rates are local.
        for name, values in of_kind.items():
            for ratio, steps, count in zip(_RATIOS, predicted, values, strict=True):
                settings = {"models": kind, "method": name, "rho / D": ratio}
                expected = steps.get(name, math.nan)
                findings.add(quantity, settings, expected, float(count), "")
        findings.rows += step_rows(kind, of_kind, models[k], centers[k], radii[k])
        style = {"color": drawing.COLORS[k], "marker": drawing.MARKERS[k]}
        for name, values in of_kind.items():
            axes.plot(ratios, values, linestyle=_DASHES[name], markersize=4, **style)
        axes.plot([], [], linestyle="none", label=kind, **style)
    for name, dash in _DASHES.items():
        axes.plot([], [], dash, color="black", label=name)
    xlabel = "rho / D, D: median distance of models to the median"
    axes.set(xscale="log", xlabel=xlabel)
    axes.set(yscale="log", ylabel=f"steps to a residual of {_RESIDUAL:g}")
    title = f"{_COUNT} models of {_DIM} parameters, from their mean; at most {limit:,}"
    return findings.titled(title)


def _solutions(
    models: np.ndarray, ratios: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns medians `[M, R, d]`, and typical distances `[M]`, the unit of radii."""
    rule = fp.GeometricMedian(
        rho=1.0, tolerance=_RESIDUAL / 100, acceleration=5, max_iterations=limit
    )
    offsets = models - models.mean(axis=1, keepdims=True)
    smallest_radii = 1e-6 * np.linalg.norm(offsets, axis=2).max(axis=1)
    exact, _, _ = _search(rule, smallest_radii[:, None] * np.ones_like(ratios), models)
    typical = np.median(np.linalg.norm(models - exact[:, :1], axis=2), axis=1)
    centers, _, _ = _search(rule, typical[:, None] * ratios, models)
    return centers, typical


@training.compiled
def _searches(
    rule: fp.GeometricMedian, radii: jax.Array, models: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns centers, steps and residuals for pairs of a radius and models."""
    weights = jnp.ones(models.shape[1])

    def one(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        rho, matrix = pair
        smoothed = dataclasses.replace(rule, rho=rho)
        center, info = smoothed(None, matrix, weights, jnp.zeros_like(matrix[0]))
        return center, info.iterations, info.residual

    return jax.lax.map(one, (radii, models))


def _search(
    rule: fp.GeometricMedian, radii: np.ndarray, models: np.ndarray
) -> Iterator[np.ndarray]:
    """Returns centers `[M, R, d]`, steps and residuals `[M, R]` for radii `[M, R]`."""
    repeated = np.repeat(models, radii.shape[1], axis=0)
    outputs = _searches(rule, radii.reshape(-1), repeated)
    return (np.asarray(x).reshape(*radii.shape, *x.shape[1:]) for x in outputs)


def _predicted(models: np.ndarray, center: np.ndarray, rho: float) -> dict[str, float]:
    """Predicts steps from the residual at the mean, at the rate about the solution."""
    tau, kappa = local_rates(models, center, rho)
    offsets = models - models.mean(axis=0)
    pull = offsets / np.maximum(np.linalg.norm(offsets, axis=1), rho)[:, None]
    logarithm = math.log(np.linalg.norm(pull.mean(axis=0)) / _RESIDUAL)
    return {
        "equation (34)": logarithm / (tau * (1 - kappa)),
        "Weiszfeld": logarithm / -math.log(kappa) if kappa else math.nan,
    }


def step_rows(
    kind: str,
    counts: dict[str, np.ndarray],
    models: np.ndarray,
    centers: np.ndarray,
    radii: np.ndarray,
) -> list[rows.Row]:
    """Checks two bounds: short steps of equation (34), and Weiszfeld's limit."""
    # Steps of equation (34) are at most rho long. Weiszfeld's steps depend on the
    # radius only through models within it; below a tenth of D no model is that close.
    way = np.linalg.norm(centers - models.mean(axis=0), axis=1)
    slow, fast = counts["equation (34)"], counts["Weiszfeld"]
    text = "steps of equation (34): at least |mean - median| / rho"
    statements = rows.Rows()
    for ratio, length, rho, count in zip(_RATIOS, way, radii, slow, strict=True):
        if not math.isnan(count):
            settings = {"models": kind, "rho / D": ratio}
            statements.add(text, settings, length / rho, count, ">=")
    nearest = np.linalg.norm(models - centers[-1], axis=1).min()
    if nearest > radii[_FIXED]:
        text = "most steps of Weiszfeld at rho / D < 0.1, against at 0.1"
        largest, at_fixed = float(fast[_FIXED + 1 :].max()), float(fast[_FIXED])
        statements.add(text, {"models": kind}, at_fixed, largest, "<=")
    return statements
