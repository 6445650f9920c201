"""Statistics of a federation: sizes, classes, shared examples, noise."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.core.texts import counted

if TYPE_CHECKING:  # slow to import, and needed by tables only
    import pandas as pd

__all__ = ["PartitionStatistics", "describe"]

_MAX_COLUMNS = 12  # classes that have a column of their own in a table
_TOP = 4  # classes that are named where there are more
_LARGEST = "largest classes"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PartitionStatistics:
    """Properties of a federation that need no training.

    Attributes:
      name: name of the data set.
      class_names: C names, or None.
      client_names: N names, or None.
      num_train: `int[N]` training examples.
      num_validation: `int[N]`.
      num_test: `int[N]`.
      label_counts: `int[N, C]` training examples by true class, or None where targets
        are not classes.
      pool_size: S; of parts with pools of their own, of all of these together.
      used: examples of the pool that some client has.
      leak: share of all test examples, summed over clients, that are in the pool
        among another client's training examples; 0 if there are none, or if test
        examples have a pool of their own.
      validation_leak: the same of validation examples.
      poisoned: `int[N]` training labels that are not the true ones.
      noise_scale: `[N]` standard deviation of the noise on scaled inputs; 0 for none.
      malicious: `bool[N]`.
      cluster: `int[N]` known cluster of each client, or None.
      extra_examples: `int[N]` examples that each client got beyond its draw.
      notes: sentences about how the data were made of their files.
    """

    name: str
    class_names: tuple[str, ...] | None
    client_names: tuple[str, ...] | None
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
    extra_examples: np.ndarray
    notes: tuple[str, ...] = ()

    __post_init__ = struct.check_fields

    __repr__ = struct.array_repr

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.num_train)

    @property
    def label_distance(self) -> np.ndarray | None:
        """Total-variation distances `[N]` to the federation's label distribution.

        From 0 (the classes of all clients together) to 1; NaN for a client without
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
        """Returns one row per client; classes are columns `class 0`, `class 1`, ...

        There is a column `name` where clients have names.
        """
        import pandas as pd

        columns = {
            "client": np.arange(self.num_clients),
            **({} if self.client_names is None else {"name": self.client_names}),
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
            "malicious": self.malicious,
            "poisoned": self.poisoned,
            "noise_scale": self.noise_scale,
            "extra_examples": self.extra_examples,
        }
        if self.label_counts is not None:
            columns["label_distance"] = self.label_distance
            columns["effective_classes"] = self.effective_classes
            for label, counts in enumerate(self.label_counts.T):
                columns[f"class {label}"] = counts
        return pd.DataFrame(columns)

    def summary(self) -> str:
        """Describes sizes, skew, missing values and corruption in a few sentences."""
        low, high = self.num_train.min(), self.num_train.max()
        sentences = [
            f"{self.name}: {counted(self.num_clients, 'client', ',')} with"
            f" {self.used:,} of {self.pool_size:,} examples, {low:,} to {high:,} each"
            f" for training (median {np.median(self.num_train):,.0f})."
        ]
        if self.skew is not None and self.effective_classes is not None:
            mean = np.nanmean(self.effective_classes)
            sentences.append(
                f"Label skew is {self.skew:.2f} (mean total variation), with"
                f" {mean:.1f} effective classes per client."
            )
        sentences += [f"{note}." for note in self.notes]
        # Sizes and skew always appear, the clauses below only if they are not zero.
        clauses = []
        if self.extra_examples.any():
            few = counted(int((self.extra_examples > 0).sum()), "client", ",")
            extra = counted(self.extra_examples.sum(), "example", ",")
            clauses.append(f"{extra} moved to {few} whose draw was below min_examples")
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
                f"{counted(self.malicious.sum(), 'malicious client', ',')} with"
                f" {counted(self.poisoned.sum(), 'poisoned label', ',')}"
            )
        if clauses:
            text = "; ".join(clauses)
            sentences.append(f"{text[0].upper()}{text[1:]}.")
        return " ".join(sentences)

    def table(self, max_rows: int = 20) -> str:
        """Formats the clients as plain ASCII text, one row each, with totals below.

        Args:
          max_rows: clients shown, the first ones.

        Returns:
          The lines. Up to 12 classes have a column each; of more classes, the four
          largest of each client are named as `class:count`.
        """
        num_rows = min(max_rows, self.num_clients)
        columns = []

        def add(title: str, values: Iterable[Any], total: Any = "") -> None:
            cells = [title, *map(str, list(values)[:num_rows]), str(total)]
            # The largest classes end a line; other columns are aligned to the right.
            width = 0 if title == _LARGEST else max(map(len, cells))
            columns.append([cell.rjust(width) for cell in cells])

        add("client", range(num_rows), "all")
        if self.client_names is not None:
            add("name", self.client_names)
        add("train", self.num_train, self.num_train.sum())
        add("valid", self.num_validation, self.num_validation.sum())
        add("test", self.num_test, self.num_test.sum())
        if self.noise_scale.any():
            add("noise", [f"{std:.3g}" for std in self.noise_scale])
        if self.malicious.any():
            add("malicious", np.where(self.malicious, "yes", ""))
        if self.poisoned.any():
            add("poisoned", self.poisoned)
        if self.extra_examples.any():
            add("extra_examples", self.extra_examples, self.extra_examples.sum())
        if self.label_counts is not None:
            totals = self.label_counts.sum(axis=0)
            if len(totals) > _MAX_COLUMNS:
                add(_LARGEST, map(_largest, self.label_counts), _largest(totals))
            else:
                for label, counts in enumerate(self.label_counts.T):
                    add(f"c{label}", [n or "." for n in counts], totals[label] or ".")
        table = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        if num_rows < self.num_clients:
            table.insert(-1, f"   ...  {self.num_clients - num_rows} more clients")
        return "\n".join(table)


