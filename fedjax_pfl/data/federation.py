"""From a specification to a federation on the device."""

import dataclasses
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import checks, struct, types
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data import sources

__all__ = ["FederationSpec", "from_dataset", "load_federation"]

# The device arrays of a data set live as long as the data set.
_pools: weakref.WeakKeyDictionary[datasets.Dataset, dict[str, Any]] = (
    weakref.WeakKeyDictionary()
)


@dataclasses.dataclass(frozen=True)
class FederationSpec:
    """What defines a federation, and what a grid can vary of it; hashable.

    Dotted names such as `partition.concentration` or `dataset.dim` address every field.

    Attributes:
      dataset: source of the data, or its name in `DATASETS`.
      partition: partition object, or its name in `PARTITIONS`.
      num_clients: N.
      seed: of generated data, partition, splits and malicious clients, independently.
      malicious_fraction: `round(malicious_fraction * N)` clients are malicious.
      validation_fraction: share of each client's examples, rounded down.
      test_fraction: share of each client's examples, rounded down, but at least one
        example unless the fraction is 0.
      data_dir: directory of data files, or None for the environment's.

    Example:
      >>> spec = FederationSpec("quadratic", "by_client", num_clients=4)
      >>> spec.build().train.index.shape
      (4, 7)
      >>> spec.describe()["dataset.dim"]
      3
    """

    dataset: Any = "digits"
    partition: Any = partitions.DirichletLabels()
    num_clients: int = 20
    seed: int = 0
    malicious_fraction: float = 0.0
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    data_dir: str | None = None

    def __post_init__(self):
        set_field = object.__setattr__  # the class is frozen
        if isinstance(self.dataset, str):
            set_field(self, "dataset", sources.source(self.dataset))
        if isinstance(self.partition, str):
            checks.known(self.partition, partitions.PARTITIONS, "partition")
            set_field(self, "partition", partitions.PARTITIONS[self.partition]())
        if self.data_dir is not None:
            set_field(self, "data_dir", str(self.data_dir))
        if isinstance(self.dataset, type) or not hasattr(self.dataset, "load"):
            raise checks.InputError(
                "Expected dataset to be a name in DATASETS or an object such as"
                f" Digits(), got {self.dataset!r}."
            )
        if isinstance(self.partition, type) or not callable(self.partition):
            raise checks.InputError(
                "Expected partition to be a name in PARTITIONS or an object such as"
                f" IID(), got {self.partition!r}."
            )
        checks.positive_int("num_clients", self.num_clients)
        checks.whole("seed", self.seed, at_least=0)
        _check_fractions(
            self.malicious_fraction, self.validation_fraction, self.test_fraction
        )

    def build(self) -> types.Federation:
        """Loads, partitions and splits on the host, and puts the result on the device.

        Returns:
          The federation. Specifications that share a data set share the arrays of its
          pool.

        Raises:
          InputError: if the data cannot be had or cannot be distributed as specified.
        """
        dataset = self.dataset.load(
            data_dir=self.data_dir, seed=self.seed, num_clients=self.num_clients
        )
        return from_dataset(
            dataset,
            self.partition,
            num_clients=self.num_clients,
            seed=self.seed,
            malicious_fraction=self.malicious_fraction,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
        )

    def describe(self) -> dict[str, Any]:
        """Flat configuration by dotted name, of values that JSON can hold."""
        return {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in struct.named_fields(self)
        }


def load_federation(
    dataset: Any = "digits",
    partition: Any = partitions.DirichletLabels(),  # noqa: B008 (frozen)
    **fields: Any,
) -> types.Federation:
    """Builds a federation: `FederationSpec(dataset, partition, **fields).build()`.

    Args:
      dataset: source of the data, or its name in `DATASETS`.
      partition: partition object, or its name in `PARTITIONS`.
      **fields: other fields of `FederationSpec`.

    Returns:
      The federation.

    Raises:
      InputError: if a field is wrong, or the data cannot be distributed as specified.

    Example:
      >>> load_federation("digits", partitions.IID(), num_clients=3).train.num_examples
      Array([421, 421, 421], dtype=int32)
    """
    allowed = [field.name for field in dataclasses.fields(FederationSpec)]
    for name in fields:
        checks.known(name, allowed, "field of a federation")
    return FederationSpec(dataset, partition, **fields).build()


