"""Quadratics for the pages of theory, and their common trainings."""

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.models import objectives

__all__ = [
    "Losses",
    "Training",
    "compiled",
    "curvatures",
    "federation",
    "grid",
    "key",
    "regressions",
]

# Tiny programs that run once: XLA's expensive passes would take most of the time.
compiled = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


def key(seed: int) -> jax.Array:
    """Returns the key of a seed, independent of JAX's default generator."""
    return jax.random.key(seed, impl="threefry2x32")


def curvatures(
    rng: np.random.Generator, count: int, dim: int, low: float, high: float
) -> np.ndarray:
    """Draws symmetric matrices `[count, d, d]` with eigenvalues from low to high."""
    bases = np.linalg.qr(rng.normal(size=(count, dim, dim))).Q
    values = rng.uniform(low, high, size=(count, 1, dim))
    return (bases * values) @ bases.transpose(0, 2, 1)


def regressions(num_clients: int, **fields: Any) -> fp.FederationSpec:
    """Returns N linear regressions, all examples but one per client for training."""
    return fp.FederationSpec(
        fp.data.DATASETS["linear_regression"](**fields),
        "by_client",
        num_clients=num_clients,
        validation_fraction=0.0,
        test_fraction=0.0,
    )


def federation(x: np.ndarray, y: np.ndarray, num_clients: int) -> core.Federation:
    """Returns clients with equal shares of the examples, all for training."""
    owner = np.repeat(np.arange(num_clients), len(x) // num_clients)
    splits = {"validation_fraction": 0.0, "test_fraction": 0.0}
    return fp.Federation.from_arrays(x, y, owner, **splits)


class Losses(core.Model):
    """A model with losses of the examples as outputs `[B]`; of any federation."""

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the same model."""
        del federation
        return self

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the mean loss."""
        return objectives.weighted_mean(outputs, batch.weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the losses."""
        del batch
        return {"loss": outputs}


@struct.pytree_dataclass
class Training:
    """Process on a federation, as one argument of compiled functions."""

    process: fp.FederatedProcess
    federation: core.Federation
    model: Any = struct.static_field()

    @classmethod
    def of(
        cls,
        process: fp.FederatedProcess,
        federation: core.Federation,
        model: Any = fp.models.LinearRegression(),  # noqa: B008 (frozen)
    ) -> "Training":
        """Returns a training with hyperparameters as arrays of default floats."""
        process = struct.as_arrays(process, jnp.zeros(()).dtype)
        model = model.for_federation(federation)
        return cls(process=process, federation=federation, model=model)

    def init(self, key: jax.Array) -> core.State:
        """Returns the state before the first round."""
        return self.process.init(key, self.model, self.federation)

    def round(self, state: core.State) -> tuple[core.State, Any]:
        """Runs one round; returns the new state and the round's report."""
        return self.process.round(state, self.model, self.federation)

    def after(self, state: core.State, count: Any) -> core.State:
        """Returns the state `count` rounds later."""
        return lax.fori_loop(0, count, lambda _, s: self.round(s)[0], state)

    def path(
        self, state: core.State, count: int, fields: Callable[[core.State], Any]
    ) -> Any:
        """Returns fields of a state and of the next `count`, `[R + 1, ...]` each."""

        def step(state: core.State, _: None) -> tuple[core.State, Any]:
            return self.round(state)[0], fields(state)

        return lax.scan(step, state, None, length=count + 1)[1]

    def diagnostics(self, state: core.State) -> dict[str, jax.Array]:
        """Returns the algorithm's diagnostics of a state."""
        return self.process.algorithm.diagnostics(state, self.model, self.federation)


def grid(
    process: fp.FederatedProcess,
    model: core.Model,
    spec: fp.FederationSpec,
    axes: dict[str, Any],
    num_rounds: int,
    **options: Any,
) -> fp.results.History:
    """Runs a grid of one static group."""
    result = fp.grid(
        key(0), process, model, spec, axes, num_rounds, progress=False, **options
    )
    (group,) = result.groups
    return group
