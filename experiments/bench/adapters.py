"""Clients' adapters of a frozen network, compared with its products alone."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_pfl as fp
from experiments.bench import contenders, workloads

__all__ = ["ADAPTERS", "Adapted", "Texts", "adapted"]

_FROZEN = "frozen"


@dataclasses.dataclass(frozen=True)
class Texts:
    """Token ids drawn evenly, independent of their two classes."""

    sizes: tuple[int, ...]  # examples of every client
    length: int = 32  # tokens of a text
    vocabulary: int = 30_522  # number of ids; 0 is padding, which does not occur
    name: ClassVar[str] = "texts"

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> fp.data.Dataset:
        """Draws the texts; equal arguments give the same object."""
        del data_dir, num_clients
        return _texts(self.sizes, self.length, self.vocabulary, seed)


@functools.lru_cache(maxsize=1)
def _texts(
    sizes: tuple[int, ...], length: int, vocabulary: int, seed: int
) -> fp.data.Dataset:
    rng, total = np.random.default_rng(seed), sum(sizes)
    return fp.data.Dataset(
        name="texts",
        x=rng.integers(1, vocabulary, (total, length)),
        y=rng.integers(0, 2, total),
        num_classes=2,
        client=np.repeat(np.arange(len(sizes)), sizes),
    )


@dataclasses.dataclass(frozen=True)
class Adapted(workloads.Workload):
    """Trainings of the factors of a frozen perceptron."""

    # Its peer `frozen` has the products of all clients' examples with the frozen
    # kernels, forward and back to the first layer's outputs, as one product per layer
    # and step, alone.
    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender; its result are the factors of the server."""
        if name == _FROZEN:
            return contenders.Repeated(self._products())
        if name in ("ours", "vmap"):
            return super().contender(name)
        return contenders.library("experiments.bench.torch_adapters").training(self)

    def frozen(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns kernels `[out, in]` and biases of the frozen layers, in order."""
        model = self.model.for_federation(self.spec.build())
        params = {n: np.asarray(leaf) for n, leaf in model.frozen_params().items()}
        names = [f"hidden_{k}" for k in range(len(model.model.model.widths))]
        return [
            (params[f"{name}/kernel"], params[f"{name}/bias"])
            for name in (*names, "head")
        ]

    def _products(self) -> Any:
        """Returns what computes the frozen products of the rounds of one call."""
        kernels = [jnp.asarray(kernel) for kernel, _ in self.frozen()]
        batch = self.process.algorithm.local.batch_size
        steps = self.rounds * -(-self.spec.dataset.sizes[0] // batch)
        shape = (self.cohort_size * batch, kernels[0].shape[1])
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape), kernels[0].dtype)

        @jax.jit
        def run(x: jax.Array, kernels: list[jax.Array]) -> jax.Array:
            def step(_: Any, x: jax.Array) -> jax.Array:
                outputs = x
                for kernel in kernels:
                    outputs = outputs @ kernel.T
                for kernel in kernels[:0:-1]:  # the first inputs have no gradient
                    outputs = outputs @ kernel
                # All of the product is needed, and the next step needs it first.
                return x + 1e-30 * lax.optimization_barrier(outputs)[:, :1]

            return lax.fori_loop(0, steps, step, x)

        return lambda: run(x, kernels).block_until_ready()

    def agreement(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns accuracy and loss, and the difference of PyTorch's factors."""
        trained = {n: result for n, result in results.items() if n != _FROZEN}
        return super().agreement(trained) | {n: {} for n in results.keys() - trained}


def adapted(
    num_clients: int,
    examples: int,
    *,
    widths: tuple[int, ...] = (2048, 2048),
    rank: int = 8,
    batch_size: int = 10,
    shape: tuple[int, ...] = (28, 28),
    rounds: int = 4,
) -> Adapted:
    """Returns FLAME on adapters of a frozen perceptron (W7)."""
    base = workloads.softmax(
        "W7",
        f"FLAME, adapters of rank {rank} of a frozen perceptron of"
        f" {' and '.join(map(str, widths))}, {num_clients} clients of {examples},"
        f" batch {batch_size}",
        (examples,) * num_clients,
        batch_size,
        peers=("torch", _FROZEN, "vmap"),
        shape=shape,
        rounds=rounds,
    )
    sizes = (int(np.prod(shape)), *widths, workloads.CLASSES)
    pairs = list(zip(sizes, sizes[1:], strict=False))
    # Frozen kernels have no gradient of their own; factors are two dense layers.
    flops = 0
    for k, (inputs, outputs) in enumerate(pairs):
        flops += workloads.frozen_flops(inputs, outputs, first=k == 0)
    for k, (inputs, outputs) in enumerate(pairs[:-1]):
        flops += workloads.dense_flops(inputs, rank, first=k == 0)
        flops += workloads.dense_flops(rank, outputs, first=False)
    model = fp.lora(fp.MLP(widths=widths), targets="^hidden", rank=rank)
    return workloads.converted(Adapted, base, model=model, flops_per_example=flops)


ADAPTERS = {"W7": adapted(50, 20)}
