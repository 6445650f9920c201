"""Preparation of columns of numbers by the rows that clients train on."""

import dataclasses
from typing import Any, Literal

import numpy as np

from fedjax_pfl.core import checks, struct

__all__ = ["Preparation"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Preparation:
    """Numbers of a data set as they came, and how they become inputs.

    Each column is scaled by the training rows of all clients or of the row's client. A
    column that is constant among these becomes 0; values of other rows are not clipped.

    Attributes:
      numbers: `float64[S, K]` raw numbers; NaN for missing ones.
      columns: `int[K]` features of an input, flattened, that these numbers make; with
        windows of each of its rows.
      scaling: `"standard"` to mean 0 and variance 1, `"minmax"` to [0, 1], or `"none"`.
      scale: by the training rows of `"all"` clients, or of the row's own `"client"`.
      fill: in place of a missing number the `"mean"` of these training rows (of all, if
        the client has none), or `"zero"` after scaling.
      windows: `int[S, W + 1]` W rows that are the input `[W, F]` of an example, and the
        row of its target; `numbers` are then of all rows. None if the row itself is the
        input.
    """

    numbers: np.ndarray
    columns: np.ndarray
    scaling: Literal["standard", "minmax", "none"] = "standard"
    scale: Literal["all", "client"] = "all"
    fill: Literal["mean", "zero"] = "mean"
    windows: np.ndarray | None = None

    __repr__ = struct.array_repr

    def __post_init__(self):
        struct.check_fields(self)
        numbers, columns = np.asarray(self.numbers), np.asarray(self.columns)
        if numbers.dtype != np.float64 or numbers.ndim != 2 or not numbers.size:
            raise checks.InputError(
                "Expected numbers of a preparation as float64[S, K], got"
                f" {checks.shown(numbers)}."
            )
        if columns.dtype.kind not in "iu" or columns.shape != numbers.shape[1:]:
            raise checks.InputError(
                f"Expected one feature for each of {numbers.shape[1]} columns of a"
                f" preparation, got {checks.shown(columns)}."
            )
        windows = np.zeros((1, 2), int) if self.windows is None else self.windows
        if windows.dtype.kind not in "iu" or windows.ndim != 2 or windows.shape[1] < 2:
            raise checks.InputError(
                "Expected windows of a preparation as int[S, W + 1], got"
                f" {checks.shown(windows)}."
            )
        if not windows.size or windows.min() < 0 or windows.max() >= len(numbers):
            raise checks.InputError(
                f"Expected windows of a preparation of rows from 0 to"
                f" {len(numbers) - 1}, got others."
            )

    @property
    def num_samples(self) -> int:
        """Number of examples S."""
        return len(self.numbers if self.windows is None else self.windows)

    def chosen(self, rows: np.ndarray) -> "Preparation":
        """Returns the preparation of some examples, `int[K]` or a mask `bool[S]`."""
        if self.windows is not None:
            return dataclasses.replace(self, windows=self.windows[rows])
        return dataclasses.replace(self, numbers=self.numbers[rows])

    def inputs(
        self,
        x: np.ndarray,
        training: np.ndarray | None = None,
        group: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns inputs with scaled numbers.

        Args:
          x: `float32[S, ...]` inputs; their other features are kept.
          training: `bool[S]` examples by which numbers are scaled; None for all.
          group: `int[S]` examples that are scaled together, from 0; None for all.

        Returns:
          `float32[S, ...]`.
        """
        training = np.ones(len(x), bool) if training is None else training
        group = np.zeros(len(x), np.int64) if group is None else group
        entries: Any = slice(None)
        scaled = x.copy()
        features = scaled.reshape(len(x), -1)
        if self.windows is not None:
            training, group = self._rows(training, group)
            entries, features = self.windows[:, :-1], scaled
        for numbers, column in zip(self.numbers.T, self.columns, strict=True):
            features[..., column] = self._scaled(numbers, training, group)[entries]
        return scaled

    def _rows(
        self, training: np.ndarray, group: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which rows train `bool[R]`, and groups `int[R]`, from examples'."""
        assert self.windows is not None
        row_trains = np.zeros(len(self.numbers), bool)
        row_trains[self.windows[training]] = True
        row_group = np.zeros(len(self.numbers), np.int64)
        row_group[self.windows] = group[:, None]
        return row_trains, row_group

    def _scaled(
        self, numbers: np.ndarray, training: np.ndarray, group: np.ndarray
    ) -> np.ndarray:
        """Returns a column `float64[S]`, scaled by the training rows of each group."""
        is_missing = np.isnan(numbers)
        training = training & ~is_missing
        values, owner, count = numbers[training], group[training], group.max() + 1
        sizes = np.bincount(owner, minlength=count)

        def mean(values: np.ndarray) -> np.ndarray:
            return np.bincount(owner, values, count) / np.maximum(sizes, 1)

        def largest(values: np.ndarray) -> np.ndarray:
            result = np.full(count, -np.inf)
            np.maximum.at(result, owner, values)
            return result

        center = mean(values)
        if self.fill == "mean":
            overall = values.mean() if len(values) else 0.0
            means = np.where(sizes > 0, center, overall)[group]
            numbers = np.where(is_missing, means, numbers)
        if self.scaling == "none":
            return np.where(np.isnan(numbers), 0.0, numbers)
        low, high = -largest(-values), largest(values)
        is_varied = low < high  # not without any row
        low, high = (np.where(is_varied, limit, 0.0) for limit in (low, high))
        if self.scaling == "minmax":
            center, unit, spread = low, high - low, np.ones(count)
        else:
            centered = values - center[owner]
            # The squares of tiny numbers would be 0.
            unit = np.where(is_varied, largest(np.abs(centered)), 1.0)
            spread = np.sqrt(mean((centered / unit[owner]) ** 2))
        unit, spread = (np.where(is_varied, v, 1.0)[group] for v in (unit, spread))
        scaled = (numbers - center[group]) / unit / spread
        # Rounding would leave a constant column at +-1 or NaN.
        return np.where(is_varied[group] & ~np.isnan(numbers), scaled, 0.0)
