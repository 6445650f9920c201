"""Federations whose answers are known, and a short way to run a process on them.

Every pool ends in a row of NaN to which all padded slots point: reading one shows.
All parameters are one leaf, `{"theta": [d]}`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import core, local, models
from fedjax_pfl.models import objectives
from fedjax_pfl.testing import compiled_rounds

FULL_BATCH = 64  # at least the examples of any client here: one step is a full gradient


@dataclasses.dataclass(frozen=True)
class Problem:
    """A federation, its model, and the same losses in NumPy.

    Attributes:
      federation: all splits hold the same examples.
      model: already given the federation's shapes.
      loss: `(client, theta [d]) -> float`, the mean over the client's examples.
      gradient: `(client, theta [d]) -> [d]`.
      smoothness: Lipschitz constant of every gradient.
    """

    federation: core.Federation
    model: Any
    loss: Callable[[int, np.ndarray], float]
    gradient: Callable[[int, np.ndarray], np.ndarray]
    smoothness: float

    def alpha(self, weighting: str) -> np.ndarray:
        """Client weights `[N]`, `uniform` or by `examples`."""
        counts = np.asarray(self.federation.train.num_examples, float)
        return (
            counts / counts.sum()
            if weighting == "examples"
            else 1 / len(counts) + 0 * counts
        )

    def losses(self, theta: np.ndarray) -> np.ndarray:
        """`f_i(theta_i)` for `theta [N, d]`."""
        return np.array([self.loss(i, row) for i, row in enumerate(theta)])

    def gradients(self, theta: np.ndarray) -> np.ndarray:
        """Gradients `[N, d]` of `f_i` at `theta_i`."""
        return np.stack([self.gradient(i, row) for i, row in enumerate(theta)])

    def descend(
        self,
        client: int,
        theta: np.ndarray,
        center: np.ndarray,
        weight: float,
        steps: int,
        learning_rate: float = 0.3,
        momentum: float = 0.0,
    ) -> np.ndarray:
        """`full_gradient_steps` on `f_i + weight/2 |. - center|^2`, in NumPy."""
        memory = np.zeros_like(theta)
        for _ in range(steps):
            gradient = self.gradient(client, theta) + weight * (theta - center)
            memory = momentum * memory + gradient
            theta = theta - learning_rate * memory
        return theta


@dataclasses.dataclass(frozen=True)
class LeastSquares(Problem):
    """`f_i = (theta - that_i)' A_i (theta - that_i) / 2` plus a constant.

    Attributes:
      curvature: `A_i [N, d, d]`.
      estimates: `that_i [N, d]`.
    """

    curvature: np.ndarray
    estimates: np.ndarray

    def moreau_optimum(
        self, lam: float, alpha: np.ndarray, weight_decay: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Minimizer `(theta [N, d], w [d])` of `sum alpha (f + lam/2 |theta - w|^2)`.

        Solves all optimality conditions as one linear system; every `f_i` gets
        `weight_decay/2 |theta|^2` more.
        """
        count, d = self.estimates.shape
        eye = np.eye(d)
        system = np.zeros((count + 1, d, count + 1, d))
        right = np.zeros((count + 1, d))
        for i in range(count):
            system[i, :, i] = self.curvature[i] + (lam + weight_decay) * eye
            system[i, :, count] = -lam * eye
            right[i] = self.curvature[i] @ self.estimates[i]
            system[count, :, i] = -alpha[i] * eye
        system[count, :, count] = eye
        size = (count + 1) * d
        found = np.linalg.solve(system.reshape(size, size), right.reshape(-1))
        return found.reshape(count + 1, d)[:-1], found.reshape(count + 1, d)[-1]


def full_gradient_steps(
    steps: int = 3, learning_rate: float = 0.3, **fields: Any
) -> local.SGD:
    """SGD whose every epoch is one full gradient step."""
    return local.SGD(
        learning_rate=learning_rate, epochs=steps, batch_size=FULL_BATCH, **fields
    )


def exact_step(problem: Problem, lam: float) -> local.SGD:
    """One step that solves `f_i + lam/2 |. - c|^2` exactly where `A_i = b I`."""
    return full_gradient_steps(1, 1 / (problem.smoothness + lam))


