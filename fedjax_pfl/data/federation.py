"""Specifications of federations, and the federations built from them."""

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import corruption, sources, splits
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import Partition, Partitioner
from fedjax_pfl.data.sources import user, user_arrays

__all__ = ["Federation", "FederationSpec", "from_dataset", "load_federation"]

_DIGITS = 16  # of the digest of data in memory


@dataclasses.dataclass(frozen=True)
class FederationSpec:
    """Recipe of a federation; grids may sweep its fields, and it is hashable.

    Dotted names such as `partition.concentration` or `dataset.dim` address every field.

    Attributes:
      dataset: source of the data, its name in `DATASETS`, or a `Dataset`.
      partition: partition object, or its name in `PARTITIONS`.
      num_clients: N, or None for all natural clients of the data set.
      seed: of generated data, partition, splits, malicious clients, poisoned labels,
        `others` and samples, which draw independently.
      malicious_fraction: `round(malicious_fraction * N)` clients are malicious; at
        least one must stay honest.
      unseen_fraction: `round(unseen_fraction * N)` clients, drawn once, never train;
        they are evaluated at the end as the population `unseen`. The federation has the
        other clients only, and the malicious share is one of these.
      unseen_clients: names of natural clients that never train either.
      validation_fraction: share of each client's examples, rounded down.
      test_fraction: share of each client's examples, rounded down, but at least one
        example unless the fraction is 0.
      fixed_test_split: the same examples of the data set are test examples for every
        seed: `test_fraction` of each natural client's, or of all if there are none, and
        so about this share of each client's. Without it every seed draws its own, and a
        test example of one seed may train another. A test part of the data set stays.
      train_examples: maximum number of training examples of a client, kept in the
        proportions of its classes, or None; validation and test stay.
      stratify: every part of a client has each of its classes in proportion.
      label_poisoning: replacement of the training labels of malicious clients: an
        object, its name in `LABEL_POISONINGS`, or None.
      feature_noise: Gaussian noise added to the inputs of clients: an object, its name
        in `FEATURE_NOISES`, or None.
      held_out_users: share of the data set's natural clients that the federation leaves
        out, for pretraining on them: the same ones for every seed; or None.
      num_others: c other clients, drawn once; their test examples join a client's own
        in the data `others`; 0 for none, `"half"` for `ceil(N / 2)`.
      sample_tests: evaluate on `others` and `everybody` with an even sample of their
        test examples, drawn once and as large as the client's own test set, instead of
        all test examples.
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
    num_clients: int | None = struct.static_field(default=20, at_least=1)
    seed: int = struct.static_field(default=0, at_least=0, at_most=checks.MAX_SEED)
    malicious_fraction: float = struct.static_field(default=0.0, at_least=0, at_most=1)
    unseen_fraction: float = struct.static_field(default=0.0, at_least=0, at_most=1)
    unseen_clients: tuple[str, ...] = ()
    validation_fraction: float = struct.static_field(default=0.1, at_least=0, below=1)
    test_fraction: float = struct.static_field(default=0.2, at_least=0, below=1)
    fixed_test_split: bool = False
    train_examples: int | None = struct.static_field(default=None, at_least=1)
    stratify: bool = False
    label_poisoning: Any = None
    feature_noise: Any = None
    held_out_users: float | None = struct.static_field(default=None, above=0, below=1)
    num_others: int | str = 0
    sample_tests: bool = False
    data_dir: str | os.PathLike[str] | None = None

    def __post_init__(self):
        set_field = object.__setattr__  # the class is frozen
        struct.check_fields(self)
        if isinstance(self.dataset, str):
            set_field(self, "dataset", sources.source(self.dataset))
        if isinstance(self.dataset, Dataset):
            set_field(self, "dataset", _Loaded(self.dataset))
        if isinstance(self.dataset, type) or not hasattr(self.dataset, "load"):
            raise checks.InputError(
                "Expected dataset to be a name in DATASETS or an object such as"
                f" Digits(), got {checks.shown(self.dataset)}."
            )
        # A class in place of an object has the attributes, too, but no values of
        # fields.
        for field, (registry, method) in _PARTS.items():
            part = getattr(self, field)
            if isinstance(part, str):
                checks.known(part, registry, field.replace("_", " "))
                set_field(self, field, registry[part]())
            elif (part is not None or field == "partition") and (
                isinstance(part, type)
                or not dataclasses.is_dataclass(part)
                or not hasattr(part, method)
            ):
                raise checks.InputError(
                    f"Expected {field} to be one of {', '.join(registry)} or such an"
                    f" object, got {checks.shown(part)}."
                )
        if self.data_dir is not None:
            checks.path("data_dir", self.data_dir)
            set_field(self, "data_dir", str(self.data_dir))
        if isinstance(self.num_others, str):
            checks.known(self.num_others, (splits.HALF,), "number of other clients")
        else:
            checks.whole("num_others", self.num_others, at_least=0)
        if self.validation_fraction + self.test_fraction >= 1:
            raise checks.InputError(
                "Expected validation_fraction + test_fraction to be below 1, got"
                f" {self.validation_fraction} + {self.test_fraction}."
            )

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any = None,
        *,
        num_classes: int | None = None,
        num_clients: int | None = None,
        partition: Partitioner | None = None,
        test: Any = None,
        order: Any = None,
        ordered: bool = False,
        scaling: str = "none",
        scale: str = "all",
        scale_targets: bool = False,
        name: str = "arrays",
        **options: Any,
    ) -> "FederationSpec":
        """Returns the recipe of a federation of a user's own arrays.

        Args:
          x: `[S, ...]` inputs: NumPy, JAX, pandas or lists. `uint8` images stay so and
            are scaled by 1/255; other integers are tokens.
          y: `[S]` labels (whole numbers, booleans or text are classes) or targets;
            one-hot labels `[S, C]` are taken as classes.
          client: `[S]` owner of each example, any numbers or text; or None, where
            `partition` distributes the examples over `num_clients`.
          num_classes: C, or None to take it from labels.
          num_clients: N, where `partition` distributes the examples.
          partition: by default the natural clients or, without any, `IID()`.
          test: a given test part, which is kept: `bool[S]` examples of it; or further
            arrays `(x, y)`, with clients `(x, y, client)`. None to draw one.
          order: S numbers, dates or texts by which each client's examples are sorted,
            with further test arrays also their order; the last examples are then the
            test part, and those before them validate. None keeps the order.
          ordered: whether examples are in order of time already, so that the split is
            cut in this order.
          scaling: of floating inputs, each feature by training examples: `"standard"`
            to mean 0 and variance 1, `"minmax"` to [0, 1], or `"none"`.
          scale: by the training examples of `"all"` clients, or of each `"client"`.
          scale_targets: whether models learn targets that are numbers in deviations
            from the training mean; errors keep the targets' units.
          name: of the data set, for result files.
          **options: other fields of `FederationSpec`, but for `data_dir`.

        Returns:
          The specification; its axis `seed` draws the split again.

        Raises:
          InputError: if arrays do not fit together.

        Example:
          >>> x, y = np.eye(6), [0, 1, 0, 1, 0, 1]
          >>> owner = ["ann"] * 3 + ["bob"] * 3
          >>> FederationSpec.from_arrays(x, y, owner).build().num_clients
          2
        """
        owned = (partitions.ByClient, partitions.FeatureSkew)
        if partition is None:
            partition = partitions.IID() if client is None else partitions.ByClient()
        elif client is not None and not isinstance(partition, owned):
            raise checks.InputError(
                "Expected owners of the examples (client) or a partition that"
                f" distributes them, got both: {type(partition).__name__} would ignore"
                " the owners."
            )
        part = None
        if isinstance(test, tuple):
            num_arrays = 2 if client is None else 3
            if len(test) != num_arrays:
                raise checks.InputError(
                    "Expected test to be (x, y) or, with clients, (x, y, client), got"
                    f" {len(test)} arrays."
                )
            names = ("inputs", "targets", "clients")
            pairs = zip((x, y, client), (*test, None)[:3], strict=True)
            # Joined before labels are read, so that both parts have the same classes.
            arrays, sizes = user_arrays.joined(
                dict(zip(names, pairs, strict=True)), name
            )
            x, y, client = arrays.values()
            part = np.repeat([datasets.TRAIN, datasets.TEST], sizes)
        elif test is not None:
            mask = datasets.as_array(test)
            if mask.dtype != bool:
                raise checks.InputError(
                    "Expected test to be a tuple of arrays, or true and false for every"
                    f" example, got an array of {mask.dtype}."
                )
            part = np.where(mask, datasets.TEST, datasets.TRAIN)
        y, num_classes = _from_one_hot(y, num_classes)
        dataset = user.arrays_dataset(
            x,
            y,
            client,
            name=name,
            num_classes=num_classes,
            part=part,
            order=order,
            ordered=ordered,
            scaling=scaling,
            scale=scale,
            scale_targets=scale_targets,
        )
        return _spec(dataset, partition, num_clients, options)

    @classmethod
    def from_clients(
        cls, clients: Mapping[Any, tuple[Any, Any]], **options: Any
    ) -> "FederationSpec":
        """Returns the recipe of a federation of the arrays of each client.

        Args:
          clients: inputs `[S_n, ...]` and targets `[S_n]` by the name of client n, at
            least one example each.
          **options: options of `from_arrays`, for the examples of all clients in this
            order.

        Returns:
          The specification; its axis `seed` draws the split again.

        Raises:
          InputError: if the arrays do not fit together.

        Example:
          >>> x, y = np.eye(3), [0, 1, 0]
          >>> spec = FederationSpec.from_clients({"ann": (x, y), "bob": (x, y)})
          >>> spec.build().num_clients
          2
        """
        name = options.get("name", "arrays")
        is_mapping = isinstance(clients, Mapping) and len(clients) > 0
        if not is_mapping or any(
            not isinstance(part, tuple | list) or len(part) != 2
            for part in clients.values()
        ):
            raise checks.InputError(
                "Expected clients as a dictionary of (x, y) by name, such as"
                f" {{'ann': (x, y)}}, got {checks.shown(clients)}."
            )
        inputs, targets = zip(*clients.values(), strict=True)
        arrays, sizes = user_arrays.joined({"inputs": inputs, "targets": targets}, name)
        # Checked per client, as joined arrays of equal total length hide a mismatch.
        for client, size, y in zip(clients, sizes, targets, strict=True):
            count = len(datasets.as_array(y))
            if size == 0 or count != size:
                raise checks.InputError(
                    f"Expected as many inputs as targets, at least one, of client"
                    f" {client!r}, got {size} and {count}."
                )
        names = np.array(list(clients))
        # NumPy makes text of mixed names, so that 1 and "1" would become one client.
        if names.ndim != 1 or len(np.unique(names)) < len(names):
            raise checks.InputError(
                "Expected names of clients that differ as text, all of them texts or"
                f" all numbers, got {', '.join(map(repr, clients))}."
            )
        owner = np.repeat(names, sizes)
        return cls.from_arrays(arrays["inputs"], arrays["targets"], owner, **options)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        label: str,
        client: str | None = None,
        split: str | None = None,
        time: str | None = None,
        num_clients: int | None = None,
        partition: Partitioner | None = None,
        name: str = "frame",
        **options: Any,
    ) -> "FederationSpec":
        """Returns the recipe of a federation of a data frame, read as a `Csv` is.

        Args:
          frame: of pandas, or an object with `to_pandas()`, such as a data set of the
            library `datasets`.
          label: column to predict.
          client: column that names each row's client; or None, where `partition`
            distributes the rows over `num_clients`.
          split: column that names each row's part, or None for a split that is drawn.
          time: column by which each client's rows are sorted, or None.
          num_clients: N, where `partition` distributes the rows.
          partition: by default the natural clients or, without any, `IID()`.
          name: of the data set, for result files.
          **options: other fields of `Csv`, such as `scaling` and `missing`, and of
            `FederationSpec`, but for `data_dir`.

        Returns:
          The specification; its axis `seed` draws the split again.

        Raises:
          InputError: if the columns are not as described.

        Example:
          >>> import pandas as pd
          >>> frame = pd.DataFrame({"site": list("aaabbb"), "age": range(6)})
          >>> frame["ill"] = [0, 1, 0, 1, 0, 1]
          >>> spec = FederationSpec.from_frame(frame, label="ill", client="site")
          >>> spec.build().num_clients
          2
        """
        checks.is_text("name", name)
        columns = {"label": label, "client": client, "split": split, "time": time}
        names = {f.name for f in dataclasses.fields(user.Csv)} - {"path", *columns}
        # Options that `Csv` has are the table's, all others the federation's.
        columns |= {name: options.pop(name) for name in names & options.keys()}
        dataset = user.frame_dataset(frame, name, user.Csv(**columns))
        if partition is None:
            partition = partitions.IID() if client is None else partitions.ByClient()
        return _spec(dataset, partition, num_clients, options)

    def build(self) -> "Federation":
        """Loads, partitions and splits on the host, then moves to the device.

        Returns:
          The federation. Specifications that share a data set share the arrays of its
          pool.

        Raises:
          InputError: if the data are missing or cannot be distributed as specified.
        """
        validation_fraction = self.validation_fraction
        dataset = self.dataset.load(
            data_dir=self.data_dir, seed=self.seed, num_clients=self.num_clients
        )
        if self.held_out_users is not None:
            _, dataset = splits.held_out_users(dataset, self.held_out_users)
        # Before any draw of positions, so that the order of the files has no effect.
        dataset = splits.in_order_of_values(dataset)
        if self.fixed_test_split and dataset.part is None:
            dataset = splits.fixed_tests(dataset, self.test_fraction)
            # Of the rest, whose share is drawn if the test part is given.
            validation_fraction /= 1 - self.test_fraction
        rng = datasets.generator(self.seed, datasets.Purpose.PARTITION)
        parts = self.partition(rng, dataset, self.num_clients)
        num_clients = self.num_clients or len(parts.index)
        parts.validate(dataset.num_samples, num_clients)
        held_back = self.unseen_fraction, self.unseen_clients
        numbers = splits.natural_names(parts, dataset) if self.unseen_clients else None
        unseen = splits.unseen_clients(self.seed, num_clients, *held_back, numbers)
        if unseen.any() and parts.leaky:
            raise checks.InputError(
                "Expected a partition without shared examples for clients that are not"
                f" seen in training, got {type(self.partition).__name__} with"
                f" unseen_fraction={self.unseen_fraction}."
            )
        # Malicious and other clients are drawn among those that train.
        seen_rows, num_seen = np.flatnonzero(~unseen), int((~unseen).sum())
        malicious = splits.malicious_clients(
            self.seed, num_seen, self.malicious_fraction
        )
        is_malicious = np.zeros(num_clients, bool)
        is_malicious[seen_rows] = malicious
        neighbors = splits.other_clients(self.seed, num_seen, self.num_others)
        fractions = (validation_fraction, self.test_fraction)
        options = (self.train_examples, self.stratify)
        rows = splits.split(parts, dataset, self.seed, *fractions, *options)
        # After the split, because scales follow from the training rows.
        dataset = splits.prepared(dataset, parts, rows["train"], ~unseen)
        clients = self._client_data(dataset, parts, rows, is_malicious, seen_rows)
        names = splits.client_names(parts, dataset)
        named = {n: getattr(dataset, n) for n in ("name", "num_classes", "class_names")}
        held_out = None
        if unseen.any():
            held_out = Federation(
                **_of_clients(clients, np.flatnonzero(unseen), num_seen),
                malicious=jax.device_put(np.zeros(num_clients - num_seen, bool)),
                client_names=_of_rows(names, unseen),
                **named,
            )
            clients = _of_clients(clients, seen_rows, 0)
        samples = None
        if self.sample_tests:
            num_test = np.asarray(clients["test"].num_examples)
            samples = splits.sampled_tests(self.seed, num_test, neighbors)
        return Federation(
            **clients,
            malicious=jax.device_put(malicious),
            others=jax.device_put(neighbors),
            samples=jax.device_put(samples),
            **{
                name: jax.device_put(values[seen_rows].astype(np.int32))
                for name, values in (
                    ("cluster", parts.cluster),
                    ("extra_examples", parts.extra_examples),
                )
                if values is not None
            },
            unseen=held_out,
            leaky=parts.leaky,
            client_names=_of_rows(names, ~unseen),
            notes=dataset.notes,
            **named,
        )

    def describe(self) -> dict[str, Any]:
        """Returns the flat configuration by dotted name, in types of JSON."""
        fields = struct.plain_fields(self) | {"dataset": self.dataset.name}
        if isinstance(self.dataset, _Loaded):
            fields["dataset.digest"] = self.dataset.digest
        for name in (
            "fixed_test_split",
            "held_out_users",
            "stratify",
            "unseen_clients",
        ):
            if not fields[name]:
                del fields[name]  # as before there were any
        return fields

    def pretraining(self) -> Dataset:
        """Returns the examples of `held_out_users`.

        Raises:
          InputError: if none are held out, or the data are missing.
        """
        if self.held_out_users is None:
            raise checks.InputError(
                "Expected held_out_users, the share of users to pretrain on, got None."
            )
        dataset = self.dataset.load(
            data_dir=self.data_dir, seed=self.seed, num_clients=self.num_clients
        )
        return splits.held_out_users(dataset, self.held_out_users)[0]

    def _client_data(
        self,
        dataset: Dataset,
        parts: Partition,
        rows: dict[str, Partition],
        malicious: np.ndarray,
        seen: np.ndarray,
    ) -> dict[str, core.ClientData]:
        """Builds training, validation and test data, which share one pool."""
        labels = {"train": self._poisoned_labels(dataset, rows["train"], malicious)}
        noise_scale, resample_noise = self._noise(dataset, parts, malicious)
        client_id = jax.device_put(np.arange(len(malicious), dtype=np.int32))
        units = None
        # Units are of clients that train: unseen clients must not change the targets.
        if dataset.scale_targets:
            units = jax.device_put(_units(dataset.y, rows["train"], seen))
        return {
            name: core.ClientData(
                **_pool(dataset),
                index=jax.device_put(part.index),
                num_examples=jax.device_put(part.num_examples),
                client_id=client_id,
                labels=labels.get(name),
                noise_scale=noise_scale,
                resample_noise=resample_noise,
                target_units=units,
            )
            for name, part in rows.items()
        }

    def _poisoned_labels(
        self, dataset: Dataset, train: Partition, malicious: np.ndarray
    ) -> jax.Array | None:
        """Replaces the training labels `int32[N, M]` of malicious clients."""
        if self.label_poisoning is None:
            return None
        if dataset.num_classes is None or dataset.y.ndim != 1:
            raise checks.InputError(
                "Label poisoning needs one class label per example, which data set"
                f" {dataset.name!r} does not have."
            )
        labels = dataset.y[train.index]
        # A generator per client: its labels do not depend on the other malicious
        # clients.
        for client in np.flatnonzero(malicious).tolist():
            rng = datasets.generator(self.seed, datasets.Purpose.POISONING, client)
            values = labels[client, : train.num_examples[client]]
            values[:] = self.label_poisoning(rng, values.copy(), dataset.num_classes)
        return jax.device_put(labels)

    def _noise(
        self, dataset: Dataset, parts: Partition, malicious: np.ndarray
    ) -> tuple[jax.Array | None, bool]:
        """Returns each client's noise level `float32[N]`, and whether to redraw it."""
        scale, resample = parts.noise_scale, parts.resample_noise
        if self.feature_noise is not None:
            if dataset.x.dtype == np.int32:
                raise checks.InputError(
                    "Feature noise needs numbers, but the inputs of data set"
                    f" {dataset.name!r} are tokens."
                )
            if scale is not None:
                raise checks.InputError(
                    "Expected noise of the partition or feature_noise, got both."
                )
            scale = self.feature_noise.scales(len(malicious), malicious)
            resample = self.feature_noise.resample
        if scale is not None:
            scale = jax.device_put(np.asarray(scale, np.float32))
        return scale, resample


