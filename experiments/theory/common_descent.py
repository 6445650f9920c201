"""FedPG on quadratics: where it stops, hovers, and which trade-off it finds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_pfl as fp
from experiments.theory import fedplus_quadratics, rows
from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.figures import drawing

__all__ = ["PARTS", "Bowls", "front", "hovering", "stuck"]

_CLIENTS, _DIM = 5, 10
_SMOOTHNESS = 10.0
_STATIONARY = 1e-3  # of mu; a direction that short is no direction in float32
_LEAST = 1.0  # every loss at its minimizer


@dataclasses.dataclass(frozen=True)
class Bowls:
    """Strongly convex quadratics `(w - m_i)' A_i (w - m_i) / 2 + 1`, one per client.

    Attributes:
      federation: the same as examples of a linear regression.
      curvature: `[N, d, d]` matrices `A_i`.
      minimizers: `[N, d]`.
    """

    federation: core.Federation
    curvature: np.ndarray
    minimizers: np.ndarray

    @classmethod
    def make(cls, curvature: np.ndarray, minimizers: np.ndarray) -> "Bowls":
        """The federation of given quadratics."""
        count, dim = minimizers.shape
        values, vectors = np.linalg.eigh(curvature)
        x = np.sqrt((dim + 1) * values)[:, :, None] * vectors.transpose(0, 2, 1)
        y = np.einsum("nij,nj->ni", x, minimizers)
        x = np.concatenate([x, np.zeros((count, 1, dim))], axis=1)
        level = np.full((count, 1), np.sqrt(2 * (dim + 1) * _LEAST))
        federation = fp.Federation.from_arrays(
            x.reshape(-1, dim),
            np.concatenate([y, level], axis=1).reshape(-1),
            np.repeat(np.arange(count), dim + 1),
            validation_fraction=0.0,
            test_fraction=0.0,
        )
        return cls(federation, curvature, minimizers)

    @classmethod
    def draw(cls, seed: int) -> "Bowls":
        """Eigenvalues from 1 to 10, minimizers far apart."""
        rng = np.random.default_rng(seed)
        bases = np.linalg.qr(rng.normal(size=(_CLIENTS, _DIM, _DIM))).Q
        values = rng.uniform(1, _SMOOTHNESS, size=(_CLIENTS, 1, _DIM))
        curvature = (bases * values) @ bases.transpose(0, 2, 1)
        return cls.make(curvature, 2 * rng.normal(size=(_CLIENTS, _DIM)))

    def losses(self, path: np.ndarray) -> np.ndarray:
        """Losses `[R, N]` along a path `[R, d]`."""
        error = path[:, None] - self.minimizers[None]
        found = np.einsum("rni,nij,rnj->rn", error, self.curvature, error) / 2
        return found + _LEAST

    def visited(
        self, algorithm: fp.FedPG, num_rounds: int, start: np.ndarray | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Global models `[R + 1, d]` of a run from a start, and what rounds report.

        Norms that the report calls `pareto_norm` are those of the shortest combination
        of the clients' rows alone, before each round.
        """
        process = fp.FederatedProcess(algorithm=algorithm)
        process = struct.as_arrays(process, jnp.zeros(()).dtype)
        model = fp.models.LinearRegression().for_federation(self.federation)
        first = np.zeros(self.minimizers.shape[1]) if start is None else start
        path, report = _path(
            process, jnp.asarray(first), self.federation, model=model, count=num_rounds
        )
        return np.asarray(path), {name: np.asarray(v) for name, v in report.items()}


@functools.partial(
    jax.jit,
    static_argnames=("model", "count"),
    compiler_options=fedplus_quadratics.QUICK_COMPILATION,
)
def _path(process, start, federation, *, model, count):
    """The path and reports of `Bowls.visited`."""
    state = process.init(jax.random.key(0), model, federation)
    server = dataclasses.replace(
        state.server, model={**state.server.model, "theta": start}
    )
    state = dataclasses.replace(state, server=server)

    def step(state, _):
        found = process.algorithm.diagnostics(state, model, federation)
        new, info = process.round(state, model, federation)
        return new, (new.server.model["theta"], info.server | found)

    _, (path, report) = lax.scan(step, state, None, length=count)
    return jnp.concatenate([start[None], path]), report