def _federation(
    inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], name: str
) -> core.Federation:
    """A federation of the clients' own examples; every client has a padded slot."""
    counts = np.array([len(x) for x in inputs], np.int32)
    ends = np.cumsum(counts)
    index = np.full((len(counts), counts.max() + 1), ends[-1], np.int32)
    for row, end, count in zip(index, ends, counts, strict=True):
        row[:count] = np.arange(end - count, end)
    padding = np.full_like(inputs[0][:1], np.nan)
    data = core.ClientData(
        x=jax.device_put(np.concatenate([*inputs, padding])),
        y=jax.device_put(np.concatenate([*targets, [np.nan]])),
        scale=jnp.asarray(1.0),
        shift=jnp.asarray(0.0),
        index=jax.device_put(index),
        num_examples=jax.device_put(counts),
        client_id=jax.device_put(np.arange(len(counts), dtype=np.int32)),
    )
    return core.Federation(
        train=data,
        validation=data,
        test=data,
        malicious=jnp.zeros(len(counts), bool),
        name=name,
    )


def quadratics(
    targets: Sequence[Sequence[float]],
    curvature: float = 1.0,
    num_examples: Sequence[int] | None = None,
) -> LeastSquares:
    """Isotropic quadratics with given minimizers.

    Exists because one gradient step with `learning_rate = 1/(b + lam)` solves a
    proximal problem exactly, so that rounds can be calculated by hand.

    Args:
      targets: minimizers `[N, d]`.
      curvature: b.
      num_examples: examples per client, whose mean is its target; one each by default.

    Returns:
      The problem; unequal numbers of examples give unequal client weights.
    """
    centers = np.asarray(targets, float)
    rng = np.random.default_rng(0)
    points = []
    for target, count in zip(centers, num_examples or [1] * len(centers), strict=True):
        spread = rng.normal(size=(count, len(target)))
        points.append(target + spread - spread.mean(axis=0))
    federation = _federation(points, [np.zeros(len(x)) for x in points], "quadratics")
    return LeastSquares(
        federation=federation,
        model=models.Quadratic(curvature=curvature).for_federation(federation),
        loss=lambda i, t: curvature / 2 * np.square(t - points[i]).sum(axis=1).mean(),
        gradient=lambda i, t: curvature * (t - points[i].mean(axis=0)),
        smoothness=curvature,
        curvature=np.stack([curvature * np.eye(centers.shape[1])] * len(centers)),
        estimates=centers,
    )


def random_quadratics(
    num_clients: int = 6, dim: int = 3, curvature: float = 1.0, seed: int = 0
) -> LeastSquares:
    """Isotropic quadratics with random minimizers and 2 to 5 examples per client.

    Exists for statements about any targets and any client weights.
    """
    rng = np.random.default_rng(seed)
    counts = [2 + i % 4 for i in range(num_clients)]
    return quadratics(rng.normal(size=(num_clients, dim)), curvature, counts)


def regressions(num_clients: int = 5, dim: int = 3, seed: int = 0) -> LeastSquares:
    """Least squares with a curvature matrix of its own for every client.

    Exists because with one common curvature the optimal w is a mean whatever lam is;
    here it is not, and the order of products in a formula matters.
    """
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=dim)
    inputs, targets = [], []
    for i in range(num_clients):
        x = rng.normal(size=(dim + 1 + 2 * i, dim))
        inputs.append(x)
        truth = shared + rng.normal(size=dim)
        targets.append(x @ truth + 0.1 * rng.normal(size=len(x)))
    return least_squares(inputs, targets, "regressions")


def least_squares(
    inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], name: str
) -> LeastSquares:
    """Linear regression of every client on its own examples."""
    federation = _federation(inputs, targets, name)
    curvature = np.stack([x.T @ x / len(x) for x in inputs])
    pairs = list(zip(inputs, targets, strict=True))
    return LeastSquares(
        federation=federation,
        model=models.LinearRegression().for_federation(federation),
        loss=lambda i, t: 0.5 * np.square(inputs[i] @ t - targets[i]).mean(),
        gradient=lambda i, t: (
            inputs[i].T @ (inputs[i] @ t - targets[i]) / len(inputs[i])
        ),
        smoothness=float(np.linalg.eigvalsh(curvature).max()),
        curvature=curvature,
        estimates=np.stack([np.linalg.lstsq(x, y)[0] for x, y in pairs]),
    )


