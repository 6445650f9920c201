"""A user's own arrays and federations in grids, searches and learning."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks

X = np.random.default_rng(0).normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(int)
OWNER = np.repeat(["ann", "bob", "cleo", "dora"], 30)
PROCESS = fp.FederatedProcess(algorithm=fp.Ditto(local=fp.SGD(batch_size=10)))
BASE = (jax.random.key(0), PROCESS, fp.LogisticRegression())
AXES = {"algorithm.lam": [0.1, 1.0], "seed": [0, 1]}
OPTIONS = {"num_rounds": 2, "evaluate_on": "test", "progress": False}


def counts_of(result):
    """Test examples of each point."""
    return [point.tolist() for group in result.groups for point in group.num_test]


def values(result):
    return result.table()["value"].to_numpy(float)


def test_a_recipe_of_arrays_draws_a_split_for_every_seed():
    spec = fp.FederationSpec.from_arrays(X, Y, OWNER, test_fraction=0.3)
    assert spec.num_clients is None and spec.build().client_names[0] == "ann"
    drawn = [dataclasses.replace(spec, seed=s).build() for s in (0, 1)]
    tests = [np.asarray(each.test.index) for each in drawn]
    assert (tests[0] != tests[1]).any()
    result = fp.grid(*BASE, spec, AXES, **OPTIONS)
    assert len(result.table()["seed"].unique()) == 2
    assert result.groups[0].config["federation.dataset"] == "arrays"
    fixed = fp.Federation.from_arrays(X, Y, OWNER, test_fraction=0.3)
    assert counts_of(result)[0] == fixed.test.num_examples.tolist()


@pytest.mark.wide
def test_frames_and_data_sets_have_recipes_too():
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=OWNER, y=Y)
    spec = fp.FederationSpec.from_frame(frame, label="y", client="site")
    assert fp.grid(*BASE, spec, {"seed": [0, 1]}, **OPTIONS).table()["seed"].nunique()
    owner = np.repeat(np.arange(4), 30)
    dataset = fp.data.Dataset(name="mine", x=X, y=Y, num_classes=2, client=owner)
    spec = fp.FederationSpec(dataset, fp.ByClient(), num_clients=None)
    assert spec.describe()["dataset"] == "mine" and spec.build().num_clients == 4


def test_recipes_of_the_same_data_are_equal_and_others_are_not():
    spec = fp.FederationSpec.from_arrays(X, Y, OWNER)
    assert spec == fp.FederationSpec.from_arrays(X.copy(), Y, OWNER)
    for x, y, owner in ((X + 1, Y, OWNER), (X, 1 - Y, OWNER), (X, Y, OWNER[::-1])):
        assert spec != fp.FederationSpec.from_arrays(x, y, owner)


@pytest.mark.wide
def test_a_federation_keeps_its_split_for_all_seeds():
    federation = fp.Federation.from_arrays(X, Y, OWNER)
    result = fp.grid(*BASE, federation, AXES, **OPTIONS)
    assert len(set(map(tuple, counts_of(result)))) == 1
    table = result.table()
    means = table[table["stat"] == "mean"].groupby("seed")["value"].sum()
    assert means[0] != means[1]  # seeds draw the training


@pytest.mark.wide
def test_a_federation_is_searched_and_learned_on():
    federation = fp.Federation.from_arrays(X, Y, OWNER)
    tuned = fp.tune(*BASE, federation, 4, num_settings=2, progress=False)
    assert set(tuned.best) == {"algorithm.lam", "algorithm.local.learning_rate"}
    options = {"num_rounds": 2, "progress": False}
    learned = fp.learn(*BASE, federation, "algorithm.lam", **options)
    assert np.isfinite(learned.path["algorithm.lam"].to_numpy(float)).all()


def test_a_federation_has_no_axes_of_its_own():
    federation = fp.Federation.from_arrays(X, Y, OWNER)
    with pytest.raises(checks.InputError, match="FederationSpec.from_arrays takes"):
        fp.grid(*BASE, federation, {"federation.test_fraction": [0.1]}, **OPTIONS)
    with pytest.raises(checks.InputError, match="a federation, got 3"):
        fp.grid(*BASE, 3, AXES, **OPTIONS)
    owner = np.repeat(np.arange(4), 30)
    dataset = fp.data.Dataset(name="mine", x=X, y=Y, num_classes=2, client=owner)
    with pytest.raises(checks.InputError, match="num_clients=None takes all"):
        fp.FederationSpec(dataset, fp.ByClient()).build()