def _fedpg(rate: float, decay: float | None = None, **fields) -> fp.FedPG:
    solver = fp.SGD(learning_rate=rate, decay=decay)
    return fp.FedPG(local=solver, history="none", **fields)


def stuck(options: rows.Options) -> rows.Findings:
    """Where the fairness row stops FedPG although every loss could fall."""
    count = 40 if options.quick else 100
    search = fp.algorithms.Armijo()
    figure, (axes,) = drawing.panels(1)
    found: list[rows.Row] = []
    number = min(options.seeds, 6)
    for k, guard in enumerate((0.0, 0.01)):
        ends, falls, means = [], [], []
        for seed in range(number):
            problem = Bowls.draw(seed)
            path, report = problem.visited(
                _fedpg(0.1, guard=guard, search=search), count
            )
            losses = problem.losses(path)
            ends.append(report["pareto_norm"][-1])
            accepted = report["rule"] == 1
            falls.append(np.diff(losses, axis=0)[accepted].max())
            means.append(losses[-1].mean())
            axes.plot(
                np.maximum(report["pareto_norm"], 1e-9),
                color=drawing.COLORS[k],
                label=f"guard = {guard:g}" if seed == 0 else None,
                alpha=0.7,
            )
        settings = {"guard": guard}
        found.append(
            rows.Row(
                quantity="problems of which all losses could still fall at the end",
                settings=settings | {"problems": number},
                theory=1.0 if guard == 0 else 0.0,
                simulation=float(np.sum(np.array(ends) > _STATIONARY)),
                relation=">=" if guard == 0 else "<=",
            )
        )
        found.append(
            rows.Row(
                quantity="largest rise of any loss in a round that test 1 accepted",
                settings=settings,
                theory=0.0,
                simulation=float(np.max(falls)),
                relation="<=",
                tolerance=1e-9,
            )
        )
        found.append(
            rows.Row(
                quantity="mean loss at the end, over problems",
                settings=settings,
                theory=np.nan,
                simulation=float(np.mean(means)),
                relation="",
            )
        )
    axes.set_yscale("log")
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("|shortest combination of clients' rows| / mu", fontsize=9)
    title = f"S-FedPG on {number} random problems: above 1e-3 every loss could fall"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedpg_stuck": figure})