def _of_rows(names: Sequence[str] | None, rows: np.ndarray) -> tuple[str, ...] | None:
    """Returns the names of the clients in a mask `bool[N]`, if they have any."""
    return None if names is None else tuple(itertools.compress(names, rows))


def _units(y: np.ndarray, train: Partition, clients: np.ndarray) -> np.ndarray:
    """Returns mean and deviation `float32[2]` of training targets of some clients."""
    values = np.concatenate([y[train.rows(k)] for k in clients]).astype(np.float64)
    # The deviation of targets that are all the same is 1.
    deviation = values.std() if values.max() > values.min() else 1.0
    return np.array([values.mean(), deviation], np.float32)


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
    _check_names(fields, ("dataset", "partition"))
    return FederationSpec(dataset, partition, **fields).build()


@struct.checked_call
def from_dataset(
    dataset: Dataset,
    partition: Partitioner,
    *,
    num_clients: int | None,
    **options: Any,
) -> "Federation":
    """Distributes a data set over clients and splits every client's examples.

    Args:
      dataset: host arrays.
      partition: partition object.
      num_clients: N, or None for all natural clients.
      **options: other fields of `FederationSpec`, but for `data_dir`.

    Returns:
      The federation; its three parts share one pool.

    Raises:
      InputError: if an argument is wrong or a client has too few examples.
    """
    return _spec(dataset, partition, num_clients, options).build()


