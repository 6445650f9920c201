"""Stratified splits, and clients that are named as unseen."""

import dataclasses

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import splits
from tests.data import samples
from tests.data.samples import PARTS

NUM_CLIENTS = 6


def data(seed=0, **changes):
    """Clients of different sizes and mixes of four classes, mixed."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(30, 90, NUM_CLIENTS)
    shares = rng.dirichlet(np.ones(4), NUM_CLIENTS)
    y = np.concatenate(
        [rng.choice(4, n, p=p) for n, p in zip(sizes, shares, strict=True)]
    )
    order = rng.permutation(len(y))
    fields = {
        "name": "mixes",
        "x": np.arange(len(y), dtype=np.float32)[:, None],
        "y": y[order],
        "num_classes": 4,
        "client": datasets.owners(sizes)[order],
        "client_names": tuple("abcdef"),
    }
    return datasets.Dataset(**fields | changes)


def cut(dataset, validation=0.1, test=0.2, seed=0, **options):
    parts = fp.ByClient()(np.random.default_rng(0), dataset, None)
    return splits.split(parts, dataset, seed, validation, test, **options)


@pytest.mark.parametrize("fractions", [(0.1, 0.2), (0.25, 0.25), (0.0, 0.5)])
def test_parts_have_the_classes_of_their_client_in_proportion(fractions):
    dataset = data()
    rows = cut(dataset, *fractions, stratify=True)
    for client in range(NUM_CLIENTS):
        own = [rows[part].rows(client) for part in PARTS]
        whole = np.flatnonzero(dataset.client == client)
        assert sorted(np.concatenate(own)) == whole.tolist()
        total = np.bincount(dataset.y[whole], minlength=4)
        for part in own:
            wanted = total * len(part) / len(whole)
            counts = np.bincount(dataset.y[part], minlength=4)
            # Each of two ends is off by less than one, and by its tie of two classes.
            assert np.abs(counts - wanted).max() < 2
    drawn = cut(dataset, *fractions)
    assert [drawn[p].num_examples.tolist() for p in PARTS] == [
        rows[p].num_examples.tolist() for p in PARTS
    ]


def test_proportions_are_exact_where_they_can_be():
    y = np.repeat([0, 1, 2], [10, 40, 50])
    rng = np.random.default_rng(0)
    for seed in range(20):
        order = rng.permutation(100)
        client = np.zeros(100, int)
        dataset = datasets.Dataset(
            name="m", x=np.zeros((100, 1)), y=y[order], num_classes=3, client=client
        )
        rows = cut(dataset, 0.1, 0.2, seed, stratify=True)
        counts = [np.bincount(dataset.y[rows[p].rows(0)]).tolist() for p in PARTS]
        assert counts == [[7, 28, 35], [1, 4, 5], [2, 8, 10]]


def test_splits_are_nested_and_depend_on_own_examples_alone():
    dataset = data()
    small, large = (cut(dataset, 0.0, f, stratify=True)["test"] for f in (0.2, 0.4))
    for client in range(NUM_CLIENTS):
        assert set(small.rows(client)) < set(large.rows(client))
    again = cut(dataset, 0.0, 0.2, stratify=True)["test"]
    np.testing.assert_array_equal(small.index, again.index)
    other = cut(dataset, 0.0, 0.2, seed=1, stratify=True)["test"]
    assert not np.array_equal(small.index, other.index)
    is_other = (dataset.client == 5) & (dataset.y == 0)
    changed = dataclasses.replace(dataset, y=np.where(is_other, 3, dataset.y))
    moved = cut(changed, 0.0, 0.2, stratify=True)["test"]
    for client in range(5):
        np.testing.assert_array_equal(moved.rows(client), small.rows(client))


def test_rare_classes_are_now_and_then_tested():
    """One of ten examples is in the test part of a fifth in a fifth of the draws."""
    y, client = np.repeat([0, 1], [9, 1]), np.zeros(10, int)
    dataset = datasets.Dataset(
        name="m", x=np.zeros((10, 1)), y=y, num_classes=2, client=client
    )
    tested = [
        9 in cut(dataset, 0.0, 0.2, seed, stratify=True)["test"].rows(0)
        for seed in range(400)
    ]
    # Five standard deviations of a share of 400 draws.
    assert abs(np.mean(tested) - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 400)


def test_a_given_test_part_is_kept_and_validation_is_stratified():
    dataset = data()
    part = np.where(np.arange(dataset.num_samples) % 4 == 0, 2, 0)
    dataset = dataclasses.replace(dataset, part=part)
    rows = cut(dataset, 0.3, stratify=True)
    for client in range(NUM_CLIENTS):
        assert (part[rows["test"].rows(client)] == 2).all()
        own = [dataset.y[rows[name].rows(client)] for name in PARTS[:2]]
        counts = [np.bincount(y, minlength=4) for y in own]
        wanted = sum(counts) * len(own[1]) / sum(map(len, own))
        assert np.abs(counts[1] - wanted).max() < 2


@pytest.mark.parametrize("changes", [{"ordered": True}, {"num_classes": None}])
def test_data_that_cannot_be_stratified(changes):
    dataset = data(**changes)
    sentence = samples.refusal(cut, dataset, stratify=True)
    assert "stratify=True" in sentence and "'mixes'" in sentence


def build(**options):
    return fp.data.from_dataset(data(), fp.ByClient(), num_clients=None, **options)


def test_unseen_clients_may_be_named():
    whole = build()
    federation = build(unseen_clients=("e", "b"))
    assert federation.num_clients == 4 and federation.unseen.num_clients == 2
    kept = [whole.train.rows()["num_examples"][k].item() for k in (0, 2, 3, 5)]
    assert federation.train.num_examples.tolist() == kept
    found, everybody = (samples.inputs(f.test) for f in (federation.unseen, whole))
    for own, client in zip(found, (1, 4), strict=True):
        np.testing.assert_array_equal(own, everybody[client])
    both = build(unseen_clients=("e", "b"), unseen_fraction=0.34)
    assert both.unseen.num_clients in (2, 3, 4)
    drawn = build(unseen_fraction=0.34)
    assert drawn.unseen.num_clients == 2


def test_clients_without_names_have_their_numbers():
    dataset = data(client=data().client * 10, client_names=None)
    federation = fp.data.from_dataset(
        dataset, fp.ByClient(), num_clients=None, unseen_clients=("40",)
    )
    assert federation.unseen.num_clients == 1


def test_new_fields_leave_configurations_as_they_were():
    spec = fp.FederationSpec()
    assert not {"stratify", "unseen_clients"} & spec.describe().keys()
    spec = fp.FederationSpec(stratify=True, unseen_clients=("a",))
    assert spec.describe()["stratify"] is True
    assert spec.describe()["unseen_clients"] == ["a"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"unseen_clients": ("g",)}, "Unknown client 'g'; allowed: a, b, c, d, e, f."),
        ({"unseen_clients": tuple("abcdef")}, "got all of them"),
        ({"unseen_clients": "a"}, "unseen_clients to be a tuple"),
        ({"unseen_clients": (1,)}, "unseen_clients to be a tuple"),
        ({"stratify": 1}, "stratify to be true or false"),
    ],
)
def test_wrong_options(options, part):
    assert part in samples.refusal(build, **options)


def test_drawn_clients_have_no_names():
    recipe = fp.FederationSpec("digits", num_clients=4, unseen_clients=("a",))
    assert "got clients without names" in samples.refusal(recipe.build)
