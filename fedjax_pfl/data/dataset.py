"""Host arrays of one data set, and the random generators of the data layer."""

import dataclasses
import enum
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.preparation import Preparation

__all__ = [
    "Dataset",
    "Purpose",
    "Source",
    "as_array",
    "cache",
    "chosen",
    "derived",
    "forget",
    "generator",
    "owners",
    "positions",
]


_ALIGNMENT = 64  # bytes
_caches: list[Any] = []  # of functions that make data sets
_F = TypeVar("_F", bound=Callable[..., Any])


class Purpose(enum.IntEnum):
    """Purposes of host randomness; each has a generator of its own."""

    DATASET = 0
    PARTITION = 1
    SPLIT = 2
    MALICIOUS = 3
    OTHERS = 4
    POISONING = 5
    SAMPLES = 6
    GENERATORS = 7
    AUGMENTATION = 8
    UNSEEN = 9
    HELD_OUT = 10
    TESTS = 11


def cache(count: int) -> Callable[[Any], Any]:
    """Returns a decorator that caches the last `count` data sets of a function."""

    def decorate(make: Callable[..., Any]) -> Any:
        cached = functools.lru_cache(maxsize=count)(make)
        _caches.append(cached)
        return cached

    return decorate


def forget() -> None:
    """Drops the cached data sets.

    Their memory is freed with their last other use; they are read again if needed.
    """
    for cached in _caches:
        cached.cache_clear()


def generator(seed: int, purpose: Purpose, *identity: int) -> np.random.Generator:
    """Returns the generator of a purpose, a child of `SeedSequence(seed)`."""
    spawn_key = (purpose, *identity)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


