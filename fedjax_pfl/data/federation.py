"""From a specification to a federation on the device."""

import dataclasses
import weakref
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import corruption, sources, splits
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data.sources import user

__all__ = ["Federation", "FederationSpec", "from_dataset", "load_federation"]

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
      num_clients: N, or None for all natural clients of the data set.
      seed: of generated data, partition, splits, malicious clients, poisoned labels,
        `others` and samples, independently.
      malicious_fraction: `round(malicious_fraction * N)` clients are malicious; at
        least one must stay honest.
      validation_fraction: share of each client's examples, rounded down.
      test_fraction: share of each client's examples, rounded down, but at least one
        example unless the fraction is 0.
      train_examples: training examples that a client keeps at most, in the proportions
        of its classes, or None for all of them; validation and test stay.
      label_poisoning: what happens to the training labels of malicious clients: an
        object, its name in `LABEL_POISONINGS`, or None.
      feature_noise: Gaussian noise added to the inputs of clients: an object, its name
        in `FEATURE_NOISES`, or None.
      num_others: c other clients, drawn once, whose test examples are added to a
        client's own for the data `others`; 0 for none, `"half"` for `ceil(N / 2)`.
      sample_tests: whether a model is judged on `others` and on `everybody` by an even
        sample of their test examples, as large as the client's own test set and drawn
        once, in place of all of them.
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
    num_clients: int | None = 20
    seed: int = 0
    malicious_fraction: float = 0.0
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    train_examples: int | None = None
    label_poisoning: Any = None
    feature_noise: Any = None
    num_others: int | str = 0
    sample_tests: bool = False
    data_dir: str | None = None

    def __post_init__(self):
        set_field = object.__setattr__  # the class is frozen
        if isinstance(self.dataset, str):
            set_field(self, "dataset", sources.source(self.dataset))
        for field, (registry, what, _) in _PARTS.items():
            name = getattr(self, field)
            if isinstance(name, str):
                checks.known(name, registry, what)
                set_field(self, field, registry[name]())
        if self.data_dir is not None:
            set_field(self, "data_dir", str(self.data_dir))
            checks.text("data_dir", self.data_dir)
        if isinstance(self.dataset, type) or not hasattr(self.dataset, "load"):
            raise checks.InputError(
                "Expected dataset to be a name in DATASETS or an object such as"
                f" Digits(), got {self.dataset!r}."
            )
        for field, (registry, _, hook) in _PARTS.items():
            part = getattr(self, field)
            is_absent = part is None and field != "partition"
            if not is_absent and (isinstance(part, type) or not hasattr(part, hook)):
                raise checks.InputError(
                    f"Expected {field} to be one of {', '.join(registry)} or such an"
                    f" object, got {part!r}."
                )
        _check_numbers(
            num_clients=self.num_clients,
            seed=self.seed,
            malicious_fraction=self.malicious_fraction,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            train_examples=self.train_examples,
            num_others=self.num_others,
            sample_tests=self.sample_tests,
        )

    def build(self) -> core.Federation:
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
        given = {name: getattr(self, name) for name in _DISTRIBUTION}
        return from_dataset(dataset, self.partition, **given)

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
) -> core.Federation:
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
    num_clients: int | None,
    seed: int = 0,
    malicious_fraction: float = 0.0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.2,
    train_examples: int | None = None,
    label_poisoning: Any = None,
    feature_noise: Any = None,
    num_others: int | str = 0,
    sample_tests: bool = False,
) -> "Federation":
    """Distributes a data set over clients and splits every client's examples.

    Args:
      dataset: host arrays.
      partition: partition object.
      num_clients: N, or None for all natural clients.
      seed: see `FederationSpec`.
      malicious_fraction: see `FederationSpec`.
      validation_fraction: in [0, 1); see `splits.split`.
      test_fraction: in [0, 1); see `splits.split`.
      train_examples: see `FederationSpec`.
      label_poisoning: see `FederationSpec`.
      feature_noise: see `FederationSpec`.
      num_others: see `FederationSpec`.
      sample_tests: see `FederationSpec`.

    Returns:
      The federation; its three parts share one pool.

    Raises:
      InputError: if an argument is wrong or a client has too few examples.
    """
    _check_numbers(
        num_clients=num_clients,
        seed=seed,
        malicious_fraction=malicious_fraction,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        train_examples=train_examples,
        num_others=num_others,
        sample_tests=sample_tests,
    )
    rng = datasets.generator(seed, datasets.Purpose.PARTITION)
    parts = partition(rng, dataset, num_clients)
    num_clients = len(parts.index) if num_clients is None else num_clients
    parts.validate(dataset.num_samples, num_clients)
    rows = splits.split(
        parts, dataset, seed, validation_fraction, test_fraction, train_examples
    )
    malicious = splits.malicious_clients(seed, num_clients, malicious_fraction)
    labels = {"train": _poisoned(label_poisoning, dataset, rows, malicious, seed)}
    noise, resample = _noise(feature_noise, dataset, parts, malicious)
    pool = _pool(dataset)
    client_id = jax.device_put(np.arange(num_clients, dtype=np.int32))
    others = splits.other_clients(seed, num_clients, num_others)
    samples = None
    if sample_tests:
        drawn = splits.sampled_tests(seed, rows["test"].num_examples, others)
        samples = jax.device_put(drawn)
    parts_of = {
        name: core.ClientData(
            **pool,
            index=jax.device_put(part.index),
            num_examples=jax.device_put(part.num_examples),
            client_id=client_id,
            labels=labels.get(name),
            noise_scale=noise,
            resample_noise=resample,
        )
        for name, part in rows.items()
    }
    return Federation(
        **parts_of,
        malicious=jax.device_put(malicious),
        others=jax.device_put(others),
        samples=samples,
        cluster=jax.device_put(parts.cluster),
        num_classes=dataset.num_classes,
        name=dataset.name,
        leaky=parts.leaky,
        class_names=dataset.class_names,
    )


