"""A split that data come with is the split of the federation."""

import json

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.sources import user
from tests.data import samples, test_user_images
from tests.data.samples import PARTS

NUM_CLIENTS, NUM_TRAIN, NUM_TEST = 4, 9, 3
RNG = np.random.default_rng(0)


def marked(num_train=NUM_TRAIN, num_test=NUM_TEST):
    """Inputs whose first column is 1 for test examples, labels and owners, mixed."""
    each = np.r_[np.zeros(num_train), np.ones(num_test)]
    mark = np.tile(each, NUM_CLIENTS)
    owner = np.repeat([f"site {k}" for k in range(NUM_CLIENTS)], len(each))
    order = RNG.permutation(len(mark))
    x = np.c_[mark, np.arange(len(mark))][order].astype(np.float32)
    return x, (np.arange(len(mark)) % 2)[order], owner[order]


def marks(federation):
    """First inputs of every client's examples, by part."""
    return {
        name: [own[:, 0] for own in samples.inputs(getattr(federation, name))]
        for name in PARTS
    }


def check_kept(federation, num_validation=None):
    found = marks(federation)
    assert all((own == 1).all() and len(own) == NUM_TEST for own in found["test"])
    both = [
        np.r_[a, b] for a, b in zip(found["train"], found["validation"], strict=True)
    ]
    assert all((own == 0).all() and len(own) == NUM_TRAIN for own in both)
    if num_validation is not None:
        assert [len(own) for own in found["validation"]] == [num_validation] * 4


@pytest.mark.parametrize("validation_fraction", [0.0, 0.1, 0.5])
def test_validation_examples_are_drawn_from_the_training_part(validation_fraction):
    x, y, owner = marked()
    options = {"validation_fraction": validation_fraction, "test_fraction": 0.4}
    mask = x[:, 0] == 1
    kept = fp.Federation.from_arrays(x, y, owner, test=mask, **options)
    check_kept(kept, {0.0: 0, 0.1: 1, 0.5: 4}[validation_fraction])
    test = (x[mask], y[mask], owner[mask])
    again = fp.Federation.from_arrays(x[~mask], y[~mask], owner[~mask], test=test)
    check_kept(again)


def test_examples_without_clients_keep_their_part_when_they_are_distributed():
    x, y, _ = marked()
    mask = x[:, 0] == 1
    federation = fp.Federation.from_arrays(
        x[~mask], y[~mask], test=(x[mask], y[mask]), num_clients=3
    )
    found = marks(federation)
    assert np.concatenate(found["test"]).tolist() == [1] * mask.sum()
    assert not np.concatenate(found["train"] + found["validation"]).any()


def test_the_order_of_time_is_kept_within_parts():
    part = np.array([0, 0, 2, 0, 0, 2, 0, 2])
    data = fp.data.Dataset(
        name="hours",
        x=np.arange(8.0)[:, None],
        y=np.arange(8) % 2,
        num_classes=2,
        client=np.zeros(8, int),
        part=part,
        ordered=True,
    )
    federation = fp.data.from_dataset(
        data, fp.ByClient(), num_clients=None, validation_fraction=0.4
    )
    found = {name: own[0].tolist() for name, own in marks(federation).items()}
    assert found == {"train": [0, 1, 3], "validation": [4, 6], "test": [2, 5, 7]}


def test_a_column_names_the_part(tmp_path):
    x, y, owner = marked()
    words = np.where(x[:, 0] == 1, "Test", "train")
    rows = [
        f"{o},{w},{a},{b},{c}"
        for o, w, (a, b), c in zip(owner, words, x, y, strict=True)
    ]
    path = tmp_path / "sites.csv"
    path.write_text("\n".join(["site,part,a,b,y", *rows]))
    source = user.Csv(path=path, label="y", client="site", split="part", scaling="none")
    check_kept(fp.FederationSpec(source, fp.ByClient(), num_clients=None).build())
    path.write_text("\n".join(["site,part,a,b,y", *rows, "site 0,holdout,1,2,0"]))
    samples.refusal(
        lambda: user.source_for(str(path), "y", "site", split="part").load(
            data_dir=None, seed=0, num_clients=None
        ),
        match="train, validation or test .*holdout",
    )


