"""The published partitions that share examples, and how many they share."""

import numpy as np

from fedjax_pfl.data import federation as federations
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data import statistics
from tests.data.test_partition import all_rows, draw, label_counts, labelled


def simulated_shares(num_clients, concentration):
    """Shares `[draws, N]` of a class, by NumPy's own sampler."""
    rng = np.random.default_rng(7)
    return rng.dirichlet([concentration] * num_clients, 20_000)


def by_others(shares, train=0.8):
    """Chance `[draws, N]` that another client trains on an example of the class."""
    missed = 1 - train * shares
    return 1 - np.prod(missed, axis=1, keepdims=True) / missed


def split(parts, num_samples, seed=0):
    """Masks `bool[N, S]` of training and test examples, 80 and 20 % of each client.

    Every client shuffles its own examples, as in the published code.
    """
    rng = np.random.default_rng(seed)
    train = np.zeros((len(parts.index), num_samples), bool)
    test = np.zeros_like(train)
    for client in range(len(train)):
        rows = rng.permutation(parts.rows(client))
        cut = len(rows) // 5
        test[client, rows[:cut]], train[client, rows[cut:]] = True, True
    return train, test


def taken(train):
    """Which examples `bool[N, S]` are training examples of another client."""
    return train.sum(axis=0) > train


def test_leaky_dirichlet_shares_what_the_specification_says():
    num_classes, per_class = 300, 300  # many classes: many independent shares
    dataset = labelled(num_classes, per_class)
    parts = draw(partitions.LeakyDirichletLabels(), dataset, 10)
    train, test = split(parts, dataset.num_samples)
    shares = simulated_shares(10, 0.5)
    rounding = 10 * 0.5 / per_class  # each of ten counts is rounded down

    def check(measured, of_class):
        error = 5 * of_class.std() / np.sqrt(num_classes)
        assert abs(measured - of_class.mean()) < error + rounding

    unused = np.prod(1 - shares, axis=1)
    assert round(unused.mean(), 2) == 0.31
    check(1 - (train | test).any(axis=0).mean(), unused)
    # The specification's 0.55 counts all pairs of client and class alike ...
    alike = by_others(shares).mean(axis=1)
    assert round(alike.mean(), 2) == 0.55
    check(taken(train).mean(), alike)
    # ... but clients have most test examples where others have least of the class.
    per_example = (shares * by_others(shares)).sum(axis=1)
    assert round(per_example.mean(), 2) == 0.48
    check(taken(train)[test].mean(), per_example)


def test_a_leaky_federation_has_the_leak():
    federation = federations.from_dataset(
        labelled(300, 300),
        partitions.LeakyDirichletLabels(),
        num_clients=10,
        validation_fraction=0.0,
        test_fraction=0.2,
    )
    assert federation.leaky
    assert abs(statistics.describe(federation).leak - 0.48) < 0.05


def test_leaky_dirichlet_counts_are_rounded_down_shares():
    dataset = labelled(3, 1000)
    parts = draw(partitions.LeakyDirichletLabels(), dataset, 5)
    counts = label_counts(parts, dataset)
    assert parts.leaky and (counts.sum(axis=0) <= 1000).all()
    assert (counts.sum(axis=0) > 1000 - 5).all()
    assert len(np.unique(all_rows(parts))) < counts.sum()


def test_leaky_quantities_are_drawn_from_the_whole_pool():
    dataset = labelled(4, 2500)
    partition = partitions.LeakyQuantitySkew(concentration=1.0)
    parts = draw(partition, dataset, 4)
    sizes = parts.num_examples
    assert parts.leaky and sizes.min() >= 100
    assert 10_000 - 4 < sizes.sum() <= 10_000 + 4 * 100
    first, second = set(parts.rows(0)), set(parts.rows(1))
    # Independent draws: the overlap is hypergeometric.
    mean = len(first) * len(second) / 10_000
    assert abs(len(first & second) - mean) < 5 * np.sqrt(mean)


def test_leaky_hybrid_shares_what_the_specification_says():
    dataset = labelled(10, 300)
    by_client = np.zeros((40, 10))
    for seed in range(40):
        parts = draw(partitions.LeakyHybridSkew(min_examples=10), dataset, 10, seed)
        train, test = split(parts, 3000, seed)
        by_client[seed] = (taken(train) & test).sum(axis=1) / test.sum(axis=1)
    shares = simulated_shares(5, 0.5)
    labelled_clients = 1 - np.prod(1 - 0.8 * shares, axis=1)
    sized_clients = 1 - 0.2 * (1 - by_others(shares))  # 0.8 of all is with the former
    for found, wanted, said in (
        (by_client[:, :5], labelled_clients, 0.63),
        (by_client[:, 5:], sized_clients, 0.91),
    ):
        assert round(wanted.mean(), 2) == said
        error = 5 * found.mean(axis=1).std() / np.sqrt(40)
        assert abs(found.mean() - wanted.mean()) < error + 0.01  # for the smallest ones


def test_leaky_hybrid_deals_complete_classes():
    dataset = labelled(10, 50)
    parts = draw(partitions.LeakyHybridSkew(), dataset, 10)
    counts = label_counts(parts, dataset)[:5]
    assert (np.sort(counts, axis=1)[:, -2:] == 50).all() and counts.sum() == 500
    alone = draw(partitions.LeakyHybridSkew(), dataset, 1)
    assert len(alone.index) == 1
