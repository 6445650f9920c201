"""A user's own table: features, a column to predict, perhaps a column of clients."""

import dataclasses
from typing import Literal

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import tables
from fedjax_pfl.data.sources import base, user_arrays, user_files

__all__ = ["Csv"]

_MAX_CATEGORIES = 100
_TOO_LARGE = 2**53  # of whole numbers as floats
_MAX_CLASSES = 100  # of whole numbers, where the task is told from the data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv(user_files.UserSource):
    """A table in a file: comma, semicolon or tab separated, with a header, in UTF-8.

    A column whose every value is a number is one feature, as is one of true and false.
    A column of text becomes one feature of zeros and ones for each of its texts in
    sorted order. Mixed columns, and missing or infinite values, are refused.

    Attributes:
      path: the file, plain or `.gz`; relative to the current directory or else to the
        data directory.
      label: column to predict.
      client: column that names each example's client, or None.
      task: `"classification"`; `"regression"`; or `"auto"`: classes if the label is
        text or whole numbers of at most 100 different values.
      scaling: of columns of numbers, over all rows: `"standard"` to mean 0 and variance
        1, `"minmax"` to [0, 1], or `"none"`. A constant column becomes 0.
      drop: columns to leave out.
      categories: columns of numbers that are codes and are treated as text.
    """

    label: str = ""
    client: str | None = None
    task: Literal["auto", "classification", "regression"] = "auto"
    scaling: Literal["standard", "minmax", "none"] = "standard"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    name = "csv"

    def __post_init__(self):
        super().__post_init__()
        for field in ("drop", "categories"):
            value = user_files.as_tuple(
                field, getattr(self, field), str, "('age', 'city')"
            )
            object.__setattr__(self, field, value)
        columns = [self.label, self.client, *self.drop, *self.categories]
        for column in columns:
            if column and columns.count(column) > 1:
                raise checks.InputError(
                    f"Expected {column!r} once in label, client, drop and categories."
                )

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x float32[S, F]`; clients are numbered as they first appear."""
        path = located.root
        owners = [] if self.client is None else [self.client]
        others = [self.label, *owners, *self.drop]
        table = tables.read_table(path, [self.label, *owners, *self.categories])
        for column in (*others, *self.categories):
            checks.known(column, table.columns, f"column of '{path}'")
        names = [name for name in table.columns if name not in others]
        if not names:
            raise checks.InputError(
                f"The table '{path}' has no column left besides {', '.join(others)}."
            )
        features = [_feature(table, name, self) for name in names]
        y, class_names = _targets(table, self)
        client = client_names = None
        if self.client is not None:
            texts = table.texts(self.client)
            client, client_names = user_arrays.numbered(texts, dict.fromkeys(texts))
        return datasets.Dataset(
            name=user_arrays.stem(path),
            x=np.concatenate(features, axis=1),
            y=y,
            class_names=class_names,
            client=client,
            client_names=client_names,
        )


def _feature(table: tables.Table, name: str, options: Csv) -> np.ndarray:
    """Returns `float32[S, 1]` for numbers or `float32[S, categories]` for text."""
    if name in options.categories:
        return _one_hot(table, name)
    numbers = table.numbers(
        name, f"list the column in categories={(name,)} or drop={(name,)}"
    )
    if numbers is None:
        texts = [text.casefold() for text in table.texts(name)]
        if not set(texts) <= {"true", "false"}:
            return _one_hot(table, name)
        numbers = (np.array(texts) == "true").astype(np.float64)
    return _scaled(numbers, options.scaling).astype(np.float32)[:, None]


def _one_hot(table: tables.Table, name: str) -> np.ndarray:
    """Returns zeros and ones `float32[S, categories]`, categories in sorted order."""
    texts = table.texts(name)
    categories = sorted(set(texts))
    if len(categories) > _MAX_CATEGORIES:
        raise checks.InputError(
            f"Column {name!r} of '{table.path}' holds {len(categories)} texts,"
            f" expected at most {_MAX_CATEGORIES}; leave it out with drop={(name,)}."
        )
    codes, _ = user_arrays.numbered(texts, categories)
    return np.eye(len(categories), dtype=np.float32)[codes]


def _scaled(numbers: np.ndarray, scaling: str) -> np.ndarray:
    """Scales numbers `float64[S]` as the option `scaling` says."""
    low, high = numbers.min(), numbers.max()
    if scaling == "none":
        return numbers
    if low == high:  # rounding would leave a constant column at +-1 or NaN
        return np.zeros_like(numbers)
    if scaling == "minmax":
        return (numbers - low) / (high - low)
    centered = numbers - numbers.mean()
    centered /= np.abs(centered).max()  # the squares of tiny numbers would be 0
    return centered / np.sqrt(np.mean(centered**2))


def _targets(
    table: tables.Table, options: Csv
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns the targets `[S]` and, for classes, their names."""
    texts = table.texts(options.label)
    if options.task == "classification":
        numbers = tables.parse_numbers(texts)
    else:
        numbers = table.numbers(options.label, "pass task='classification'")
        if numbers is None and options.task == "regression":
            raise checks.InputError(
                f"Expected numbers as the label of '{table.path}', got {texts[0]!r}."
            )
    if numbers is not None:
        is_whole = (numbers == np.round(numbers)).all()
        is_class = is_whole and len(np.unique(numbers)) <= _MAX_CLASSES
        if options.task == "regression" or (options.task == "auto" and not is_class):
            return numbers, None
        row = int(np.abs(numbers).argmax())
        if abs(numbers[row]) >= _TOO_LARGE:
            raise checks.InputError(
                f"The label of '{table.path}' holds {texts[row]}, too large to be"
                " exact; write text, or pass task='regression'."
            )
        texts = [int(n) if n.is_integer() else n for n in numbers.tolist()]
    return user_arrays.encode_classes(
        texts, f"the label {options.label!r} of '{table.path}'"
    )
