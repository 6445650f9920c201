"""Streamed trainings whose clients several devices own: ways of rows, and files."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine.streaming import cohort_programs, divided_rows, routes, row_store
from fedjax_pfl.testing import toy
from tests.engine import test_streaming
from tests.engine.test_streaming import METHODS, SGD, make_process, train
from tests.lanes import wide

LIKE = (jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
METHODS["ditto"] = algorithms.Ditto(lam=0.5, local=SGD)


def on(devices):
    return sharding.Execution(mode="shard", num_devices=devices)


def bits(tree):
    """The bytes of rows, so that NaN is equal to itself and -0.0 not to 0.0."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def taken(tree, rows):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)


def strange(rng, count):
    """Rows with NaN of any bits, infinities and zeros of both signs."""
    floats = rng.integers(2**32, size=(count, 3), dtype=np.uint32).view(np.float32)
    floats[rng.random((count, 3)) < 0.3] = -0.0
    return floats, rng.integers(99, size=count).astype(np.int32)


def at_places(values, devices):
    """Rows of a cohort as a round returns them: at as many places of each device."""
    count = len(values[1])
    filled = taken(values, np.resize(np.arange(count), count + -count % devices))
    if devices == 1:
        return filled
    return sharding.shard_rows(filled, len(filled[1]), on(devices))


def drawn(rng, clients):
    """Members of a cohort of any size, from everywhere or from few devices."""
    last = clients if rng.random() < 0.5 else max(clients // 3, 1)
    return np.sort(rng.choice(last, int(rng.integers(1, last + 1)), replace=False))


@pytest.mark.parametrize(
    ("devices", "clients"), [(1, 20), (3, 20), wide(4, 3), wide(8, 100)]
)
def test_rows_are_where_they_are_needed(tmp_path, devices, clients):
    """As in an array of all rows, to the bit, whoever is drawn and drawn again."""
    rng, before, owned = np.random.default_rng(devices), None, None
    files = divided_rows.DividedRows(tmp_path, clients, LIKE, on(devices))
    held = jax.tree.map(lambda s: np.zeros((clients, *s.shape), s.dtype), LIKE)
    for _ in range(10):
        route = files.router.route(drawn(rng, clients))
        members, given = route.members, files.read(route)
        placed = cohort_programs.arrived(
            *(on(devices), given if owned is None else owned, given),
            *(route.source(before, devices), route.arriving),
        )
        assert bits(taken(placed, slice(len(members)))) == bits(taken(held, members))
        if before is not None:
            files.write(before, owned)
        new = strange(rng, len(members))
        jax.tree.map(lambda all_, own, m=members: all_.__setitem__(m, own), held, new)
        owned = at_places(new, devices)
        if route.leaving is not None:
            owned = cohort_programs.left(on(devices), owned, route.leaving)
        before = route
    files.write(before, owned)
    assert len(list(tmp_path.glob("rows-*.bin"))) == min(devices, clients)
    for name, arrays in files.commit().items():
        first, last = map(int, name.split("-")[1:])
        file = row_store.RowStore(tmp_path / f"{name}.bin", last - first, LIKE)
        file.restore(arrays)
        own = first + file.written()
        assert (own == np.flatnonzero(files.is_written[first:last]) + first).all()
        assert bits(file.read(file.written())) == bits(taken(held, own))


def test_rows_travel_only_as_far_as_they_have_to():
    """To a neighbor, of a cohort from everywhere."""
    rng, router = np.random.default_rng(0), routes.Router(1_000_000, on(8))
    for _ in range(300):
        route = router.route(np.sort(rng.choice(1_000_000, 1024, replace=False)))
        for way in (route.arriving, route.leaving):
            assert set(way.sent) <= {1, 7}


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_another_number_of_devices_has_the_same_rows(tmp_path, devices):
    """And the files of the earlier ones are removed, once no checkpoint needs them."""
    rng, clients = np.random.default_rng(0), 11
    files = divided_rows.DividedRows(tmp_path, clients, LIKE, on(3), keep=2)
    route = files.router.route(np.array([0, 2, 3, 7, 8, 10]))
    values = strange(rng, 6)
    owned = cohort_programs.left(on(3), at_places(values, 3), route.leaving)
    files.write(route, owned)
    saved = files.commit()
    again = divided_rows.DividedRows(tmp_path, clients, LIKE, on(devices), keep=2)
    again.restore(saved)
    np.testing.assert_array_equal(np.flatnonzero(again.is_written), route.members)
    for commits in range(4):
        assert len(list(tmp_path.glob("rows-*.bin"))) == devices + 3 * (commits < 3)
        given = again.read(way := again.router.route(route.members))
        source = way.source(None, devices)
        placed = cohort_programs.arrived(
            on(devices), given, given, source, way.arriving
        )
        assert bits(taken(placed, slice(6))) == bits(values)
        again.commit()


def test_rows_that_are_not_there_are_damage(tmp_path):
    files = divided_rows.DividedRows(tmp_path, 9, LIKE, on(3))
    saved = files.commit()
    del saved["rows-0000000003-0000000006"]
    with pytest.raises(ValueError, match="has not the rows of all clients"):
        files.restore(saved)
    with pytest.raises(ValueError, match="of another number of clients"):
        divided_rows.DividedRows(tmp_path, 10, LIKE, on(2)).restore(files.commit())


@pytest.mark.parametrize(
    ("name", "size"),
    [("flame", 5), wide("flame", 4), wide("fedavg", 5), wide("ditto", 4)]
    + [wide("fedamp", 5)],
)
def test_it_equals_the_training_in_memory(tmp_path, name, size):
    """Where four devices divide the cohort, and where they do not; models, too."""
    federation = toy.make_federation()
    process = make_process(name, participation=fp.UniformCohort(size=size))
    given, folders = (process, federation), (tmp_path / "one", tmp_path / "other")
    one = train(fp.simulate, *given, models_to=folders[0], eval_clients=3)
    how = {"execution": "shard=4", "models_to": folders[1], "eval_clients": 3}
    other = train(fp.simulate_streamed, *given, **how)
    (sample,) = np.nonzero(one.evaluated[0, -1, 0])
    np.testing.assert_array_equal(other.clients, sample)
    for metric, values in one.metrics.items():
        found = other.metrics[metric]
        np.testing.assert_allclose(found, values[..., sample], rtol=0, atol=1e-12)
    for number, values in one.per_round.items():
        np.testing.assert_allclose(other.per_round[number], values, 1e-9)
    expected, found = map(fp.load_models, folders)
    for model in one.models:
        pair = (by_client(each.find(model=model)) for each in (expected, found))
        chex.assert_trees_all_close(*pair, rtol=0, atol=1e-12)


def by_client(model):
    """Parameters of a saved model, of clients in their order."""
    if model.clients is None:
        return model.params
    return taken(model.params, np.argsort(model.clients))


def test_several_processes_need_all_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    sentence = (
        "A streamed training of 2 processes needs execution='shard', with all 8"
        " devices, got 'shard=2'."
    )
    with pytest.raises(checks.InputError) as error:
        process = make_process("local")
        federation = toy.make_federation()
        train(fp.simulate_streamed, process, federation, execution="shard=2")
    assert str(error.value) == sentence


@pytest.mark.wide
def test_the_kept_mean_is_that_of_all_messages(tmp_path):
    """Of devices, each with the messages of its clients."""
    test_streaming.check_kept_mean(1e38, tmp_path, execution="shard=3")