@struct.pytree_dataclass
class Federation(core.Federation):
    """A federation as the data room builds it; `core.Federation` has the fields."""

    __repr__ = core.Federation.__repr__

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any = None,
        *,
        num_classes: int | None = None,
        num_clients: int | None = None,
        partition: partitions.Partitioner | None = None,
        name: str = "arrays",
        **options: Any,
    ) -> "Federation":
        """Builds a federation from a user's own arrays.

        Args:
          x: `[S, ...]` inputs: NumPy, JAX, pandas or lists. `uint8` images stay so and
            are scaled by 1/255; other integers are tokens.
          y: `[S]` labels (whole numbers, booleans or text are classes) or targets.
          client: `[S]` whose example it is: any numbers or text; or None, and then the
            examples are distributed by `partition` over `num_clients`.
          num_classes: C, or None to take it from labels.
          num_clients: N, where `partition` distributes the examples.
          partition: by default the natural clients or, without any, `IID()`.
          name: of the data set, for result files.
          **options: those of `FederationSpec`: `seed`, `validation_fraction`,
            `test_fraction`, `malicious_fraction`, `label_poisoning`,
            `feature_noise`, `num_others`, `sample_tests`.

        Returns:
          The federation.

        Raises:
          InputError: if arrays do not fit together or cannot be distributed.

        Example:
          >>> x, y = np.eye(6), [0, 1, 0, 1, 0, 1]
          >>> owner = ["ann"] * 3 + ["bob"] * 3
          >>> Federation.from_arrays(x, y, owner).num_clients
          2
        """
        dataset = user.arrays_dataset(x, y, client, name=name, num_classes=num_classes)
        allowed = [n for n in _DISTRIBUTION if n != "num_clients"]
        for option in options:
            checks.known(option, allowed, "option of a federation")
        if partition is None:
            partition = partitions.IID() if client is None else partitions.ByClient()
        return from_dataset(dataset, partition, num_clients=num_clients, **options)


