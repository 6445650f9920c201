import dataclasses

import numpy as np
import pytest

from fedjax_pfl import data
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data import sources
from fedjax_pfl.data.partition import draws
from tests.data import samples


def labelled(num_classes, per_class):
    """Classes of equal size, in file order."""
    y = np.repeat(np.arange(num_classes), per_class)
    return datasets.Dataset(
        name="labelled", x=y[:, None] * 1.0, y=y, num_classes=num_classes
    )


def draw(partition, dataset, num_clients, seed=0):
    parts = partition(np.random.default_rng(seed), dataset, num_clients)
    num_clients = len(parts.index) if num_clients is None else num_clients
    parts.validate(dataset.num_samples, num_clients)
    assert parts.index.dtype == np.int32 and parts.num_examples.dtype == np.int32
    assert parts.index.shape == (num_clients, parts.num_examples.max())
    padding = np.arange(parts.index.shape[1]) >= parts.num_examples[:, None]
    assert (parts.index[padding] == 0).all()
    return parts


def all_rows(parts):
    return np.concatenate([parts.rows(i) for i in range(len(parts.index))])


def is_exhaustive(parts, num_samples):
    return np.array_equal(np.sort(all_rows(parts)), np.arange(num_samples))


def label_counts(parts, dataset):
    """Examples `[N, C]` of each client and class."""
    return np.stack(
        [
            np.bincount(dataset.y[parts.rows(i)], minlength=dataset.num_classes)
            for i in range(len(parts.index))
        ]
    )


