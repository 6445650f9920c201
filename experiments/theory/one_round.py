"""FLAME's one round from zero: losses under attacks and how even they are.

Every draw is a round of the real algorithm on the data set `linear_regression`, whose
labels are drawn anew. Only the test losses are closed forms: their expectation over
test noise is `sigma^2/2 + b/2 |w - t_i|^2`.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows
from fedjax_pfl.core import struct
from fedjax_pfl.figures import drawing

__all__ = ["Draws", "fairness", "losses_over_malicious", "losses_over_q"]

CURVATURE, LAM = 2.0, 1.0
SHARE = CURVATURE / (CURVATURE + LAM)
VARIANCE = 0.1  # gamma^2 of the attacks
DRAWS = 200  # per seed
_LANES = DRAWS  # draws at once; divides their number, so that one program is compiled
_QUANTITIES = ("loss of w", "loss of theta")

ATTACKS: dict[str, Any] = {
    "none": None,
    "same_value": fp.attacks.SameValue(std=VARIANCE**0.5),
    "sign_flip": fp.SignFlip(std=VARIANCE**0.5),
    "gaussian": fp.attacks.Gaussian(std=VARIANCE**0.5),
}


@dataclasses.dataclass(frozen=True)
class Draws:
    """One round of FLAME on many draws of the labels.

    Attributes:
      problem: true parameters and constants; all curvatures are `CURVATURE`.
    """

    problem: closed_forms.Regression

    @functools.cached_property
    def _federation(self) -> fp.Federation:
        """Designs of the data set; its labels are replaced in every draw."""
        num_clients, dim = self.problem.params.shape
        source = fp.data.DATASETS["linear_regression"](
            dim=dim,
            examples_per_client=self.problem.num_examples,
            curvature=self.problem.curvature,
        )
        return fp.load_federation(
            source,
            "by_client",
            num_clients=num_clients,
            validation_fraction=0.0,
            test_fraction=0.0,
        )

    def losses(
        self, q: float, count: int, seed: int, attack: Any, malicious: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Expected test losses of w and theta.

        Args:
          q: `[]` shrinkage of the uploads; sets kappa.
          count: draws.
          seed: of the draws.
          attack: an attack, or None.
          malicious: `bool[m]`.

        Returns:
          Two arrays `[count, m]`.
        """
        p = self.problem
        share = p.curvature / (p.curvature + p.lam)
        flame = fp.Flame(
            lam=p.lam,
            kappa=2 * share / q - 1,
            eps_decay=0.0,
            local=fp.local.ToTolerance(
                learning_rate=1 / (p.curvature + p.lam), tolerance=1e-18
            ),
        )
        process = fp.FederatedProcess(algorithm=flame, attack=attack)
        process = struct.as_arrays(process, jnp.zeros(()).dtype)
        federation = dataclasses.replace(
            self._federation, malicious=jnp.asarray(malicious)
        )
        key = jax.random.key(seed, impl="threefry2x32")
        w, estimates = map(
            np.asarray,
            _rounds(
                process,
                federation,
                jnp.asarray(p.params),
                math.sqrt(p.noise_variance),
                jax.random.split(key, count),
                model=fp.models.LinearRegression().for_federation(federation),
            ),
        )
        theta = share * estimates + (1 - share) * w[:, None]
        floor = p.noise_variance / 2
        squares = (
            np.square(x - p.params).sum(axis=2) for x in (w[:, None] + 0 * theta, theta)
        )
        shared, personal = (floor + p.curvature / 2 * square for square in squares)
        return shared, personal


@functools.partial(jax.jit, static_argnames="model")
def _rounds(process, federation, params, sigma, keys, *, model):
    """`w [draws, d]` and least-squares estimates `[draws, m, d]` of one round."""
    num_clients, dim = params.shape
    design = federation.train.x.reshape(num_clients, -1, dim).astype(params.dtype)
    curvature = jnp.square(design).sum() / (design.shape[0] * design.shape[1] * dim)

    def one(key):
        noise_key, run_key = jax.random.split(key)
        noise = sigma * jax.random.normal(noise_key, design.shape[:2], params.dtype)
        y = jnp.einsum("ind,id->in", design, params) + noise
        train = dataclasses.replace(federation.train, y=y.reshape(-1))
        drawn = dataclasses.replace(federation, train=train)
        state = process.init(run_key, model, drawn)
        state, _ = process.round(state, model, drawn)
        moments = jnp.einsum("ind,in->id", design, y) / design.shape[1]
        return state.server["theta"], moments / curvature

    return jax.lax.map(one, keys, batch_size=_LANES)