class _Loaded:
    """Source of a data set in memory; sources of equal data are equal."""

    def __init__(self, dataset: Dataset):
        self.name, self._dataset = dataset.name, dataset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Loaded) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self._dataset.x.shape))

    @functools.cached_property
    def digest(self) -> str:
        """Digest of all arrays, so that no training is resumed with other data."""
        content = hashlib.sha256()
        for field in dataclasses.fields(self._dataset):
            value = getattr(self._dataset, field.name)
            if isinstance(value, np.ndarray) and value.dtype != object:
                content.update(f"{field.name} {value.dtype} {value.shape}".encode())
                flat = np.ascontiguousarray(value).reshape(-1)
                content.update(flat.view(np.uint8).data)
            else:
                plain = value.tolist() if isinstance(value, np.ndarray) else value
                content.update(repr(plain).encode())
        return content.hexdigest()[:_DIGITS]

    def load(self, **_: object) -> Dataset:
        """Returns the data set."""
        return self._dataset


def _spec(
    dataset: Dataset,
    partition: Partitioner,
    num_clients: int | None,
    options: Mapping[str, Any],
) -> FederationSpec:
    """Returns the specification of a data set that is in memory."""
    _check_names(options, ("dataset", "partition", "num_clients", "data_dir"))
    return FederationSpec(dataset, partition, num_clients=num_clients, **options)