_DISTRIBUTION = (
    "num_clients",
    "seed",
    "malicious_fraction",
    "validation_fraction",
    "test_fraction",
    "train_examples",
    "label_poisoning",
    "feature_noise",
    "num_others",
    "sample_tests",
)
_PARTS: dict[str, tuple[dict[str, Any], str, str]] = {
    # field -> registry, noun for messages, what an object must have
    "partition": (partitions.PARTITIONS, "partition", "__call__"),
    "label_poisoning": (corruption.LABEL_POISONINGS, "label poisoning", "__call__"),
    "feature_noise": (corruption.FEATURE_NOISES, "feature noise", "scales"),
}


def _check_numbers(
    *,
    num_clients: int | None,
    seed: int,
    malicious_fraction: float,
    validation_fraction: float,
    test_fraction: float,
    train_examples: int | None,
    num_others: int | str,
    sample_tests: bool,
) -> None:
    """Checks what a specification and a call have in common."""
    if num_clients is not None:
        checks.positive_int("num_clients", num_clients)
    checks.whole("seed", seed, at_least=0, at_most=checks.MAX_SEED)
    splits.check_others(num_others)
    checks.boolean("sample_tests", sample_tests)
    if train_examples is not None:
        checks.positive_int("train_examples", train_examples)
    splits.check_fractions(malicious_fraction, validation_fraction, test_fraction)


def _poisoned(
    poisoning: Any,
    dataset: datasets.Dataset,
    rows: dict[str, partitions.Partition],
    malicious: np.ndarray,
    seed: int,
) -> jax.Array | None:
    """Training labels `int32[N, M]`, those of malicious clients replaced; or None."""
    if poisoning is None:
        return None
    if dataset.num_classes is None or dataset.y.ndim != 1:
        raise checks.InputError(
            "Label poisoning needs one class label per example, which data set"
            f" {dataset.name!r} does not have."
        )
    train = rows["train"]
    labels = dataset.y[train.index]
    for client in np.flatnonzero(malicious).tolist():
        rng = datasets.generator(seed, datasets.Purpose.POISONING, client)
        count = train.num_examples[client]
        own = labels[client, :count]
        labels[client, :count] = poisoning(rng, own, dataset.num_classes)
    return jax.device_put(labels)


def _noise(
    feature_noise: Any,
    dataset: datasets.Dataset,
    parts: partitions.Partition,
    malicious: np.ndarray,
) -> tuple[jax.Array | None, bool]:
    """Std of each client's noise `float32[N]` or None, and whether it is redrawn."""
    if feature_noise is None:
        scale, resample = parts.noise_scale, parts.resample_noise
    elif dataset.x.dtype == np.int32:
        raise checks.InputError(
            f"Feature noise needs numbers, but the inputs of data set {dataset.name!r}"
            " are tokens."
        )
    elif parts.noise_scale is not None:
        raise checks.InputError(
            "Expected noise of the partition or feature_noise, got both."
        )
    else:
        scale = feature_noise.scales(len(malicious), malicious)
        resample = feature_noise.resample
    if scale is not None:
        scale = jax.device_put(np.asarray(scale, np.float32))
    return scale, resample


def _pool(dataset: datasets.Dataset) -> dict[str, Any]:
    """Device arrays of a data set, put there once."""
    if dataset not in _pools:
        _pools[dataset] = {
            # Data sets own their arrays, so a CPU device need not copy them.
            "x": jax.device_put(dataset.x, may_alias=True),
            "y": jax.device_put(dataset.y, may_alias=True),
            "scale": jax.device_put(dataset.scale),
            "shift": jax.device_put(dataset.shift),
            "constants": jax.device_put(dataset.constants),
        }
    return _pools[dataset]
