"""FLAME's one round from zero: losses under attacks and their variance over clients.

Every draw is a round of the real algorithm on the data set `linear_regression` with new
labels. Only the test losses are closed forms: their expectation over
test noise is `sigma^2/2 + b/2 |w - t_i|^2`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows, training
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
    """Rounds of FLAME on many draws of the labels."""

    problem: closed_forms.Regression  # true parameters and constants
    num_rounds: int = 1  # one, or enough to reach the optimum

    @functools.cached_property
    def _federation(self) -> fp.Federation:
        """Loads the designs; the labels are replaced in every draw."""
        num_clients, dim = self.problem.params.shape
        return training.regressions(
            num_clients,
            dim=dim,
            examples_per_client=self.problem.num_examples,
            curvature=self.problem.curvature,
        ).build()

    def losses(
        self, q: float, count: int, seed: int, attack: Any, malicious: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns expected test losses of w and theta, `[count, m]` each."""
        p = self.problem
        share = p.curvature / (p.curvature + p.lam)
        solver = fp.local.ToTolerance(
            learning_rate=1 / (p.curvature + p.lam), tolerance=1e-18
        )
        kappa = 2 * share / q - 1  # `closed_forms.shrinkage` solved for kappa
        flame = fp.Flame(lam=p.lam, kappa=kappa, eps_decay=0.0, local=solver)
        process = fp.FederatedProcess(algorithm=flame, attack=attack)
        federation = dataclasses.replace(
            self._federation, malicious=jnp.asarray(malicious)
        )
        run = training.Training.of(process, federation)
        keys = jax.random.split(training.key(seed), count)
        sigma = math.sqrt(p.noise_variance)
        outputs = _rounds(run, jnp.asarray(p.params), sigma, keys, self.num_rounds)
        w, estimates = map(np.asarray, outputs)
        # After the average every client solves for theta about the new w, in closed
        # form.
        theta = share * estimates + (1 - share) * w[:, None]

        def loss(models: np.ndarray) -> np.ndarray:
            square = np.square(models - p.params).sum(axis=2)
            return p.noise_variance / 2 + p.curvature / 2 * square

        return loss(w[:, None]), loss(theta)


