"""The trainings that are timed: data, process and model, and what a round costs."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

import fedjax_pfl as fp
from fedjax_pfl.core import struct
from fedjax_pfl.engine import grids, groups
from fedjax_pfl.models import base

__all__ = [
    "WORKLOADS",
    "BenchCNN",
    "Generated",
    "Workload",
    "cnn",
    "cohorts",
    "examples_of",
    "softmax",
]

CLASSES = 10
_BLOCK = 4096  # images made at once


@dataclasses.dataclass(frozen=True)
class Generated:
    """Images like MNIST's, `uint8` and mostly zero; a class has its likelier pixels.

    Attributes:
      sizes: examples of every client.
      shape: shape of an image.
    """

    sizes: tuple[int, ...]
    shape: tuple[int, ...] = (28, 28)
    name: ClassVar[str] = "generated"

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> fp.data.Dataset:
        """Draws the images; equal arguments give the same object."""
        del data_dir, num_clients
        return _generate(self.sizes, self.shape, seed)


@functools.lru_cache(maxsize=1)
def _generate(
    sizes: tuple[int, ...], shape: tuple[int, ...], seed: int
) -> fp.data.Dataset:
    rng = np.random.default_rng(seed)
    total, inputs = sum(sizes), math.prod(shape)
    y = rng.integers(0, CLASSES, total)
    is_likelier = rng.random((CLASSES, inputs)) < 0.2
    bound = np.where(is_likelier, 96, 40).astype(np.uint8)  # of 256
    x = rng.integers(0, 256, (total, inputs), dtype=np.uint8)
    for start in range(0, total, _BLOCK):
        block = x[start : start + _BLOCK]
        drawn = rng.integers(0, 256, block.shape, dtype=np.uint8)
        block *= drawn < bound[y[start : start + _BLOCK]]
    return fp.data.Dataset(
        name="generated",
        x=x.reshape(total, *shape),
        y=y,
        num_classes=CLASSES,
        scale=1 / 255,
        client=np.repeat(np.arange(len(sizes)), sizes),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchCNN(base.ImageNetwork):
    """5x5 convolutions, unpadded, and a hidden layer; 259,914 parameters on 32x32x3."""

    smallest: ClassVar[int] = 16
    filters: tuple[int, ...] = (32, 64)
    hidden: int = 128

    def _module(self, modules: Any, classes: int) -> Any:
        return modules.ConvNet(
            convolutions=tuple((count, 5, 0) for count in self.filters),
            widths=(self.hidden,),
            outputs=classes,
            initialization=self.initialization,
        )


@dataclasses.dataclass(frozen=True)
class Workload:
    """Trainings of one structure that are timed together.

    Attributes:
      name: for example `W1`.
      title: what it is, for people.
      spec: data.
      process: base process; its local solver walks over minibatches.
      model: model.
      flops_per_example: of the matrix products of one gradient.
      rounds: rounds of one timed call.
      peers: names of what it can be compared with.
      axes: values of a grid by dotted name.
    """

    name: str
    title: str
    spec: fp.FederationSpec
    process: fp.FederatedProcess
    model: Any
    flops_per_example: int
    rounds: int
    peers: tuple[str, ...]
    axes: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    def group(self) -> groups.Group:
        """Returns the grid points, which share one compiled program."""
        key = jax.random.key(0, impl="threefry2x32")
        (group,) = grids.groups_of(key, self.process, self.model, self.spec, self.axes)
        return group

    @property
    def num_points(self) -> int:
        """Returns the number of grid points."""
        return math.prod(len(values) for values in self.axes.values())

    @property
    def _share(self) -> float:
        """Returns the share of the clients that take part in a round, on average."""
        count = len(self.spec.dataset.sizes)
        return self.process.participation.cohort_size(count) / count

    @property
    def steps_per_round(self) -> float:
        """Returns steps of single clients in a round of all points, on average."""
        solver = self.process.algorithm.local
        batches = (math.ceil(n / solver.batch_size) for n in self.spec.dataset.sizes)
        return self.num_points * solver.epochs * sum(batches) * self._share

    @property
    def flops_per_round(self) -> float:
        """Returns a round's operations in matrix products, of all points."""
        examples = sum(self.spec.dataset.sizes) * self.process.algorithm.local.epochs
        return self.num_points * examples * self._share * self.flops_per_example

    def without_order(self) -> "Workload":
        """Returns two rounds of all clients in full batches, where no draw matters."""
        largest = max(self.spec.dataset.sizes)
        process = struct.replace_field(
            self.process, "algorithm.local.batch_size", largest
        )
        process = dataclasses.replace(process, participation=fp.AllClients())
        return dataclasses.replace(self, process=process, rounds=2)


def dense_flops(inputs: int, outputs: int, *, first: bool) -> int:
    """Counts the operations of a dense layer's gradient for one example.

    The first layer of a network needs no gradient of its inputs.
    """
    return (2 if first else 3) * 2 * inputs * outputs


def cnn_flops(model: BenchCNN, shape: tuple[int, int, int], classes: int) -> int:
    """Counts the operations of all products of a network's gradient for one example."""
    height, width, channels = shape
    total = 0
    for number, filters in enumerate(model.filters):
        height, width = height - 4, width - 4
        window = dense_flops(25 * channels, filters, first=number == 0)
        total += window * height * width
        height, width, channels = height // 2, width // 2, filters
    total += dense_flops(height * width * channels, model.hidden, first=False)
    return total + dense_flops(model.hidden, classes, first=False)


