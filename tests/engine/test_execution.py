"""How the map over clients is run where nobody says."""

import re
import types

import chex
import jax
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import auto_execution, grids, groups
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.testing import toy
from tests import trainings
from tests.lanes import wide


@pytest.mark.parametrize(
    ("width", "size", "expected"),
    [
        (4, 8, "vmap"),  # small steps: one device
        (10_000, 8, "shard"),  # 8 devices, one client each
        (10_000, 4, "shard=4"),
        (10_000, 1, "vmap"),
    ],
)
def test_choice_of_execution(width, size, expected):
    federation = toy.make_federation()
    model = fp.MLP(widths=(width,)).for_federation(federation)
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), participation=fp.UniformCohort(size=size)
    )
    assert str(auto_execution.choose(process, model, federation)) == expected


@pytest.mark.parametrize(
    ("num_clients", "width", "expected"),
    [(8, 4, "vmap"), (8, 1000, "chunk=1"), (500, 4, "chunk"), (500, 1000, "chunk=1")],
)
def test_choice_of_chunks_on_one_device(monkeypatch, num_clients, width, expected):
    """Large steps one by one; many small ones in chunks that fit the cache."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    spec = fp.FederationSpec("digits", "iid", num_clients=num_clients)
    federation = spec.build()
    model = fp.MLP(widths=(width,)).for_federation(federation)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    found = auto_execution.choose(process, model, federation)
    assert str(found) == expected or found.mode == expected and found.chunk_size > 8


@pytest.mark.parametrize(
    ("batch_size", "num_clients", "expected"),
    [(10, 20, "vmap"), (10, 500, "chunk=52"), (600, 20, "chunk=1")],
)
def test_clients_share_products_with_a_frozen_base(
    monkeypatch, batch_size, num_clients, expected
):
    """So many that the one product of a chunk has some hundred rows."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    federation = fp.FederationSpec("digits", "iid", num_clients=num_clients).build()
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(batch_size=batch_size))
    )
    base = fp.MLP(widths=(1000,))
    frozen = fp.lora(base, targets="^hidden", rank=8).for_federation(federation)
    assert str(auto_execution.choose(process, frozen, federation)) == expected
    few = fp.ParameterRoles(base, frozen="^head/bias").for_federation(federation)
    assert str(auto_execution.choose(process, few, federation)) == "chunk=1"


@pytest.fixture
def accelerator(monkeypatch):
    """One GPU, as far as the rules can see: returns what sets its memory."""

    def set_memory(stats, num_devices=1):
        device = types.SimpleNamespace(memory_stats=lambda: stats)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "device_count", lambda: num_devices)
        monkeypatch.setattr(jax, "local_devices", lambda: [device] * num_devices)

    return set_memory


def digits(model, num_clients=500, **fields):
    """A process, a model and a federation of so many clients, as rules take them."""
    federation = fp.FederationSpec("digits", "iid", num_clients=num_clients).build()
    process = fp.FederatedProcess(algorithm=fp.FedAvg(), **fields)
    return process, model.for_federation(federation), federation


@pytest.mark.parametrize("width", [4, 1000])
@pytest.mark.parametrize("num_clients", [8, 500])
def test_an_accelerator_trains_all_clients_that_fit_at_once(
    accelerator, num_clients, width
):
    accelerator({"bytes_limit": 80 * 2**30})
    parts = digits(fp.MLP(widths=(width,)), num_clients)
    assert str(auto_execution.choose(*parts)) == "vmap"


