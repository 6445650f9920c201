"""The timed trainings: data, process, model, and the cost of a round."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.bench import contenders
from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.engine import grids, groups
from fedjax_pfl.models import base, layers

__all__ = [
    "WORKLOADS",
    "Based",
    "BenchCNN",
    "Generated",
    "Workload",
    "cnn",
    "cohorts",
    "converted",
    "dense_flops",
    "frozen_flops",
    "softmax",
]

CLASSES = 10
_BLOCK = 4096  # images made at once
_INEXACT = ("pfl", "plain")  # peers that weigh, draw or send in another way
_Kind = TypeVar("_Kind", bound="Workload")


@dataclasses.dataclass(frozen=True)
class Generated:
    """Images like MNIST's, `uint8` and mostly zero; a class has its likelier pixels."""

    sizes: tuple[int, ...]  # examples of every client
    shape: tuple[int, ...] = (28, 28)  # shape of an image
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
    # Blocks: the noise of all images at once would double the peak of memory.
    for start in range(0, total, _BLOCK):
        block = x[start : start + _BLOCK]
        noise = rng.integers(0, 256, block.shape, dtype=np.uint8)
        block *= noise < bound[y[start : start + _BLOCK]]
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
    convolution: str | None = None  # one of `layers.CONVOLUTIONS`; None picks

    def _module(self, modules: Any, classes: int) -> Any:
        return modules.ConvNet(
            convolutions=tuple((count, 5, 0) for count in self.filters),
            widths=(self.hidden,),
            outputs=classes,
            initialization=self.initialization,
        )

    def _run(self, *args: Any, **options: Any) -> Any:
        with layers.forms(convolution=self.convolution):
            return super()._run(*args, **options)