@pytest.mark.parametrize("name", sorted(partitions.PARTITIONS))
def test_partitions_are_functions_of_the_seed(name):
    y = np.arange(3000) % 10
    dataset = datasets.Dataset(
        name="own", x=y * 1.0, y=y, num_classes=10, client=np.arange(3000) // 100
    )
    partition = partitions.PARTITIONS[name]()
    parts, again, other = (draw(partition, dataset, 6, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(parts.index, again.index)
    is_random = name != "feature_skew"  # which groups natural clients in file order
    assert np.array_equal(all_rows(parts), all_rows(other)) != is_random


@pytest.mark.parametrize("num_clients", [1, 7, 100, 1797])
def test_iid_sizes_differ_by_one(num_clients):
    digits = sources.load_dataset("digits")
    parts = draw(partitions.IID(), digits, num_clients)
    assert is_exhaustive(parts, 1797)
    assert set(parts.num_examples) <= {1797 // num_clients, 1797 // num_clients + 1}


def test_iid_clients_have_the_mixture_of_the_pool():
    dataset = labelled(4, 4000)
    shares = label_counts(draw(partitions.IID(), dataset, 8), dataset) / 2000
    assert np.abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 10.0])
def test_dirichlet_moments(concentration):
    dataset, num_clients = labelled(400, 200), 5
    partition = partitions.DirichletLabels(concentration=concentration, min_examples=1)
    parts = draw(partition, dataset, num_clients)
    assert is_exhaustive(parts, dataset.num_samples)
    shares = label_counts(parts, dataset).T / 200  # [C, N], one draw per class
    # sum_i E[p_i^2] = (a + 1) / (N a + 1); cutting at whole samples moves a share by at
    # most 1 / 200, and the 400 classes are independent.
    squares = (shares**2).sum(axis=1)
    expected = (concentration + 1) / (num_clients * concentration + 1)
    error = 5 * squares.std() / np.sqrt(400) + 2 / 200
    assert abs(squares.mean() - expected) < error
    deviation = np.abs(shares.mean(axis=0) - 1 / num_clients)
    assert (deviation < 5 * shares.std(axis=0) / np.sqrt(400) + 1 / 200).all()


def test_dirichlet_repair_takes_from_the_largest_only():
    dataset = labelled(2, 500)
    partition = partitions.DirichletLabels(concentration=1e-9, min_examples=10)
    counts = np.sort(draw(partition, dataset, 20).num_examples)
    # One or two clients draw everything; 18 or 19 others are raised to the minimum.
    assert (counts[:18] == 10).all() and counts[18:].sum() == 1000 - 180


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_repair_keeps_to_the_classes_of_a_client(seed):
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(200, draws.dirichlet(rng, 0.2, (1, 12))[0], size=4)
    filled = draws.filled(rng, counts, 10, 0.2)
    np.testing.assert_array_equal(filled.sum(axis=1), counts.sum(axis=1))
    sizes, before = filled.sum(axis=0), counts.sum(axis=0)
    assert sizes.min() >= 10
    np.testing.assert_array_equal(sizes[before < 10], 10)
    assert (filled >= counts)[:, before < 10].all()
    assert (filled <= counts)[:, before >= 10].all()
    for own, new in zip(counts.T, filled.T, strict=True):
        if 0 < own.sum() < 10:
            # Whole examples of ten in its proportions; there are enough of each class.
            assert np.abs(new - 10 * own / own.sum()).max() <= 1
    large = counts[:, before >= 10]
    np.testing.assert_array_equal(draws.filled(rng, large, 10, 0.2), large)


@pytest.mark.parametrize("kind", ["DirichletLabels", "LeakyDirichletLabels"])
def test_a_smaller_concentration_never_makes_clients_more_alike(kind):
    """Whatever is moved to reach the minimum; moved examples are counted."""
    dataset, skews = labelled(10, 180), []
    for concentration in (0.3, 0.1, 0.01, 0.003, 1e-9):
        partition = getattr(partitions, kind)(concentration=concentration)
        found = []
        for seed in range(3):
            parts = draw(partition, dataset, 60, seed)
            shares = label_counts(parts, dataset) / parts.num_examples[:, None]
            found.append(np.abs(shares - 0.1).sum(axis=1).mean() / 2)
            assert (parts.num_examples[parts.extra_examples > 0] == 10).all()
            assert parts.extra_examples.max() <= 10
            assert parts.extra_examples.any() or concentration == 0.3
        skews.append(np.mean(found))
    # Three draws of sixty clients: their means differ by about 0.01.
    assert (np.diff(skews) > -0.03).all(), skews
    assert skews[-1] > 0.8


def test_tiny_concentration_gives_whole_classes():
    dataset = labelled(50, 30)
    partition = partitions.DirichletLabels(concentration=1e-5, min_examples=1)
    counts = label_counts(draw(partition, dataset, 3), dataset)
    assert (counts.max(axis=0) == 30).all()


def test_a_client_without_a_share_gets_no_sample_by_rounding(monkeypatch):
    shares = np.array([[0.1] * 10 + [0.0], [0.0] * 10 + [1.0]])
    assert np.cumsum(shares[0])[-1] < 1
    monkeypatch.setattr(draws, "dirichlet", lambda *_: shares)
    dataset = labelled(2, 1000)
    parts = draw(partitions.DirichletLabels(), dataset, 11)
    assert label_counts(parts, dataset)[10].tolist() == [0, 1000]


def test_label_shards_are_equal_and_pure():
    dataset = labelled(10, 20)
    parts = draw(partitions.LabelShards(), dataset, 10)
    counts = label_counts(parts, dataset)
    assert is_exhaustive(parts, 200) and (parts.num_examples == 20).all()
    assert set(np.unique(counts)) <= {0, 10, 20}


def test_label_shards_repeat_a_class_as_often_as_they_should():
    dataset = labelled(10, 2)
    repeats = [
        (label_counts(draw(partitions.LabelShards(), dataset, 10, seed), dataset) == 2)
        .any(axis=1)
        .sum()
        for seed in range(300)
    ]
    # The second of two shards is the other shard of the first one's class: 1 of 19.
    error = 5 * np.std(repeats) / np.sqrt(300)
    assert abs(np.mean(repeats) - 10 / 19) < error


@pytest.mark.parametrize("num_classes", [2, 3, 5, 7])
def test_distinct_labels_always_exist(num_classes):
    for labels_per_client in range(1, num_classes + 1):
        for num_clients in (1, 2, 3, 8, 11):
            dataset = labelled(num_classes, num_clients)
            partition = partitions.LabelShards(
                labels_per_client=labels_per_client, distinct_labels=True
            )
            counts = label_counts(draw(partition, dataset, num_clients), dataset)
            assert ((counts > 0).sum(axis=1) == labels_per_client).all()


def test_distinct_labels_vary_between_clients():
    dataset = labelled(10, 100)
    partition = partitions.LabelShards(labels_per_client=6, distinct_labels=True)
    counts = label_counts(draw(partition, dataset, 50), dataset)
    assert ((counts > 0).sum(axis=1) == 6).all()
    assert len(np.unique(counts > 0, axis=0)) > 25


@pytest.mark.parametrize("labels_per_client", range(2, 7))
def test_left_over_shards_of_medical_mnist(labels_per_client):
    per_class = 4 * 5 * 7 * 9  # every number of shards divides it
    num_shards, left_over = {
        2: (24, 4),
        3: (30, 0),
        4: (42, 2),
        5: (54, 4),
        6: (60, 0),
    }[labels_per_client]
    dataset = labelled(6, per_class)
    partition = partitions.LabelShards(labels_per_client=labels_per_client)
    parts = draw(partition, dataset, 10)
    shard = 6 * per_class // num_shards
    assert parts.num_examples.sum() == 6 * per_class - left_over * shard
    assert (parts.num_examples == labels_per_client * shard).all()


def test_shards_in_file_order_are_runs_of_the_file():
    y = np.tile(np.arange(3), 8)  # class k is in the rows k, k + 3, k + 6, ...
    dataset = datasets.Dataset(name="own", x=y * 1.0, y=y, num_classes=3)
    partition = partitions.LabelShards(labels_per_client=1, in_file_order=True)
    parts = draw(partition, dataset, 6)
    runs = {tuple(parts.rows(i)) for i in range(6)}
    assert runs == {
        tuple(range(k + start, k + start + 12, 3))
        for k in range(3)
        for start in (0, 12)
    }
    shuffled = draw(partitions.LabelShards(labels_per_client=1), dataset, 6)
    assert {tuple(shuffled.rows(i)) for i in range(6)} != runs


@pytest.mark.parametrize(
    ("index", "fields", "sentence"),
    [
        ([[0, 1]], {"num_examples": [2]}, "over 2 clients, got index of shape"),
        ([[0, 1], [2, 3]], {"num_examples": [2]}, "over 2 clients, got index of shape"),
        ([[0, 1], [2, 3]], {"num_examples": [2, 3]}, "num_examples .* from 0 to 2"),
        ([[0, 1], [2, 3]], {"num_examples": [2, -1]}, "num_examples .* from 0 to 2"),
        ([[0, 1], [2, 4]], {}, "rows of a partition from 0 to 3, .* 0 to 4"),
        ([[0, -1], [2, 3]], {}, "rows of a partition from 0 to 3, .* -1 to 3"),
        ([[0, 1], [1, 3]], {}, "disjoint clients, got row 1 2 times"),
        ([[0, 1], [2, 2]], {"leaky": True}, "row 2 2 times in client 1"),
        ([[0], [1]], {"noise_scale": [0.1]}, r"shape \(2,\), got \(1,\)"),
        ([[0], [1]], {"noise_scale": [0.1, -0.2]}, "at least 0"),
        ([[0], [1]], {"noise_scale": [0.1, np.nan]}, "finite"),
        ([[0, 1], [1, 0]], {"leaky": True}, None),
    ],
)
def test_validation(index, fields, sentence):
    index = np.array(index)
    fields = {"num_examples": np.full(2, index.shape[1])} | {
        name: np.array(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    parts = partitions.Partition(index, **fields)
    if sentence is None:
        parts.validate(num_samples=4, num_clients=2)
    else:
        samples.refusal(parts.validate, num_samples=4, num_clients=2, match=sentence)


def test_padding_is_not_validated():
    index = np.array([[0, 99], [1, 0]])
    partitions.Partition(index, np.array([1, 1])).validate(4, 2)


def test_registry():
    for name, kind in partitions.PARTITIONS.items():
        assert kind.name == name and dataclasses.replace(kind()) == kind()
        assert isinstance(hash(kind()), int)
        assert getattr(data, kind.__name__) is kind
