"""Windows of classes: who holds what, how much, and what happens at the end."""

import warnings

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data import statistics
from fedjax_pfl.data.partition import draws
from tests.data.test_partition import all_rows, draw, label_counts, labelled


@pytest.mark.parametrize("labels_per_client", [1, 3, 5, 10])
def test_every_client_holds_its_window_of_classes(labels_per_client):
    dataset = labelled(10, 3000)
    partition = partitions.ClassWindows(labels_per_client=labels_per_client)
    counts = label_counts(draw(partition, dataset, 33), dataset)
    for client in range(33):
        window = sorted((client + j) % 10 for j in range(labels_per_client))
        assert np.flatnonzero(counts[client]).tolist() == window
        assert np.ptp(counts[client][window]) <= 1  # evenly


def test_small_clients_get_the_minimum_of_every_class():
    dataset = labelled(10, 200)
    tiny = partitions.ClassWindows(mean=-50.0, extra=0, min_per_class=3)
    counts = label_counts(draw(tiny, dataset, 20), dataset)
    assert set(np.unique(counts)) == {0, 3} and (counts.sum(axis=1) == 15).all()
    # extra is added once per client: 5 over three classes are 2, 2 and 1.
    some = partitions.ClassWindows(
        mean=-50.0, extra=5, min_per_class=1, labels_per_client=3
    )
    counts = label_counts(draw(some, dataset, 1), dataset)
    assert counts[0].tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 0, 0]


def test_sizes_are_lognormal_and_extra():
    dataset = labelled(10, 30_000)
    partition = partitions.ClassWindows(min_per_class=1)
    sizes = draw(partition, dataset, 2000).num_examples
    assert sizes.min() >= 5
    rng = np.random.default_rng(3)
    wanted = rng.lognormal(4.0, 1.0, 200_000).astype(int) + 5
    # The distance of the two distributions is below 1.95 / sqrt(n) in 999 of 1000
    # draws (Kolmogorov and Smirnov).
    levels = np.arange(5, 3000)
    found, expected = (
        np.searchsorted(np.sort(x), levels, side="right") / len(x)
        for x in (sizes, wanted)
    )
    assert np.abs(found - expected).max() < 1.95 * np.sqrt(1 / 2000 + 1 / 200_000)
    # A standard error of the mean of n draws is std / sqrt(n).
    assert abs(sizes.mean() - wanted.mean()) < 5 * wanted.std() / np.sqrt(2000)


def test_lognormal_sizes_without_spread_are_rounded_down():
    rng = np.random.default_rng(0)
    for mean, size in ((0.0, 1), (4.0, 54), (-1.0, 0), (1e308, int(np.exp(40.0)))):
        assert draws.lognormal_sizes(rng, mean, 0.0, 2).tolist() == [size, size]


@pytest.fixture(scope="module")
def shared():
    """Fifty clients of 54 + 6 = 60 examples, of ten classes of a hundred."""
    dataset = labelled(10, 100)
    partition = partitions.ClassWindows(sigma=0.0, extra=6)
    with pytest.warns(
        UserWarning, match="'class_windows' wants 300 .* has 100"
    ) as caught:
        parts = draw(partition, dataset, 50)
    return dataset, partition, parts, caught


def test_a_class_that_is_used_up_starts_over(shared):
    dataset, _, parts, caught = shared
    (warning,) = caught
    sentence = str(warning.message)
    assert sentence.endswith(".") and "\n" not in sentence
    assert "10 of its classes have too few" in sentence and "share" in sentence
    assert parts.leaky and (parts.num_examples == 60).all()
    for client in range(50):
        rows = parts.rows(client)
        assert len(np.unique(rows)) == len(rows)
    # Every class is dealt three times over, always in the same order.
    times = np.bincount(all_rows(parts), minlength=1000)
    assert (times == 3).all()
    rows = all_rows(parts)
    for label in range(10):
        dealt = rows[dataset.y[rows] == label].reshape(3, 100)
        assert (dealt == dealt[0]).all()
        assert dealt[0].tolist() != sorted(dealt[0])


def test_no_client_has_more_of_a_class_than_there_is():
    dataset = labelled(4, 7)
    partition = partitions.ClassWindows(labels_per_client=2, mean=1e308)
    with pytest.warns(UserWarning, match="wants"):
        parts = draw(partition, dataset, 4)
    assert (parts.num_examples == 14).all() and parts.leaky
    with warnings.catch_warnings():  # one client per class: nobody shares
        warnings.simplefilter("error")
        alone = draw(
            partitions.ClassWindows(labels_per_client=1, mean=1e308), dataset, 4
        )
    assert (alone.num_examples == 7).all() and not alone.leaky


def test_a_federation_says_what_is_shared(shared):
    dataset, partition, _, _ = shared
    with pytest.warns(UserWarning, match="wants"):
        federation = fp.data.from_dataset(dataset, partition, num_clients=50)
    assert federation.leaky and statistics.describe(federation).leak > 0.5
    enough = fp.data.from_dataset(dataset, partition, num_clients=10)
    assert not enough.leaky and statistics.describe(enough).leak == 0
