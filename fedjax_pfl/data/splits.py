"""Training, validation and test rows of every client (NumPy, on the host)."""

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions

__all__ = [
    "check_fractions",
    "check_others",
    "malicious_clients",
    "other_clients",
    "sampled_tests",
    "split",
]

HALF = "half"
"""In place of a number of other clients: half of all clients, rounded up."""


def check_fractions(malicious: float, validation: float, test: float) -> None:
    """Checks the ranges of the three fractions and that training examples remain.

    Args:
      malicious: in [0, 1].
      validation: in [0, 1).
      test: in [0, 1).

    Raises:
      InputError: if one is out of range.
    """
    checks.number("malicious_fraction", malicious, at_least=0, at_most=1)
    checks.number("validation_fraction", validation, at_least=0, below=1)
    checks.number("test_fraction", test, at_least=0, below=1)
    if validation + test >= 1:
        raise checks.InputError(
            "Expected validation_fraction + test_fraction to be below 1, got"
            f" {validation} + {test}."
        )


def split(
    parts: partitions.Partition,
    dataset: datasets.Dataset,
    seed: int,
    validation_fraction: float,
    test_fraction: float,
    train_examples: int | None = None,
) -> dict[str, partitions.Partition]:
    """Cuts every client's rows into three.

    Each example has a random rank drawn from the seed; a client's examples in this
    order are first test, then validation, then training examples. Hence neither the
    partition nor another client changes the order, and splits of different fractions
    are nested. Clients of a leaky partition draw ranks of their own, as in published
    code; with common ranks what they share would mostly be test examples for all of
    them, and hide the leak. Where the data set is ordered, its order is kept instead:
    training, validation, test.

    Args:
      parts: the partition.
      dataset: whose rows they are.
      seed: of the ranks.
      validation_fraction: rounded down per client.
      test_fraction: rounded down per client, but at least one example unless 0.
      train_examples: training examples that a client keeps at most, or None for all;
        where there are classes, in their proportions among its training examples.

    Returns:
      Rows by `train`, `validation` and `test`.

    Raises:
      InputError: if a client is left without a training example.
    """
    sizes = _sizes(parts.num_examples, validation_fraction, test_fraction)
    _require_training(parts.num_examples, sizes["train"])
    names = ("test", "validation", "train")
    order = _shuffled(parts, seed, dataset.num_samples)
    if dataset.ordered:
        names, order = names[::-1], _sorted(parts, parts.index)
    start, found = np.zeros_like(sizes["train"]), {}
    for name in names:
        found[name] = partitions.Partition(
            _window(order, start, sizes[name]), sizes[name].astype(np.int32)
        )
        start = start + sizes[name]
    if train_examples is not None:
        found["train"] = _kept(found["train"], dataset, train_examples)
    return found


def malicious_clients(seed: int, num_clients: int, fraction: float) -> np.ndarray:
    """Mask `bool[N]` of `round(fraction N)` clients; more of them keep the others.

    Args:
      seed: of the draw.
      num_clients: N.
      fraction: share of malicious clients.

    Raises:
      InputError: if nobody would be honest, whom attacks and metrics are about.
    """
    count = round(float(fraction) * num_clients)
    if count == num_clients:
        raise checks.InputError(
            f"Expected malicious_fraction to leave one of {num_clients} clients honest,"
            f" got {fraction}, which makes {count} of them malicious."
        )
    rng = datasets.generator(seed, datasets.Purpose.MALICIOUS)
    chosen = rng.permutation(num_clients)[:count]
    return np.isin(np.arange(num_clients), chosen)


def check_others(num_others: int | str) -> None:
    """Checks a number of other clients, which may also be `half`.

    Args:
      num_others: c.

    Raises:
      InputError: if it is neither.
    """
    if isinstance(num_others, str):
        checks.known(num_others, (HALF,), "number of other clients")
    else:
        checks.whole("num_others", num_others, at_least=0)


