"""Examples on the devices of their clients: the same trainings, in less memory."""

import dataclasses
import gc
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.core import divided_examples, sharding
from fedjax_pfl.engine import evaluation, grids, groups, layout, simulation, traffic
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from tests.collectives import collectives, results
from tests.lanes import wide

DEVICES = 8
SHARD = sharding.Execution.parse("shard")
KEY = jax.random.key(5, impl="threefry2x32")
PARTS = ("train", "validation", "test")
LEAKY = fp.data.LeakyDirichletLabels()


def federation(partition=LEAKY, num_clients=16, **fields):
    """Small images; clients share examples, are poisoned and see noise of their own."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (480, 4, 3), np.uint8)
    made = {"label_poisoning": "flipped_labels", "malicious_fraction": 0.25, "seed": 3}
    made |= {"feature_noise": fp.data.FeatureNoise(std=0.3)}
    made |= {"test_fraction": 0.25, "validation_fraction": 0.25} | fields
    y = rng.integers(0, 4, 480)
    return fp.Federation.from_arrays(
        x, y, partition=partition, num_clients=num_clients, **made
    )


def divided(whole, moved=0):
    parts = divided_examples.shares([whole], DEVICES, moved)
    return divided_examples.divided([whole], parts, SHARD)[0]


@pytest.mark.parametrize("partition", [wide(LEAKY), fp.IID()], ids=["leaky", "iid"])
def test_every_client_has_its_examples_on_its_device(partition):
    whole = federation(partition)
    made = divided(whole)
    size = made.train.x.shape[0] // DEVICES
    assert made.train.x is made.test.x and made.train.num_parts == DEVICES
    for shard in made.train.x.addressable_shards:
        assert shard.data.shape[0] == size
    used = [set() for _ in range(DEVICES)]
    for name in PARTS:
        old, new = getattr(whole, name), getattr(made, name)
        for client in range(16):
            count, part = int(old.num_examples[client]), client // 2
            before, after = (np.asarray(d.index)[client, :count] for d in (old, new))
            used[part] |= set(before.tolist())
            assert (after // size == part).all()
            np.testing.assert_array_equal(made.train.x[after], whole.train.x[before])
            np.testing.assert_array_equal(made.train.y[after], whole.train.y[before])
            np.testing.assert_array_equal(made.train.numbers[after], before)
    assert size == max(map(len, used))
    if partition is not LEAKY:
        assert size < 480 / DEVICES * 1.1


def round_of(algorithm, cohort, given):
    """State and reports after a round, and the text of its program."""
    process = fp.FederatedProcess(
        algorithm=algorithm, participation=fp.UniformCohort(size=cohort)
    )
    model = fp.MLP(widths=(5,)).for_federation(given)

    def run(given):
        state = process.init(KEY, model, given)
        state, info = process.round(state, model, given, SHARD)
        return state, info.client

    program = jax.jit(run).lower(given).compile()
    return program(given), program.as_text()


SGD = fp.SGD(learning_rate=0.1, epochs=1, batch_size=7)
METHODS = {
    "flame": (fp.Flame(lam=1.0, local=SGD), 16),
    "cohort": (fp.Ditto(local=SGD), 5),
    "search": (fp.FedPG(), 16),
}


@pytest.mark.parametrize("name", ["flame", *map(wide, ("cohort", "search"))])
def test_a_round_is_that_of_undivided_examples_to_the_bit(name):
    """And no device gets the others' examples, but for those of a cohort."""
    algorithm, cohort = METHODS[name]
    whole = federation()
    made = divided(whole)
    rows = {"train": made.train.rows(), "malicious": made.malicious}
    placed = sharding.shard_rows(rows, 16, SHARD)
    train = made.train.with_rows(placed["train"])
    made = dataclasses.replace(made, train=train, malicious=placed["malicious"])
    found, text = round_of(algorithm, cohort, made)
    expected, _ = round_of(algorithm, cohort, whole)
    jax.tree.map(
        np.testing.assert_array_equal,
        *(jax.tree.map(_numbers, tree) for tree in (found, expected)),
    )
    places, slots = -(-cohort // DEVICES) * DEVICES, made.train.index.shape[1]
    moved = zip(results(text), collectives(text), strict=True)
    images = [pair for (_, shapes), pair in moved if "u8[" in shapes]
    each = ("all-to-all", places * slots * 4 * 3)
    assert images == ([] if cohort == 16 else [each])


def _numbers(leaf):
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


ON = ("train", "validation", "test")


@pytest.mark.wide
def test_everybody_is_measured_at_home():
    """The numbers of one device; no model and no example goes to another one."""
    whole = federation()
    process = fp.FederatedProcess(algorithm=fp.Ditto(local=SGD))
    model = fp.MLP(widths=(50,)).for_federation(whole)
    given = Options(num_rounds=2, evaluate_on=ON, execution="shard")
    group = groups.single(KEY, process, model, whole)
    (planned,) = simulation.check_groups([group], given)
    trainer = Resident(planned)
    trainer.begin()
    _, metrics, _, _ = trainer.evaluate(ON, is_last=False)
    state = process.init(planned.keys[0], model, whole)
    expected, _ = evaluation.evaluate(process, state, model, whole, data=ON)
    for name, values in expected.items():
        np.testing.assert_allclose(metrics[name][0], values, rtol=1e-12, err_msg=name)
    text = trainer.compiled()[("evaluate", *ON)].as_text()
    assert all(size < 2048 for _, size in collectives(text)), collectives(text)
    first = trainer.compiled()[("init",)].as_text()
    assert all(kind == "all-reduce" for kind, _ in collectives(first))
    for leaf in jax.tree.leaves(trainer.states.clients):
        assert leaf.addressable_shards[0].data.shape[1] == 2


@pytest.mark.wide
def test_a_training_with_samples_models_and_diagnostics_is_one_on_one_device(tmp_path):
    """Whatever else reads examples by their positions."""
    process = fp.FederatedProcess(
        algorithm=fp.Flame(lam=1.0, local=SGD), participation=fp.UniformCohort(size=6)
    )
    found = {}
    for execution in ("shard", "vmap"):
        found[execution] = fp.simulate(
            *(KEY, process, fp.MLP(widths=(5,)), federation(fp.IID()), 4),
            eval_every=2,
            eval_clients=3,
            diagnostics=True,
            execution=execution,
            models_to=tmp_path / execution,
            progress=False,
        ).groups[0]
    metrics = [group.metrics for group in found.values()]
    chex.assert_trees_all_close(*metrics, rtol=1e-9)
    models = [fp.load_models(tmp_path / name).find(model="global") for name in found]
    params = [model.params for model in models]
    chex.assert_trees_all_close(*params, rtol=1e-9, atol=1e-12)


def planned_of(given, cohort=16, **options):
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=SGD), participation=fp.UniformCohort(size=cohort)
    )
    model = fp.LogisticRegression().for_federation(given)
    group = groups.single(KEY, process, model, given)
    return groups.plan(group, Options(num_rounds=2, execution="shard", **options))


