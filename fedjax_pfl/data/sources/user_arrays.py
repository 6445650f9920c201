"""A user's own arrays in memory: classes, clients, order of time and windows."""

import dataclasses
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.core import checks, texts
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import preparation as preparations
from fedjax_pfl.data.readers import times

__all__ = [
    "arrays_dataset",
    "encode_classes",
    "by_time",
    "clients",
    "joined",
    "numbered",
    "stem",
    "windowed",
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
    order: Any = None,
    ordered: bool = False,
    scaling: Any = "none",
    scale: Any = "all",
    scale_targets: bool = False,
) -> datasets.Dataset:
    """Creates a data set of arrays: NumPy, JAX, pandas or lists."""
    checks.is_text("name", name)
    x = datasets.as_array(x)
    # Truth values become numbers; `uint8` with three axes or more is images, shown
    # divided by 255.
    x = x.astype(np.float32) if x.dtype == bool else x
    preparation = _preparation(name, x, scaling, scale)
    # With `num_classes` whole numbers are the classes themselves, and some may have no
    # example.
    y, class_names = _targets(labels or f"{name}.y", y, num_classes)
    client_names = None
    if client is not None:
        client, client_names = _clients(f"{name}.client", client)
    dataset = datasets.Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=num_classes,
        scale=1 / 255 if x.dtype == np.uint8 and x.ndim > 2 else 1.0,
        client=client,
        class_names=class_names,
        client_names=client_names,
        part=part,
        ordered=ordered,
        scale_targets=scale_targets,
    )
    if preparation is not None:
        # From the stored copy, which is finite in 32 bits.
        x = preparation.inputs(dataset.x)
        dataset = dataclasses.replace(dataset, x=x, preparation=preparation)
    if order is None:
        return dataset
    if ordered:
        raise checks.InputError(
            "Expected order, by which examples are sorted, or ordered=True for examples"
            " in order, got both."
        )
    return by_time(dataset, order, f"{name}.order")


def _preparation(
    name: str, x: np.ndarray, scaling: Any, scale: Any
) -> preparations.Preparation | None:
    """Returns the preparation of floating inputs; checks both options."""
    is_float = x.dtype.kind == "f" and x.ndim > 1 and x.size > 0
    numbers = x.reshape(len(x), -1).astype(np.float64) if is_float else np.zeros((1, 1))
    # Built in any case, because it checks both options.
    result = preparations.Preparation(
        numbers=numbers,
        columns=np.arange(numbers.shape[1]),
        scaling=scaling,
        scale=scale,
    )
    if scaling == "none":
        if scale != "all":
            raise checks.InputError(
                f"Expected scaling='standard' or 'minmax' with scale={scale!r}, got"
                " scaling='none', which changes nothing."
            )
        return None
    if not is_float:
        raise checks.InputError(
            f"Expected floating numbers [S, ...] in {name}.x with scaling={scaling!r},"
            f" got {x.dtype} values of shape {x.shape}."
        )
    return result


def by_time(dataset: datasets.Dataset, order: object, subject: str) -> datasets.Dataset:
    """Sorts examples by numbers, dates or texts `[S]`; ties keep their order."""
    values = datasets.as_array(order)
    if values.shape != (dataset.num_samples,):
        raise checks.InputError(
            f"Expected {subject} to hold one value for each of {dataset.num_samples}"
            f" examples, got the shape {values.shape}."
        )
    moments = values.tolist()
    if values.dtype.kind in "mM":
        moments = values.astype(np.int64).tolist()
        missing = np.isnat(values)
    else:
        # NaN and None cannot be compared, and sorting would place them anywhere.
        missing = np.array([v is None or v != v for v in moments], bool)
    if missing.any():
        raise checks.InputError(
            f"Expected {subject} to hold a time for every example, but row"
            f" {int(missing.argmax())} has none."
        )
    if all(isinstance(moment, str) for moment in moments):
        # Texts that are no dates are compared letter by letter.
        moments = times.parse_times(moments, subject) or moments
    try:
        rows = sorted(range(len(moments)), key=moments.__getitem__)
    except TypeError as error:
        raise checks.InputError(
            f"Expected {subject} to hold numbers, dates or texts, all of one kind, got"
            f" {checks.shown(moments)}."
        ) from error
    return datasets.chosen(dataset, np.array(rows), ordered=True)


