"""Training, validation and test rows, malicious and other clients, on the host."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_pfl.core import checks, texts
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions

__all__ = [
    "HALF",
    "client_names",
    "fixed_tests",
    "held_out_users",
    "in_order_of_values",
    "malicious_clients",
    "natural_names",
    "other_clients",
    "prepared",
    "sampled_tests",
    "split",
    "unseen_clients",
]

HALF = "half"
"""Number of other clients that stands for half of all clients, rounded up."""
_MAX_PREPARED = 16  # copies of one data set that are kept


def split(
    parts: partitions.Partition,
    dataset: datasets.Dataset,
    seed: int,
    validation_fraction: float,
    test_fraction: float,
    train_examples: int | None = None,
    stratify: bool = False,
) -> dict[str, partitions.Partition]:
    """Splits every client's rows into `train`, `validation` and `test`."""
    # Each example has a random rank from the seed; a client's examples in this order
    # are first test, then validation, then training examples. Hence neither the
    # partition nor another client changes the order, and splits of different fractions
    # are nested.
    slot = np.arange(parts.index.shape[1])
    padding = slot >= parts.num_examples[:, None]
    marks = None
    if dataset.part is not None:
        marks = np.where(padding, -1, dataset.part[parts.index])
    breaks = _breaks(dataset, marks, validation_fraction, test_fraction)
    num_usable = parts.num_examples - len(breaks) * dataset.gap
    if dataset.gap:
        _check_series(parts, dataset, num_usable - len(breaks))
    labels = _labels(parts, dataset)
    is_natural = natural_names(parts, dataset) is not None
    fractions = (validation_fraction, test_fraction)
    sizes = _sizes(num_usable, *fractions, marks, labels, is_natural)
    names, rng = list(sizes), datasets.generator(seed, datasets.Purpose.SPLIT)
    # An ordered data set keeps its order: training, validation, test, with a gap
    # between drawn parts.
    if dataset.ordered:
        names, rank = names[::-1], parts.index
    elif parts.leaky:
        # Ranks per client, as in published code: with common ranks, shared examples
        # would mostly be test examples of all their owners, which hides the leak.
        rank = rng.random(parts.index.shape)
    else:
        rank = rng.random(dataset.num_samples)[parts.index]
    if stratify:
        rank = _stratified(rank, parts, dataset, marks)
    # Given parts sort like `names`: test first or, in order of time, training first.
    group = np.zeros(1) if marks is None else marks if dataset.ordered else -marks
    keys = np.broadcast_arrays(rank, group, padding)
    order = np.take_along_axis(parts.index, np.lexsort(keys, axis=1), axis=1)
    start, rows = np.zeros((len(order), 1), np.int64), {}
    for name in names:
        end = start + sizes[name][:, None]
        members = order[(start <= slot) & (slot < end)]
        rows[name] = partitions.Partition.from_sizes(members, sizes[name])
        start = end + dataset.gap * (name in breaks)
    if train_examples is not None:
        rows["train"] = _subsample(rows["train"], dataset, train_examples)
    return rows


def _stratified(
    rank: np.ndarray,
    parts: partitions.Partition,
    dataset: datasets.Dataset,
    marks: np.ndarray | None,
) -> np.ndarray:
    """Spreads each class of a client evenly over the ranks `[N, M]`."""
    if dataset.num_classes is None or dataset.y.ndim != 1 or dataset.ordered:
        state = "in order of time" if dataset.ordered else "without classes"
        raise checks.InputError(
            "Expected one class label per example and no order of time with"
            f" {checks.setting('federation.stratify', True)}, got the data set"
            f" {dataset.name!r} {state}."
        )
    is_real = np.arange(parts.index.shape[1]) < parts.num_examples[:, None]
    owner, label = np.nonzero(is_real)[0], dataset.y[parts.index[is_real]]
    part = np.zeros_like(owner) if marks is None else marks[is_real]
    draws = rank[is_real]
    # The k-th of n examples gets the rank (k + u) / n, with one u in [0, 1) per client
    # and class: any stretch of ranks has its share of every class, to less than one.
    order = np.lexsort((draws, label, part, owner))
    position, size = datasets.positions(owner[order], part[order], label[order])
    smallest = draws[order][np.arange(len(order)) - position]
    # The smallest of n uniform draws becomes one such draw, of these examples alone.
    offset = 1 - (1 - smallest) ** size
    spread = np.empty(len(order))
    spread[order] = (position + offset) / size
    result = np.zeros_like(rank)
    result[is_real] = spread
    return result


