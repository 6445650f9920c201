"""What the README says is bit-identical, beside resuming and segments."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.engine.options import Options
from fedjax_pfl.testing import compiled_rounds
from tests import trainings
from tests.engine import bits, specs

KEY = jax.random.key(2, impl="threefry2x32")


@pytest.mark.wide  # segments_are_bit_identical checks `eval_every` in every run
def test_what_is_looked_at_does_not_change_the_training():
    """Nor does anything change from one run to the next, unless the seed does."""
    names = [*bits.OPTIONS]
    command = [sys.executable, "-m", "tests.engine.bits", *names]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = dict.fromkeys(names, True) | {"another seed": False}
    assert json.loads(answer.stdout) == expected


def test_methods_of_one_seed_share_start_cohorts_and_data():
    spec, local = specs.classes(8), fp.SGD(batch_size=16)
    methods = [fp.FedAvg(local=local), fp.Ditto(local=local)]
    axes = {"algorithm": methods, "seed": [0, 1]}
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), participation=fp.UniformCohort(size=3)
    )
    result = fp.grid(
        *(KEY, process, fp.LogisticRegression(), spec, axes, 3),
        eval_every=1,
        evaluate_on="test",
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
    process = fp.FederatedProcess(algorithm=fp.Flame())
    group = compiled_rounds.group(KEY, process, fp.models.Quadratic(), federation)
    plan = Options(num_rounds=4, eval_every=2, execution="shard=4")
    options = fp.Checkpoints(tmp_path, min_seconds=0)
    _, first = trainings.train(group, plan, options.store(0, "flame"))
    _, again = trainings.train(group, plan, options.store(0, "flame"))
    for tree in (first.states, again.states):
        for leaf in jax.tree.leaves(tree.clients):
            assert leaf.addressable_shards[0].data.shape[:2] == (1, 2)
        for leaf in jax.tree.leaves(tree.server):
            assert leaf.sharding.is_fully_replicated