def hovering(options: rows.Options) -> rows.Findings:
    """A constant step keeps the iterates at a distance of its size."""
    count = 600 if options.quick else 3000
    kinds = {
        "eta 0.1": _fedpg(0.1),
        "eta 0.02": _fedpg(0.02),
        "eta 0.004": _fedpg(0.004),
        "0.1 x 0.999^t": _fedpg(0.1, 0.999),
        "searched": _fedpg(0.1, search=fp.algorithms.Armijo()),
    }
    number = min(options.seeds, 6)
    problems = [Bowls.draw(seed) for seed in range(number)]
    figure, (axes,) = drawing.panels(1)
    ends = {}
    for k, (name, algorithm) in enumerate(kinds.items()):
        reports = [problem.visited(algorithm, count)[1] for problem in problems]
        norms = np.mean([report["pareto_norm"] for report in reports], axis=0)
        ends[name] = float(np.median(norms[-count // 5 :]))
        smooth = np.array([np.median(x) for x in np.array_split(norms, 100)])
        axes.plot(
            np.linspace(0, count, 100),
            np.maximum(smooth, 1e-9),
            color=drawing.COLORS[k],
            label=name,
        )
    found = [
        rows.Row(
            quantity="|d| / mu, median of the last fifth, against that at 5 eta",
            settings={"step": small, "problems": number},
            theory=ends[large],
            simulation=ends[small],
            relation="<=",
        )
        for large, small in (("eta 0.1", "eta 0.02"), ("eta 0.02", "eta 0.004"))
    ]
    found += [
        rows.Row(
            quantity="|d| / mu, median of the last fifth, against that at eta 0.1",
            settings={"step": name, "problems": number},
            theory=ends["eta 0.1"],
            simulation=ends[name],
            relation="<=",
        )
        for name in ("0.1 x 0.999^t", "searched")
    ]
    axes.set_yscale("log")
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("|shortest combination of clients' rows| / mu", fontsize=9)
    title = f"FedPG by its step, mean of {number} random problems"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedpg_hovering": figure})


def front(options: rows.Options) -> rows.Findings:
    """The Pareto front of two clients, and where starts end on it."""
    starts = 4 if options.quick else 12
    curvature = np.array([np.diag([1.0, 4.0]), np.diag([3.0, 1.0])])
    problem = Bowls.make(curvature, np.array([[1.0, 0.0], [-1.0, 1.0]]))
    shares = np.linspace(0, 1, 2001)
    systems = np.einsum("s,ij->sij", shares, curvature[0])
    systems += np.einsum("s,ij->sij", 1 - shares, curvature[1])
    right = np.outer(shares, curvature[0] @ problem.minimizers[0])
    right += np.outer(1 - shares, curvature[1] @ problem.minimizers[1])
    optimal = np.linalg.solve(systems, right[..., None])[..., 0]
    figure, (axes,) = drawing.panels(1)
    line = problem.losses(optimal)
    axes.plot(line[:, 0], line[:, 1], color="black", label="Pareto front, closed form")
    found: list[rows.Row] = []
    angles = 2 * np.pi * np.arange(starts) / starts
    first = 2.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for k, (name, fields) in enumerate(
        (("without the fairness row", {"fair_row": False}), ("S-FedPG", {}))
    ):
        algorithm = _fedpg(0.1, search=fp.algorithms.Armijo(), **fields)
        paths = [problem.visited(algorithm, 200, start)[0] for start in first]
        ends = np.stack([path[-1] for path in paths])
        away = np.linalg.norm(ends[:, None] - optimal[None], axis=2).min(axis=1)
        losses = problem.losses(ends)
        for number, path in enumerate(paths):
            values = problem.losses(path)
            axes.plot(
                values[:, 0],
                values[:, 1],
                "-",
                color=drawing.COLORS[k],
                linewidth=0.8,
                alpha=0.6,
                label=name if number == 0 else None,
            )
        axes.plot(
            losses[:, 0], losses[:, 1], drawing.MARKERS[k], color=drawing.COLORS[k]
        )
        spacing = np.linalg.norm(np.diff(optimal, axis=0), axis=1).max()
        found.append(
            rows.Row(
                quantity="largest distance from where a start ends to the Pareto set",
                settings={"method": name, "starts": starts},
                theory=0.0,
                simulation=float(away.max()),
                tolerance=float(spacing),
            )
        )
        found.append(
            rows.Row(
                quantity="mean angle between the losses and 1 at the end, degrees",
                settings={"method": name, "starts": starts},
                theory=np.nan,
                simulation=float(
                    np.degrees(
                        np.arccos(
                            losses.sum(axis=1)
                            / (np.linalg.norm(losses, axis=1) * np.sqrt(2))
                        )
                    ).mean()
                ),
                relation="",
            )
        )
    axes.set_xlabel("loss of client 1", fontsize=9)
    axes.set_ylabel("loss of client 2", fontsize=9)
    axes.set_xlim(0.5, 12)
    axes.set_ylim(0.5, 12)
    title = "Lines: losses along the way; markers: after 200 rounds"
    drawing.legend(figure, title)
    return rows.Findings(found, {"fedpg_front": figure})


PARTS: tuple[rows.Part, ...] = (stuck, hovering, front)
