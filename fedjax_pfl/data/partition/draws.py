"""Random draws that several partitions share."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets

__all__ = [
    "MAX_DRAWS",
    "class_rows",
    "dirichlet",
    "dirichlet_sizes",
    "fill",
    "lognormal",
    "lognormal_sizes",
    "raised",
    "require_classes",
    "require_examples",
    "require_labels",
    "shuffled_classes",
]

MAX_DRAWS = 100


def require_labels(name: str, dataset: datasets.Dataset) -> int:
    """Returns the number of classes; refuses data without one label per example."""
    if dataset.num_classes is None or dataset.y.ndim != 1:
        raise checks.InputError(
            f"Partition {name!r} needs one class label per example, which data set"
            f" {dataset.name!r} does not have; use 'iid' or 'by_client'."
        )
    return dataset.num_classes


def require_classes(
    labels_per_client: int, classes: Sequence[np.ndarray], dataset_name: str
) -> None:
    """Checks that there are as many classes as a client holds."""
    if labels_per_client > len(classes):
        raise checks.InputError(
            f"Expected labels_per_client to be at most {len(classes)}, the number of"
            f" classes of {dataset_name}, got {labels_per_client}."
        )


def require_examples(
    name: str,
    dataset: datasets.Dataset,
    classes: Sequence[np.ndarray],
    needed: Sequence[int],
    *,
    advice: str = "fewer clients or a smaller min_examples",
) -> None:
    """Checks that every class has enough examples for the clients that hold it."""
    for label, (rows, count) in enumerate(zip(classes, needed, strict=True)):
        if len(rows) < count:
            raise checks.InputError(
                f"Partition {name!r} needs at least {count} examples of class {label}"
                f" of {dataset.name}, got {len(rows)}; use {advice}."
            )


def class_rows(
    name: str, dataset: datasets.Dataset, rows: np.ndarray | None = None
) -> list[np.ndarray]:
    """Rows of each class, in the order of `rows` or else of the file."""
    num_classes = require_labels(name, dataset)
    rows = np.arange(dataset.num_samples) if rows is None else rows
    by_class = rows[np.argsort(dataset.y[rows], kind="stable")]
    sizes = np.bincount(dataset.y[rows], minlength=num_classes)
    return np.split(by_class, np.cumsum(sizes)[:-1])


def shuffled_classes(
    rng: np.random.Generator, name: str, dataset: datasets.Dataset
) -> list[np.ndarray]:
    """Rows of each class, shuffled."""
    require_labels(name, dataset)
    return class_rows(name, dataset, rng.permutation(dataset.num_samples))


def dirichlet(
    rng: np.random.Generator, concentration: float, shape: tuple[int, int]
) -> np.ndarray:
    """Symmetric Dirichlet rows, by logarithms of Gamma variates.

    With small concentrations the variates themselves underflow and rows become 0 / 0;
    here they tend to a single 1. (Gamma(a) equals Gamma(a + 1) * U^(1/a) in
    distribution.)
    """
    a = max(concentration, 1e-300)  # the division below must not overflow
    logs = (
        np.log(rng.standard_gamma(a + 1, shape)) - rng.standard_exponential(shape) / a
    )
    return _shares(logs)


def lognormal(rng: np.random.Generator, sigma: float, count: int) -> np.ndarray:
    """Shares `[count]` in proportion to lognormal variates of scale `sigma`."""
    # A huge sigma makes a single share of 1 instead of inf / inf.
    return _shares(min(sigma, 1e300) * rng.standard_normal((1, count)))[0]


def lognormal_sizes(
    rng: np.random.Generator, mean: float, sigma: float, count: int
) -> np.ndarray:
    """Whole numbers `int[count]`, `lognormal(mean, sigma)` variates rounded down.

    Above `exp(40)`, more than any data set has examples, they stay there.
    """
    logs = mean + min(sigma, 1e300) * rng.standard_normal(count)
    return np.floor(np.exp(np.minimum(logs, 40.0))).astype(np.int64)


def _shares(logs: np.ndarray) -> np.ndarray:
    """Rows proportional to the exponentials, of sum 1."""
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def dirichlet_sizes(
    rng: np.random.Generator,
    concentration: float,
    total: int,
    num_clients: int,
    min_examples: int,
) -> np.ndarray:
    """Sizes `int[N]` of sum `total` in proportions `Dir_N(concentration)`.

    Redrawn while one is below the minimum, 100 times at most; then the largest give.
    """
    sizes = np.zeros(num_clients, np.int64)
    for _ in range(MAX_DRAWS):
        cumulative = np.cumsum(dirichlet(rng, concentration, (1, num_clients))[0])
        cuts = np.floor(cumulative / cumulative[-1] * total).astype(np.int64)
        sizes = np.diff(cuts, prepend=0)
        if sizes.min() >= min_examples:
            return sizes
    return raised(sizes, min_examples)


def raised(sizes: np.ndarray, minimum: int) -> np.ndarray:
    """The sizes `int[N]`, those below a minimum raised to it at the largest's cost.

    Giving one at a time, the largest first, ends with a common level of the givers. The
    sum must be at least N times the minimum.
    """
    missing = np.maximum(minimum - sizes, 0).sum()
    low, high = minimum, int(sizes.max())  # levels that give enough, and too little
    while high - low > 1:
        level = (low + high) // 2
        enough = np.maximum(sizes - level, 0).sum() >= missing
        low, high = (level, high) if enough else (low, level)
    new = np.clip(sizes, minimum, max(low, minimum))
    surplus = sizes.sum() - new.sum()  # at most one of each giver
    new[np.flatnonzero(sizes > low)[:surplus]] += 1
    return new


def fill(
    rng: np.random.Generator, clients: list[np.ndarray], min_examples: int
) -> list[Any]:
    """Moves random examples, one by one, from the largest clients to those below."""
    if min(map(len, clients)) >= min_examples:
        return clients
    rows = [rng.permutation(client).tolist() for client in clients]
    largest = [(-len(client), i) for i, client in enumerate(rows)]
    heapq.heapify(largest)
    for client in rows:
        while len(client) < min_examples:
            # Receivers never exceed the minimum, so the first entry is up to date; it
            # is above the minimum because another client is below.
            donor = largest[0][1]
            client.append(rows[donor].pop())
            heapq.heapreplace(largest, (-len(rows[donor]), donor))
    return rows