@dataclasses.dataclass(frozen=True)
class Waves(core.Model):
    """`f(theta) = mean_j height (1 - cos(<x_j, theta> - y_j))`; starts at random."""

    height: float
    inputs: int

    def for_federation(self, federation: core.Federation) -> "Waves":
        return dataclasses.replace(self, inputs=math.prod(federation.input_shape))

    def init(self, key):
        return {"theta": 2 * jax.random.normal(key, (self.inputs,))}

    def apply(self, params, x, *, key=None, constants=None):
        del key, constants
        return x @ params["theta"]

    def _values(self, outputs, batch):
        return self.height * (1 - jnp.cos(outputs - batch.y))

    def loss(self, outputs, batch):
        return objectives.weighted_mean(self._values(outputs, batch), batch.weight)

    def metrics(self, outputs, batch):
        return {"loss": self._values(outputs, batch)}


def waves(
    height: float = 0.5, num_clients: int = 6, dim: int = 3, seed: int = 0
) -> Problem:
    """Nonconvex, nonnegative, analytic losses with `|x_j| = 1`: smoothness is `height`.

    Exists because identities of an algorithm must not depend on convexity, and because
    descent conditions are stated with a smoothness constant, which is exact here.
    """
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(3 + 2 * (i % 4), dim)) for i in range(num_clients)]
    inputs = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in inputs]
    targets = [rng.uniform(-2, 2, size=len(x)) for x in inputs]

    def gradient(i, theta):
        slope = height * np.sin(inputs[i] @ theta - targets[i])
        return slope @ inputs[i] / len(inputs[i])

    return Problem(
        federation=_federation(inputs, targets, "waves"),
        model=Waves(height=height, inputs=dim),
        loss=lambda i, t: (height * (1 - np.cos(inputs[i] @ t - targets[i]))).mean(),
        gradient=gradient,
        smoothness=height,
    )


def first_state(process: Any, problem: Problem, seed: int = 0) -> core.State:
    """The state before the first round."""
    key = jax.random.key(seed)
    return compiled_rounds.init(process, key, problem.model, problem.federation)


@functools.partial(
    jax.jit, static_argnames=("model", "num_rounds", "before", "diagnostics")
)
def _scan(process, state, seed, federation, *, model, num_rounds, before, diagnostics):
    def visible(state):
        values = {}
        if diagnostics:
            values = process.algorithm.diagnostics(state, model, federation)
        return dataclasses.replace(state, key=None), values

    def step(state, _):
        new, info = process.round(before(state), model, federation)
        return new, (visible(new), info)

    if state is None:
        state = process.init(jax.random.key(seed), model, federation)
    _, (seen, infos) = lax.scan(step, state, None, length=num_rounds)
    first = visible(state)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, seen), infos


def _as_it_is(state: core.State) -> core.State:
    return state


def run(
    process: Any,
    problem: Problem,
    num_rounds: int,
    *,
    seed: int = 0,
    state: core.State | None = None,
    before: Callable[[core.State], core.State] = _as_it_is,
    diagnostics: bool = False,
) -> tuple[core.State, core.RoundInfo, dict[str, np.ndarray]]:
    """Runs a compiled process and keeps every state.

    Args:
      process: the process.
      problem: the problem.
      num_rounds: R.
      seed: seed of the run; unused where `state` is given.
      state: start, in place of the process's own.
      before: applied to the state before every round.
      diagnostics: whether to evaluate the algorithm's diagnostics.

    Returns:
      States (`[R + 1, ...]`, without key), reports (`[R, ...]`) and diagnostics
      (`[R + 1]`), as NumPy arrays.
    """
    (states, values), infos = _scan(
        process,
        state,
        seed,
        problem.federation,
        model=problem.model,
        num_rounds=num_rounds,
        before=before,
        diagnostics=diagnostics,
    )
    return jax.tree.map(np.asarray, (states, infos, values))
