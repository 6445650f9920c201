"""FedPG on quadratics: early stops, hovering near the limit, and trade-offs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from matplotlib.axes import Axes

import fedjax_pfl as fp
from experiments.theory import rows, training
from fedjax_pfl import core
from fedjax_pfl.figures import drawing

__all__ = ["SMOOTHNESS", "Bowls", "front", "hovering", "stuck"]

_CLIENTS, _DIM = 5, 10
SMOOTHNESS = 10.0
_STATIONARY = 1e-3  # of mu; shorter directions are rounding in float32
_LEAST = 1.0  # minimum of every loss
_PROBLEMS = 6  # at most


@dataclasses.dataclass(frozen=True)
class Bowls:
    """Strongly convex quadratics `(w - m_i)' A_i (w - m_i) / 2 + 1`, one per client."""

    federation: core.Federation  # the losses as examples of a linear regression
    curvature: np.ndarray  # `[N, d, d]` matrices `A_i`
    minimizers: np.ndarray  # `[N, d]`

    @classmethod
    def make(cls, curvature: np.ndarray, minimizers: np.ndarray) -> "Bowls":
        """Builds the federation of given quadratics."""
        count, dim = minimizers.shape
        values, vectors = np.linalg.eigh(curvature)
        x = np.sqrt((dim + 1) * values)[:, :, None] * vectors.transpose(0, 2, 1)
        y = np.einsum("nij,nj->ni", x, minimizers)
        x = np.concatenate([x, np.zeros((count, 1, dim))], axis=1)
        level = np.full((count, 1), np.sqrt(2 * (dim + 1) * _LEAST))
        y = np.concatenate([y, level], axis=1)
        federation = training.federation(x.reshape(-1, dim), y.reshape(-1), count)
        return cls(federation, curvature, minimizers)

    @classmethod
    def draw(cls, seed: int) -> "Bowls":
        """Draws eigenvalues from 1 to 10 and minimizers far apart."""
        rng = np.random.default_rng(seed)
        curvature = training.curvatures(rng, _CLIENTS, _DIM, 1, SMOOTHNESS)
        return cls.make(curvature, 2 * rng.normal(size=(_CLIENTS, _DIM)))

    def losses(self, path: np.ndarray) -> np.ndarray:
        """Returns losses `[R, N]` along a path `[R, d]`."""
        error = path[:, None] - self.minimizers[None]
        error = np.einsum("rni,nij,rnj->rn", error, self.curvature, error)
        return error / 2 + _LEAST

    def visited(
        self, algorithm: fp.FedPG, num_rounds: int, start: np.ndarray | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the global models `[R + 1, d]` of a run and its rounds' reports."""
        process = fp.FederatedProcess(algorithm=algorithm)
        run = training.Training.of(process, self.federation)
        initial = np.zeros(self.minimizers.shape[1]) if start is None else start
        # The report's `pareto_norm` is the length of the shortest combination of the
        # clients' rows alone, before each round.
        path, report = _path(run, jnp.asarray(initial), num_rounds)
        return np.asarray(path), {name: np.asarray(v) for name, v in report.items()}


@functools.partial(training.compiled, static_argnames="count")
def _path(run: training.Training, start: jax.Array, count: int) -> Any:
    """Computes the path and reports of `Bowls.visited`."""
    state = run.init(jax.random.key(0))
    server = dataclasses.replace(
        state.server, model={**state.server.model, "theta": start}
    )
    state = dataclasses.replace(state, server=server)

    def step(state: core.State, _: None) -> tuple[core.State, Any]:
        new, info = run.round(state)
        return new, (new.server.model["theta"], info.server | run.diagnostics(state))

    _, (path, report) = lax.scan(step, state, None, length=count)
    return jnp.concatenate([start[None], path]), report


def _fedpg(rate: float, decay: float | None = None, **fields: Any) -> fp.FedPG:
    solver = fp.SGD(learning_rate=rate, decay=decay)
    return fp.FedPG(local=solver, history="none", **fields)


def _norm_curve(axes: Axes, x: np.ndarray, norms: np.ndarray, **style: Any) -> None:
    """Draws norms over rounds, on a logarithmic scale that ends at 1e-9."""
    axes.plot(x, np.maximum(norms, 1e-9), **style)
    label = "|shortest combination of clients' rows| / mu"
    axes.set(yscale="log", xlabel="round", ylabel=label)


def stuck(options: rows.Options) -> rows.Findings:
    """Shows that the fairness row stops FedPG although every loss could fall."""
    count = 40 if options.quick else 100
    findings = rows.Findings("fedpg_stuck")
    number = min(options.seeds, _PROBLEMS)
    for k, guard in enumerate((0.0, 0.01)):
        # Claimed below: without a guard some problem stops early, with one none does.
        algorithm = _fedpg(0.1, guard=guard, search=fp.algorithms.Armijo())
        ends, rises, means = [], [], []
        for seed in range(number):
            problem = Bowls.draw(seed)
            path, report = problem.visited(algorithm, count)
            losses, norms = problem.losses(path), report["pareto_norm"]
            ends.append(norms[-1])
            rises.append(np.diff(losses, axis=0)[report["rule"] == 1].max())
            means.append(losses[-1].mean())
            label = f"guard = {guard:g}" if seed == 0 else None
            style = {"color": drawing.COLORS[k], "label": label, "alpha": 0.7}
            _norm_curve(findings.axes, np.arange(count), norms, **style)
        num_stopped = float(np.sum(np.array(ends) > _STATIONARY))
        findings.add(
            "problems of which all losses could still fall at the end",
            {"guard": guard, "problems": number},
            1.0 if guard == 0 else 0.0,
            num_stopped,
            ">=" if guard == 0 else "<=",
        )
        text = "largest rise of any loss in a round that test 1 accepted"
        findings.add(text, {"guard": guard}, 0.0, np.max(rises), "<=", tolerance=1e-9)
        text = "mean loss at the end, over problems"
        findings.add(text, {"guard": guard}, np.nan, np.mean(means), "")
    title = f"S-FedPG on {number} random problems: above 1e-3 every loss could fall"
    return findings.titled(title)


