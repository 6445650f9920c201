"""FLAME under the paper's own conditions: Lemma 2 and Theorems 1 to 3.

Losses are smooth, coercive, analytic and not convex, C1 to C3 hold, and solves end at
the paper's criterion with tolerances `eps_i` that fall by a factor per round. With
`P = (Theta, W, Pi, w)` and sums over clients:

    Lemma 2    |grad L(P^t)|^2 <= D2 sum (|dw|^2 + |dw_i|^2 + |dtheta_i|^2 + eps_i)
    Theorem 1  f(Theta, w) is bounded; L, f(Theta, w) and f~(Theta, W) end at one
               value, and all gradients at 0
    Theorem 2  the sequence converges
    Theorem 3  mean_{t < T} |grad L|^2 <= D2 (Ltil^0 - f*) / (D1 T) + D2 sum eps_i^1

Here `Ltil = L + sum iota_i eps_i`, with the iota that the criterion needs. All need
every client in every round: with partial participation Lemma 2 is wrong.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.theory import closed_forms, rows, training
from fedjax_pfl import core
from fedjax_pfl.figures import drawing

__all__ = ["Visited", "Wells", "convergence", "statements"]

_CLIENTS, _DIM = 10, 2
_RHO, _KAPPA, _DECAY = 0.1, 4.25, 0.95
_LAM = _RHO * _CLIENTS / _KAPPA
_ALPHA = 1 / _CLIENTS
_HEIGHT = 0.064
_SMOOTHNESS = 1.25 * _HEIGHT  # of the second derivatives 1/4 + cos
_SIZE = 2
_FEDERATIONS = 5  # at most
_VANISHED = 1e-6  # of a gradient's start


@dataclasses.dataclass(frozen=True)
class _Model(training.Losses):
    """`f = mean_j h (|u|^2 / 8 + sum (1 - cos 2 u) / 4)`, `u = theta - x_j`."""

    def init(self, key: core.Key) -> core.Params:
        return {"theta": 2 * jax.random.normal(key, (_DIM,))}

    def apply(
        self, params: core.Params, x: jax.Array, *, key: Any = None, constants: Any = ()
    ) -> jax.Array:
        del key, constants
        offset = params["theta"][None] - x
        wave = (1 - jnp.cos(2 * offset)) / 4
        return _HEIGHT * (jnp.square(offset) / 8 + wave).sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Visited:
    """States of a run, and their losses in NumPy."""

    theta: np.ndarray  # `[R + 1, m, d]` personal models
    copies: np.ndarray  # `[R + 1, m, d]` `w_i`
    dual: np.ndarray  # `[R + 1, m, d]` `pi_i`
    w: np.ndarray  # `[R + 1, d]`
    eps: np.ndarray  # `[R + 1, m]`
    centers: np.ndarray  # `[m, d]` centers of the wells

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """Returns `alpha sum_i f_i(theta_i)`, `[R + 1]`."""
        offsets = self.theta - self.centers
        values = np.square(offsets) / 8 + (1 - np.cos(2 * offsets)) / 4
        return _ALPHA * _HEIGHT * values.sum(axis=(1, 2))

    @functools.cached_property
    def slopes(self) -> np.ndarray:
        """Returns the gradients of `f_i`, `[R + 1, m, d]`."""
        offsets = self.theta - self.centers
        return _HEIGHT * (offsets / 4 + np.sin(2 * offsets) / 2)

    def about(self, centers: np.ndarray) -> np.ndarray:
        """Returns `alpha sum_i (f_i + lam/2 |theta_i - c_i|^2)`, `[R + 1]`."""
        pull = np.square(self.theta - centers).sum(axis=(1, 2))
        return self.losses + _ALPHA * _LAM / 2 * pull

    @property
    def objective(self) -> np.ndarray:
        """Returns `f(Theta, w)`, `[R + 1]`."""
        return self.about(self.w[:, None])

    @property
    def objective_gradient(self) -> np.ndarray:
        """Returns `|grad f(Theta, w)|`, `[R + 1]`."""
        pull = self.theta - self.w[:, None]
        parts = _ALPHA * (self.slopes + _LAM * pull)
        of_w = _ALPHA * _LAM * pull.sum(axis=1)
        squares = np.square(parts).sum(axis=(1, 2)) + np.square(of_w).sum(axis=1)
        return np.sqrt(squares)

    @property
    def lagrangian(self) -> np.ndarray:
        """Returns L, `[R + 1]`."""
        gaps = self.copies - self.w[:, None]
        terms = self.dual * gaps + _RHO / 2 * np.square(gaps)
        return self.about(self.copies) + terms.sum(axis=(1, 2))

    @property
    def squared_gradient(self) -> np.ndarray:
        """Returns `|grad L|^2` in all blocks, `[R + 1]`."""
        pull = _ALPHA * _LAM * (self.theta - self.copies)
        gaps = self.copies - self.w[:, None]
        of_copies = self.dual + _RHO * gaps
        blocks = (_ALPHA * self.slopes + pull, of_copies - pull, gaps)
        squares = sum(np.square(block).sum(axis=(1, 2)) for block in blocks)
        return squares + np.square(of_copies.sum(axis=1)).sum(axis=1)

    @property
    def squared_moves(self) -> np.ndarray:
        """Returns `sum_i (|dw|^2 + |dw_i|^2 + |dtheta_i|^2)`, `[R]`."""
        steps = (np.diff(x, axis=0) for x in (self.theta, self.copies, self.w))
        theta, copies, w = (np.square(x) for x in steps)
        return (theta + copies).sum(axis=(1, 2)) + _CLIENTS * w.sum(axis=1)


@dataclasses.dataclass(frozen=True)
class Wells:
    """Federation of wells with waves in them, one example per client."""

    seed: int  # seed of the centers and of the start

    def visited(self, size: int, count: int) -> Visited:
        """Runs FLAME for `count` rounds with `size` clients each."""
        rng = np.random.default_rng(self.seed)
        centers = rng.normal(size=(_CLIENTS, _DIM)).astype(np.float32)  # as stored
        federation = training.federation(centers, np.zeros(_CLIENTS), _CLIENTS)
        solver = fp.local.ToTolerance(
            learning_rate=1 / (_LAM + _SMOOTHNESS), tolerance=1e-26, max_steps=500
        )
        flame = fp.Flame(lam=_LAM, kappa=_KAPPA, eps_decay=_DECAY, local=solver)
        members = fp.AllClients() if size == _CLIENTS else fp.UniformCohort(size=size)
        process = fp.FederatedProcess(algorithm=flame, participation=members)
        run = training.Training.of(process, federation, _Model())
        parts = map(np.asarray, _states(run, training.key(self.seed), count))
        theta, copies, p, w, eps = parts
        return Visited(theta, copies, _RHO * p, w, eps, centers.astype(float))


@functools.partial(training.compiled, static_argnames="count")
def _states(run: training.Training, key: jax.Array, count: int) -> Any:
    """Computes the fields of `Visited`."""

    def fields(state: core.State) -> tuple[jax.Array, ...]:
        row = state.clients
        trees = (row.theta, row.w_local, row.p, state.server)
        return (*(tree["theta"] for tree in trees), row.eps)

    return run.path(run.init(key), count, fields)


_CONDITIONS = closed_forms.paper_conditions(
    np.full(_CLIENTS, _ALPHA), _LAM, _RHO, _SMOOTHNESS, _DECAY
)


def convergence(options: rows.Options) -> rows.Findings:
    """Shows Lemma 2 and Theorems 1 to 3 under their conditions."""
    count = 1000 if options.quick else 2000
    seeds = range(min(options.seeds, _FEDERATIONS))
    findings = rows.Findings("flame_convergence")
    axes = findings.axes
    runs = [Wells(seed).visited(_CLIENTS, count) for seed in seeds]
    findings.rows += statements(runs)
    cohort_runs = [Wells(seed).visited(_SIZE, 100) for seed in seeds]
    largest = max(_ratios(run, _CONDITIONS.relative_error).max() for run in cohort_runs)
    findings.rows.append(_lemma_row(_SIZE, "proof's", largest, ">="))
    times = np.arange(1, count + 1)
    for k, run in enumerate(runs):
        means, bounds = _theorem_3(run)
        style: dict[str, Any] = {"color": drawing.COLORS[k], "linewidth": 1}
        name = f"seed {k}"
        axes.plot(times, run.squared_gradient[:-1], ":", **style)
        axes.plot(times, means, label=name, **style)
        axes.plot(times, bounds, "--", **style)
    axes.set(xscale="log", xlabel="T", yscale="log", ylabel="|grad L|^2")
    title = "dotted: in round T, solid: mean until T, dashed: bound of Theorem 3"
    return findings.titled(title)


def statements(runs: list[Visited]) -> list[rows.Row]:
    """Checks runs with all clients, one per seed; the worst is reported."""
    constants = {
        "proof's": _CONDITIONS.relative_error,
        "printed": _CONDITIONS.printed_relative_error,
    }
    results = rows.Rows(
        _lemma_row(_CLIENTS, name, max(_ratios(run, d2).max() for run in runs), "<=")
        for name, d2 in constants.items()
    )

    def add(text: str, expected: float, values: Any, relation: str, tolerance: Any):
        results.add(text, {}, expected, max(values), relation, tolerance)

    # Theorem 1: f is below the first Lyapunov value, so that it is bounded along the
    # run.
    values = [(run.objective / _lyapunov(run)[0]).max() for run in runs]
    add("Theorem 1: largest f(Theta, w) / Ltil^0", 1.0, values, "<=", 0.0)
    for name, gaps in (
        ("f(Theta, w)", [run.lagrangian - run.objective for run in runs]),
        ("f~(Theta, W)", [run.lagrangian - run.about(run.copies) for run in runs]),
    ):
        ends = [abs(gap[-1]) / abs(gap).max() for gap in gaps]
        text = f"Theorem 1: |L - {name}| at the end, over its largest"
        add(text, 0.0, ends, "=", _VANISHED)
    ends = [run.objective_gradient[-1] / run.objective_gradient[0] for run in runs]
    text = "Theorem 1: |grad f(Theta, w)| at the end, over that at the start"
    add(text, 0.0, ends, "=", _VANISHED)
    lengths = [np.sqrt(run.squared_moves) for run in runs]
    ends = [x[len(x) // 2 :].sum() / x.sum() for x in lengths]
    text = "Theorem 2: length of the way in the second half of the rounds, share"
    add(text, 0.0, ends, "=", np.sqrt(_VANISHED))
    ratios = [(means / bounds).max() for means, bounds in map(_theorem_3, runs)]
    text = "Theorem 3: largest mean of |grad L|^2 over its bound"
    add(text, 1.0, ratios, "<=", 0.0)
    return results


def _lemma_row(size: int, constant: str, ratio: float, relation: str) -> rows.Row:
    """Returns a row of Lemma 2; `>=` is a counterexample."""
    return rows.Row(
        "Lemma 2: largest |grad L|^2 over its bound",
        {"clients per round": size, "D2": constant},
        1.0,
        float(ratio),
        relation,
    )


def _ratios(run: Visited, constant: float) -> np.ndarray:
    """Returns `|grad L(P^t)|^2` over Lemma 2's bound, `[R]`."""
    moves = run.squared_moves + run.eps[1:].sum(axis=1)
    is_rounding = moves < 1e-24
    gradient = np.where(is_rounding, 0, run.squared_gradient[:-1])
    return gradient / (constant * np.where(is_rounding, 1, moves))


def _lyapunov(run: Visited) -> np.ndarray:
    """Returns Ltil, `[R + 1]`."""
    return run.lagrangian + run.eps @ _CONDITIONS.iota


def _theorem_3(run: Visited) -> tuple[np.ndarray, np.ndarray]:
    """Returns means `[R]` of `|grad L|^2` until T and their bounds, for T = 1 to R."""
    # The bounds use the limit's value for f*, which is at most that, so they are
    # sharper.
    times = np.arange(1, len(run.w))
    means = np.cumsum(run.squared_gradient[:-1]) / times
    fall = _lyapunov(run)[0] - run.objective[-1]
    descent, constant = _CONDITIONS.descent, _CONDITIONS.relative_error
    return means, constant * (fall / (descent * times) + run.eps[1].sum())