def _problem(params: np.ndarray, noise_variance: float) -> closed_forms.Regression:
    return closed_forms.Regression(
        params=params,
        num_examples=10,
        noise_variance=noise_variance,
        curvature=CURVATURE,
        lam=LAM,
    )


def _attacked_problem() -> closed_forms.Regression:
    """Ten clients, so similar that it matters little which of them are malicious."""
    rng = np.random.default_rng(0)
    return _problem(0.5 + 0.3 * rng.normal(size=(10, 5)), noise_variance=4.0)


def _last(count: int, num_clients: int) -> np.ndarray:
    """The last clients are malicious."""
    return np.arange(num_clients) >= num_clients - count


def losses_over_q(options: rows.Options) -> rows.Findings:
    """GM(q) and PM(q) for every attack: curves of theory, points of simulation."""
    problem = _attacked_problem()
    draws = Draws(problem)
    shrinkages = (0.4, 1.0) if options.quick else (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
    figure, panels = rows.panels(2)
    found: list[rows.Row] = []
    fine = np.linspace(0.1, 1.3, 100)
    for k, (name, attack) in enumerate(ATTACKS.items()):
        malicious = _last(2 if attack is not None else 0, 10)
        known = name if attack is not None else "gaussian"
        setting = closed_forms.OneRound(problem, malicious, known, VARIANCE)
        new = [
            row
            for number, q in enumerate(shrinkages)
            for row in _loss_rows(
                draws, setting, q, options, name, attack, seed=10 * k + number
            )
        ]
        found += new
        for which, axes in enumerate(panels):
            curve = np.array([setting.losses(q)[which] for q in fine])
            points = [row for row in new if row.quantity == _QUANTITIES[which]]
            base = setting.losses(1.0)[which]
            _curve_and_points(axes, k, fine, curve - base, points, "q", name, base)
            best = setting.thresholds()[which]
            if best < fine[-1]:
                height = setting.losses(best)[which] - base
                axes.plot(best, height, "|", color="black", markersize=14, zorder=4)
    for axes, title in zip(panels, _QUANTITIES, strict=True):
        axes.set_title(title, **drawing.TEXT)
        axes.set_xlabel("q, the shrinkage of uploads", fontsize=9)
    panels[0].set_ylabel("mean test loss minus that at q = 1", fontsize=9)
    title = "curves: theory, points: simulation ± 2 standard errors, bars |: q*"
    drawing.legend(figure, title)
    return rows.Findings(found, {"flame_losses_over_q": figure})


def losses_over_malicious(options: rows.Options) -> rows.Findings:
    """Both losses against the share of malicious clients, kappa = 1 and q = 1."""
    problem = _attacked_problem()
    draws = Draws(problem)
    counts = (0, 3) if options.quick else (0, 1, 2, 3, 4)
    figure, panels = rows.panels(2)
    found: list[rows.Row] = []
    cases = [(q, name) for name in ("same_value", "sign_flip") for q in (SHARE, 1.0)]
    for k, (q, name) in enumerate(cases):
        new, curves = [], []
        for count in counts:
            setting = closed_forms.OneRound(problem, _last(count, 10), name, VARIANCE)
            attack, seed = ATTACKS[name], 100 + 10 * k + count
            new += _loss_rows(draws, setting, q, options, name, attack, seed=seed)
            curves.append(setting.losses(q))
        found += new
        label = f"{name}, q = {q:.2f}" + (" (kappa = 1)" if q == SHARE else "")
        for which, axes in enumerate(panels):
            points = [row for row in new if row.quantity == _QUANTITIES[which]]
            shares = np.array(counts) / 10
            curve = np.array(curves)[:, which]
            _curve_and_points(axes, k, shares, curve, points, "malicious", label)
    for axes, title in zip(panels, _QUANTITIES, strict=True):
        axes.set_title(title, **drawing.TEXT)
        axes.set_xlabel("share of malicious clients", fontsize=9)
    panels[0].set_ylabel("mean test loss, benign clients", fontsize=9)
    title = "lines: theory, points: simulation ± 2 standard errors"
    drawing.legend(figure, title)
    return rows.Findings(found, {"flame_losses_over_malicious": figure})


def _loss_rows(draws, setting, q, options, name, attack, *, seed) -> list[rows.Row]:
    """Rows of both losses at one q; the mean over benign clients of every draw."""
    count = options.seeds * DRAWS
    malicious = setting.malicious
    measured = draws.losses(q, count, seed, attack, malicious)
    described = {"attack": name, "malicious": malicious.mean(), "q": round(q, 4)}
    return [
        rows.mean_row(quantity, described, expected, values[:, ~malicious].mean(axis=1))
        for quantity, expected, values in zip(
            _QUANTITIES, setting.losses(q), measured, strict=True
        )
    ]


def _curve_and_points(
    axes: Axes,
    k: int,
    x: np.ndarray,
    curve: np.ndarray,
    points: list[rows.Row],
    setting: str,
    label: str,
    base: float = 0.0,
) -> None:
    """One curve of theory and its simulated points, minus `base`.

    The fourth curve is dashed: Gaussian noise coincides with the same value.
    """
    color = drawing.COLORS[k]
    axes.plot(x, curve, linestyle=(0, (4, 4)) if k == 3 else "-", color=color)
    axes.errorbar(
        [row.settings[setting] for row in points],
        [row.simulation - base for row in points],
        [2 * np.nan_to_num(row.standard_error) for row in points],
        fmt=drawing.MARKERS[k],
        color=color,
        markersize=5 - k,
        capsize=2,
        label=label,
    )


def fairness(options: rows.Options) -> rows.Findings:
    """V(q), the variance over clients of `|w - t_i|^2`, where q < 1 helps or harms."""
    rng = np.random.default_rng(3)
    angles = np.array([0.0, 0.4, 0.8, 1.6, 2.4])
    examples = {
        "t = 1, 2, 3": np.array([[1.0], [2.0], [3.0]]),
        "equal norms": np.stack([np.cos(angles), np.sin(angles)], axis=1),
        "random t": 1 + rng.normal(size=(5, 3)),
    }
    shrinkages = (0.5, 1.0) if options.quick else (0.25, 0.5, 0.75, 1.0, 1.25)
    figure, (axes,) = drawing.panels(1)
    found: list[rows.Row] = []
    fine = np.linspace(0.2, 1.3, 100)
    for k, (name, params) in enumerate(examples.items()):
        problem = _problem(params, noise_variance=0.5)
        draws = Draws(problem)
        new = []
        for number, q in enumerate(shrinkages):
            expected = problem.squared_distance_variance(q)
            values = _variances(draws, q, options, 200 + 10 * k + number)
            described = {"parameters": name, "q": q}
            quantity = "variance over clients of |w - t|^2"
            new.append(rows.mean_row(quantity, described, expected, values))
        found += new
        curve = np.array([problem.squared_distance_variance(q) for q in fine])
        half = problem.is_fairer(0.5)
        label = f"{name}: q = 0.5 is {'' if half else 'less '}fair{'er' * half}"
        _curve_and_points(axes, k, fine, curve, new, "q", label)
    axes.set_yscale("log")
    axes.axvline(1.0, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xlabel("q, the shrinkage of uploads (1: none)", fontsize=9)
    axes.set_ylabel("V(q): small is fair", fontsize=9)
    title = "curves: theory, points: simulation ± 2 standard errors"
    drawing.legend(figure, title)
    return rows.Findings(found, {"flame_fairness": figure})


def _variances(draws: Draws, q: float, options: rows.Options, seed: int) -> np.ndarray:
    """Unbiased estimates of V(q), one per seed.

    The variance of mean losses would count their noise; the covariance over clients of
    the means of two independent halves does not.
    """
    problem = draws.problem
    nobody = np.zeros(len(problem.params), bool)
    shared, _ = draws.losses(q, options.seeds * DRAWS, seed, None, nobody)
    squares = 2 / problem.curvature * shared
    halves = squares.reshape(options.seeds, 2, DRAWS // 2, -1).mean(axis=2)
    centered = halves - halves.mean(axis=2, keepdims=True)
    return (centered[:, 0] * centered[:, 1]).mean(axis=1)