def _breaks(
    dataset: datasets.Dataset,
    marks: np.ndarray | None,
    validation_fraction: float,
    test_fraction: float,
) -> tuple[str, ...]:
    """Returns the parts that a gap follows; parts of a given split have none."""
    if dataset.gap == 0 or (marks is not None and (marks == datasets.VALIDATION).any()):
        return ()
    drawn = (validation_fraction > 0) + (test_fraction > 0 and marks is None)
    return ("train", "validation")[:drawn]


def _check_series(
    parts: partitions.Partition, dataset: datasets.Dataset, num_train: np.ndarray
) -> None:
    """Refuses clients of several series, or too small for gaps (`int[N]`)."""
    if natural_names(parts, dataset) is None:
        raise checks.InputError(
            f"Expected the partition by_client for the series of {dataset.name!r}, as"
            " windows of several clients would share rows."
        )
    # `num_train` is without gaps and without one example of each other part.
    worst = int(np.argmin(num_train))
    if num_train[worst] < 1:
        least = int(parts.num_examples[num_train < 1].max()) + 1
        without = checks.setting("federation.partition.min_examples", least)
        raise checks.InputError(
            f"Client {_labels(parts, dataset)[worst]} has"
            f" {texts.counted(parts.num_examples[worst], 'example', ',')}, too few for"
            f" parts that are {dataset.gap} examples apart, as windows of"
            f" {dataset.gap} rows need; use a shorter window, or leave the client out"
            f" (by_client does with {without})."
        )


def in_order_of_values(dataset: datasets.Dataset) -> datasets.Dataset:
    """Sorts the examples of a data set in any order by their values."""
    return _sorted(dataset) if dataset.any_order else dataset


@datasets.derived
def _sorted(dataset: datasets.Dataset) -> datasets.Dataset:
    """Sorts examples by part and client, then by targets, then by inputs."""
    features, y = (v.reshape(len(v), -1) for v in (dataset.x, dataset.y))
    if (preparation := dataset.preparation) is not None:
        # Scaled numbers depend on the rounding of sums over rows in the order of the
        # file; raw ones do not.
        unscaled = np.delete(features, preparation.columns, axis=1)
        features = np.concatenate([unscaled, preparation.numbers], axis=1)
    marks = [m for m in (dataset.part, dataset.client) if m is not None]
    order = np.lexsort([*features.T, *y.T, *marks])
    return datasets.chosen(dataset, order)


def prepared(
    dataset: datasets.Dataset,
    parts: partitions.Partition,
    train: partitions.Partition,
    is_seen: np.ndarray,
) -> datasets.Dataset:
    """Scales a data set by the training rows of a split; `is_seen` is `bool[N]`."""
    preparation = dataset.preparation
    if preparation is None:
        return dataset
    is_own = preparation.scale == "client"
    if is_own and parts.leaky:
        raise checks.InputError(
            "Expected a partition without shared examples for"
            f" {checks.setting('federation.dataset.scale', 'client')}, got one"
            " with shared ones."
        )
    training = np.zeros(dataset.num_samples, bool)
    # With a scale per client, unseen clients are scaled by their own rows and change no
    # other.
    clients = np.flatnonzero(is_seen | is_own).tolist()
    training[np.concatenate([train.rows(client) for client in clients])] = True
    group = None
    if is_own:
        group = np.full(dataset.num_samples, len(parts.index), np.int64)
        is_real = np.arange(parts.index.shape[1]) < parts.num_examples[:, None]
        group[parts.index[is_real]] = np.nonzero(is_real)[0]
    rows = training.tobytes() + (b"" if group is None else group.tobytes())
    key = hashlib.sha256(rows).digest()
    # Specifications with the same training rows share one prepared copy.
    copies = _prepared(dataset)
    if key not in copies:
        if len(copies) == _MAX_PREPARED:
            del copies[next(iter(copies))]
        x = preparation.inputs(dataset.x, training, group)
        copies[key] = dataclasses.replace(dataset, x=x, preparation=None)
    return copies[key]


@datasets.derived
def _prepared(dataset: datasets.Dataset) -> dict[bytes, datasets.Dataset]:
    """Returns the prepared copies of a data set, by a digest of their training rows."""
    return {}


def malicious_clients(seed: int, num_clients: int, fraction: float) -> np.ndarray:
    """Draws a mask `bool[N]` of `round(fraction N)` clients, nested in `fraction`."""
    count = round(float(fraction) * num_clients)
    if count == num_clients:
        raise checks.InputError(
            f"Expected malicious_fraction to leave one of {num_clients} clients honest,"
            f" got {fraction}, which makes {count} of them malicious."
        )
    # The first clients of one permutation, so that larger fractions include smaller
    # ones.
    rng = datasets.generator(seed, datasets.Purpose.MALICIOUS)
    return np.isin(np.arange(num_clients), rng.permutation(num_clients)[:count])


