"""Sizes, classes and noise of the skewed partitions."""

import numpy as np
import pytest

from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data.partition import draws
from tests.data.test_partition import (
    all_rows,
    draw,
    is_exhaustive,
    label_counts,
    labelled,
)


def shares_of_lognormal(rng, sigma, count, total):
    """The definition: floor of the rest in proportion to lognormal draws."""
    values = rng.lognormal(0, sigma, count)
    return np.floor(values / values.sum() * total)


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_quantity_skew_moments(concentration):
    dataset, num_clients = labelled(2, 1000), 4
    partition = partitions.QuantitySkew(concentration=concentration, min_examples=1)
    shares = np.stack(
        [
            draw(partition, dataset, num_clients, seed).num_examples / 2000
            for seed in range(300)
        ]
    )
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    # Redraws until everyone has an example; the oracle does the same with NumPy's own.
    rng = np.random.default_rng(99)
    wanted = rng.dirichlet([concentration] * num_clients, 30_000)
    wanted = wanted[(wanted >= 1 / 2000).all(axis=1)]
    squares, expected = (shares**2).sum(axis=1), (wanted**2).sum(axis=1)
    error = 5 * squares.std() / np.sqrt(300) + 5 * expected.std() / np.sqrt(len(wanted))
    assert abs(squares.mean() - expected.mean()) < error + 2 / 2000


def test_quantity_skew_keeps_the_classes():
    dataset = labelled(4, 3000)
    parts = draw(partitions.QuantitySkew(concentration=5.0), dataset, 5)
    counts = label_counts(parts, dataset)
    sizes = counts.sum(axis=1, keepdims=True)
    assert np.abs(counts / sizes - 0.25).max() < 5 * np.sqrt(0.1875 / sizes.min())


def give_one_by_one(sizes, minimum):
    """The largest, the first of equals, gives one until nobody is below."""
    sizes = sizes.copy()
    for client in range(len(sizes)):
        while sizes[client] < minimum:
            sizes[sizes.argmax()] -= 1
            sizes[client] += 1
    return sizes


def test_repair_of_sizes_gives_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(300):
        count = rng.integers(1, 9)
        sizes = (rng.pareto(0.7, count) * 3).astype(np.int64) % 500
        minimum = sizes.sum() // count // rng.integers(1, 4)
        found = draws.raised(sizes, minimum)
        # Which of the givers at the last level has one more does not matter.
        wanted = give_one_by_one(sizes, minimum)
        np.testing.assert_array_equal(np.sort(found), np.sort(wanted))
        assert np.abs(found - wanted).max() <= 1
        assert (found[sizes < minimum] == minimum).all()


def test_pathological_blocks_are_five_blocks_of_twenty():
    dataset = labelled(10, 400)
    parts = draw(partitions.PathologicalBlocks(), dataset, 100)
    counts = label_counts(parts, dataset)
    block = np.arange(100) // 20
    for client in range(100):
        wanted = np.zeros(10)
        wanted[[2 * block[client], 2 * block[client] + 1]] = 20
        np.testing.assert_array_equal(counts[client], wanted)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5, 10])
def test_every_client_of_the_blocks_has_its_classes(num_classes):
    for k in range(1, num_classes + 1):
        for num_clients in (1, 2, 3, 4, 7, 10, 23):
            dataset = labelled(num_classes, num_clients)
            partition = partitions.PathologicalBlocks(
                labels_per_client=k, min_examples=1
            )
            held = label_counts(draw(partition, dataset, num_clients), dataset) > 0
            assert (held.sum(axis=1) == k).all()
            slots = held.sum(axis=0)
            assert slots.max() - slots.min() <= 1  # nearly equal numbers of slots


def test_blocks_without_equal_slots_by_hand():
    # 5 clients of 2 classes in 3 classes of 4, 3 and 3 slots: class 0 goes to the first
    # four, class 1 to client 4, who needs both that are left, and to the first two.
    dataset = labelled(3, 12)
    partition = partitions.PathologicalBlocks(min_examples=1)
    held = label_counts(draw(partition, dataset, 5), dataset) > 0
    wanted = [[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 1]]
    np.testing.assert_array_equal(held, wanted)


def test_unbalanced_blocks_have_uniform_parts():
    dataset = labelled(10, 4000)
    partition = partitions.PathologicalBlocks(unbalanced=True)
    counts = label_counts(draw(partition, dataset, 100), dataset)
    parts = counts[counts > 0]  # 20 parts of each class, n = 200: uniform in [20, 200)
    assert len(parts) == 200 and 20 <= parts.min() and parts.max() < 200
    assert abs(parts.mean() - 109.5) < 5 * 180 / np.sqrt(12 * 200)
    larger = partitions.PathologicalBlocks(unbalanced=True, min_examples=300)
    counts = label_counts(draw(larger, dataset, 100), dataset)
    assert counts.sum(axis=1).min() >= 300 and counts[counts > 0].min() >= 150
    full = partitions.PathologicalBlocks(unbalanced=True, min_examples=400)
    assert (draw(full, dataset, 100).num_examples == 400).all()