def windowed(dataset: datasets.Dataset, window: int) -> datasets.Dataset:
    """Returns inputs `[S, W, F]` of the W rows of the same client before each row."""
    client = dataset.client
    if client is None:
        raise checks.InputError(
            f"Expected a column of clients for windows of {dataset.name!r}, got none;"
            " give one series a column with one name."
        )
    sequence = np.argsort(client, kind="stable")
    position, _ = datasets.positions(client[sequence])
    ends = np.flatnonzero(position >= window)
    rows = sequence[ends[:, None] + np.arange(-window, 1)]
    if dataset.part is not None:
        # Windows over the border of two given parts would leak training rows into
        # tests.
        parts = dataset.part[rows]
        rows = rows[(parts == parts[:, :1]).all(axis=1)]
    if lacking := sorted(set(client.tolist()) - set(client[rows[:, -1]].tolist())):
        names = dataset.client_names or range(client.max() + 1)
        number = int((client == lacking[0]).sum())
        raise checks.InputError(
            f"Client {names[lacking[0]]!r} of {dataset.name!r} has"
            f" {texts.counted(number, 'row', ',')}, too few for an example"
            f" after {window} rows of one part; use a shorter window,"
            f" or leave it out ({len(lacking)} such clients)."
        )
    rows = rows[np.argsort(rows[:, -1])]  # in order of time
    size = rows[:, :-1].size * dataset.x.shape[1] * dataset.x.itemsize
    checks.memory(f"The windows of {dataset.name!r}", 2 * size, "use shorter ones")
    ended = {
        name: getattr(dataset, name)[rows[:, -1]]
        for name in ("y", "client", "part")
        if getattr(dataset, name) is not None
    }
    preparation = dataset.preparation
    if preparation is not None:
        preparation = dataclasses.replace(preparation, windows=rows)
    return dataclasses.replace(
        dataset,
        x=dataset.x[rows[:, :-1]],
        # Drawn parts are W examples apart, so that no row is in windows of two parts.
        gap=window,
        preparation=preparation,
        **ended,
    )


def _targets(
    name: str, y: object, num_classes: int | None
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns targets, and names of classes if they are numbered here."""
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
    """Numbers and names the clients of a user's list or array."""
    try:
        values = client.tolist() if hasattr(client, "tolist") else list(client)
        numbers, names = clients(values)
    except TypeError as error:  # not a list, not hashable, or not comparable
        raise checks.InputError(
            f"Expected {name} to be a list of names or a list of numbers without gaps."
        ) from error
    if any(value != value for value in values):
        raise checks.InputError(f"Expected a client for every example in {name}.")
    return numbers, names


def clients(names: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers clients `int32[S]` in sorted order, whole numbers as text by value."""
    distinct = set(names)
    # So that client 9 comes before client 10.
    if all(isinstance(name, str) and _WHOLE.fullmatch(name) for name in distinct):
        distinct = sorted(distinct, key=lambda name: (int(name), name))
    else:
        distinct = sorted(distinct)
    return numbered(names, distinct)


def joined(
    pieces: Mapping[str, Sequence[Any]], subject: str
) -> tuple[dict[str, Any], list[int]]:
    """Joins the arrays of several parts; returns the size of each part, too."""
    rows, sizes = {}, []
    for name, values in pieces.items():
        arrays = [datasets.as_array(value) for value in values]
        # The first name has arrays in all parts; others may be None in all of them.
        sizes = sizes or [len(array) if array.ndim else 0 for array in arrays]
        if all(value is None for value in values):
            rows[name] = None
            continue
        # None is an array without axes.
        is_alike = len({array.shape[1:] for array in arrays}) == 1
        if not is_alike or not all(array.ndim for array in arrays):
            shapes = {
                "none" if value is None else str(array.shape): None
                for value, array in zip(values, arrays, strict=True)
            }
            raise checks.InputError(
                f"Expected {name} of {subject} that are alike in all parts, got"
                f" {' and '.join(shapes)}."
            )
        rows[name] = np.concatenate(arrays)
    return rows, sizes


def encode_classes(
    values: Collection[Any], subject: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns classes `int32[S]`, numbered in sorted order, and their names."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        raise checks.InputError(
            f"Expected {subject} to hold at least two classes, got {distinct}."
        )
    return numbered(values, distinct)


def numbered(
    values: Iterable[Hashable], distinct: Iterable[Hashable]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns positions `int32[S]` among distinct values, and these as text."""
    position = {value: number for number, value in enumerate(distinct)}
    codes = np.fromiter(map(position.__getitem__, values), np.int32)
    return codes, tuple(map(str, position))


def stem(path: Path) -> str:
    """Returns the name of a file without folders and suffixes, to name a data set."""
    return path.name.removesuffix("".join(path.suffixes)) or path.name