def hovering(options: rows.Options) -> rows.Findings:
    """Shows that iterates with a constant step keep a distance of the step's size."""
    count = 600 if options.quick else 3000
    kinds = {
        "eta 0.1": _fedpg(0.1),
        "eta 0.02": _fedpg(0.02),
        "eta 0.004": _fedpg(0.004),
        "0.1 x 0.999^t": _fedpg(0.1, 0.999),
        "searched": _fedpg(0.1, search=fp.algorithms.Armijo()),
    }
    number = min(options.seeds, _PROBLEMS)
    problems = [Bowls.draw(seed) for seed in range(number)]
    findings, ends = rows.Findings("fedpg_hovering"), {}
    for k, (name, algorithm) in enumerate(kinds.items()):
        reports = [problem.visited(algorithm, count)[1] for problem in problems]
        norms = np.mean([report["pareto_norm"] for report in reports], axis=0)
        # Medians, as norms fluctuate from round to round.
        ends[name] = float(np.median(norms[-count // 5 :]))
        smooth = np.array([np.median(x) for x in np.array_split(norms, 100)])
        x = np.linspace(0, count, 100)
        _norm_curve(findings.axes, x, smooth, color=drawing.COLORS[k], label=name)
    for base, step, reference in (
        ("eta 0.1", "eta 0.02", "5 eta"),
        ("eta 0.02", "eta 0.004", "5 eta"),
        ("eta 0.1", "0.1 x 0.999^t", "eta 0.1"),
        ("eta 0.1", "searched", "eta 0.1"),
    ):
        quantity = f"|d| / mu, median of the last fifth, against that at {reference}"
        settings = {"step": step, "problems": number}
        findings.add(quantity, settings, ends[base], ends[step], "<=")
    return findings.titled(f"FedPG by its step, mean of {number} random problems")


def _pareto_set(problem: Bowls) -> np.ndarray:
    """Returns minimizers `[2001, d]` of all convex combinations of two losses."""
    share = np.linspace(0, 1, 2001)
    weights = np.stack([share, 1 - share])
    system = np.einsum("ns,nij->sij", weights, problem.curvature)
    pull = np.einsum("nij,nj->ni", problem.curvature, problem.minimizers)
    return np.linalg.solve(system, (weights.T @ pull)[..., None])[..., 0]


def front(options: rows.Options) -> rows.Findings:
    """Compares the Pareto front of two clients with the ends of several starts."""
    starts = 4 if options.quick else 12
    curvature = np.array([np.diag([1.0, 4.0]), np.diag([3.0, 1.0])])
    problem = Bowls.make(curvature, np.array([[1.0, 0.0], [-1.0, 1.0]]))
    # Convex losses: minimizers of all convex combinations are the whole Pareto set.
    optimal = _pareto_set(problem)
    spacing = np.linalg.norm(np.diff(optimal, axis=0), axis=1).max()
    findings = rows.Findings("fedpg_front")
    axes, label = findings.axes, "Pareto front, closed form"
    axes.plot(*problem.losses(optimal).T, color="black", label=label)
    angles = 2 * np.pi * np.arange(starts) / starts
    start_points = 2.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    methods = {"without the fairness row": {"fair_row": False}, "S-FedPG": {}}
    for k, (name, fields) in enumerate(methods.items()):
        algorithm = _fedpg(0.1, search=fp.algorithms.Armijo(), **fields)
        paths = [problem.visited(algorithm, 200, start)[0] for start in start_points]
        style: dict[str, Any] = {"color": drawing.COLORS[k]}
        for number, path in enumerate(paths):
            label = name if number == 0 else None
            line = problem.losses(path).T
            axes.plot(*line, "-", linewidth=0.8, alpha=0.6, label=label, **style)
        ends = np.stack([path[-1] for path in paths])
        losses = problem.losses(ends)
        axes.plot(*losses.T, drawing.MARKERS[k], **style)
        distances = np.linalg.norm(ends[:, None] - optimal[None], axis=2).min(axis=1)
        settings = {"method": name, "starts": starts}
        findings.add(
            "largest distance from where a start ends to the Pareto set",
            settings,
            0.0,
            distances.max(),
            tolerance=float(spacing),
        )
        text = "mean angle between the losses and 1 at the end, degrees"
        length = np.linalg.norm(losses, axis=1) * np.sqrt(2)
        angles = np.degrees(np.arccos(losses.sum(axis=1) / length))
        findings.add(text, settings, np.nan, angles.mean(), "")
    axes.set(xlabel="loss of client 1", ylabel="loss of client 2")
    axes.set(xlim=(0.5, 12), ylim=(0.5, 12))
    return findings.titled("Lines: losses along the way; markers: after 200 rounds")