def test_power_law_classes_and_smallest_sizes():
    dataset = labelled(10, 300)
    partition = partitions.PowerLaw(labels_per_client=3, min_examples=11)
    counts = label_counts(draw(partition, dataset, 20), dataset)
    for client in range(20):
        slots = [(client + j) % 10 for j in range(3)]
        assert set(np.flatnonzero(counts[client])) == set(slots)
        assert (counts[client][slots] >= [4, 4, 3]).all()  # 11 over three classes
    # Six clients hold each class; each share of the rest is rounded down.
    assert ((counts.sum(axis=0) <= 300) & (counts.sum(axis=0) > 300 - 6)).all()


def test_power_law_without_spread_is_equal():
    dataset = labelled(5, 100)
    partition = partitions.PowerLaw(sigma=0.0)
    assert (draw(partition, dataset, 20).num_examples == 25).all()


@pytest.mark.parametrize("labels_per_client", [1, None])
def test_power_law_sizes_are_lognormal_shares(labels_per_client):
    dataset, sigma = labelled(1, 20_000), 1.0
    partition = partitions.PowerLaw(
        labels_per_client=labels_per_client, sigma=sigma, min_examples=5
    )
    sizes = np.stack(
        [draw(partition, dataset, 10, seed).num_examples for seed in range(200)]
    )
    assert sizes.min() >= 5
    rng = np.random.default_rng(5)
    wanted = np.stack(
        [5 + shares_of_lognormal(rng, sigma, 10, 20_000 - 50) for _ in range(4000)]
    )
    for quantity in (np.max, np.min, np.median):
        found, expected = quantity(sizes, axis=1), quantity(wanted, axis=1)
        error = 5 * expected.std() * np.sqrt(1 / 200 + 1 / 4000)
        assert abs(found.mean() - expected.mean()) < error


def test_quality_skew_noise_grows_and_parts_are_equal():
    dataset = labelled(4, 100)
    parts = draw(partitions.QualitySkew(), dataset, 10)
    np.testing.assert_allclose(parts.noise_scale, np.arange(10) / 100, rtol=1e-6)
    assert is_exhaustive(parts, 400) and set(parts.num_examples) == {40}
    assert not parts.resample_noise
    variance = draw(
        partitions.QualitySkew(noise_is_std=False, index_from=1, resample=True),
        dataset,
        10,
    )
    assert variance.noise_scale[-1] == pytest.approx(0.1**0.5)
    assert (np.diff(variance.noise_scale) > 0).all() and variance.resample_noise
    np.testing.assert_array_equal(variance.index, parts.index)


def test_quality_skew_in_file_order_has_blocks_of_classes():
    dataset = labelled(5, 20)
    partition = partitions.QualitySkew(in_file_order=True)
    parts = draw(partition, dataset, 5)
    np.testing.assert_array_equal(all_rows(parts), np.arange(100))
    shuffled = label_counts(draw(partitions.QualitySkew(), dataset, 5), dataset)
    assert (shuffled > 0).sum() > 15


@pytest.mark.parametrize("num_clients", [1, 2, 5, 10])
def test_hybrid_skew_has_two_halves(num_clients):
    dataset, labelled_clients = labelled(10, 1000), -(-num_clients // 2)
    partition = partitions.HybridSkew(concentration=1.0, min_examples=100)
    parts = draw(partition, dataset, num_clients)
    counts = label_counts(parts, dataset)
    first, second = counts[:labelled_clients], counts[labelled_clients:]
    assert ((first > 0).sum(axis=1) <= 2).all()
    # The pool is cut in the ratio of the halves, class by class.
    rest = 10_000 - first.sum() if num_clients == 1 else second.sum()
    assert second.sum() == 10 * (1000 - 1000 * labelled_clients // num_clients)
    if num_clients > 1:
        sizes = second.sum(axis=1, keepdims=True)
        assert sizes.min() >= 100 and rest == sizes.sum()
        error = 5 * np.sqrt(0.09 / sizes)  # the other half has all classes alike
        assert (np.abs(second / sizes - 0.1) < error).all()


def test_hybrid_skew_deals_shards_as_label_shards():
    # 5 label clients with 2 of 10 classes get one whole first half of a class per slot.
    dataset = labelled(10, 1000)
    counts = label_counts(draw(partitions.HybridSkew(), dataset, 10), dataset)
    assert (np.sort(counts[:5], axis=1)[:, -2:] == 500).all()
    assert (counts[:5].sum(axis=0) == 500).all()
