"""Quadratics for Fed+, and all states of runs on them.

The losses are `f_k(w) = 1/2 (w - b_k)' A_k (w - b_k)` plus a constant. The anchors are
`z_k = c + prox(w_k - c)`. The envelope `ft_k(z) = min_w f_k(w) + alpha/2 |w - z|^2` has
the gradient `alpha (z - w_k(z))`, so fixed points need linear algebra in NumPy only.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

import fedjax_pfl as fp
from experiments.theory import training
from fedjax_pfl import core

__all__ = [
    "ALPHA",
    "CLIENTS",
    "DIM",
    "EXAMPLES",
    "INNER",
    "RADII",
    "Quadratics",
    "Visited",
    "exact",
    "num_rounds",
]

CLIENTS, DIM, EXAMPLES = 7, 6, 20
ALPHA = 1.0
INNER = 1e-12  # gradients of local problems and residuals of aggregators end here
RADII = {"sq": 1.0, "l2": 0.7, "l1": 0.3, "indicator": 1.0, "zero": 1.0}


@dataclasses.dataclass(frozen=True)
class Visited:
    """Trajectory of a run, from its start."""

    w: np.ndarray  # `[R + 1, K, d]` models
    c: np.ndarray  # `[R + 1, d]` centers
    z: np.ndarray  # `[R + 1, K, d]` anchors
    objective: np.ndarray  # `[R + 1]` F, by the simulator's diagnostics


@dataclasses.dataclass(frozen=True)
class Quadratics:
    """A federation of least squares, and its losses in NumPy."""

    federation: core.Federation  # data of K clients
    curvature: np.ndarray  # `[K, d, d]` matrices `A_k`
    targets: np.ndarray  # `[K, d]` minimizers `b_k`

    @classmethod
    def draw(cls, seed: int) -> "Quadratics":
        """Builds clients from a seed, each with a different Hessian."""
        shape = {"dim": DIM, "examples_per_client": EXAMPLES}
        spec = training.regressions(CLIENTS, spread=1.0, orthonormal=False, **shape)
        federation = dataclasses.replace(spec, seed=seed).build()
        train = federation.train
        x, y = (
            np.asarray(pool, np.float64)[np.asarray(train.index)]
            for pool in (train.x, train.y)
        )
        curvature = x.transpose(0, 2, 1) @ x / EXAMPLES
        moments = np.einsum("knd,kn->kd", x, y) / EXAMPLES
        targets = np.linalg.solve(curvature, moments[..., None])[..., 0]
        return cls(federation, curvature, targets)

    @property
    def model(self) -> fp.models.LinearRegression:
        """Returns the model of the federation."""
        return fp.models.LinearRegression().for_federation(self.federation)

    @functools.cached_property
    def eigenvalues(self) -> tuple[float, float]:
        """Returns the smallest and the largest eigenvalue of all curvatures."""
        values = np.linalg.eigvalsh(self.curvature)
        return float(values.min()), float(values.max())

    @property
    def factor(self) -> float:
        """Returns the contraction factor q of exact rounds."""
        # The anchors are a proximal point of all models, and therefore at most as far
        # apart, and `w_k(z) = (A_k + alpha)^-1 (A_k b_k + alpha z)`.
        return ALPHA / (ALPHA + self.eigenvalues[0])

    @property
    def rounding(self) -> float:
        """Bounds the rounding of residuals that are 0 at a fixed point."""
        # A round errs by about `INNER`, errors add up to `1 / (1 - q)` times that, and
        # residuals are `(alpha + L)`-Lipschitz.
        return INNER * (ALPHA + self.eigenvalues[1]) / (1 - self.factor)

    def solutions(self, z: np.ndarray) -> np.ndarray:
        """Returns `w_k(z_k)`, `[K, d]`."""
        system = self.curvature + ALPHA * np.eye(DIM)
        rhs = np.einsum("kij,kj->ki", self.curvature, self.targets) + ALPHA * z
        return np.linalg.solve(system, rhs[..., None])[..., 0]

    def envelope_gradients(self, z: np.ndarray) -> np.ndarray:
        """Returns `grad ft_k(z_k)`, `[K, d]`."""
        return ALPHA * (z - self.solutions(z))

    def envelopes(self, z: np.ndarray) -> np.ndarray:
        """Returns `ft_k(z_k)` without the constants: the minimum is 0, `[K]`."""
        w = self.solutions(z)
        return self.losses(w) + ALPHA / 2 * np.square(w - z).sum(axis=1)

    def losses(self, w: np.ndarray) -> np.ndarray:
        """Returns `f_k(w_k)` without the constants, `[K]`."""
        error = w - self.targets
        return np.einsum("ki,kij,kj->k", error, self.curvature, error) / 2

    def best_common(self, matrices: np.ndarray) -> np.ndarray:
        """Minimizes `sum_k (c - b_k)' M_k (c - b_k)` in c `[d]`, M `[K, d, d]`."""
        rhs = np.einsum("kij,kj->i", matrices, self.targets)
        return np.linalg.solve(matrices.sum(axis=0), rhs)

    def visited(
        self, process: fp.FederatedProcess, num_rounds: int, seed: int = 0
    ) -> Visited:
        """Runs a process and keeps every state; the seed draws the cohorts."""
        run = training.Training.of(process, self.federation)
        return Visited(*map(np.asarray, _states(training.key(seed), run, num_rounds)))


@functools.partial(training.compiled, static_argnames="num_rounds")
def _states(key: jax.Array, run: training.Training, num_rounds: int) -> Any:
    """Computes the fields of `Visited`."""

    def fields(state: core.State) -> tuple[jax.Array, ...]:
        anchor = run.process.algorithm.anchor
        z = jax.vmap(lambda w: anchor(state.server, w))(state.clients)
        value = run.diagnostics(state)["objective"]
        return state.clients["theta"], state.server.c["theta"], z["theta"], value

    return run.path(run.init(key), num_rounds, fields)


def exact(
    name: str, problem: Quadratics, rho: float | None = None, **fields: Any
) -> fp.FederatedProcess:
    """Returns Fed+ with exact local solves and aggregates over all clients."""
    rho = RADII[name] if rho is None else rho
    algorithm = fp.FedPlus(
        phi=fp.algorithms.PHIS[name](),
        alpha=ALPHA,
        rho=rho,
        aggregate_over="all",
        local=fp.local.ToTolerance(
            learning_rate=1 / (ALPHA + problem.eigenvalues[1]),
            tolerance=INNER**2,  # of the squared norm
            max_steps=500,
        ),
    )
    if name == "l2":
        rule = fp.GeometricMedian(rho=rho, tolerance=INNER, start="reference")
        fields = {"aggregator": rule} | fields
    return fp.FederatedProcess(algorithm=algorithm, **fields)


def num_rounds(problems: list[Quadratics]) -> int:
    """Returns rounds until a distance of 1 becomes rounding, at the slowest factor."""
    slowest = max(problem.factor for problem in problems)
    return math.ceil(math.log(1e-16) / math.log(slowest))