def test_a_given_validation_part_is_kept(tmp_path):
    x, y, owner = marked()
    codes = np.where(x[:, 0] == 1, datasets.TEST, datasets.TRAIN)
    for site in np.unique(owner):
        codes[np.flatnonzero((owner == site) & (codes == 0))[:2]] = datasets.VALIDATION
    words = np.array(PARTS)[codes]
    np.savez(tmp_path / "a.npz", x=x, y=y, client=owner, part=words)
    source = user.Npz(path=tmp_path / "a.npz", split="part")
    federation = fp.FederationSpec(source, fp.ByClient(), num_clients=None).build()
    check_kept(federation, num_validation=2)


@pytest.mark.parametrize("ending", ["", "_train"])
def test_an_archive_has_arrays_of_both_parts(tmp_path, ending):
    x, y, owner = marked()
    mask = x[:, 0] == 1
    arrays = {"x": x, "y": y, "client": owner}
    named = {f"{n}{ending}": v[~mask] for n, v in arrays.items()}
    named |= {f"{n}_test": v[mask] for n, v in arrays.items()}
    np.savez(tmp_path / "a.npz", **named)
    source = user.Npz(path=tmp_path / "a.npz")
    check_kept(fp.FederationSpec(source, fp.ByClient(), num_clients=None).build())
    del named["client_test"]
    np.savez(tmp_path / "b.npz", **named)
    with pytest.raises(checks.InputError, match="clients of .*b.npz' that are alike"):
        user.Npz(path=tmp_path / "b.npz").load(data_dir=None, seed=0, num_clients=None)


def test_folders_of_leaf_are_kept_unless_a_split_is_drawn(tmp_path):
    for part, count, mark in (("train", NUM_TRAIN, 0.0), ("test", NUM_TEST, 1.0)):
        users = [f"u{k}" for k in range(NUM_CLIENTS)]
        own = {
            "x": [[mark, k] for k in range(count)],
            "y": [k % 2 for k in range(count)],
        }
        content = {"users": users, "num_samples": [count] * len(users)}
        content["user_data"] = dict.fromkeys(users, own)
        (tmp_path / part).mkdir()
        (tmp_path / part / "data.json").write_text(json.dumps(content))

    def build(**fields):
        source = user.LeafJson(path=tmp_path, **fields)
        return fp.FederationSpec(source, fp.ByClient(), num_clients=None).build()

    check_kept(build())
    drawn = marks(build(split="drawn"))["test"]
    assert {len(own) for own in drawn} == {2} and not np.concatenate(drawn).all()


def test_folders_of_images_are_kept(tmp_path):
    grey = test_user_images.GREY
    names = {
        f"{part}/{site}/{label}/{k}.png": grey[k] // 2 + 128 * (part == "test")
        for part, count in (("train", 4), ("test", 2))
        for site in ("ann", "bob")
        for label in ("cat", "dog")
        for k in range(count)
    }
    root = test_user_images.write(tmp_path / "pets", names)
    source = user.ImageFolder(path=root)
    federation = fp.FederationSpec(source, fp.ByClient(), num_clients=None).build()
    for client in range(2):
        assert (np.asarray(federation.test.examples(client).x) >= 128 / 255).all()
        assert (np.asarray(federation.train.examples(client).x) < 128 / 255).all()
        assert len(federation.test.examples(client).x) == 4


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        (([[1.0]], [0]), r"\(x, y, client\), got 2 arrays"),
        (np.zeros(48), "true and false for every example"),
        (np.zeros(48, bool), "to have test examples, got none"),
        (np.zeros(3, bool), "for 48 examples, got an array of shape"),
        (([[1.0]], [0], ["site 0"]), "alike in all parts"),
    ],
)
def test_wrong_test_parts_get_a_sentence(test, sentence):
    x, y, owner = marked()
    samples.refusal(fp.Federation.from_arrays, x, y, owner, test=test, match=sentence)


def test_a_client_of_test_examples_only_is_named():
    x, y, owner = marked()
    mask = (x[:, 0] == 1) | (owner == "site 2")
    samples.refusal(
        fp.Federation.from_arrays,
        x,
        y,
        owner,
        test=mask,
        match="Client 'site 2' .* leaves none of them",
    )
