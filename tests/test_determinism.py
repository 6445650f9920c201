"""What the README says is bit-identical, beside resuming and segments."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data, driver, settings
from tests.algorithms import toy

KEY = jax.random.key(2, impl="threefry2x32")


def final(**options):
    """Training state after four rounds with a cohort, an attack and stragglers."""
    federation = toy.make_federation()
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=fp.SGD(batch_size=4)),
        participation=fp.UniformCohort(size=4),
        work=fp.Stragglers(fraction=0.5),
        attack=fp.Gaussian(),
    )
    group = driver.Group(
        points=[{}],
        processes=[process],
        model=fp.LogisticRegression(),
        federations=[federation],
        described=[data.describe(federation)],
        keys=[KEY],
        config={},
    )
    options = {"eval_every": 2, "execution": "vmap"} | options
    _, states = driver.run_group(group, settings.Settings.parse(4, **options))
    return [np.asarray(leaf) for leaf in toy.leaves(states)]


@pytest.fixture(scope="module")
def expected():
    return final()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eval_every": 1},
        {"evaluate_on": ("train", "everybody")},
        pytest.param({"eval_clients": 2}, marks=pytest.mark.wide),
        pytest.param({"eval_clients": "participants"}, marks=pytest.mark.wide),
        {"diagnostics": True},
        pytest.param({"stop_when": fp.StopWhen(patience=100)}, marks=pytest.mark.wide),
    ],
    ids=lambda options: next(iter(options), "again"),
)
def test_what_is_looked_at_does_not_change_the_training(expected, options):
    for one, other in zip(final(**options), expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_another_key_is_another_training(expected, monkeypatch):
    monkeypatch.setattr("tests.test_determinism.KEY", jax.random.key(3))
    found = final()
    assert any((a != b).any() for a, b in zip(found, expected, strict=True))


def test_methods_of_one_seed_share_start_cohorts_and_data():
    spec = fp.FederationSpec("digits", num_clients=8)
    axes = {"algorithm": [fp.FedAvg(), fp.Ditto()], "seed": [0, 1]}
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), participation=fp.UniformCohort(size=3)
    )
    result = fp.grid(
        *(KEY, process, fp.LogisticRegression(), spec, axes, 3),
        eval_every=1,
        progress=False,
    )
    one, other = result.groups
    np.testing.assert_array_equal(one.times_selected, other.times_selected)
    np.testing.assert_array_equal(one.label_counts, other.label_counts)
    start = [
        group.metrics["loss"][:, 0, group.models.index("global"), 0]
        for group in result.groups
    ]
    np.testing.assert_array_equal(*start)
    assert (one.times_selected[0] != one.times_selected[1]).any()


def test_state_and_rows_are_split_over_devices(tmp_path):
    """Also between segments and after a checkpoint: every program sees one layout."""
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=8)
    federation = spec.build()
    group = driver.Group(
        points=[{}],
        processes=[fp.FederatedProcess(algorithm=fp.Flame())],
        model=fp.Quadratic(),
        federations=[federation],
        described=[data.describe(federation)],
        keys=[KEY],
        config={},
    )
    plan = settings.Settings.parse(4, eval_every=2, execution="shard=4")
    options = fp.Checkpoints(tmp_path, min_seconds=0)
    _, states = driver.run_group(group, plan, store=options.store(0, "flame"))
    _, again = driver.run_group(group, plan, store=options.store(0, "flame"))
    for tree in (states, again):
        for leaf in jax.tree.leaves((tree.clients, tree.messages)):
            assert leaf.addressable_shards[0].data.shape[:2] == (1, 2)
        for leaf in jax.tree.leaves(tree.server):
            assert leaf.sharding.is_fully_replicated