def _check_names(fields: Mapping[str, Any], taken: Sequence[str]) -> None:
    """Checks names of fields of a specification, except those `taken` already."""
    allowed = [f.name for f in dataclasses.fields(FederationSpec)]
    for name in fields:
        checks.known(name, set(allowed).difference(taken), "field of a federation")


@struct.pytree_dataclass
class Federation(core.Federation):
    """Federation with a constructor from arrays; fields are the base class's."""

    __repr__ = core.Federation.__repr__

    @classmethod
    def from_arrays(
        cls, x: Any, y: Any, client: Any = None, **options: Any
    ) -> "Federation":
        """Builds a federation from a user's own arrays.

        Args:
          x: `[S, ...]` inputs: NumPy, JAX, pandas or lists.
          y: `[S]` labels or targets, or one-hot labels `[S, C]`.
          client: `[S]` owner of each example, any numbers or text; or None.
          **options: the other options of `FederationSpec.from_arrays`, described there:
            `partition`, `num_clients`, `test`, `order`, `scaling` and others.

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
        return FederationSpec.from_arrays(x, y, client, **options).build()

    @classmethod
    def from_clients(
        cls, clients: Mapping[Any, tuple[Any, Any]], **options: Any
    ) -> "Federation":
        """Builds a federation from the arrays of each client.

        Args:
          clients: inputs `[S_n, ...]` and targets `[S_n]` by the name of client n.
          **options: options of `FederationSpec.from_clients`.

        Returns:
          The federation.

        Raises:
          InputError: if the arrays do not fit together or cannot be distributed.

        Example:
          >>> x, y = np.eye(3), [0, 1, 0]
          >>> Federation.from_clients({"ann": (x, y), "bob": (x, y)}).client_names
          ('ann', 'bob')
        """
        return FederationSpec.from_clients(clients, **options).build()

    @classmethod
    def from_frame(
        cls, frame: Any, *, label: str, client: str | None = None, **options: Any
    ) -> "Federation":
        """Builds a federation from a data frame, read as the table of a `Csv`.

        Args:
          frame: of pandas, or an object with `to_pandas()`.
          label: column to predict.
          client: column that names each row's client, or None.
          **options: all others of `FederationSpec.from_frame`: `split`, `time`,
            `partition`, and fields of `Csv` such as `scaling` and `missing`.

        Returns:
          The federation.

        Raises:
          InputError: if the columns are not as described, or cannot be distributed.

        Example:
          >>> import pandas as pd
          >>> frame = pd.DataFrame({"site": list("aaabbb"), "age": range(6)})
          >>> frame["ill"] = [0, 1, 0, 1, 0, 1]
          >>> Federation.from_frame(frame, label="ill", client="site").num_clients
          2
        """
        return FederationSpec.from_frame(
            frame, label=label, client=client, **options
        ).build()


def _from_one_hot(y: Any, num_classes: int | None) -> tuple[Any, int | None]:
    """Returns the classes of one-hot labels and their number, or the arguments."""
    rows = datasets.as_array(y)
    if rows.ndim != 2 or rows.shape[1] < 2 or rows.dtype.kind not in "biuf":
        return y, num_classes
    if not np.isin(rows, (0, 1)).all() or not (rows.sum(axis=1) == 1).all():
        return y, num_classes
    return rows.argmax(axis=1).astype(np.int32), num_classes or rows.shape[1]


def _of_clients(
    data: dict[str, core.ClientData], rows: np.ndarray, start: int
) -> dict[str, core.ClientData]:
    """Returns the data of some clients `int[K]`, numbered from `start` on."""
    numbers = jax.device_put(np.arange(start, start + len(rows), dtype=np.int32))

    def chosen(part: core.ClientData) -> core.ClientData:
        fields = jax.tree.map(lambda leaf: leaf[rows], part.rows())
        # Slots are as many as these clients need: others' sizes leave no trace.
        slots = max(int(fields["num_examples"].max()), 1)
        for name in ("index", "labels"):
            if fields[name] is not None:
                fields[name] = fields[name][:, :slots]
        return part.with_rows(fields | {"client_id": numbers})

    return {name: chosen(part) for name, part in data.items()}


_PARTS: dict[str, tuple[dict[str, Any], str]] = {  # field -> registry, its method
    "partition": (partitions.PARTITIONS, "__call__"),
    "label_poisoning": (corruption.LABEL_POISONINGS, "__call__"),
    "feature_noise": (corruption.FEATURE_NOISES, "scales"),
}


@datasets.derived
def _pool(dataset: Dataset) -> dict[str, Any]:
    """Returns the device arrays of a data set, which are put there once."""
    scaling = {n: getattr(dataset, n) for n in ("scale", "shift", "constants")}
    # Data sets own their arrays, so a CPU device need not copy them.
    examples = jax.device_put({"x": dataset.x, "y": dataset.y}, may_alias=True)
    return examples | jax.device_put(scaling)