@functools.partial(jax.jit, static_argnames="num_rounds")
def _rounds(
    run: training.Training,
    params: jax.Array,
    sigma: float,
    keys: jax.Array,
    num_rounds: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns `w [draws, d]` and least-squares estimates `[draws, m, d]`."""
    num_clients, dim = params.shape
    federation = run.federation
    design = federation.train.x.reshape(num_clients, -1, dim).astype(params.dtype)
    curvature = jnp.square(design).sum() / (design.shape[0] * design.shape[1] * dim)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise_key, run_key = jax.random.split(key)
        noise = sigma * jax.random.normal(noise_key, design.shape[:2], params.dtype)
        y = jnp.einsum("ind,id->in", design, params) + noise
        train = dataclasses.replace(federation.train, y=y.reshape(-1))
        sample = dataclasses.replace(federation, train=train)
        one_draw = dataclasses.replace(run, federation=sample)
        state = one_draw.after(one_draw.init(run_key), num_rounds)
        moments = jnp.einsum("ind,in->id", design, y) / design.shape[1]
        return state.server["theta"], moments / curvature

    return jax.lax.map(one, keys, batch_size=_LANES)


def _problem(params: np.ndarray, noise_variance: float) -> closed_forms.Regression:
    return closed_forms.Regression(params, 10, noise_variance, CURVATURE, LAM)


def _attacked_problem() -> closed_forms.Regression:
    """Draws ten similar clients: the choice of malicious ones matters little."""
    rng = np.random.default_rng(0)
    return _problem(0.5 + 0.3 * rng.normal(size=(10, 5)), noise_variance=4.0)


def _last(count: int) -> np.ndarray:
    """Marks the last of ten clients as malicious."""
    return np.arange(10) >= 10 - count


def losses_over_q(options: rows.Options) -> rows.Findings:
    """Compares GM(q) and PM(q) of every attack with simulations."""
    problem = _attacked_problem()
    draws = Draws(problem)
    shrinkages = (0.4, 1.0) if options.quick else (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
    findings = rows.Findings("flame_losses_over_q", 2, shared=False)
    fine = np.linspace(0.1, 1.3, 100)
    for k, (name, attack) in enumerate(ATTACKS.items()):
        malicious = _last(2 if attack is not None else 0)
        attack_name = name if attack is not None else "gaussian"
        setting = closed_forms.OneRound(problem, malicious, attack_name, VARIANCE)
        pairs = [
            _add_losses(findings, draws, setting, q, options, name, 10 * k + number)
            for number, q in enumerate(shrinkages)
        ]
        curves = np.array([setting.losses(q) for q in fine])
        base, best = setting.losses(1.0), setting.thresholds()
        for i, axes in enumerate(findings.panels):
            points = [pair[i] for pair in pairs]
            curve = curves[:, i] - base[i]
            _curve_and_points(axes, k, fine, curve, points, "q", name, base[i])
            if best[i] < fine[-1]:
                height = setting.losses(best[i])[i] - base[i]
                axes.plot(best[i], height, "|", color="black", markersize=14, zorder=4)
    ylabel = "mean test loss minus that at q = 1"
    _name_losses(findings.panels, "q, the shrinkage of uploads", ylabel)
    return findings.titled(
        "curves: theory, points: simulation ± 2 standard errors, bars |: q*"
    )


def losses_over_malicious(options: rows.Options) -> rows.Findings:
    """Compares losses over the share of malicious clients, for kappa = 1 and q = 1."""
    problem = _attacked_problem()
    draws = Draws(problem)
    counts = (0, 3) if options.quick else (0, 1, 2, 3, 4)
    findings = rows.Findings("flame_losses_over_malicious", 2, shared=False)
    cases = itertools.product(("same_value", "sign_flip"), (SHARE, 1.0))
    for k, (name, q) in enumerate(cases):
        pairs, curves = [], []
        for count in counts:
            setting = closed_forms.OneRound(problem, _last(count), name, VARIANCE)
            seed = 100 + 10 * k + count
            pair = _add_losses(findings, draws, setting, q, options, name, seed)
            pairs.append(pair)
            curves.append(setting.losses(q))
        label = f"{name}, q = {q:.2f}" + (" (kappa = 1)" if q == SHARE else "")
        shares = np.array(counts) / 10
        for i, axes in enumerate(findings.panels):
            points, line = [pair[i] for pair in pairs], np.array(curves)[:, i]
            _curve_and_points(axes, k, shares, line, points, "malicious", label)
    ylabel = "mean test loss, benign clients"
    _name_losses(findings.panels, "share of malicious clients", ylabel)
    return findings.titled("lines: theory, points: simulation ± 2 standard errors")


def _name_losses(panels: list[Axes], xlabel: str, ylabel: str) -> None:
    """Adds titles and labels to the panels of both losses."""
    for axes, title in zip(panels, _QUANTITIES, strict=True):
        axes.set_title(title, **drawing.TEXT)
        axes.set(xlabel=xlabel)
    panels[0].set(ylabel=ylabel)


def _add_losses(
    findings: rows.Findings,
    draws: Draws,
    setting: closed_forms.OneRound,
    q: float,
    options: rows.Options,
    name: str,
    seed: int,
) -> list[rows.Row]:
    """Adds rows of both losses: means over the benign clients of every draw."""
    malicious, count = setting.malicious, options.seeds * DRAWS
    losses = draws.losses(q, count, seed, ATTACKS[name], malicious)
    settings = {"attack": name, "malicious": malicious.mean(), "q": round(q, 4)}
    cases = zip(_QUANTITIES, setting.losses(q), losses, strict=True)
    return [
        findings.add(text, settings, expected, values[:, ~malicious].mean(axis=1))
        for text, expected, values in cases
    ]


def _curve_and_points(
    axes: Axes,
    k: int,
    x: np.ndarray,
    curve: np.ndarray,
    points: Sequence[rows.Row],
    setting: str,
    label: str,
    base: float = 0.0,
) -> None:
    """Draws one curve of theory and its simulated points, minus `base`."""
    color = drawing.COLORS[k]
    # The fourth curve is dashed: Gaussian noise coincides with the same value.
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
    """Compares V(q), the variance over clients of `|w - t_i|^2`, with simulations."""
    rng = np.random.default_rng(3)
    angles = np.array([0.0, 0.4, 0.8, 1.6, 2.4])
    examples = {
        "t = 1, 2, 3": np.array([[1.0], [2.0], [3.0]]),
        "equal norms": np.stack([np.cos(angles), np.sin(angles)], axis=1),
        "random t": 1 + rng.normal(size=(5, 3)),
    }
    shrinkages = (0.5, 1.0) if options.quick else (0.25, 0.5, 0.75, 1.0, 1.25)
    findings = rows.Findings("flame_fairness")
    axes, quantity = findings.axes, "variance over clients of |w - t|^2"
    fine = np.linspace(0.2, 1.3, 100)
    for k, (name, params) in enumerate(examples.items()):
        problem = _problem(params, noise_variance=0.5)
        draws, points = Draws(problem), []
        for number, q in enumerate(shrinkages):
            values = _variances(draws, q, options, 200 + 10 * k + number)
            settings = {"parameters": name, "q": q}
            expected = problem.squared_distance_variance(q)
            points.append(findings.add(quantity, settings, expected, values))
        curve = np.array([problem.squared_distance_variance(q) for q in fine])
        word = "fairer" if problem.is_fairer(0.5) else "less fair"
        label = f"{name}: q = 0.5 is {word}"
        _curve_and_points(axes, k, fine, curve, points, "q", label)
    axes.axvline(1.0, color="gray", linewidth=0.8, linestyle=":")
    axes.set(xlabel="q, the shrinkage of uploads (1: none)")
    axes.set(yscale="log", ylabel="V(q): small is fair")
    return findings.titled("curves: theory, points: simulation ± 2 standard errors")


def _variances(draws: Draws, q: float, options: rows.Options, seed: int) -> np.ndarray:
    """Returns unbiased estimates of V(q), one per seed."""
    problem = draws.problem
    malicious = np.zeros(len(problem.params), bool)
    shared, _ = draws.losses(q, options.seeds * DRAWS, seed, None, malicious)
    squares = 2 / problem.curvature * shared
    # The variance of mean losses includes their noise; the covariance over clients of
    # the means of two independent halves does not.
    halves = squares.reshape(options.seeds, 2, DRAWS // 2, -1).mean(axis=2)
    centered = halves - halves.mean(axis=2, keepdims=True)
    return (centered[:, 0] * centered[:, 1]).mean(axis=1)