def unseen_clients(
    seed: int,
    num_clients: int,
    fraction: float,
    names: Sequence[str] = (),
    number_of: Mapping[str, int] | None = None,
) -> np.ndarray:
    """Draws a mask `bool[N]` of clients, nested in `fraction`; adds named ones."""
    count = round(float(fraction) * num_clients)
    if fraction and not 0 < count < num_clients:
        raise checks.InputError(
            f"Expected unseen_fraction to leave some of {num_clients} clients unseen"
            f" and some for training, got {fraction}, which leaves {count} unseen."
        )
    rng = datasets.generator(seed, datasets.Purpose.UNSEEN)
    unseen = np.isin(np.arange(num_clients), rng.permutation(num_clients)[:count])
    # Named clients come after the draw, so that they do not change it.
    if not names:
        return unseen
    setting = checks.setting("federation.unseen_clients", tuple(names))
    if number_of is None:
        raise checks.InputError(
            f"Expected the natural clients of a data set (by_client) with {setting},"
            " got clients without names."
        )
    for name in names:
        checks.known(name, number_of, "client")
        unseen[number_of[name]] = True
    if unseen.all():
        raise checks.InputError(
            f"Expected {setting} to leave some of {num_clients} clients for training,"
            " got all of them."
        )
    return unseen


def natural_names(
    parts: partitions.Partition, dataset: datasets.Dataset
) -> dict[str, int] | None:
    """Returns the numbers of natural clients by name; None if there are none."""
    if parts.natural is None:
        return None
    # Clients without names are named by their number in the data set.
    names = client_names(parts, dataset) or map(str, parts.natural.tolist())
    return {name: client for client, name in enumerate(names)}


def client_names(
    parts: partitions.Partition, dataset: datasets.Dataset
) -> list[str] | None:
    """Returns the names of clients, or None if they have numbers only."""
    if parts.natural is None or dataset.client_names is None:
        return None
    return [dataset.client_names[number] for number in parts.natural]


def _labels(parts: partitions.Partition, dataset: datasets.Dataset) -> list[str]:
    """Returns the names of clients in messages, or else their numbers."""
    names = client_names(parts, dataset)
    return list(map(repr, range(len(parts.index)) if names is None else names))