@struct.checked_call
def describe(federation: core.Federation) -> PartitionStatistics:
    """Measures a federation; takes milliseconds, no input is read.

    Args:
      federation: its three parts share one pool, or have others. Examples of pools
        that are not the same array are different ones.

    Returns:
      The statistics, host arrays.
    """
    parts = (federation.train, federation.validation, federation.test)
    # Parts with pools of their own get separate ranges of row numbers, so that no
    # example counts twice.
    sizes = {id(part.x): part.x.shape[0] for part in parts}
    ends = np.cumsum([0, *sizes.values()]).tolist()
    firsts = dict(zip(sizes, ends, strict=False))  # that of the training pool is 0
    train, validation, test = pairs = [_pairs(p, firsts[id(p.x)]) for p in parts]
    (client, row), num_clients = train, federation.num_clients
    num_examples = [np.asarray(part.num_examples, np.int64) for part in parts]
    y = np.asarray(federation.train.y)
    label_counts = None
    if federation.num_classes is not None and y.ndim == 1:
        label_counts = np.zeros((num_clients, federation.num_classes), np.int64)
        np.add.at(label_counts, (client, y[row]), 1)
    labels, scale = federation.train.labels, federation.train.noise_scale
    poisoned = np.zeros(num_clients, np.int64)
    if labels is not None:
        wrong = np.asarray(labels)[_is_real(federation.train)] != y[row]
        np.add.at(poisoned, client[wrong], 1)
    return PartitionStatistics(
        name=federation.name,
        class_names=federation.class_names,
        client_names=federation.client_names,
        num_train=num_examples[0],
        num_validation=num_examples[1],
        num_test=num_examples[2],
        label_counts=label_counts,
        pool_size=ends[-1],
        used=len(np.unique(np.concatenate([rows for _, rows in pairs]))),
        leak=_leak(train, test, ends[-1]),
        validation_leak=_leak(train, validation, ends[-1]),
        poisoned=poisoned,
        noise_scale=np.zeros(num_clients) if scale is None else np.asarray(scale),
        malicious=np.asarray(federation.malicious),
        cluster=None if federation.cluster is None else np.asarray(federation.cluster),
        extra_examples=np.zeros(num_clients, np.int64)
        if federation.extra_examples is None
        else np.asarray(federation.extra_examples),
        notes=federation.notes,
    )


def _pairs(data: core.ClientData, base: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns client and row `int64` of every example; rows count from `base`."""
    is_real = _is_real(data)
    row = np.asarray(data.index)[is_real].astype(np.int64)
    return np.nonzero(is_real)[0], base + row


def _is_real(data: core.ClientData) -> np.ndarray:
    """Returns a mask `bool[N, M]` without padding."""
    num_examples = np.asarray(data.num_examples)[:, None]
    return np.arange(data.index.shape[1]) < num_examples


def _leak(
    train: tuple[np.ndarray, np.ndarray],
    judged: tuple[np.ndarray, np.ndarray],
    pool_size: int,
) -> float:
    """Returns the share of judged examples that another client trains on."""
    (client, row), (owner, judged_row) = train, judged
    if len(judged_row) == 0:
        return 0.0
    slots = np.unique(client * pool_size + row)  # each example of a client once
    holders = np.bincount(slots % pool_size, minlength=pool_size)
    # An example that only its owner trains on is no leak.
    is_owner = np.isin(owner * pool_size + judged_row, slots)
    return float(np.mean(holders[judged_row] > is_owner))


def _shares(counts: np.ndarray) -> np.ndarray:
    """Divides counts `[..., C]` by their sums; NaN if the sum is 0."""
    total = counts.sum(axis=-1, keepdims=True)
    return counts / np.where(total > 0, total, np.nan)


def _largest(counts: np.ndarray) -> str:
    """Names the classes with most examples as `class:count`, and counts the others."""
    order = np.argsort(-counts, kind="stable")
    present = int((counts > 0).sum())
    cell = " ".join(f"{label}:{counts[label]}" for label in order[: min(present, _TOP)])
    return cell + (f" +{present - _TOP}" if present > _TOP else "")