def from_dataset(
    dataset: datasets.Dataset,
    partition: partitions.Partitioner,
    *,
    num_clients: int,
    seed: int = 0,
    malicious_fraction: float = 0.0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.2,
) -> types.Federation:
    """Distributes a data set over clients and splits every client's examples.

    Each example has a random rank drawn from the seed; a client's examples in this
    order are first test, then validation, then training examples. Hence neither the
    partition nor another client changes the order, and splits of different fractions
    are nested.

    Args:
      dataset: host arrays.
      partition: partition object.
      num_clients: N.
      seed: of partition, splits and malicious clients, independently.
      malicious_fraction: share of malicious clients, in [0, 1].
      validation_fraction: in [0, 1); rounded down per client.
      test_fraction: in [0, 1); rounded down per client, but at least one example unless
        0.

    Returns:
      The federation; its three parts share one pool.

    Raises:
      InputError: if an argument is wrong or a client has too few examples.
    """
    checks.positive_int("num_clients", num_clients)
    checks.whole("seed", seed, at_least=0)
    _check_fractions(malicious_fraction, validation_fraction, test_fraction)
    rng = datasets.generator(seed, datasets.Purpose.PARTITION)
    parts = partition(rng, dataset, num_clients)
    parts.validate(dataset.num_samples, num_clients)

    num_test, num_validation = _split_sizes(
        parts.num_examples, validation_fraction, test_fraction
    )
    num_train = parts.num_examples - num_validation - num_test
    _require_training(parts.num_examples, num_train)
    order = _shuffled(parts, seed, dataset.num_samples)
    pool = _pool(dataset)
    client_id = jnp.arange(num_clients, dtype=jnp.int32)

    def client_data(start: np.ndarray, count: np.ndarray) -> types.ClientData:
        return types.ClientData(
            **pool,
            index=jnp.asarray(_window(order, start, count)),
            num_examples=jnp.asarray(count, jnp.int32),
            client_id=client_id,
        )

    return types.Federation(
        test=client_data(np.zeros_like(num_test), num_test),
        validation=client_data(num_test, num_validation),
        train=client_data(num_test + num_validation, num_train),
        malicious=jnp.asarray(_malicious(seed, num_clients, malicious_fraction)),
        num_classes=dataset.num_classes,
        name=dataset.name,
    )


def _check_fractions(malicious: float, validation: float, test: float) -> None:
    """Checks the ranges of the three fractions and that training examples remain."""
    checks.number("malicious_fraction", malicious, at_least=0, at_most=1)
    checks.number("validation_fraction", validation, at_least=0, below=1)
    checks.number("test_fraction", test, at_least=0, below=1)
    if validation + test >= 1:
        raise checks.InputError(
            "Expected validation_fraction + test_fraction to be below 1, got"
            f" {validation} + {test}."
        )


def _split_sizes(
    num_examples: np.ndarray, validation_fraction: float, test_fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers `int[N]` of test and of validation examples."""

    def share(fraction: float) -> np.ndarray:
        # 0.29 * 100 is 28.999999999999996 and must count as 29.
        return np.floor(num_examples * fraction + 1e-9).astype(np.int64)

    return np.maximum(share(test_fraction), test_fraction > 0), share(
        validation_fraction
    )


def _require_training(num_examples: np.ndarray, num_train: np.ndarray) -> None:
    """Checks that every client has a training example."""
    worst = int(np.argmin(num_train))
    if num_train[worst] < 1:
        raise checks.InputError(
            f"Client {worst} has {num_examples[worst]} examples, too few for its"
            " training, validation and test parts; use fewer clients, smaller fractions"
            " or a partition with larger clients."
        )


def _shuffled(parts: partitions.Partition, seed: int, num_samples: int) -> np.ndarray:
    """The index `int32[N, M]` with every client's own rows in random order."""
    rank = datasets.generator(seed, datasets.Purpose.SPLIT).random(num_samples)
    padding = np.arange(parts.index.shape[1]) >= parts.num_examples[:, None]
    keys = np.where(padding, np.inf, rank[parts.index])
    return np.take_along_axis(parts.index, np.argsort(keys, axis=1), axis=1)


def _window(order: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Entries `start_i .. start_i + count_i - 1` of each row, padded with zeros."""
    offset = np.arange(max(1, count.max()))
    position = np.minimum(start[:, None] + offset, order.shape[1] - 1)
    rows = np.take_along_axis(order, position, axis=1)
    return np.where(offset < count[:, None], rows, 0).astype(np.int32)


def _malicious(seed: int, num_clients: int, fraction: float) -> np.ndarray:
    """Mask `bool[N]`; a larger fraction adds clients and keeps the others."""
    rng = datasets.generator(seed, datasets.Purpose.MALICIOUS)
    chosen = rng.permutation(num_clients)[: round(float(fraction) * num_clients)]
    return np.isin(np.arange(num_clients), chosen)


def _pool(dataset: datasets.Dataset) -> dict[str, Any]:
    """Device arrays of a data set, put there once."""
    if dataset not in _pools:
        _pools[dataset] = {
            "x": jnp.array(dataset.x),  # a copy: the host array may change hands
            "y": jnp.array(dataset.y),
            "scale": jnp.asarray(dataset.scale),
            "shift": jnp.asarray(dataset.shift),
            "constants": jax.tree.map(jnp.asarray, dataset.constants),
        }
    return _pools[dataset]
