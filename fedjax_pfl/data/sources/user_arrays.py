"""A user's own arrays in memory, and the numbering of classes and clients."""

import pathlib
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets

__all__ = [
    "arrays_dataset",
    "encode_classes",
    "in_order",
    "joined",
    "numbered",
    "stem",
]

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


def arrays_dataset(
    x: Any,
    y: Any,
    client: Any = None,
    *,
    name: str,
    num_classes: int | None = None,
    labels: str = "",
    part: Any = None,
) -> datasets.Dataset:
    """Creates a data set of arrays: NumPy, JAX, pandas or lists.

    Args:
      x: `[S, ...]` inputs. Floating numbers and tokens (whole numbers) are kept as
        they are; `uint8` with at least three axes is images, shown divided by 255.
      y: `[S]` targets. Whole numbers, truth values and text are classes, numbered in
        sorted order; floating numbers `[S, ...]` are the targets of a regression.
      client: S names or numbers of the examples' clients, numbered in sorted order, or
        None.
      name: shown in messages and result files.
      num_classes: number of classes; whole numbers are then the classes themselves, and
        some may have no example.
      labels: what holds the targets, as messages name it; by default `name.y`.
      part: `[S]` of a given split, as in a `Dataset`, or None.

    Returns:
      The data set.

    Raises:
      InputError: if an array is not as described.

    Example:
      >>> mine = arrays_dataset([[0.5], [1.5]], ["no", "yes"], ["b", "a"], name="mine")
      >>> mine.y.tolist(), mine.class_names, mine.client.tolist(), mine.client_names
      ([0, 1], ('no', 'yes'), [1, 0], ('a', 'b'))
    """
    checks.is_text("name", name)
    x = datasets.as_array(x)
    x = x.astype(np.float32) if x.dtype == bool else x
    y, class_names = _targets(labels or f"{name}.y", y, num_classes)
    client_names = None
    if client is not None:
        client, client_names = _clients(f"{name}.client", client)
    return datasets.Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=num_classes,
        scale=1 / 255 if x.dtype == np.uint8 and x.ndim > 2 else 1.0,
        client=client,
        class_names=class_names,
        client_names=client_names,
        part=part,
    )


def _targets(
    name: str, y: Any, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns targets, and names of classes where they are numbered here."""
    array = datasets.as_array(y)
    kinds = set(map(type, array.ravel().tolist())) if array.dtype == object else set()
    if kinds == {bool} or kinds == {int}:  # pandas has such columns
        array = np.array(array.tolist())
    if array.dtype == bool and num_classes is not None:
        array = array.astype(np.int32)
    is_class = array.dtype.kind in "iu" and num_classes is not None
    if array.dtype.kind == "f" or is_class:
        return array, None  # checked by the data set
    if array.dtype.kind not in "biuU" and kinds != {str}:
        types = ", ".join(sorted(kind.__name__ for kind in kinds)) or str(array.dtype)
        raise checks.InputError(
            f"Expected {name} as numbers, booleans or text without gaps, got {types}."
        )
    if array.ndim != 1:
        raise checks.InputError(
            f"Expected one class per example in {name}, got the shape {array.shape}."
        )
    return encode_classes(array.tolist(), name)


def _clients(name: str, client: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers clients `int32[S]` as `in_order` has them, and names them."""
    try:
        values = client.tolist() if hasattr(client, "tolist") else list(client)
        distinct = in_order(values)
    except TypeError as error:  # not a list, not hashable, or not comparable
        raise checks.InputError(
            f"Expected {name} to be a list of names or a list of numbers without gaps."
        ) from error
    if any(value != value for value in distinct):
        raise checks.InputError(f"Expected a client for every example in {name}.")
    return numbered(values, distinct)


def in_order(names: Iterable[Any]) -> list[Any]:
    """Returns different names, sorted; texts of whole numbers by these numbers.

    Args:
      names: that can be compared.

    Example:
      >>> in_order(["10", "9", "10"]), in_order(["site 10", "site 9"])
      (['9', '10'], ['site 10', 'site 9'])
    """
    distinct = set(names)
    if all(isinstance(name, str) and _WHOLE.fullmatch(name) for name in distinct):
        return sorted(distinct, key=lambda name: (int(name), name))
    return sorted(distinct)


def joined(pairs: Sequence[Sequence[Any]], what: str) -> tuple[list[Any], np.ndarray]:
    """Joins the arrays of a training and a test part.

    Args:
      pairs: of inputs, targets and clients the arrays of both parts; clients of neither
        part may be None.
      what: subject of the message.

    Returns:
      The joined arrays, None for clients that are not given, and the part `int8[S]` of
      every example.

    Raises:
      InputError: if examples of both parts differ in shape, or clients of one part are
        missing.
    """
    rows: list[Any] = []
    for name, pair in zip(("inputs", "targets", "clients"), pairs, strict=True):
        missing = [value is None for value in pair]
        arrays = [datasets.as_array(value) for value in pair]
        if all(missing):
            rows.append(None)
        elif any(missing) or len({array.shape[1:] for array in arrays}) > 1:
            shapes = " and ".join(
                "none" if value is None else str(array.shape)
                for value, array in zip(pair, arrays, strict=True)
            )
            raise checks.InputError(
                f"Expected {name} of {what} that are alike in both parts, got {shapes}."
            )
        else:
            rows.append(np.concatenate(arrays))
    sizes = [len(datasets.as_array(value)) for value in pairs[0]]
    return rows, np.repeat([datasets.TRAIN, datasets.TEST], sizes).astype(np.int8)


def encode_classes(
    values: Sequence[Any], what: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers classes in sorted order.

    Args:
      values: S values that can be compared.
      what: subject of the message.

    Returns:
      Classes `int32[S]` and their names.

    Raises:
      InputError: if there are fewer than two different values.
    """
    distinct = sorted(set(values))
    if len(distinct) < 2:
        raise checks.InputError(
            f"Expected {what} to hold at least two classes, got {distinct}."
        )
    return numbered(values, distinct)


def numbered(
    values: Iterable[Hashable], distinct: Iterable[Hashable]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers values by their positions among the distinct ones.

    Args:
      values: S values.
      distinct: all possible values, each once.

    Returns:
      The positions `int32[S]`, and the distinct values as text.
    """
    position = {value: number for number, value in enumerate(distinct)}
    codes = np.fromiter(map(position.__getitem__, values), np.int32)
    return codes, tuple(map(str, position))


def stem(path: pathlib.Path) -> str:
    """Returns the name of a file without folders and suffixes, to name a data set.

    Args:
      path: file or folder.

    Returns:
      The name.

    Example:
      >>> stem(pathlib.Path("data/adult.csv.gz"))
      'adult'
    """
    return path.name.removesuffix("".join(path.suffixes)) or path.name