@datasets.derived
def held_out_users(
    dataset: datasets.Dataset, fraction: float
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Divides a data set by natural clients, for pretraining and for a federation."""
    if dataset.client is None:
        raise checks.InputError(
            "Expected a data set with clients of its own to hold some of them out, got"
            f" {dataset.name!r}."
        )
    users = np.unique(dataset.client)
    count = round(float(fraction) * len(users))
    if not 0 < count < len(users):
        raise checks.InputError(
            f"Expected held_out_users to hold some of the {len(users)} users of"
            f" {dataset.name!r} out and to leave some, got {fraction}, which holds"
            f" {count} out."
        )
    # The draw has no seed: the same users are held out, whatever else is drawn, and
    # users of a smaller fraction are among the users of a larger one.
    rng = datasets.generator(0, datasets.Purpose.HELD_OUT)
    is_held = np.isin(dataset.client, rng.permutation(users)[:count])
    return datasets.chosen(dataset, is_held), datasets.chosen(dataset, ~is_held)


@datasets.derived
def fixed_tests(dataset: datasets.Dataset, fraction: float) -> datasets.Dataset:
    """Marks a share of every natural client's examples, or of all, as the test part."""
    if dataset.ordered or fraction == 0:
        given = checks.setting("federation.test_fraction", fraction)
        if dataset.ordered:
            given = f"the series {dataset.name!r}"
        raise checks.InputError(
            "Expected test examples that are drawn at random with"
            f" {checks.setting('federation.fixed_test_split', True)}, got {given}."
        )
    # Like the draw of held-out users, this one has no seed.
    rng = datasets.generator(0, datasets.Purpose.TESTS)
    draws = rng.random(dataset.num_samples)
    owner = np.zeros_like(draws) if dataset.client is None else dataset.client
    order = np.lexsort((draws, owner))
    position, size = datasets.positions(owner[order])
    is_test = position < np.maximum(_share(size, fraction), 1)
    part = np.full(len(order), datasets.TRAIN, np.int8)
    part[order[is_test]] = datasets.TEST
    return dataclasses.replace(dataset, part=part)


def other_clients(
    seed: int, num_clients: int, num_others: int | str
) -> np.ndarray | None:
    """Draws distinct other clients `int32[N, c]` for every client; None for c = 0."""
    if isinstance(num_others, str):
        # `half`: N/2 rounded up, and 0 for a single client.
        num_others = min(-(-num_clients // 2), num_clients - 1)
    if num_others == 0:
        return None
    if num_others > num_clients - 1:
        raise checks.InputError(
            f"Expected num_others to be at most {num_clients - 1}, the number of other"
            f" clients, got {num_others}."
        )
    peers = np.zeros((num_clients, num_others), np.int32)
    for client, row in enumerate(peers):
        rng = datasets.generator(seed, datasets.Purpose.OTHERS, client)
        row[:] = rng.choice(num_clients - 1, num_others, replace=False)
        row += row >= client  # everyone but the client itself
    return peers


def sampled_tests(
    seed: int, num_test: np.ndarray, peers: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Draws even samples of tests: owner and number, `int32[N, T, 2]` each."""
    count = len(num_test)
    owners = {"everybody": np.broadcast_to(np.arange(count), (count, count))}
    if peers is not None:
        owners["others"] = np.c_[np.arange(count), peers]
    # A sample is as large as the client's own test set; `others` includes the client
    # itself.
    samples = {}
    for number, (name, rows) in enumerate(sorted(owners.items())):
        samples[name] = np.zeros((count, max(1, num_test.max()), 2), np.int32)
        for client, row in enumerate(rows):
            rng = datasets.generator(seed, datasets.Purpose.SAMPLES, client, number)
            ends = np.cumsum(num_test[row])
            place = rng.choice(ends[-1], num_test[client], replace=False)
            owner = np.searchsorted(ends, place, side="right")
            number_of_owner = place - (ends - num_test[row])[owner]
            samples[name][client, : len(place)] = np.c_[row[owner], number_of_owner]
    return samples


def _subsample(
    train: partitions.Partition, dataset: datasets.Dataset, limit: int
) -> partitions.Partition:
    """Keeps the first rows of every client, in the proportions of its classes."""
    has_classes = dataset.num_classes is not None and dataset.y.ndim == 1
    samples = []
    for row, count in zip(train.index, train.num_examples.tolist(), strict=True):
        picks = row[:count]
        if count > limit and has_classes:
            # The k-th of n examples of a class has rank (k + 1/2) / n: the smallest
            # ranks give the shares of the largest classes, rounded.
            labels = dataset.y[picks]
            order = np.argsort(labels, kind="stable")
            position, size = datasets.positions(labels[order])
            rank = np.empty(count)
            rank[order] = (position + 0.5) / size
            picks = picks[np.sort(np.argsort(rank, kind="stable")[:limit])]
        samples.append(picks[:limit])
    return partitions.Partition.from_rows(samples)


def _share(counts: np.ndarray, fraction: float) -> np.ndarray:
    """Returns shares of counts, rounded down."""
    # 0.29 * 100 is 28.999999999999996 and must count as 29.
    return np.floor(counts * fraction + 1e-9).astype(np.int64)


def _sizes(
    num_examples: np.ndarray,
    validation_fraction: float,
    test_fraction: float,
    marks: np.ndarray | None,
    labels: Sequence[str],
    is_natural: bool,
) -> dict[str, np.ndarray]:
    """Returns the sizes `int[N]` of the parts; checks that no client lacks training."""
    num_drawn = num_examples
    if marks is None:
        test = np.maximum(_share(num_examples, test_fraction), test_fraction > 0)
    else:
        test = (marks == datasets.TEST).sum(axis=1)
        num_drawn = num_examples - test
    validation = _share(num_drawn, validation_fraction)
    if marks is not None and (marks == datasets.VALIDATION).any():
        validation = (marks == datasets.VALIDATION).sum(axis=1)
    elif validation_fraction > 0:
        # Of three examples or more one validates, if one is left for training.
        validates = (num_examples >= 3) & (num_examples - test >= 2)
        validation = np.maximum(validation, validates)
    train = num_examples - validation - test
    worst = int(np.argmin(train))
    if train[worst] < 1:
        has = f"Client {labels[worst]} has"
        has += f" {texts.counted(num_examples[worst], 'example', ',')}"
        if marks is not None:
            raise checks.InputError(
                f"{has}, and the given split leaves none of them for training; give it"
                " some, or leave it out."
            )
        use = "use fewer clients, smaller fractions or a partition with larger clients"
        if is_natural:
            least = int(num_examples[train < 1].max()) + 1
            leave_out = checks.setting("federation.partition.min_examples", least)
            use = "use smaller fractions, or leave it out (by_client does with"
            use += f" {leave_out})"
        raise checks.InputError(
            f"{has}, too few for its training, validation and test parts; {use}."
        )
    return {"test": test, "validation": validation, "train": train}
