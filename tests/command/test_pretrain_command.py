"""Pretraining on users that federations leave out: `fedjax-pfl pretrain`."""

import dataclasses
import pathlib

import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as fp
from fedjax_pfl.command import application, arguments, job
from fedjax_pfl.data import splits
from fedjax_pfl.results import pretraining
from tests.command.commands import call, python, refused

USERS = 12
OWN = "pretrain --data own.csv --label kind --client user"
SMALL = "--set model.widths=[4] --epochs 2 --batch-size 8"


@pytest.fixture(autouse=True)
def table(elsewhere):
    """Commands write below a directory with one table of twelve users."""
    rng = np.random.default_rng(0)
    rows = ["first,second,kind,user"]
    for user in range(USERS):
        for number, value in enumerate(rng.normal(size=10 + user)):
            # The first column tells every example from all others.
            rows.append(f"{100 * user + number},{value:.6f},{int(value > 0)},u{user}")
    pathlib.Path("own.csv").write_text("\n".join(rows) + "\n")


def pretrain(more, out="start.safetensors"):
    return call(application.app, f"{OWN} {SMALL} {more} --out {out}").output


def experiment(*more):
    options = {"data": "own.csv", "label": "kind", "client": "user"}
    fields = {"set_": ["model.widths=[4]", *more], "init": "start.safetensors"}
    return job.experiment_of(arguments.Options(command="sweep", **options, **fields))


def identities(x):
    """Examples of a data set or of a federation, no two of which are equal."""
    return {row.tobytes() for row in np.asarray(x, np.float32)}


def of_clients(part):
    own = np.arange(part.index.shape[1]) < np.asarray(part.num_examples)[:, None]
    return identities(np.asarray(part.x)[np.asarray(part.index)[own]])


def test_a_federation_leaves_out_the_users_of_its_start():
    said = pretrain("--users 0.25")
    assert "of 3 users of own" in said and "accuracy" in said
    params = fp.load_params("start.safetensors")
    assert params["hidden_0"]["kernel"].shape == (4, 2)
    grids = experiment().grids
    for grid in grids:
        assert grid.spec.held_out_users == 0.25
        np.testing.assert_array_equal(
            grid.model.initial_params.params["head"]["kernel"], params["head"]["kernel"]
        )
    raw = dataclasses.replace(grids[0].spec.dataset, scaling="none")
    spec = dataclasses.replace(grids[0].spec, dataset=raw)  # scales differ by part
    first, held = spec.build(), spec.pretraining()
    parts = [of_clients(getattr(first, n)) for n in ("train", "validation", "test")]
    everything = identities(
        spec.dataset.load(data_dir=None, seed=0, num_clients=None).x
    )
    assert first.num_clients == USERS - 3 and len(set(held.client)) == 3
    assert set.union(*parts) | identities(held.x) == everything
    assert not set.union(*parts) & identities(held.x)
    other = dataclasses.replace(spec, seed=7)
    assert identities(other.pretraining().x) == identities(held.x)
    assert of_clients(other.build().train) != parts[0]


def test_it_is_a_training_on_all_their_examples_together():
    assert pretrain("--users 0.5 --seed 3 --quiet").strip() == "start.safetensors"
    pretrain("--users 0.5 --seed 3", out="again.safetensors")
    pretrain("--users 0.5 --seed 4", out="other.safetensors")
    one, two, three = (
        safetensors.numpy.load_file(f"{name}.safetensors")
        for name in ("start", "again", "other")
    )
    assert len(one) == 4 and one["hidden_0/kernel"].shape == (4, 2)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert any(not np.array_equal(one[name], three[name]) for name in one)
    users = pretraining.held_out_of(pathlib.Path("start.safetensors"))
    assert users == pretraining.HeldOut("own.csv", 0.5)


def test_users_of_a_smaller_share_are_among_those_of_a_larger_one():
    dataset = fp.data.Dataset(
        name="mine", x=np.ones((40, 1)), y=np.ones(40), client=np.repeat(range(20), 2)
    )
    few, many = (splits.held_out_users(dataset, f)[0] for f in (0.2, 0.5))
    assert set(few.client) < set(many.client) and len(set(many.client)) == 10
    assert splits.held_out_users(dataset, 0.2)[0] is few


def test_federations_without_held_out_users_are_described_as_before():
    assert "held_out_users" not in fp.FederationSpec("digits").describe()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--users 1", "users to be a finite number above 0 and below 1, got 1.0"),
        ("--users 0.01", "hold some of the 12 users of 'own' out"),
        ("--set model.widths=[4],[5]", "got a sweep of model.widths"),
        ("--preset digit", "did you mean 'digits'?"),
        ("--learning-rate -1", "learning_rate"),
        ("--learning-rate 1e30", "expected a --learning-rate below 1e+30"),
        ("--out there.safetensors", "--out to be a new file"),
        ("--out nowhere/x.safetensors", "--out to be a new file"),
        ("--out model.npz", "ends in .safetensors"),
    ],
)
def test_what_does_not_fit_is_one_sentence(line, words):
    pathlib.Path("there.safetensors").touch()
    line = f"{OWN} {SMALL} --quiet --out start.safetensors {line}"
    text = refused(application.app, line)
    assert words in " ".join(text.split())


def test_files_of_a_folder_are_users():
    header, *rows = pathlib.Path("own.csv").read_text().splitlines()
    for user in range(USERS):
        own = [row for row in rows if row.endswith(f",u{user}")]
        path = pathlib.Path("users", f"u{user}.csv")
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([header, *own]))
    line = f"pretrain --data users --label kind {SMALL} --users 0.25"
    line += " --set 'federation.dataset.drop=[\"user\"]' --out x.safetensors"
    assert "of 3 users of users" in call(application.app, line).output


def test_data_without_users_are_refused_before_jax_is_imported():
    code = """
import sys
from fedjax_pfl.command import application
for words in (
    [],
    ["--dataset", "cifar10"],
    ["--set", "federation.dataset=mnist"],
    ["--data", "own.csv", "--label", "kind"],
):
    try:
        application.app(["pretrain", "--out", "x.safetensors", *words])
    except SystemExit as end:
        print(end.code, "jax" in sys.modules)
"""
    done = python("-c", code, folder=None)
    assert done.stdout.split("\n") == ["2 False"] * 4 + [""]
    names = [line.rpartition(" ")[2] for line in done.stderr.splitlines()]
    assert names == ["'digits'.", "'cifar10'.", "'mnist'.", "'own.csv'."]


def test_a_federation_that_would_train_on_these_users_is_refused():
    params = {"head": {"kernel": np.ones((2, 2))}}
    users = pretraining.HeldOut("own.csv", 0.5)
    pretraining.write(pathlib.Path("start.safetensors"), params, users)
    with pytest.raises(fp.InputError, match="held_out_users of at least 0.5"):
        experiment("federation.held_out_users=0.25")
    (grid, *_) = experiment("federation.held_out_users=0.75").grids
    assert grid.spec.held_out_users == 0.75