@pytest.mark.parametrize(
    ("fields", "cohort", "options"),
    [
        ({"num_others": 2}, 16, {"evaluate_on": ("test", "others")}),
        ({"unseen_fraction": 0.5, "num_clients": 32, "partition": fp.IID()}, 16, {}),
        ({"num_clients": 15}, 15, {}),
        ({}, 13, {}),  # whose examples would be more than all
    ],
    ids=["others", "unseen", "indivisible", "large cohort"],
)
def test_examples_that_all_devices_need_stay_everywhere(fields, cohort, options):
    planned = planned_of(federation(**fields), cohort, **options)
    assert layout.laid_out(planned) is planned
    assert layout.shares(planned, DEVICES) is None


class Fresh:
    """A source that keeps nothing."""

    name = "fresh"

    def load(self, **_):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(4000, 10)).astype(np.float32), np.arange(4000) % 3
        return data.Dataset(name="fresh", x=x, y=y, num_classes=3)


@pytest.mark.wide
def test_a_plan_lets_go_of_all_examples():
    """What is left is a device's share on every device."""
    spec, seed = fp.FederationSpec(Fresh(), fp.IID(), num_clients=16), {"seed": [0]}
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    found = grids.groups_of(KEY, process, fp.LogisticRegression(), spec, seed)
    everything = weakref.ref(found[0].federations[0].train.x)
    given = Options(num_rounds=2, execution="shard")
    planned = simulation.check_groups(found, given)
    assert everything().shape[0] == 4000
    del found
    gc.collect()
    assert everything() is None
    (trainer,) = map(Resident, planned)
    x = trainer.fixed[2].train.x
    assert x.addressable_shards[0].data.shape[0] == 500 == 4000 / DEVICES
    whole = planned_of(spec.build())
    formula = traffic.estimate(whole, traffic.Cluster(4, 2))
    assert formula.examples == 500 * (10 * 4 + 4)


def test_kept_data_sets_can_be_forgotten():
    first = data.load_dataset("quadratic", num_clients=3)
    assert data.load_dataset("quadratic", num_clients=3) is first
    data.forget()
    assert data.load_dataset("quadratic", num_clients=3) is not first