def _spec(sizes: Sequence[int], shape: tuple[int, ...]) -> fp.FederationSpec:
    """Returns generated clients with training examples only."""
    return fp.FederationSpec(
        dataset=Generated(tuple(sizes), shape),
        partition=fp.ByClient(),
        num_clients=None,
        validation_fraction=0.0,
        test_fraction=0.0,
    )


def softmax(
    name: str,
    title: str,
    sizes: Sequence[int],
    batch_size: int,
    *,
    peers: tuple[str, ...],
    rounds: int = 10,
    shape: tuple[int, ...] = (28, 28),
    axes: Mapping[str, Sequence[Any]] | None = None,
) -> Workload:
    """Returns FLAME with softmax regression, one epoch, everybody in every round."""
    solver = fp.SGD(learning_rate=0.05, batch_size=batch_size)
    return Workload(
        name=name,
        title=title,
        spec=_spec(sizes, shape),
        process=fp.FederatedProcess(algorithm=fp.Flame(lam=1.0, local=solver)),
        model=fp.LogisticRegression(),
        flops_per_example=dense_flops(math.prod(shape), CLASSES, first=True),
        rounds=rounds,
        peers=peers,
        axes=axes or {},
    )


def cohorts(
    sizes: Sequence[int],
    size: int,
    *,
    rounds: int = 100,
    shape: tuple[int, ...] = (28, 28),
) -> Workload:
    """Returns FedAvg with softmax regression and few of many clients per round (W6)."""
    solver = fp.SGD(learning_rate=0.03, batch_size=10)
    return Workload(
        name="W6",
        title="FedAvg, softmax, 10 of 1,000 clients of 50 to 70 per round, batch 10",
        spec=_spec(sizes, shape),
        process=fp.FederatedProcess(
            algorithm=fp.FedAvg(local=solver),
            participation=fp.UniformCohort(size=size),
        ),
        model=fp.LogisticRegression(),
        flops_per_example=dense_flops(math.prod(shape), CLASSES, first=True),
        rounds=rounds,
        peers=("torch", "pfl", "vmap"),
    )


def cnn(
    sizes: Sequence[int],
    *,
    model: BenchCNN = BenchCNN(),  # noqa: B008 (frozen)
    shape: tuple[int, int, int] = (32, 32, 3),
) -> Workload:
    """Returns FedAvg with a convolutional network, one step of all examples (W3)."""
    solver = fp.SGD(learning_rate=0.05, batch_size=max(sizes))
    return Workload(
        name="W3",
        title="FedAvg, CNN 3-32-64 of 259,914 parameters, 20 clients, batch 50, 1 step",
        spec=_spec(sizes, shape),
        process=fp.FederatedProcess(algorithm=fp.FedAvg(local=solver)),
        model=model,
        flops_per_example=cnn_flops(model, shape, CLASSES),
        rounds=2,
        peers=("torch", "torch.channels_last", "torch.func", "vmap"),
    )


def _pareto_sizes() -> list[int]:
    """Draws 200 sizes from 30 to 2,000, Pareto with exponent 1.2 between them."""
    drawn = 30 * (np.random.default_rng(0).pareto(1.2, 200) + 1)
    return np.clip(drawn.astype(int), 30, 2000).tolist()


def _around_sixty() -> list[int]:
    """Draws 1,000 sizes from 50 to 70."""
    return np.random.default_rng(6).integers(50, 71, 1000).tolist()


def examples_of(federation: fp.Federation) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns every client's scaled inputs `float32[n, ...]` and labels `int64[n]`."""
    train = federation.train
    x, y = np.asarray(train.x), np.asarray(train.y)
    index, counts = np.asarray(train.index), np.asarray(train.num_examples)
    scale, shift = np.asarray(train.scale), np.asarray(train.shift)
    rows = [own[:count] for own, count in zip(index, counts, strict=True)]
    return [
        (x[own].astype(np.float32) * scale + shift, y[own].astype(np.int64))
        for own in rows
    ]


_GRID = {
    "algorithm.lam": (0.1, 0.3, 1.0, 3.0),
    "algorithm.kappa": (0.5, 2.0),
    "algorithm.local.learning_rate": (0.01, 0.02, 0.05, 0.1),
}
_ALL = (
    softmax(
        "W1",
        "FLAME, softmax of 7,850 parameters, 10 clients of 5,600, batch 100",
        (5600,) * 10,
        100,
        peers=("torch", "torch.func", "vmap"),
    ),
    softmax(
        "W2",
        "FLAME, softmax of 7,850 parameters, 1,000 clients of 48, batch 10",
        (48,) * 1000,
        10,
        peers=("torch", "torch.func", "vmap"),
    ),
    cnn((50,) * 20),
    softmax(
        "W4",
        "grid of 32 settings x 20 rounds of W1 with 560 examples a client",
        (560,) * 10,
        100,
        peers=("torch", "loop-jit"),
        rounds=20,
        axes=_GRID,
    ),
    softmax(
        "W5",
        "FLAME, softmax, 200 clients of 30 to 2,000 (Pareto), batch 20",
        _pareto_sizes(),
        20,
        peers=("torch", "vmap"),
    ),
    cohorts(_around_sixty(), 10),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