@dataclasses.dataclass(frozen=True)
class Workload(contenders.Timed):
    """Trainings of one structure that are timed together."""

    spec: fp.FederationSpec  # data
    process: fp.FederatedProcess  # its local solver walks over minibatches
    model: Any
    flops_per_example: int  # of the matrix products of one gradient
    # Values of a grid by dotted name.
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
    def cohort_size(self) -> int:
        """Returns the number of clients in a round."""
        return self.process.participation.cohort_size(len(self.spec.dataset.sizes))

    @property
    def _examples_per_round(self) -> float:
        """Returns the examples that clients of a round visit, on average."""
        sizes = self.spec.dataset.sizes
        examples = sum(sizes) * self.process.algorithm.local.epochs
        return examples * self.cohort_size / len(sizes)

    @property
    def steps_per_round(self) -> float:
        """Returns steps of single clients in a round of all points, on average."""
        solver = self.process.algorithm.local
        batches = (math.ceil(n / solver.batch_size) for n in self.spec.dataset.sizes)
        share = self.cohort_size / len(self.spec.dataset.sizes)
        return self.num_points * solver.epochs * sum(batches) * share

    @property
    def flops_per_round(self) -> float:
        """Returns a round's operations in matrix products, of all points."""
        return self.num_points * self._examples_per_round * self.flops_per_example

    @property
    def bytes_per_round(self) -> float:
        """Returns the least bytes that a round of all points reads and writes."""
        # Examples are read once for all points; states of clients are read and written
        # once, if they do not stay in a cache.
        inputs = self._examples_per_round * math.prod(self.spec.dataset.shape)
        group = self.group()
        process, federation = group.processes[0], group.federations[0]
        model = group.model.for_federation(federation)
        state = jax.eval_shape(
            lambda key: process.init(key, model, federation), group.keys[0]
        )
        state_bytes = client_rows.num_bytes(state.of_clients())
        # Only the cohort's states move; the states of all points are read and written.
        share = self.cohort_size / len(self.spec.dataset.sizes)
        return inputs + 2 * self.num_points * share * state_bytes

    def least_bytes_per_round(self, num_parameters: int) -> float:
        """Returns the bytes that a round of all points moves at least."""
        inputs = self._examples_per_round * math.prod(self.spec.dataset.shape)
        # Examples are read once for all points, and every step of a client reads and
        # writes its float32 parameters.
        return inputs + 2 * 4 * num_parameters * self.steps_per_round

    def tenfold(self) -> "Workload":
        """Returns a workload with ten times as many clients in every round."""
        spec, process = self.spec, self.process
        # Beyond the cohort, clients cost nothing per round: the cohort grows.
        if isinstance(process.participation, fp.UniformCohort):
            cohort = fp.UniformCohort(size=10 * process.participation.size)
            process = dataclasses.replace(process, participation=cohort)
        else:
            dataset = dataclasses.replace(spec.dataset, sizes=10 * spec.dataset.sizes)
            spec = dataclasses.replace(spec, dataset=dataset)
        return dataclasses.replace(
            self,
            name=f"{self.name}x10",
            title=f"ten times the clients a round of {self.name}",
            spec=spec,
            process=process,
        )

    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender; its result are the global models `[G, *P]`."""
        if name in ("ours", "vmap"):
            execution = "auto" if name == "ours" else name
            return contenders.Ours(self.group(), self.rounds, execution)
        if name == "loop-jit":
            return contenders.Loop(self.group(), self.rounds)
        if name == "pfl":
            return contenders.library("experiments.bench.peer_pfl").start(self)
        loops = contenders.library("experiments.bench.torch_loops")
        return loops.TorchTraining(self, name)

    def agreement(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns accuracy and loss, and the difference of peers that are exact."""
        numbers = self.quality(results)
        peers = [n for n in results if n not in ("ours", *_INEXACT)]
        for name, difference in self.differences(peers).items():
            numbers[name]["difference"] = difference
        return numbers

    def quality(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns `accuracy` and `loss` by contender, over all training examples."""
        model = self.model.for_federation(self.spec.build())
        # Every contender has drawn its own order of examples: models differ, quality
        # must not.
        pairs = zip(*self.examples(), strict=True)
        x, y = (np.concatenate(parts) for parts in pairs)
        batch = core.Batch(x=x, y=y, weight=np.ones(len(y)))

        @jax.jit
        def means(params: Any, batch: core.Batch) -> dict[str, jax.Array]:
            by_point = jax.vmap(lambda p: model.metrics(model.apply(p, batch.x), batch))
            return jax.tree.map(jnp.mean, by_point(params))

        return {
            name: {n: float(v) for n, v in means(params, batch).items()}
            for name, params in results.items()
        }

    def differences(self, peers: Sequence[str]) -> dict[str, float]:
        """Returns the difference of each peer, relative to our largest value."""
        if not peers:
            return {}
        # No draw decides two rounds; the second starts from the first one's models and
        # duals.
        work, models = self.without_order(), {}
        for name in ("ours", *peers):
            contender = work.contender(name)
            contender.run()
            models[name] = contender.result()
        base = models.pop("ours")
        relative = contenders.relative_difference
        return {name: relative(base, params) for name, params in models.items()}

    def examples(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns clients' scaled inputs `float32[n, ...]` and labels `int64[n]`."""
        train = self.spec.build().train
        x, y = np.asarray(train.x), np.asarray(train.y)
        index, counts = np.asarray(train.index), np.asarray(train.num_examples)
        scale, shift = np.asarray(train.scale), np.asarray(train.shift)
        rows = [own[:count] for own, count in zip(index, counts, strict=True)]
        return [
            (x[own].astype(np.float32) * scale + shift, y[own].astype(np.int64))
            for own in rows
        ]

    def settings(self, process: Any = None) -> dict[str, Any]:
        """Returns settings of a process, by default its own, for `torch_core`."""
        process = self.process if process is None else process
        algorithm = process.algorithm
        fields: dict[str, Any] = {
            "learning_rate": algorithm.local.learning_rate,
            "batch_size": algorithm.local.batch_size,
            "epochs": algorithm.local.epochs,
            "cohort_size": process.participation.cohort_size(
                len(self.spec.dataset.sizes)
            ),
        }
        if isinstance(algorithm, fp.Flame):
            kappa = 1.0 if algorithm.kappa is None else algorithm.kappa
            fields |= {"lam": algorithm.lam, "share": 1 / (1 + kappa)}
        return fields

    def without_order(self) -> "Workload":
        """Returns two rounds of all clients in full batches: no draw changes them."""
        largest = max(self.spec.dataset.sizes)
        process = struct.replace_field(
            self.process, "algorithm.local.batch_size", largest
        )
        process = dataclasses.replace(process, participation=fp.AllClients())
        return dataclasses.replace(self, process=process, rounds=2)


@dataclasses.dataclass(frozen=True)
class Based(contenders.Timed):
    """Training that is timed, round by round; abstract."""

    base: Workload  # the training

    @property
    def steps_per_round(self) -> float | None:
        """Returns the steps of single clients in a round of the training."""
        return self.base.steps_per_round

    @property
    def flops_per_round(self) -> float | None:
        """Returns a round's operations in matrix products, of the training."""
        return self.base.flops_per_round


def converted(kind: type[_Kind], workload: Workload, **changes: Any) -> _Kind:
    """Returns a workload as one of another kind, with some fields changed."""
    fields = {f.name: getattr(workload, f.name) for f in dataclasses.fields(workload)}
    return kind(**(fields | changes))


def dense_flops(inputs: int, outputs: int, *, first: bool) -> int:
    """Counts the operations of a dense layer's gradient for one example."""
    # The first layer of a network needs no gradient of its inputs.
    return (2 if first else 3) * 2 * inputs * outputs


def frozen_flops(inputs: int, outputs: int, *, first: bool) -> int:
    """Counts the operations of a frozen dense layer, without its kernel's gradient."""
    return (1 if first else 2) * 2 * inputs * outputs


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
    shape: tuple[int, ...] = (28, 28),
    rounds: int = 10,
    **fields: Any,
) -> Workload:
    """Returns FLAME with softmax regression, one epoch, all clients in every round."""
    # Last batches are short and have whole steps, as in its peers.
    solver = fp.SGD(learning_rate=0.05, batch_size=batch_size, remainder="full")
    return Workload(
        name,
        title,
        peers,
        spec=_spec(sizes, shape),
        process=fp.FederatedProcess(algorithm=fp.Flame(lam=1.0, local=solver)),
        model=fp.LogisticRegression(),
        flops_per_example=dense_flops(math.prod(shape), CLASSES, first=True),
        rounds=rounds,
        **fields,
    )