TRAIN, VALIDATION, TEST = range(3)
PARTS = dict.fromkeys(("train", "training"), TRAIN)
PARTS |= dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION)
PARTS |= dict.fromkeys(("test", "testing"), TEST)
"""Parts of a given split, by the words that files have for them."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """All examples of a data set on the host; a user's own arrays enter here.

    Arrays are copied and kept read-only. `uint8` inputs stay `uint8`, other integers
    (tokens) become `int32` and are never scaled, floating inputs become `float32`;
    targets become `int32` if `num_classes` is given and `float32` otherwise.
    Compared and hashed by identity.

    Attributes:
      name: shown in messages and result files.
      x: `[S, ...]` inputs as stored.
      y: `[S]` or `[S, ...]` targets.
      num_classes: number of classes, by default of `class_names`; None if targets
        are not classes.
      scale: a batch shows `x * scale + shift`; any shape that broadcasts to that of an
        input, for example `[3]` for the channels of `[S, H, W, 3]`.
      shift: see scale.
      client: `int[S]` natural client of each example, or None; ids need not be
        contiguous.
      class_names: C names, or None.
      cluster: `int[]` known group of similar clients of every natural client id, or
        None.
      client_names: natural client `k` is called `client_names[k]`; or None.
      part: `int8[S]` 0 for training, 1 for validation and 2 for test examples, or None
        to draw a split; without 1, validation examples are drawn from the training
        examples.
      ordered: the examples of a client are in order of time; its split is then cut in
        this order, training first and test last, instead of at random.
      any_order: the order of the examples has no meaning: federations of the same
        examples in another order are the same.
      scale_targets: models learn targets that are numbers in deviations from the mean
        of the training examples; errors are reported in the targets' own units.
      gap: number of examples of a client that an ordered split leaves out between two
        parts, as many as the input of an example reaches back.
      preparation: numbers among the inputs that are scaled by training rows: `x` is
        scaled by all rows, and a federation by its training rows; or None.
      notes: sentences about how the data were made of their files, for summaries.
      constants: pytree of arrays handed to the model with every batch, or None.
      truth: true parameters of generated data, by name; empty for real data.

    Example:
      >>> dataset = Dataset(name="mine", x=np.eye(3), y=[0, 1, 1], num_classes=2)
      >>> dataset.num_samples, dataset.x.dtype.name, dataset.y.dtype.name
      (3, 'float32', 'int32')
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    num_classes: int | None = None
    scale: np.ndarray | float = 1.0
    shift: np.ndarray | float = 0.0
    client: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None
    cluster: np.ndarray | None = None
    part: np.ndarray | None = None
    ordered: bool = False
    any_order: bool = False
    scale_targets: bool = False
    gap: int = struct.static_field(default=0, at_least=0)
    preparation: Preparation | None = None
    notes: tuple[str, ...] = ()
    constants: Any = None
    truth: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    __repr__ = struct.array_repr

    def __post_init__(self):
        set_field = object.__setattr__  # the class is frozen
        names = ("name", "num_classes", "class_names", "client_names", "truth")
        flags = ("ordered", "any_order", "scale_targets", "gap", "preparation", "notes")
        struct.check_fields(self, *names, *flags)
        x = _numeric(f"{self.name}.x", self.x)
        y = _numeric(f"{self.name}.y", self.y)
        if len(x) != len(y) or 0 in (x.size, y.size):
            raise checks.InputError(
                f"Expected {self.name} to have as many inputs as targets, at least one,"
                f" and numbers in each, got the shapes {x.shape} and {y.shape}."
            )
        if self.num_classes is None and self.class_names is not None:
            set_field(self, "num_classes", len(self.class_names))
        if self.num_classes is not None:
            checks.positive_int(f"{self.name}.num_classes", self.num_classes)
            if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= self.num_classes:
                raise checks.InputError(
                    f"Expected {self.name}.y to hold whole numbers from 0 to"
                    f" {self.num_classes - 1}, got {y.dtype} values from {y.min()} to"
                    f" {y.max()}."
                )
        # Bytes stay bytes, a quarter of the memory; batches are scaled.
        x_dtype = np.float32 if x.dtype.kind == "f" else np.int32
        x_dtype = np.uint8 if x.dtype == np.uint8 else x_dtype
        y_dtype = np.float32 if self.num_classes is None else np.int32
        set_field(self, "x", _stored(f"{self.name}.x", x, x_dtype))
        set_field(self, "y", _stored(f"{self.name}.y", y, y_dtype))
        for field in ("scale", "shift"):
            set_field(self, field, self._per_input(field, x.shape[1:]))
        if self.client is not None:
            set_field(self, "client", self._owners())
        if self.part is not None:
            set_field(self, "part", self._parts())
        if self.scale_targets and (self.num_classes is not None or self.y.ndim > 1):
            raise checks.InputError(
                f"Expected one number per example as targets of {self.name} to scale"
                f" them, got {self.num_classes or 'no'} classes and the shape"
                f" {self.y.shape}."
            )
        self._check_names()
        self._check_preparation()

    def _per_input(self, field: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a field as `float32`, a scalar or of as many axes as an input."""
        checks.numbers(f"{self.name}.{field}", getattr(self, field))
        with np.errstate(over="ignore"):
            value = np.asarray(getattr(self, field), np.float32)
        checks.numbers(f"{self.name}.{field} in 32 bits", value)
        sizes = zip(value.shape[::-1], shape[::-1], strict=False)
        if value.ndim > len(shape) or any(size not in (1, dim) for size, dim in sizes):
            raise checks.InputError(
                f"The shape {value.shape} of {self.name}.{field} does not fit {shape}."
            )
        # As many axes as an input, so that it broadcasts over a batch without rank
        # promotion.
        return np.array(value, ndmin=len(shape) if value.ndim else 0)

    def _owners(self) -> np.ndarray:
        """Returns the natural clients, checked."""
        client = np.asarray(self.client)
        is_whole = client.shape == (self.num_samples,) and client.dtype.kind in "iu"
        if not is_whole or client.min() < 0:
            raise checks.InputError(
                f"Expected {self.name}.client to hold {self.num_samples} whole numbers"
                f" of at least 0, got {checks.shown(client.tolist())}."
            )
        return client

    def _parts(self) -> np.ndarray:
        """Returns the parts of a given split, checked."""
        part = np.array(self.part)
        codes = {TRAIN, VALIDATION, TEST}
        if part.shape != (self.num_samples,) or not codes >= set(part.tolist()):
            raise checks.InputError(
                f"Expected {self.name}.part to hold 0 (training), 1 (validation) or 2"
                f" (test) for {self.num_samples} examples, got an array of shape"
                f" {part.shape}."
            )
        for code, words in ((TRAIN, "training"), (TEST, "test")):
            if code not in part:
                raise checks.InputError(
                    f"Expected the given split of {self.name} to have {words} examples,"
                    " got none."
                )
        part = part.astype(np.int8)
        part.flags.writeable = False
        return part

    def _check_names(self) -> None:
        """Checks the names of classes and clients, and their number."""
        for name in (self.name, *(self.class_names or ()), *(self.client_names or ())):
            checks.text(f"every name in {self.name}", name)
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise checks.InputError(
                f"Expected {self.name}.class_names to have {self.num_classes} names,"
                f" got {len(self.class_names)}."
            )
        for field in ("cluster", "client_names"):
            values = getattr(self, field)
            (count, *_) = *np.shape(values), 0
            if values is not None and (
                self.client is None or self.client.max() >= count
            ):
                raise checks.InputError(
                    f"Expected {self.name}.{field} for every client, got {count}."
                )

    def _check_preparation(self) -> None:
        """Checks that the preparation is one of these inputs."""
        if self.preparation is None:
            return
        count, columns = self.preparation.num_samples, self.preparation.columns
        windows, shape = self.preparation.windows, self.x.shape
        is_windows = windows is not None and shape[1:-1] == (windows.shape[1] - 1,)
        num_features = shape[-1] if is_windows else self.x[0].size
        fits = count == self.num_samples and self.x.dtype == np.float32
        fits = fits and (windows is None or is_windows)
        if not fits or columns.min() < 0 or columns.max() >= num_features:
            raise checks.InputError(
                f"Expected {self.name}.preparation to fit {self.x.dtype} inputs of the"
                f" shape {shape}, got {count} examples with the features"
                f" {columns.tolist()}."
            )

    @property
    def num_samples(self) -> int:
        """Number of examples S."""
        return len(self.x)


class Source(Protocol):
    """Origin of a data set: a frozen, hashable dataclass of named options."""

    @property
    def name(self) -> str:
        """Name in messages and result files."""
        ...

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> Dataset:
        """Reads or generates; equal arguments give the same object within a process."""
        ...


def as_array(values: object) -> np.ndarray:
    """Converts nested lists; ragged ones and too large numbers give a scalar object."""
    try:
        return np.asarray(values)
    except (ValueError, OverflowError):
        return np.asarray(None)


def chosen(dataset: Dataset, rows: np.ndarray, **changes: object) -> Dataset:
    """Returns a data set of rows `int[K]` or `bool[S]`, scaled by all of these."""
    names = [n for n in ("x", "y", "client", "part") if getattr(dataset, n) is not None]
    arrays: dict[str, Any] = {name: getattr(dataset, name)[rows] for name in names}
    if dataset.preparation is not None:
        preparation = dataset.preparation.chosen(rows)
        arrays |= {"preparation": preparation, "x": preparation.inputs(arrays["x"])}
    return dataclasses.replace(dataset, **arrays, **changes)


def derived(make: _F) -> _F:
    """Caches what a function makes of a data set, as long as the data set lives.

    Results must not refer to the data set itself, which would then never be freed.
    """
    results: Any = weakref.WeakKeyDictionary()

    @functools.wraps(make)
    def cached(dataset: Dataset, *options: Any) -> Any:
        own = results.setdefault(dataset, {})
        if options not in own:
            own[options] = make(dataset, *options)
        return own[options]

    result: Any = cached
    return result


def owners(sizes: Iterable[int]) -> np.ndarray:
    """Returns the client `int32[S]` of each example, one client after the other."""
    counts = np.fromiter(sizes, np.int64)
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def positions(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each entry in its group, and the size of the group.

    Entries with the same keys `[S]` are a group, and stand together.
    """
    differs = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.flatnonzero(np.r_[True, differs])
    sizes = np.diff(np.r_[starts, len(keys[0])])
    return np.arange(len(keys[0])) - np.repeat(starts, sizes), np.repeat(sizes, sizes)


def _numeric(name: str, values: object) -> np.ndarray:
    """Converts values to integers or floating numbers with a sample axis."""
    array = as_array(values)
    if array.ndim == 0 or array.dtype.kind not in "iuf":
        raise checks.InputError(
            f"Expected {name} to be an array of numbers with one row per example, got"
            f" {type(values).__name__} of dtype {array.dtype} and shape {array.shape}."
        )
    return array


def _stored(name: str, values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Returns a read-only copy in the dtype that the pool has on the device."""
    dtype = np.dtype(dtype)
    if dtype == np.int32 and max(abs(int(values.min())), int(values.max())) >= 2**31:
        raise checks.InputError(
            f"Expected {name} to fit 32 bits, got {values.min()} to {values.max()}."
        )
    # It starts at a multiple of 64 bytes: a CPU device then needs no copy, and the pool
    # is in memory once.
    memory = np.empty(values.size * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    memory = memory[start : start + values.size * dtype.itemsize]
    array = memory.view(dtype).reshape(values.shape)
    with np.errstate(over="ignore"):
        array[...] = values
    if dtype.kind == "f" and not np.isfinite(array).all():
        row = np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1))
        raise checks.InputError(
            f"Expected {name} to be finite in 32 bits, but row {row} is not."
        )
    array.flags.writeable = False
    return array
