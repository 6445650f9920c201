"""A user's own arrays in memory, and the numbering of classes and clients."""

import pathlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets

__all__ = ["arrays_dataset", "codes", "encode_classes", "stem"]

_INT32 = np.iinfo(np.int32)


def arrays_dataset(
    x: Any,
    y: Any,
    client: Any = None,
    *,
    name: str,
    num_classes: int | None = None,
    ordered: bool = False,
) -> datasets.Dataset:
    """Makes a data set of arrays: NumPy, JAX, pandas or lists.

    Args:
      x: `[S, ...]` inputs. Floating numbers and tokens (whole numbers) are taken as
        they are; `uint8` with at least three axes is images, shown divided by 255.
      y: `[S]` targets. Whole numbers, truth values and text are classes, numbered in
        sorted order; floating numbers `[S, ...]` are the targets of a regression.
      client: S names or numbers of the examples' clients, numbered in sorted order, or
        None.
      name: shown in messages and result files.
      num_classes: number of classes; whole numbers are then the classes themselves, and
        some may have no example.
      ordered: whether the examples of a client are in order of time.

    Returns:
      The data set.

    Raises:
      InputError: if an array is not as described.

    Example:
      >>> mine = arrays_dataset([[0.5], [1.5]], ["no", "yes"], ["b", "a"], name="mine")
      >>> mine.y.tolist(), mine.class_names, mine.client.tolist(), mine.client_names
      ([0, 1], ('no', 'yes'), [1, 0], ('a', 'b'))
    """
    x = _inputs(f"{name}.x", x)
    y, class_names = _targets(f"{name}.y", y, num_classes)
    client_names = None
    if client is not None:
        client, client_names = _clients(f"{name}.client", client)
        if len(client) != len(x):
            raise checks.InputError(
                f"Expected {name}.client to name the client of each of {len(x)}"
                f" examples, got {len(client)} names."
            )
    return datasets.Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=num_classes if class_names is None else len(class_names),
        scale=1 / 255 if x.dtype == np.uint8 and x.ndim > 2 else 1.0,
        client=client,
        class_names=class_names,
        client_names=client_names,
        ordered=ordered,
    )


def _array(name: str, values: Any) -> np.ndarray:
    """The values as an array."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise checks.InputError(
            f"Expected {name} to be an array, got rows of different lengths."
        ) from error
    if array.ndim == 0:
        raise checks.InputError(
            f"Expected {name} to be an array with one row per example, got"
            f" {type(values).__name__}."
        )
    return array


def _inputs(name: str, x: Any) -> np.ndarray:
    """Inputs in a dtype that the data set stores without loss; the rest it refuses."""
    array = _array(name, x)
    if array.dtype == bool:
        return array.astype(np.float32)
    if array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        if low < _INT32.min or high > _INT32.max:
            raise checks.InputError(
                f"Expected whole numbers in {name} to fit 32 bits, got values from"
                f" {low} to {high}; give floating numbers instead."
            )
    return array


def _targets(
    name: str, y: Any, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Targets, and the names of the classes where they were numbered here."""
    array = _array(name, y)
    kinds = set(map(type, array.ravel().tolist())) if array.dtype == object else set()
    if kinds == {bool} or kinds == {int}:  # pandas has such columns
        array = np.array(array.tolist())
    if array.dtype == bool and num_classes is not None:
        array = array.astype(np.int32)
    given = array.dtype.kind in "iu" and num_classes is not None
    if array.dtype.kind == "f" or given:
        return array, None  # checked by the data set
    if array.dtype.kind not in "biuU" and kinds != {str}:
        shown = ", ".join(sorted(kind.__name__ for kind in kinds)) or str(array.dtype)
        raise checks.InputError(
            f"Expected {name} to hold numbers, truth values or text without gaps, got"
            f" {shown}."
        )
    if array.ndim != 1:
        raise checks.InputError(
            f"Expected {name} to hold one class per example, got the shape"
            f" {array.shape}."
        )
    numbered, names = encode_classes(array.tolist(), name)
    if num_classes not in (None, len(names)):
        raise checks.InputError(
            f"Expected {name} to hold num_classes={num_classes} different classes, got"
            f" {len(names)}."
        )
    return numbered, names


def _clients(name: str, client: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers `int32[S]` of the clients in sorted order, and their names."""
    try:
        values = client.tolist() if hasattr(client, "tolist") else list(client)
        distinct = sorted(set(values))
    except TypeError as error:  # not a list, not hashable, or not comparable
        raise checks.InputError(
            f"Expected {name} to be a list of names or a list of numbers, one per"
            " example, without gaps."
        ) from error
    if any(value != value for value in distinct):
        raise checks.InputError(f"Expected a client for every example in {name}.")
    return codes(values, distinct), tuple(map(str, distinct))


def encode_classes(
    values: Sequence[Any], what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers classes in sorted order.

    Args:
      values: S values that can be compared.
      what: the noun of the message.

    Returns:
      Classes `int32[S]` and their names.

    Raises:
      InputError: if there are fewer than two different values.
    """
    distinct = sorted(set(values))
    if len(distinct) < 2:
        raise checks.InputError(
            f"Expected {what} to hold at least two different classes, got"
            f" {distinct[0]!r} only."
            if distinct
            else f"Expected {what} to hold classes, got no example."
        )
    return codes(values, distinct), tuple(map(str, distinct))


def codes(values: Iterable[Hashable], distinct: Sequence[Hashable]) -> np.ndarray:
    """The position `int32[S]` of every value among the distinct ones.

    Args:
      values: S values.
      distinct: what they may be.

    Returns:
      The positions.
    """
    position = {value: number for number, value in enumerate(distinct)}
    return np.fromiter(map(position.__getitem__, values), np.int32)


def stem(path: pathlib.Path) -> str:
    """The name of a file without folders and suffixes, as the name of a data set.

    Args:
      path: file or folder.

    Returns:
      The name.

    Example:
      >>> stem(pathlib.Path("data/adult.csv.gz"))
      'adult'
    """
    return path.name.removesuffix("".join(path.suffixes)) or path.name
