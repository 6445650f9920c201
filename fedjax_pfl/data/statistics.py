"""What a federation looks like: sizes, classes, shared examples, noise."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import struct

if TYPE_CHECKING:  # slow to import, and needed by tables only
    import pandas as pd

__all__ = ["PartitionStatistics", "describe"]

_MAX_COLUMNS = 12  # classes that have a column of their own in a table
_TOP = 4  # classes that are named otherwise


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PartitionStatistics:
    """What is known of a federation without training.

    Attributes:
      name: name of the data set.
      class_names: C names, or None.
      num_train: `int[N]` training examples.
      num_validation: `int[N]`.
      num_test: `int[N]`.
      label_counts: `int[N, C]` training examples by true class, or None where targets
        are not classes.
      pool_size: S.
      used: examples of the pool that some client has.
      leak: share of all test examples, summed over clients, whose row of the pool is
        among another client's training examples; 0 if there are none.
      validation_leak: the same of validation examples.
      poisoned: `int[N]` training labels that are not the true ones.
      noise_scale: `[N]` standard deviation of the noise on scaled inputs; 0 for none.
      malicious: `bool[N]`.
      cluster: `int[N]` known cluster of each client, or None.
    """

    name: str
    class_names: tuple[str, ...] | None
    num_train: np.ndarray
    num_validation: np.ndarray
    num_test: np.ndarray
    label_counts: np.ndarray | None
    pool_size: int
    used: int
    leak: float
    validation_leak: float
    poisoned: np.ndarray
    noise_scale: np.ndarray
    malicious: np.ndarray
    cluster: np.ndarray | None

    __repr__ = struct.array_repr

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.num_train)

    @property
    def label_distance(self) -> np.ndarray | None:
        """Total-variation distances `[N]` to the federation's label distribution.

        From 0 (the same classes as everyone together) to 1; NaN for a client without
        training examples.
        """
        if self.label_counts is None:
            return None
        difference = _shares(self.label_counts) - _shares(self.label_counts.sum(axis=0))
        return np.abs(difference).sum(axis=1) / 2

    @property
    def skew(self) -> float | None:
        """Mean over clients of the label distance; None without classes."""
        distance = self.label_distance
        if distance is None:
            return None
        return float(distance[self.num_train > 0].mean())

    @property
    def effective_classes(self) -> np.ndarray | None:
        """`[N]` exponentials of the entropy of each client's labels, from 1 to C."""
        if self.label_counts is None:
            return None
        shares = _shares(self.label_counts)
        logs = np.log(np.where(shares > 0, shares, 1.0))
        return np.exp(-(shares * logs).sum(axis=1))

    def to_frame(self) -> "pd.DataFrame":
        """One row per client; classes are columns `class 0`, `class 1`, ..."""
        import pandas as pd

        columns = {
            "client": np.arange(self.num_clients),
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
            "malicious": self.malicious,
            "poisoned": self.poisoned,
            "noise_scale": self.noise_scale,
        }
        if self.label_counts is not None:
            columns["label_distance"] = self.label_distance
            columns["effective_classes"] = self.effective_classes
            for label, counts in enumerate(self.label_counts.T):
                columns[f"class {label}"] = counts
        return pd.DataFrame(columns)

    def summary(self) -> str:
        """One to three sentences: sizes, skew, and what else is unusual."""
        low, high = self.num_train.min(), self.num_train.max()
        sentences = [
            f"{self.name}: {_plural(self.num_clients, 'client')} with {self.used:,} of"
            f" {self.pool_size:,} examples, {low:,} to {high:,} each for training"
            f" (median {np.median(self.num_train):,.0f})."
        ]
        if self.skew is not None and self.effective_classes is not None:
            mean = np.nanmean(self.effective_classes)
            sentences.append(
                f"Label skew is {self.skew:.2f} (mean total variation), with"
                f" {mean:.1f} effective classes per client."
            )
        unusual = self._unusual()
        if unusual:
            text = "; ".join(unusual)
            sentences.append(f"{text[0].upper()}{text[1:]}.")
        return " ".join(sentences)

    def _unusual(self) -> list[str]:
        """Clauses about shared examples, noise and malicious clients."""
        clauses = []
        for leak, data in ((self.leak, "test"), (self.validation_leak, "validation")):
            if leak > 0:
                clauses.append(
                    f"{leak:.1%} of the {data} examples are training examples of"
                    " another client"
                )
        if self.noise_scale.any():
            low, high = self.noise_scale.min(), self.noise_scale.max()
            clauses.append(f"noise on inputs has std {low:.3g} to {high:.3g}")
        if self.malicious.any():
            clauses.append(
                f"{_plural(self.malicious.sum(), 'malicious client')} with"
                f" {_plural(self.poisoned.sum(), 'poisoned label')}"
            )
        return clauses

    def table(self, max_rows: int = 20) -> str:
        """The clients as plain ASCII text, one row each, with totals below.

        Args:
          max_rows: clients shown, the first ones.

        Returns:
          The lines. Up to 12 classes have a column each; of more classes, the four
          largest of each client are named as `class:count`.
        """
        shown = min(max_rows, self.num_clients)
        header = ["client", "train", "valid", "test"]
        sizes = np.stack([self.num_train, self.num_validation, self.num_test], axis=1)
        rows = [[str(i), *map(str, sizes[i])] for i in range(shown)]
        total = ["all", *map(str, sizes.sum(axis=0))]
        for title, values, text in self._optional_columns():
            header.append(title)
            total.append("")
            for i, row in enumerate(rows):
                row.append(text(values[i]))
        if self.label_counts is not None:
            counts = self.label_counts
            header += _class_header(counts.shape[1])
            total += _class_cells(counts.sum(axis=0))
            for i, row in enumerate(rows):
                row += _class_cells(counts[i])
        if shown < self.num_clients:
            rows.append(["...", f"{self.num_clients - shown} more clients"])
        return _aligned([header, *rows, total])

    def _optional_columns(self):
        """Title, values and format of the columns that few federations have."""
        if self.noise_scale.any():
            yield "noise", self.noise_scale, "{:.3g}".format
        if self.malicious.any():
            yield "malicious", self.malicious, lambda yes: "yes" if yes else ""
        if self.poisoned.any():
            yield "poisoned", self.poisoned, str


