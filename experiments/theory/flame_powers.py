"""FLAME's Theorem 4: rates on losses with a known Kurdyka-Lojasiewicz exponent.

All clients have their minimum at 0, `f_i(theta) = b_i |theta|^p / p`, and near 0
the Lagrangian has the exponent `tau = 1 - 1 / p` for p >= 2. With
`v = mean(b) / (lam (1 + kappa))`, w moves like `w+ = w - v w^(p - 1)`: the gap `L - L*`
falls by a factor per round for p = 2, and like

    mean(b) / p ((p - 2) v t + 1)^(-p / (p - 2)),      p / (p - 2) = 1 / (2 tau - 1)

for p > 2. Smooth losses have no smaller exponent than 1/2: L is not flat, and
`|grad L| <= C |P - P*|`. The theorem's finite case (tau = 0) is therefore empty under
its assumption A2. For p = 1, which is not smooth, the personal models are exact after
finitely many rounds: equal clients that start at 1 find 0 in round
`1 + ceil((1 + kappa) (lam / b - 1))`, but L still falls by a factor.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows, training
from fedjax_pfl import core
from fedjax_pfl.figures import drawing

__all__ = ["KAPPA", "LAM", "Powers", "exponent_row", "factor_row", "powers"]

_CLIENTS = 10
_RHO, KAPPA = 0.1, 4.25  # with L < 0.096 they satisfy the paper's C1 to C3
LAM = _RHO * _CLIENTS / KAPPA
_STEEPEST = 0.09  # second derivative at the start
_SHARP = 0.02  # slope for p = 1
_LINEAR = 512  # rounds until a gap that falls by a factor is near rounding
_TIGHT = 1e-30  # squared norm of a local gradient at the end of a solve


@dataclasses.dataclass(frozen=True)
class _Power(training.Losses):
    """`f(theta) = mean_j x_j |theta|^p / p` of one parameter; starts at 1."""

    power: int

    def init(self, key: core.Key) -> core.Params:
        del key
        return {"theta": jnp.ones(1)}

    def apply(
        self, params: core.Params, x: jax.Array, *, key: Any = None, constants: Any = ()
    ) -> jax.Array:
        del key, constants
        size = jnp.abs(params["theta"])
        return x[:, 0] * (size**self.power).sum() / self.power


@fp.pytree_dataclass
class _SoftThreshold(fp.local.ToTolerance):
    """Minimizes `b |theta| + lam/2 |theta - c|^2` exactly."""

    def solve(self, view, objective, params, context, *, tolerance=None):  # noqa: D102
        del objective, params, tolerance
        center = context.center["theta"]
        slope = view.data.x[view.data.index[0], 0]
        theta = jnp.sign(center) * jnp.maximum(jnp.abs(center) - slope / LAM, 0)
        one = jnp.ones((), jnp.int32)
        info = fp.local.LocalInfo(num_steps=one, num_examples=one, converged=one > 0)
        return {"theta": theta}, context, info


@dataclasses.dataclass(frozen=True)
class Powers:
    """Losses `b_i |theta|^p / p`, and FLAME's rounds on them."""

    power: int  # p

    @property
    def slopes(self) -> np.ndarray:
        """Returns `b [m]`, equal for p = 1."""
        if self.power == 1:
            return np.full(_CLIENTS, _SHARP)
        return np.linspace(0.5, 1.0, _CLIENTS) * _STEEPEST / (self.power - 1)

    @property
    def speed(self) -> float:
        """Returns `(p - 2) v`, the growth of `w^(2 - p)` per round."""
        return (self.power - 2) * self.slopes.mean() / (LAM * (1 + KAPPA))

    def predicted_gap(self, rounds: Any) -> Any:
        """Returns `L - L*` after `rounds` rounds, for p > 2."""
        mean, p = self.slopes.mean(), self.power
        return mean / p * (self.speed * rounds + 1) ** (-p / (p - 2))

    def relative_error(self, rounds: int) -> float:
        """Bounds the relative error of `w^(2 - p) = (p - 2) v t + O(log t)`."""
        return math.log(rounds) / (self.speed * rounds)

    @property
    def predicted_factor(self) -> float:
        """Returns the factor of `L - L*` per round for p = 2, and finally for p = 1."""
        if self.power == 1:  # personal models stay at 0, as if b were infinite
            return max(closed_forms.convergence_factors(KAPPA, math.inf, "local")) ** 2
        round_ = closed_forms.round_matrix(self.slopes, LAM, KAPPA)
        return float(np.abs(np.linalg.eigvals(round_)).max() ** 2)

    def rounds(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Runs FLAME; returns `L - L*` `[R + 1]` and personal models `[R + 1, m]`."""
        x = self.slopes[:, None]
        federation = training.federation(x, np.zeros(_CLIENTS), _CLIENTS)
        kind = _SoftThreshold if self.power == 1 else fp.local.ToTolerance
        solver = kind(learning_rate=1 / LAM, tolerance=_TIGHT, max_steps=200)
        flame = fp.Flame(lam=LAM, kappa=KAPPA, eps_decay=0.9, local=solver)
        process = fp.FederatedProcess(algorithm=flame)
        run = training.Training.of(process, federation, _Power(self.power))
        gap, theta = map(np.asarray, _visited(run, count))
        return gap, theta


@functools.partial(training.compiled, static_argnames="count")
def _visited(run: training.Training, count: int) -> Any:
    """Computes the results of `Powers.rounds`; L* is 0."""

    def fields(state: core.State) -> tuple[jax.Array, jax.Array]:
        value = run.diagnostics(state)["lagrangian"]
        return value, state.clients.theta["theta"][:, 0]

    return run.path(run.init(jax.random.key(0)), count, fields)


def exponent_row(problem: Powers, gap: np.ndarray) -> rows.Row:
    """Compares the decay of a gap over the last doubling with `t^(-p/(p-2))`."""
    power, last = problem.power, len(gap) - 1
    return rows.Row(
        "Theorem 4: s in L - L* ~ t^-s",
        {"p": power, "tau": f"{power - 1}/{power}", "rounds": last},
        power / (power - 2),
        math.log2(gap[last // 2] / gap[last]),
        tolerance=problem.relative_error(last // 2) * power / (power - 2),
    )


def factor_row(power: int, expected: float, gap: np.ndarray) -> rows.Row:
    """Compares the last half's factor of a gap per round with a prediction."""
    last = len(gap) - 1
    quarter_factor = (gap[last // 2] / gap[last // 4]) ** (1 / (last // 2 - last // 4))
    measured = (gap[last] / gap[last // 2]) ** (1 / (last - last // 2))
    return rows.Row(
        "Theorem 4: factor of L - L* per round",
        {"p": power, "tau": "1/2", "rounds": last},
        expected,
        measured,
        # Twice the change from the previous quarter, since other modes fade.
        tolerance=2 * abs(measured - quarter_factor) + 1e-9,
    )


def powers(options: rows.Options) -> rows.Findings:
    """Compares rates for |theta|^p with the rates of Theorem 4."""
    count = 4096 if options.quick else 32768
    findings = rows.Findings("flame_powers")
    axes = findings.axes
    for k, power in enumerate((1, 2, 4) if options.quick else (1, 2, 3, 4, 6)):
        problem = Powers(power)
        gap, theta = problem.rounds(count if power > 2 else _LINEAR)
        times = np.arange(len(gap))
        color, label = drawing.COLORS[k], f"p = {power}"
        axes.plot(
            times[1:],
            np.where(gap[1:] > 1e-25, gap[1:], np.nan),
            color=color,
            label=label,
        )
        if power > 2:
            findings.rows += [exponent_row(problem, gap), _gap_row(problem, gap)]
            axes.plot(times[1:], problem.predicted_gap(times[1:]), "k:", linewidth=1)
            continue
        if power == 1:
            exact_round = 1 + int(np.flatnonzero((theta != 0).any(axis=1)).max())
            expected = 1 + math.ceil((1 + KAPPA) * (LAM / _SHARP - 1))
            text = "round from which all personal models are exact"
            findings.add(text, {"p": 1, "tau": "1/2"}, expected, exact_round)
            gap = gap[exact_round : exact_round + 100]  # later values are rounding
        findings.rows.append(factor_row(power, problem.predicted_factor, gap))
    axes.plot([], [], "k:", linewidth=1, label="theory, p > 2")
    axes.set(xscale="log", xlabel="round", yscale="log", ylabel="L - L*")
    return findings.titled(
        f"f = b |theta|^p / p, {_CLIENTS} clients, all in every round"
    )


def _gap_row(problem: Powers, gap: np.ndarray) -> rows.Row:
    """Compares a gap at the end with the prediction."""
    power, last = problem.power, len(gap) - 1
    return rows.Row(
        "L - L* at the end, over mean(b) / p ((p - 2) v t + 1)^(-p / (p - 2))",
        {"p": power, "rounds": last},
        1.0,
        gap[last] / problem.predicted_gap(last),
        tolerance=problem.relative_error(last) * power / (power - 2),
    )