def cohorts(
    sizes: Sequence[int],
    size: int,
    rounds: int = 100,
    shape: tuple[int, ...] = (28, 28),
) -> Workload:
    """Returns FedAvg with softmax regression and few of many clients per round (W6)."""
    title = "FedAvg, softmax, 10 of 1,000 clients of 50 to 70 per round, batch 10"
    peers = ("torch", "pfl", "vmap")
    everybody = softmax("W6", title, sizes, 10, peers=peers, rounds=rounds, shape=shape)
    solver = fp.SGD(learning_rate=0.03, batch_size=10, remainder="full")
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=solver),
        participation=fp.UniformCohort(size=size),
    )
    return dataclasses.replace(everybody, process=process)


def cnn(
    sizes: Sequence[int],
    *,
    model: BenchCNN = BenchCNN(),  # noqa: B008 (frozen)
    shape: tuple[int, int, int] = (32, 32, 3),
) -> Workload:
    """Returns FedAvg with a convolutional network, one step of all examples (W3)."""
    solver = fp.SGD(learning_rate=0.05, batch_size=max(sizes))
    return Workload(
        "W3",
        "FedAvg, CNN 3-32-64 of 259,914 parameters, 20 clients, batch 50, 1 step",
        ("torch", "torch.channels_last", "torch.func", "vmap"),
        spec=_spec(sizes, shape),
        process=fp.FederatedProcess(algorithm=fp.FedAvg(local=solver)),
        model=model,
        flops_per_example=cnn_flops(model, shape, CLASSES),
        rounds=2,
    )


_GRID = {
    "algorithm.lam": (0.1, 0.3, 1.0, 3.0),
    "algorithm.kappa": (0.5, 2.0),
    "algorithm.local.learning_rate": (0.01, 0.02, 0.05, 0.1),
}
_STACKED = ("torch", "torch.func", "vmap")
# 200 sizes from 30 to 2,000, Pareto with exponent 1.2 between them.
_PARETO = np.clip(30 * (np.random.default_rng(0).pareto(1.2, 200) + 1), 30, 2000)
_ALL = (
    softmax(
        "W1",
        "FLAME, softmax of 7,850 parameters, 10 clients of 5,600, batch 100",
        (5600,) * 10,
        100,
        peers=_STACKED,
    ),
    softmax(
        "W2",
        "FLAME, softmax of 7,850 parameters, 1,000 clients of 48, batch 10",
        (48,) * 1000,
        10,
        peers=_STACKED,
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
        _PARETO.astype(int).tolist(),
        20,
        peers=("torch", "vmap"),
    ),
    cohorts(np.random.default_rng(6).integers(50, 71, 1000).tolist(), 10),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