def other_clients(
    seed: int, num_clients: int, num_others: int | str
) -> np.ndarray | None:
    """Distinct other clients of every client, drawn evenly.

    Args:
      seed: of the draws.
      num_clients: N.
      num_others: c, or `half` for `ceil(N / 2)`, of a client alone 0.

    Returns:
      `int32[N, c]`, or None for c = 0.

    Raises:
      InputError: if there are not so many other clients.
    """
    check_others(num_others)
    if isinstance(num_others, str):
        num_others = min(-(-num_clients // 2), num_clients - 1)
    if num_others == 0:
        return None
    if num_others > num_clients - 1:
        raise checks.InputError(
            f"Expected num_others to be at most {num_clients - 1}, the other clients"
            f" that there are, got {num_others}."
        )
    found = np.zeros((num_clients, num_others), np.int32)
    for client, row in enumerate(found):
        rng = datasets.generator(seed, datasets.Purpose.OTHERS, client)
        row[:] = rng.choice(num_clients - 1, num_others, replace=False)
        row += row >= client  # everyone but the client itself
    return found


def sampled_tests(
    seed: int, num_test: np.ndarray, others: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Even samples, without replacement, of the test examples of several clients.

    Each is as large as the client's own test set. Its draws are the client's own.

    Args:
      seed: of the draws.
      num_test: `int[N]` test examples of the clients.
      others: `int32[N, c]` other clients, or None.

    Returns:
      By `everybody` and, where there are others, `others` (the client's own examples
      and theirs): `int32[N, T, 2]` the owner of each example and its number among the
      owner's test examples; zeros beyond the client's own number.
    """
    count = len(num_test)
    owners = {"everybody": np.broadcast_to(np.arange(count), (count, count))}
    if others is not None:
        owners["others"] = np.c_[np.arange(count), others]
    found = {}
    for number, (name, rows) in enumerate(sorted(owners.items())):
        found[name] = np.zeros((count, max(1, num_test.max()), 2), np.int32)
        for client, row in enumerate(rows):
            rng = datasets.generator(seed, datasets.Purpose.SAMPLES, client, number)
            ends = np.cumsum(num_test[row])
            drawn = rng.choice(ends[-1], num_test[client], replace=False)
            owner = np.searchsorted(ends, drawn, side="right")
            position = drawn - (ends - num_test[row])[owner]
            found[name][client, : len(drawn)] = np.c_[row[owner], position]
    return found


def _kept(
    train: partitions.Partition, dataset: datasets.Dataset, limit: int
) -> partitions.Partition:
    """Returns the first rows of every client, in the proportions of its classes."""
    has_classes = dataset.num_classes is not None and dataset.y.ndim == 1
    kept = []
    for row, count in zip(train.index, train.num_examples.tolist(), strict=True):
        own = row[:count]
        if count > limit and has_classes:
            # The k-th of n examples of a class has rank (k + 1/2) / n: the smallest
            # ranks are those of the largest classes' shares, rounded.
            labels = dataset.y[own]
            order = np.argsort(labels, kind="stable")
            sizes = np.bincount(labels)
            number = np.empty(count, np.int64)  # within its class
            number[order] = np.concatenate([np.arange(n) for n in sizes])
            rank = (number + 0.5) / sizes[labels]
            own = own[np.sort(np.argsort(rank, kind="stable")[:limit])]
        kept.append(own[:limit])
    return partitions.Partition.from_rows(kept)


def _sizes(
    num_examples: np.ndarray, validation_fraction: float, test_fraction: float
) -> dict[str, np.ndarray]:
    """Numbers `int[N]` of examples in each part."""

    def share(fraction: float) -> np.ndarray:
        # 0.29 * 100 is 28.999999999999996 and must count as 29.
        return np.floor(num_examples * fraction + 1e-9).astype(np.int64)

    test = np.maximum(share(test_fraction), test_fraction > 0)
    validation = share(validation_fraction)
    train = num_examples - validation - test
    return {"train": train, "validation": validation, "test": test}


def _require_training(num_examples: np.ndarray, num_train: np.ndarray) -> None:
    """Checks that every client has a training example."""
    worst = int(np.argmin(num_train))
    if num_train[worst] < 1:
        raise checks.InputError(
            f"Client {worst} has {num_examples[worst]} examples, too few for its"
            " training, validation and test parts; use fewer clients, smaller fractions"
            " or a partition with larger clients (by_client leaves out those below its"
            " min_examples)."
        )


def _shuffled(parts: partitions.Partition, seed: int, num_samples: int) -> np.ndarray:
    """Returns the index `int32[N, M]` with every client's own rows in random order."""
    rng = datasets.generator(seed, datasets.Purpose.SPLIT)
    if parts.leaky:
        return _sorted(parts, rng.random(parts.index.shape))
    return _sorted(parts, rng.random(num_samples)[parts.index])


def _sorted(parts: partitions.Partition, rank: np.ndarray) -> np.ndarray:
    """Returns the index with every client's own rows by rank `[N, M]`, padding last."""
    padding = np.arange(parts.index.shape[1]) >= parts.num_examples[:, None]
    order = np.argsort(np.where(padding, np.inf, rank), axis=1, kind="stable")
    return np.take_along_axis(parts.index, order, axis=1)


def _window(order: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Entries `start_i .. start_i + count_i - 1` of each row, padded with zeros."""
    offset = np.arange(max(1, count.max()))
    position = np.minimum(start[:, None] + offset, order.shape[1] - 1)
    rows = np.take_along_axis(order, position, axis=1)
    return np.where(offset < count[:, None], rows, 0).astype(np.int32)