def test_an_accelerator_takes_chunks_as_large_as_fit(accelerator):
    parts = digits(fp.MLP(widths=(1000,)))
    each = auto_execution.bytes_of_a_step(*parts)
    room = 100 * each / auto_execution._ROOM
    for limit, expected in ((room, "chunk=100"), (2 * room, "chunk=200")):
        accelerator({"bytes_limit": limit})
        assert str(auto_execution.choose(*parts)) == expected
    accelerator({"bytes_limit": 1})  # not even one; the plan will say so
    assert str(auto_execution.choose(*parts)) == "chunk=1"
    accelerator({"bytes_limit": room}, num_devices=2)
    assert str(auto_execution.choose(*parts)) == "shard in chunks of 100"
    few = fp.UniformCohort(size=100)
    accelerator({"bytes_limit": room})
    parts = digits(fp.MLP(widths=(1000,)), participation=few)
    assert str(auto_execution.choose(*parts)) == "vmap"


@pytest.mark.parametrize(
    ("launch", "expected"), [(2**40, "vmap"), (1, "chunk=1"), (50_000, "chunk=16")]
)
def test_an_accelerator_takes_clients_alike_in_size_in_chunks(
    accelerator, monkeypatch, launch, expected
):
    accelerator(None)
    monkeypatch.setattr(auto_execution, "_LAUNCH", launch)
    federation = fp.FederationSpec("digits", fp.data.PowerLaw(), num_clients=64).build()
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    model = fp.LogisticRegression().for_federation(federation)
    assert str(auto_execution.choose(process, model, federation)) == expected


@pytest.mark.parametrize(
    ("width", "num_examples", "expected"),
    [(8, 14, 16), (8, 128, 14), (1000, 14, 1), (1000, 128, 1)],
)
def test_an_evaluation_takes_as_many_clients_as_the_cache_holds(
    accelerator, width, num_examples, expected
):
    _, *parts = digits(fp.MLP(widths=(width,)))
    assert auto_execution.evaluated_at_once(*parts, num_examples, 16) == expected
    accelerator(None)
    assert auto_execution.evaluated_at_once(*parts, num_examples, 16) == 16


def test_points_are_vmapped_together_while_they_fit(accelerator):
    """Also points of large models, and more of them than on a CPU."""
    parts = digits(fp.MLP(widths=(1000,)), 8)
    each = auto_execution.bytes_of_a_step(*parts)
    how = sharding.Execution("vmap")
    for fits in (1, 8, 81):
        accelerator({"bytes_limit": fits * each / auto_execution._ROOM})
        at_once = auto_execution.points_at_once(how, *parts, alike=True)
        assert at_once == max(fits // 8, 1)
    chunked = sharding.Execution("chunk", 2)
    assert auto_execution.points_at_once(chunked, *parts) == 81 // 2


@pytest.mark.parametrize(
    ("num_points", "mode", "expected"),
    [(1, "vmap", 1), (3, "chunk", 3), (12, "vmap", 6), (7, "vmap", 7), (11, "vmap", 1)]
    + [(8, "vmap", 8), (8, "shard", 1), (8, "loop", 1)],
)
def test_devices_get_equally_many_points(num_points, mode, expected):
    """Of 8 devices; those that share clients or none do not share points."""
    how = sharding.Execution(mode=mode, chunk_size=2 if mode == "chunk" else 0)
    assert auto_execution.devices_of_points(how, num_points) == expected


@pytest.mark.wide
def test_points_on_several_devices_are_trained_as_on_one():
    """Also where points end early; states are on the devices of their points."""
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=6)
    axes = {"algorithm.lam": [0.5, 2.0], "seed": [0, 1]}
    key = jax.random.key(0, impl="threefry2x32")
    process = fp.FederatedProcess(
        algorithm=fp.Flame(), participation=fp.UniformCohort(size=3)
    )
    (group,) = grids.groups_of(key, process, fp.models.Quadratic(), spec, axes)
    stop = fp.StopWhen(model="global", data="train", metric="loss", patience=2)

    def train(how):
        given = Options(
            num_rounds=12,
            eval_every=2,
            execution=how,
            evaluate_on=("train",),
            stop_when=stop,
        )
        record, run = trainings.train(group, given)
        return record, run.states

    history, states = train("vmap")
    assert history.config["execution"] == "vmap, points on 4 devices"
    assert all(
        len(leaf.sharding.device_set) == 4 and leaf.addressable_shards[0].data.size
        for leaf in jax.tree.leaves(states)
    )
    alone, reference = train("shard")
    chex.assert_trees_all_close(history.metrics, alone.metrics, rtol=1e-9)
    pair = toy.leaves(states), toy.leaves(reference)
    chex.assert_trees_all_close(*pair, rtol=1e-9, atol=1e-12)