def describe(federation: core.Federation) -> PartitionStatistics:
    """Measures a federation; takes milliseconds, no input is read.

    Args:
      federation: whose three parts share one pool.

    Returns:
      The statistics, host arrays.
    """
    parts = (federation.train, federation.validation, federation.test)
    pairs = [_pairs(part) for part in parts]
    (client, row), validation, test = pairs
    pool_size = len(federation.train.y)
    num_clients = federation.num_clients
    y = np.asarray(federation.train.y)
    has_labels = federation.num_classes is not None and y.ndim == 1
    label_counts = None
    if federation.num_classes is not None and has_labels:
        slot = client * federation.num_classes + y[row]
        counts = np.bincount(slot, minlength=num_clients * federation.num_classes)
        label_counts = counts.reshape(num_clients, federation.num_classes)
    scale = federation.train.noise_scale
    return PartitionStatistics(
        name=federation.name,
        class_names=federation.class_names,
        **{
            f"num_{name}": np.bincount(owner, minlength=num_clients)
            for name, (owner, _) in zip(
                ("train", "validation", "test"), pairs, strict=True
            )
        },
        label_counts=label_counts,
        pool_size=pool_size,
        used=len(np.unique(np.concatenate([rows for _, rows in pairs]))),
        leak=_leak(pairs[0], test, pool_size),
        validation_leak=_leak(pairs[0], validation, pool_size),
        poisoned=_poisoned(federation.train, client, y[row], num_clients),
        noise_scale=np.zeros(num_clients) if scale is None else np.asarray(scale),
        malicious=np.asarray(federation.malicious),
        cluster=None if federation.cluster is None else np.asarray(federation.cluster),
    )


def _pairs(data: core.ClientData) -> tuple[np.ndarray, np.ndarray]:
    """Client and row of the pool `int64` of every example, padding left out."""
    is_real = _is_real(data)
    return np.nonzero(is_real)[0], np.asarray(data.index)[is_real].astype(np.int64)


def _is_real(data: core.ClientData) -> np.ndarray:
    """Mask `bool[N, M]` of what is not padding."""
    num_examples = np.asarray(data.num_examples)[:, None]
    return np.arange(data.index.shape[1]) < num_examples


def _leak(
    train: tuple[np.ndarray, np.ndarray],
    judged: tuple[np.ndarray, np.ndarray],
    pool_size: int,
) -> float:
    """Share of judged examples that are training examples of another client."""
    (client, row), (owner, judged_row) = train, judged
    if len(judged_row) == 0:
        return 0.0
    slots = np.unique(client * pool_size + row)  # each example of a client once
    holders = np.bincount(slots % pool_size, minlength=pool_size)
    own = np.isin(owner * pool_size + judged_row, slots)
    return float(np.mean(holders[judged_row] > own))


def _poisoned(
    data: core.ClientData, client: np.ndarray, truth: np.ndarray, num_clients: int
) -> np.ndarray:
    """Numbers `int[N]` of labels that are not the true ones."""
    if data.labels is None:
        return np.zeros(num_clients, np.int64)
    wrong = np.asarray(data.labels)[_is_real(data)] != truth
    return np.bincount(client[wrong], minlength=num_clients)


def _shares(counts: np.ndarray) -> np.ndarray:
    """Counts `[..., C]` divided by their sums; NaN where there is nothing."""
    total = counts.sum(axis=-1, keepdims=True)
    return counts / np.where(total > 0, total, np.nan)


def _plural(count: int, noun: str) -> str:
    """For example `1 client` or `1,000 clients`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _class_header(num_classes: int) -> list[str]:
    """Titles of the columns of classes."""
    if num_classes > _MAX_COLUMNS:
        return ["largest classes"]
    return [f"c{label}" for label in range(num_classes)]


def _class_cells(counts: np.ndarray) -> list[str]:
    """Counts of each class, or the largest ones in one cell."""
    if len(counts) <= _MAX_COLUMNS:
        return [str(count) if count else "." for count in counts]
    order = np.argsort(-counts, kind="stable")
    held = int((counts > 0).sum())
    cell = " ".join(f"{label}:{counts[label]}" for label in order[: min(held, _TOP)])
    return [cell + (f" +{held - _TOP}" if held > _TOP else "")]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Cells in columns: numbers to the right, the largest classes to the left."""
    num_columns = len(rows[0])
    full = [row for row in rows if len(row) == num_columns]
    widths = [max(len(row[k]) for row in full) for k in range(num_columns)]

    def line(row: Sequence[str]) -> str:
        if len(row) < num_columns:
            return "  ".join(cell.rjust(widths[0]) for cell in row)
        cells = [c.rjust(w) for c, w in zip(row, widths, strict=True)]
        if rows[0][-1] == "largest classes":
            cells[-1] = row[-1]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in rows)
