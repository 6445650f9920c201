"""Statistics of federations against counting by hand and by brute force."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl import core
from fedjax_pfl.data import statistics


def client_data(rows, y, **fields):
    """The given rows of the pool for each client, padded with rows that exist."""
    width = max(1, *map(len, rows))
    index = np.full((len(rows), width), len(y) - 1)
    for padded, own in zip(index, rows, strict=True):
        padded[: len(own)] = own
    return core.ClientData(
        x=np.zeros((len(y), 1)),
        y=np.asarray(y),
        scale=np.asarray(1.0),
        shift=np.asarray(0.0),
        index=np.asarray(index, np.int32),
        num_examples=np.asarray([len(own) for own in rows], np.int32),
        client_id=np.arange(len(rows), dtype=np.int32),
        **fields,
    )


def make(train, validation, test, y, num_classes=None, malicious=None, **fields):
    malicious = [False] * len(train) if malicious is None else malicious
    own = client_data(train, y, **fields)
    pool = {"x": own.x, "y": own.y}
    return core.Federation(
        train=own,
        validation=dataclasses.replace(client_data(validation, y), **pool),
        test=dataclasses.replace(client_data(test, y), **pool),
        malicious=np.asarray(malicious),
        num_classes=num_classes,
        name="own",
    )


def test_by_hand():
    y = np.asarray([0, 0, 1, 1, 2, 2, 0, 0])
    federation = make(
        train=[[0, 1, 2, 3], [4, 5, 0]],
        validation=[[], [2]],
        test=[[5, 0], [6]],
        y=y,
        num_classes=3,
        malicious=[False, True],
        labels=np.asarray([[0, 0, 1, 1], [1, 2, 1, 2]]),
        noise_scale=np.asarray([0.0, 0.5]),
    )
    found = statistics.describe(federation)
    assert found.num_train.tolist() == [4, 3] and found.num_test.tolist() == [2, 1]
    assert found.num_validation.tolist() == [0, 1]
    assert found.label_counts is not None
    assert found.label_counts.tolist() == [[2, 2, 0], [1, 0, 2]]
    assert (found.pool_size, found.used, found.num_clients) == (8, 7, 2)
    # Rows 5 and 0 of client 0 are training rows of client 1; row 6 is nobody's.
    assert found.leak == pytest.approx(2 / 3) and found.validation_leak == 1
    assert found.poisoned.tolist() == [0, 2]  # labels 1 and 1 instead of 2 and 0
    assert found.malicious.tolist() == [False, True]
    # Shares: (1/2, 1/2, 0), (1/3, 0, 2/3); together (3/7, 2/7, 2/7).
    np.testing.assert_allclose(found.label_distance, [2 / 7, 8 / 21])
    assert found.skew == pytest.approx((2 / 7 + 8 / 21) / 2)
    entropy = -(np.log(1 / 3) / 3 + 2 * np.log(2 / 3) / 3)
    np.testing.assert_allclose(found.effective_classes, [2, np.exp(entropy)])
    sentences = found.summary()
    assert "2 clients with 7 of 8 examples, 3 to 4 each for training" in sentences
    assert "66.7% of the test examples" in sentences
    assert "100.0% of the validation examples" in sentences
    assert "std 0 to 0.5" in sentences
    assert "1 malicious client with 2 poisoned labels" in sentences
    assert sentences.count(". ") == 2 and sentences.endswith(".")


ROWS = st.lists(st.sets(st.integers(0, 19)), min_size=4, max_size=4)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(train=ROWS, validation=ROWS, test=ROWS)
def test_leaks_against_brute_force(train, validation, test):
    y = np.arange(20) % 3
    train, validation, test = (
        [sorted(own) for own in rows] for rows in (train, validation, test)
    )
    found = statistics.describe(make(train, validation, test, y, num_classes=3))

    def leak(judged):
        hits = [
            any(row in train[j] for j in range(4) if j != i)
            for i in range(4)
            for row in judged[i]
        ]
        return np.mean(hits) if hits else 0.0

    assert found.leak == pytest.approx(leak(test))
    assert found.validation_leak == pytest.approx(leak(validation))
    everything = [*train, *validation, *test]
    assert found.used == len(set().union(*map(set, everything)))
    wanted = [[sum(y[row] == k for row in own) for k in range(3)] for own in train]
    assert found.label_counts is not None and found.label_counts.tolist() == wanted
    found.table()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(train=ROWS, validation=ROWS, test=ROWS, extra=st.integers(0, 5))
def test_examples_of_other_pools_are_other_examples(train, validation, test, extra):
    y, more = np.arange(20) % 3, np.zeros(20 + extra, int)
    train, validation, test = (
        [sorted(own) for own in rows] for rows in (train, validation, test)
    )
    shared = make(train, validation, test, y, num_classes=3)
    federation = dataclasses.replace(shared, test=client_data(test, more))
    found, before = statistics.describe(federation), statistics.describe(shared)
    assert found.leak == 0 and found.validation_leak == before.validation_leak
    assert found.pool_size == 40 + extra
    first = set().union(*map(set, [*train, *validation]))
    assert found.used == len(first) + len(set().union(*map(set, test)))
    np.testing.assert_array_equal(found.label_counts, before.label_counts)


def test_disjoint_clients_have_no_leak_and_equal_ones_no_skew():
    y = np.tile([0, 1], 10)
    rows = [list(range(i, i + 4)) for i in range(0, 20, 4)]
    federation = make(rows, [[]] * 5, rows, y, num_classes=2)
    found = statistics.describe(federation)
    assert (found.leak, found.validation_leak, found.skew) == (0, 0, 0)
    np.testing.assert_allclose(found.effective_classes, 2)
    assert "training examples of another" not in found.summary()


def test_an_example_that_a_client_trains_on_twice_is_its_own():
    federation = make([[0, 0], [1]], [[], []], [[0], []], np.zeros(2))
    assert statistics.describe(federation).leak == 0


def test_targets_that_are_not_classes():
    y = np.linspace(0, 1, 6)
    found = statistics.describe(make([[0, 1], [2]], [[], []], [[3], [4, 5]], y))
    assert found.label_counts is None and found.skew is None
    assert found.effective_classes is None and found.label_distance is None
    assert "skew" not in found.summary()
    lines = found.table().splitlines()
    assert lines[0].split() == ["client", "train", "valid", "test"]
    assert lines[-1].split() == ["all", "3", "0", "3"]
    assert "class 0" not in found.to_frame()


def test_table_shows_counts_of_few_classes_and_the_largest_of_many():
    y = np.arange(40) % 20
    rows = [list(range(20)), [0, 20, 1, 21, 2], [3, 4]]
    few = statistics.describe(make(rows, [[]] * 3, [[]] * 3, y % 4, num_classes=4))
    lines = few.table().splitlines()
    assert lines[0].split() == "client train valid test c0 c1 c2 c3".split()
    assert lines[2].split() == ["1", "5", "0", "0", "2", "2", "1", "."]
    assert lines[-1].split() == ["all", "27", "0", "0", "8", "7", "6", "6"]
    many = statistics.describe(make(rows, [[]] * 3, [[]] * 3, y, num_classes=20))
    lines = many.table().splitlines()
    assert lines[0].endswith("largest classes")
    assert lines[1].endswith("0:1 1:1 2:1 3:1 +16")
    assert lines[2].endswith("0:2 1:2 2:1")
    assert many.table().isascii() and not any(x != x.rstrip() for x in lines)


def test_table_names_noise_malicious_and_poisoned_only_where_there_are_any():
    y = np.zeros(4, np.int32)
    federation = make([[0], [1, 2]], [[], []], [[], [3]], y, num_classes=2)
    assert statistics.describe(federation).table().splitlines()[0].split() == (
        "client train valid test c0 c1".split()
    )
    train = dataclasses.replace(
        federation.train,
        noise_scale=np.asarray([0.25, 0.0]),
        labels=np.asarray([[0, 0], [1, 0]]),
    )
    corrupted = dataclasses.replace(
        federation, train=train, malicious=np.asarray([False, True])
    )
    lines = statistics.describe(corrupted).table().splitlines()
    assert lines[0].split()[4:7] == ["noise", "malicious", "poisoned"]
    assert lines[2].split()[4:7] == ["0", "yes", "1"]


def test_table_shows_the_first_rows():
    y = np.zeros(50, np.int32)
    rows = [[i] for i in range(50)]
    found = statistics.describe(make(rows, [[]] * 50, [[]] * 50, y, num_classes=1))
    lines = found.table(max_rows=3).splitlines()
    assert len(lines) == 1 + 3 + 1 + 1 and "47 more clients" in lines[4]
    assert len(found.table(max_rows=0).splitlines()) == 3
    assert len(found.table(max_rows=50).splitlines()) == 52


def test_frame_has_one_row_per_client():
    y = np.array([0, 1, 1, 0])
    found = statistics.describe(make([[0, 1], [2]], [[], []], [[3], []], y, 2))
    frame = found.to_frame()
    assert frame["class 1"].tolist() == [1, 1] and frame["test"].tolist() == [1, 0]
    assert frame["client"].tolist() == [0, 1]


def test_a_client_without_training_examples_does_not_count():
    y = np.array([0, 1])
    found = statistics.describe(make([[0, 1], []], [[], []], [[], []], y, 2))
    assert found.skew == 0 and np.isnan(found.effective_classes[1])
    assert "2.0 effective classes" in found.summary()


def test_a_thousand_clients_take_no_time():
    rng = np.random.default_rng(0)
    train = rng.integers(70_000, size=(1000, 60))
    rows = [np.unique(own) for own in train]
    y = rng.integers(10, size=70_000)
    federation = make(rows, rows, rows, y, num_classes=10)
    start = time.process_time()
    found = statistics.describe(federation)
    text = found.table() + found.summary()
    assert time.process_time() - start < 2  # measured: 0.05 s
    assert len(text) < 5000