def test_points_go_one_by_one_where_a_client_would_wait_for_a_larger_one():
    """Of another point, whose client of the same slot has another size."""
    model = fp.LogisticRegression()
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    alone = fp.core.Execution(mode="chunk", chunk_size=1)
    at_once = {}
    for name, partition in (("even", "iid"), ("ragged", fp.data.PowerLaw())):
        spec = fp.FederationSpec("digits", partition, num_clients=40)
        federation = spec.build()
        given = process, model.for_federation(federation), federation
        at_once[name] = auto_execution.points_at_once(alone, *given)
    assert at_once["ragged"] == 1 < at_once["even"]


def alike(order):
    """Four learning rates under two seeds, in the order of the axes."""
    spec = fp.FederationSpec("digits", "iid", num_clients=5, validation_fraction=0.2)
    axes = {"algorithm.local.learning_rate": [0.1, 0.2, 0.3, 0.4], "seed": [0, 1]}
    sgd = fp.SGD(batch_size=10)
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=sgd), participation=fp.UniformCohort(size=3)
    )
    axes = {name: axes[name] for name in order}
    model = fp.LogisticRegression()
    (group,) = grids.groups_of(jax.random.key(0), process, model, spec, axes)
    return group


NAMES = ("algorithm.local.learning_rate", "seed")


@pytest.mark.parametrize(
    ("at_once", "chunk", "order"),
    [
        (None, 4, NAMES[::-1]),
        wide(2, 2, NAMES),
        wide(2, 2, NAMES[::-1]),
        wide(None, 4, NAMES),
        wide(1, 1, NAMES),
        wide(3, 2, NAMES),
        wide(3, 2, NAMES[::-1]),
    ],
)
def test_points_of_a_seed_share_their_batches(monkeypatch, order, at_once, chunk):
    """In chunks of one seed whose results are those of points alone, in their order."""
    rounding = {"rtol": 1e-4, "atol": 1e-6}
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    group = alike(order)
    options = {"num_rounds": 6, "eval_every": 3, "evaluate_on": "test"}
    given = Options(points_per_chunk=at_once, **options)
    record, run = trainings.train(group, given)
    plan = run.planned.plan
    assert (plan.alike, plan.points_per_chunk) == (chunk > 1, chunk)
    alone = Options(points_per_chunk=1, **options)
    expected, _ = trainings.train(group, alone)
    chex.assert_trees_all_close(record.metrics, expected.metrics, **rounding)
    seeds = [point["seed"] for point in group.points]
    places = run.planned.order.reshape(-1, chunk)
    if chunk > 1:
        assert all(len({seeds[k] for k in chunk}) == 1 for chunk in places)


def test_a_batch_is_gathered_once_for_all_points_of_a_chunk(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    group = alike(NAMES)
    text = {}
    for at_once in (1, None):
        given = Options(
            num_rounds=6, eval_every=3, execution="chunk=1", points_per_chunk=at_once
        )
        trainer = Resident(groups.plan(group, given))
        text[at_once] = trainer._program(("segment",)).lowered().as_text()
    # Ten examples of 64 pixels by four models, in one product without a batch axis.
    shared = r"tensor<10x64x(f\d+)>, tensor<4x64x10x\1>\) -> tensor<10x4x10x\1>"
    assert re.search(shared, text[None]) and not re.search(shared, text[1])


def test_points_that_may_end_early_do_not_share(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    stop = fp.StopWhen(data="validation", patience=1)
    given = Options(num_rounds=6, eval_every=3, stop_when=stop)
    assert not groups.plan(alike(NAMES), given).plan.alike
