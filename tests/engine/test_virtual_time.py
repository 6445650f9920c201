"""Trainings in virtual time, against an event queue in plain Python."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import byte_counts, checks
from fedjax_pfl.core.timetable import Charges
from fedjax_pfl.engine import timetables
from fedjax_pfl.local import Buffered, Devices, Synchronous, ToTolerance
from fedjax_pfl.testing import compiled_rounds
from tests.engine import breaking
from tests.lanes import wide

KEY = core.seed_key(3)
RATE, STEPS, COUNTS = 0.2, 2, (4, 9, 6, 12, 5, 7)
NUM = len(COUNTS)
SGD = fp.SGD(learning_rate=RATE, num_steps=STEPS, batch_size=16)
CENTRALIZED = fp.Centralized(local=SGD)
FEDAVG = fp.FedAvg(local=SGD)
SPEEDS = np.array([3.0, 1.0, 10.0, 2.0, 0.7, 5.0])


SPEED = "client,examples_per_second"
HOURS = f"{SPEED},online_from,online_until"


@functools.cache
def federation():
    rng = np.random.default_rng(0)
    clients = np.repeat(np.arange(NUM), COUNTS)
    x = rng.normal(size=(len(clients), 3)) + clients[:, None] / NUM
    y = rng.integers(0, 3, len(clients))
    return fp.Federation.from_arrays(
        x, y, clients, test_fraction=0.0, validation_fraction=0.0
    )


@functools.cache
def model():
    return fp.LogisticRegression().for_federation(federation())


@pytest.fixture
def traces(tmp_path):
    """Devices whose speeds are known."""
    return table_of(tmp_path, SPEED, *(f"{i},{s}" for i, s in enumerate(SPEEDS)))


DAY = 30.0
WINDOWS = ((0, 30), (4, 9), (2, 20), (0, 12), (25, 28), (11, 13))


@pytest.fixture
def hours(tmp_path):
    """Devices of these speeds that are online in a window of every day."""
    rows = zip(SPEEDS, WINDOWS, strict=True)
    lines = [f"{i},{speed},{a},{b}" for i, (speed, (a, b)) in enumerate(rows)]
    return table_of(tmp_path, HOURS, *lines, day=DAY)


def opening(client, now):
    """First time from now on in a client's window."""
    first, last = WINDOWS[client]
    day = now // DAY * DAY
    return max(now, day + first) if now < day + last else day + DAY + first


def process_of(algorithm, participation, **fields):
    parts = {"algorithm": algorithm, "participation": participation}
    return fp.FederatedProcess(**parts, **fields)


def with_timetable(process, num_rounds):
    (timed,) = timetables.with_timetables(
        [process], model(), [federation()], [KEY], num_rounds
    )
    return timed


def run(process, num_rounds):
    """States after every round."""
    states = [compiled_rounds.init(process, KEY, model(), federation())]
    for _ in range(num_rounds):
        state, _ = compiled_rounds.run_round(process, states[-1], model(), federation())
        states.append(state)
    return states


def gradient(client, params):
    """Gradient of a client's loss at NumPy parameters, by differences of nothing."""
    return jax.tree.map(np.asarray, _slope(params, _examples(client)))


@functools.cache
def _examples(client):
    return federation().train.examples(client)


@jax.jit
@jax.grad
def _slope(params, batch):
    return model().loss(model().apply(params, batch.x), batch)


def trained(client, start, pull=0.0, center=None):
    """Full-batch steps of a client, with a pull to a center."""
    theta = start
    for _ in range(STEPS):
        slope = gradient(client, theta)
        if center is not None:
            slope = tree(lambda g, t, c: g + pull * (t - c), slope, theta, center)
        theta = tree(lambda t, g: t - RATE * g, theta, slope)
    return theta


def tree(fn, *trees):
    return jax.tree.map(lambda *leaves: np.asarray(fn(*leaves)), *trees)


def events(work, server_step, server, size, num_rounds, begins=lambda _, now: now):
    """Trains all clients at once for ever; the server moves at every `size` messages.

    An event list that is searched anew for the next event, with real models: clients
    that come online, and messages, in this order where both are at one time.
    """
    comings = {i: begins(i, 0.0) for i in range(NUM)}  # client -> time
    tasks = {}  # client -> end, version, model
    version, buffer, moves = 0, [], []
    while version < num_rounds:
        queue = [(time, 0, i) for i, time in comings.items()]
        queue += [(end, 1, i) for i, (end, *_) in tasks.items()]
        now, is_message, client = min(queue)
        if not is_message:
            end = comings.pop(client) + STEPS * COUNTS[client] / SPEEDS[client]
            tasks[client] = (end, version, server)
            continue
        _, begun, received = tasks.pop(client)
        buffer.append((client, version - begun, received, work(client, received)))
        if len(buffer) == size:
            server = server_step(server, buffer)
            moves.append((now, [b[:2] for b in sorted(buffer, key=lambda b: b[0])]))
            version += 1
            comings |= {member: begins(member, now) for member, *_ in buffer}
            buffer = []
    return server, moves


def close(a, b):
    chex.assert_trees_all_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("devices", "discount", "begins"),
    [
        ("traces", 0.0, lambda _, now: now),
        ("traces", 0.5, lambda _, now: now),
        ("hours", 0.5, opening),
    ],
)
def test_fedbuff_is_that_of_an_event_queue(request, devices, discount, begins):
    devices = request.getfixturevalue(devices)
    participation = Buffered(
        size=2, concurrency=NUM, devices=devices, discount=discount
    )
    process = with_timetable(process_of(FEDAVG, participation), 12)

    def step(server, buffer):
        total = sum(COUNTS[client] for client, *_ in buffer)
        for client, age, received, theta in buffer:
            part = COUNTS[client] / total * (1 + age) ** -discount
            server = tree(
                lambda w, u, a, part=part: w + part * (u - a), server, theta, received
            )
        return server

    first = run(process, 0)[0].server
    server, moves = events(trained, step, first, 2, 12, begins)
    timetable = process.participation.timetable
    np.testing.assert_allclose(timetable.seconds, [time for time, _ in moves])
    for row, (_, members) in enumerate(moves):
        ages = zip(timetable.cohort[row], timetable.staleness[row], strict=True)
        assert [tuple(map(int, pair)) for pair in ages] == members
    assert max(age for _, members in moves for _, age in members) >= 3
    close(run(process, 12)[-1].server, server)


def test_the_mean_staleness_is_that_of_float64(traces):
    participation = Buffered(size=3, concurrency=NUM, devices=traces)
    process = with_timetable(process_of(FEDAVG, participation), 6)
    means = process.participation.timetable.staleness.mean(axis=1)
    state = run(process, 0)[0]
    for mean in means:
        state, info = compiled_rounds.run_round(process, state, model(), federation())
        assert info.server["staleness"] == mean
    assert (means % 1 != 0).any()


@pytest.mark.wide
def test_asynchronous_flame_averages_the_latest_messages_of_all(traces):
    lam, kappa = 0.7, 2.0
    flame = fp.Flame(lam=lam, kappa=kappa, local=SGD)
    participation = Buffered(size=2, concurrency=NUM, devices=traces)
    process = with_timetable(process_of(flame, participation), 10)
    first = run(process, 0)[0].server
    zeros = tree(np.zeros_like, first)
    theta, local, dual = ([first] * NUM, [first] * NUM, [zeros] * NUM)
    messages = [first] * NUM

    def work(client, w):
        theta[client] = trained(client, theta[client], lam, local[client])
        local[client] = tree(
            *(lambda t, w, p: (t + kappa * (w - p)) / (1 + kappa), theta[client]),
            *(w, dual[client]),
        )
        dual[client] = tree(lambda p, v, w: p + v - w, dual[client], local[client], w)
        return tree(lambda v, p: v + p, local[client], dual[client])

    def step(server, buffer):
        for client, *_, message in buffer:
            messages[client] = message
        return tree(lambda *rows: sum(rows) / NUM, *messages)

    server, _ = events(work, step, first, 2, 10)
    state = run(process, 10)[-1]
    close(state.server, server)
    mine = tree(lambda *rows: np.stack(rows), *theta)
    busy = np.unique(process.participation.timetable.cohort)
    assert len(busy) >= 4
    close(tree(lambda a: a[busy], state.clients.theta), tree(lambda a: a[busy], mine))


@pytest.mark.parametrize("algorithm", [FEDAVG, wide(fp.Flame(local=SGD))])
def test_full_buffers_without_delays_are_synchronous_rounds(algorithm):
    every = Buffered(size=NUM, concurrency=NUM)
    late = with_timetable(process_of(algorithm, every), 4)
    plain = process_of(algorithm, fp.AllClients())
    close(run(late, 4)[-1].server, run(plain, 4)[-1].server)


CHARGES = Charges(
    examples=np.array([10.0, 20, 30, 40, 50]),
    steps=np.full(5, 10.0),
    up=100.0,
    down=50.0,
)


def table_of(tmp_path, *lines, **fields):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    return Devices(traces=str(path), **fields)


def schedule(participation, num_rounds=3, charges=CHARGES, seed=0):
    return participation.schedule(np.random.default_rng(seed), charges, num_rounds)


def test_a_round_ends_with_its_last_member_or_at_the_deadline(tmp_path):
    rows = [f"{i},10,100,50" for i in range(5)]
    devices = table_of(tmp_path, f"{SPEED},upload,download", *rows)
    # One second down, one up, and one to five of work.
    everyone = schedule(Synchronous(size=5, devices=devices))
    np.testing.assert_allclose(everyone.seconds, [7, 14, 21])
    first = schedule(Synchronous(size=2, select=5, devices=devices))
    np.testing.assert_allclose(first.seconds, [4, 8, 12])
    assert (first.cohort == [0, 1]).all()
    np.testing.assert_array_equal(first.received, 5)
    np.testing.assert_array_equal(first.sent, 2)
    late = schedule(Synchronous(size=5, deadline=5.5, devices=devices))
    np.testing.assert_allclose(late.seconds, [5.5, 11, 16.5])
    assert (late.present == [True, True, True, False, False]).all()
    assert (late.steps[:, 3:] == 0).all()
    part = schedule(Synchronous(size=5, deadline=5.5, late="partial", devices=devices))
    # 3.5 seconds of work: of 4 seconds for ten steps 8.75, of 5 seconds 7.
    assert (part.steps[:, 3:] == [8, 7]).all() and part.present.all()
    hopeless = Synchronous(size=5, deadline=2.0, late="partial", devices=devices)
    assert not schedule(hopeless).present.any()


def test_the_first_rounds_do_not_depend_on_how_many_there_are():
    devices = Devices(spread=1.0, online=0.4, upload=10.0)
    for participation in (
        Synchronous(size=2, select=3, devices=devices),
        Buffered(size=2, concurrency=3, devices=devices),
    ):
        long, short = (schedule(participation, count) for count in (9, 4))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:4], b), long, short)


def test_a_message_that_is_too_old_is_lost_and_counted_as_sent(tmp_path):
    rows = [f"{i},1000" for i in range(1, 5)]
    devices = table_of(tmp_path, SPEED, "0,1", *rows)
    kept = Buffered(size=2, concurrency=5, max_staleness=5, devices=devices)
    found = schedule(kept, 1000)
    assert found.staleness.max() <= 5 and not (found.cohort == 0).any()
    assert found.sent.max() == 3 and (found.seconds[found.sent == 3] >= 10).all()
    patient = Buffered(size=2, concurrency=5, max_staleness=10**6, devices=devices)
    found = schedule(patient, 1000)
    assert (found.cohort == 0).any() and found.staleness.max() > 50


def test_a_free_slot_is_filled_when_a_client_comes_online(tmp_path):
    devices = table_of(tmp_path, HOURS, "0,0.01,0,1000", "1,1,5,1000", day=1000.0)
    participation = Buffered(size=1, concurrency=2, devices=devices)
    charges = Charges(examples=np.ones(2), steps=np.ones(2), up=0.0, down=0.0)
    found = schedule(participation, 3, charges)
    np.testing.assert_array_equal(found.seconds, [6, 7, 8])
    np.testing.assert_array_equal(found.cohort, 1)
    np.testing.assert_array_equal(found.staleness, 0)
    np.testing.assert_array_equal(found.received, [2, 1, 1])


@pytest.mark.wide
def test_what_is_sent_is_counted(traces):
    participation = Synchronous(size=3, select=5, deadline=9.0, devices=traces)
    process = with_timetable(process_of(FEDAVG, participation), 8)
    timetable, state = process.participation.timetable, run(process, 0)[0]
    size = sum(leaf.size for leaf in jax.tree.leaves(state.server))
    arrived = timetable.present.sum(axis=1)
    assert set(arrived) >= {2, 3}  # of what follows, both cases
    for row in range(8):
        state, info = compiled_rounds.run_round(process, state, model(), federation())
        assert byte_counts.total(info.bytes_up) == 8 * size * arrived[row]
        assert byte_counts.total(info.bytes_down) == 8 * size * 5
        assert info.server["virtual_seconds"] == timetable.seconds[row]


def test_who_is_late_stays_as_it_was(traces):
    participation = Synchronous(size=NUM, deadline=9.0, devices=traces)
    process = with_timetable(process_of(fp.Flame(local=SGD), participation), 2)
    present = process.participation.timetable.present[0]
    assert present.any() and not present.all()
    before, after = run(process, 1)
    rows = [(s.clients, s.rows.get("messages")) for s in (before, after)]
    for a, b in zip(*map(jax.tree.leaves, rows), strict=True):
        same = (np.asarray(a) == np.asarray(b)).reshape(NUM, -1).all(axis=1)
        assert same[~present].all()
    moved = np.asarray(jax.tree.leaves(after.clients.theta)[0])
    still = np.asarray(jax.tree.leaves(before.clients.theta)[0])
    assert (moved != still).reshape(NUM, -1).any(axis=1)[present].all()


def test_speeds_and_hours_are_as_described():
    count = 20_000
    fields = {"spread": 0.8, "upload": 1e3, "bandwidth_spread": 0.3}
    devices = Devices(examples_per_second=50.0, **fields)
    fleet = devices.fleet(np.random.default_rng(0), count)
    logs = np.log(fleet.examples_per_second / 50)
    error = 4 / np.sqrt(count)
    assert abs(logs.mean()) < 0.8 * error and abs(logs.std() - 0.8) < 0.8 * error
    assert abs(np.log(fleet.upload / 1e3).std() - 0.3) < 0.3 * error
    assert np.isinf(fleet.download).all()
    some = dataclasses.replace(devices, online=0.25)
    fleet = some.fleet(np.random.default_rng(0), 2000)
    for time in (0.0, 40_000.0, 1e6):
        share = fleet.online(np.arange(2000), time).mean()
        assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
    for client in range(5):
        opens = fleet.next_online(client, 1e5)
        assert fleet.online(np.array([client]), opens).all()
        shut = opens + 0.25 * fleet.day + 1
        if opens > 1e5:  # a window begins there
            assert not fleet.online(np.array([client]), shut).any()


def test_only_clients_that_are_online_are_chosen(tmp_path):
    rows = [f"{i},1,{10 * i},{10 * i + 30}" for i in range(5)]
    devices = table_of(tmp_path, HOURS, *rows, day=100.0)
    charges = dataclasses.replace(CHARGES, examples=np.full(5, 4.0), up=0.0, down=0.0)
    found = schedule(Synchronous(size=2, devices=devices), 40, charges)
    starts = found.seconds - 4.0
    for start, members in zip(starts % 100, found.cohort, strict=True):
        assert all(10 * i <= start < 10 * i + 30 for i in members)
    with pytest.raises(checks.InputError, match="4 clients that are online at once"):
        schedule(Synchronous(size=4, devices=devices), 3, charges)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("client\n0", "columns client and examples_per_second"),
        (f"{SPEED},other\n0,1,1", "other"),
        (f"{SPEED},online_from\n0,1,1", "both of online_from"),
        (f"{SPEED}\n0,1\n1,", "line 3 lacks one"),
        (f"{SPEED}\n0,0", "above 0"),
        (f"{SPEED}\n0,1\n3,1", "3 have none, the first of them 1"),
        ("\n".join([HOURS, *(f"{i},1,5,2" for i in range(5))]), "begin"),
    ],
)
def test_wrong_traces_are_refused(tmp_path, text, match):
    with pytest.raises(checks.InputError, match=match):
        table_of(tmp_path, text).fleet(np.random.default_rng(0), 5)
    with pytest.raises(checks.InputError, match="Cannot read traces"):
        Devices(traces=str(tmp_path / "none.csv")).fleet(np.random.default_rng(0), 5)


@pytest.mark.parametrize(
    ("process", "match"),
    [
        (process_of(fp.FedACS(local=SGD), Buffered(size=2)), "got FedACS"),
        (process_of(fp.APFL(local=SGD), Buffered(size=2)), "got APFL"),
        (process_of(fp.FedPG(), Buffered(size=2)), "got FedPG"),
        (process_of(fp.FedPG(), Synchronous(size=2, deadline=1.0)), "deadline"),
        (process_of(FEDAVG, Buffered(size=2), work=fp.Stragglers()), "got Stragglers"),
        (process_of(CENTRALIZED, Synchronous(size=2)), "got Centralized, which trains"),
    ],
)
def test_what_has_no_meaning_is_refused(process, match):
    with pytest.raises(checks.InputError, match=match):
        with_timetable(process, 2)


def test_sizes_are_checked():
    process = process_of(fp.FedAvg(), Buffered(size=2))
    with pytest.raises(checks.InputError, match="at most 6 clients at once in Buff"):
        fp.simulate(KEY, process, model(), federation(), 1)
    for wrong in ({"size": 0}, {"select": 2}, {"deadline": 0.0}, {"late": "maybe"}):
        with pytest.raises(checks.InputError):
            Synchronous(**{"size": 3} | wrong)
    for wrong in ({"concurrency": 0}, {"max_staleness": -1}, {"discount": -0.5}):
        with pytest.raises(checks.InputError):
            Buffered(size=2, **wrong)


def test_every_solve_that_ends_by_a_tolerance_is_charged():
    local = ToTolerance(tolerance=1e9, max_steps=7)  # which ends at once
    twice = process_of(fp.Ditto(local=local), fp.AllClients())
    found = timetables.charges(twice, model(), federation(), KEY)
    np.testing.assert_array_equal(found.steps, 14)
    np.testing.assert_array_equal(found.examples, 16 * np.array(COUNTS))
    mixed = process_of(fp.Ditto(local=SGD, personal=local), fp.AllClients())
    with pytest.raises(checks.InputError, match="only solver .* as personal of Ditto"):
        timetables.charges(mixed, model(), federation(), KEY)


def test_charges_are_the_work_of_a_round():
    sgd = fp.SGD(learning_rate=RATE, epochs=3, batch_size=4)
    for algorithm, solves in ((fp.FedAvg(local=sgd), 1), (fp.Ditto(local=sgd), 2)):
        process = process_of(algorithm, fp.UniformCohort(size=2))
        found = timetables.charges(process, model(), federation(), KEY)
        np.testing.assert_array_equal(found.examples, solves * 3 * np.array(COUNTS))
        steps = solves * 3 * np.ceil(np.array(COUNTS) / 4)
        np.testing.assert_array_equal(found.steps, steps)
        size = sum(x.size for x in jax.tree.leaves(model().init(KEY)))
        assert found.up == found.down == 8 * size


@pytest.mark.wide
def test_compressed_messages_take_less_time_and_are_shifted_like_others(traces):
    halves = fp.TopK(fraction=0.5)
    participation = Buffered(size=2, concurrency=NUM, devices=traces)
    whole = process_of(FEDAVG, participation)
    small = dataclasses.replace(whole, transforms=(halves,))
    sent = [timetables.charges(p, model(), federation(), KEY) for p in (whole, small)]
    size = sum(x.size for x in jax.tree.leaves(model().init(KEY)))
    assert sent[1].down == sent[0].down == sent[0].up == 8 * size
    # Half of the numbers, and the places of as many.
    places = (size // 2) * np.ceil(np.log2(size)) / 8
    assert 4 * size + places <= sent[1].up <= 4 * size + places + 1
    everything = dataclasses.replace(whole, transforms=(fp.TopK(fraction=1.0),))
    ends = [run(with_timetable(p, 6), 6)[-1].server for p in (whole, everything, small)]
    close(ends[0], ends[1])
    with pytest.raises(AssertionError):
        close(ends[0], ends[2])


SPEC = fp.FederationSpec(
    "digits", fp.LabelShards(labels_per_client=4), num_clients=12, test_fraction=0.3
)


def train(axes=None, **options):
    devices = Devices(examples_per_second=20.0, spread=1.0)
    participation = Buffered(size=3, concurrency=6, devices=devices)
    process = process_of(fp.Flame(local=fp.SGD(learning_rate=0.1)), participation)
    settings = {"num_rounds": 8, "eval_every": 2, "evaluate_on": "test"} | options
    axes = axes or {"seed": [0]}
    return fp.grid(
        *(jax.random.key(0, impl="threefry2x32"), process, fp.LogisticRegression()),
        *(SPEC, axes),
        progress=False,
        **settings,
    )


def values_of(result, **where):
    """Losses of the personal model by round, of the only training or of one."""
    table = result.curves()
    where |= {"metric": "loss", "model": "personal"}
    where |= {"data": "own test", "population": "all"}
    for name, value in where.items():
        table = table[table[name] == value]
    assert not table["round"].duplicated().any() and len(table) == 5
    return table["value"].to_numpy()


@pytest.mark.wide  # a loop that is not compiled
def test_the_reference_loop_has_the_same_times():
    alone, loop = (values_of(train(execution=e)) for e in ("vmap", "loop"))
    np.testing.assert_allclose(loop, alone, rtol=1e-6)


@pytest.mark.wide
def test_chunks_grids_and_points_change_nothing():
    alone = train(execution="vmap")
    np.testing.assert_allclose(
        values_of(train(execution="chunk=2")), values_of(alone), rtol=1e-6
    )
    both = train({"seed": [0, 1], "algorithm.lam": [0.1, 1.0]}, execution="vmap")
    own = values_of(both, seed=0, **{"algorithm.lam": 1.0})
    np.testing.assert_allclose(own, values_of(alone), rtol=1e-6)
    spent = both.spent()
    last = spent[spent["round"] == 8]["virtual_seconds"]
    assert (last > 0).all() and last.nunique() == 2  # one timetable per seed


@pytest.mark.wide
def test_speeds_are_axes_of_a_grid():
    name = "participation.devices.examples_per_second"
    result = train({name: [20.0, 200.0]})
    spent = result.spent()
    last = spent[spent["round"] == 8]["virtual_seconds"].to_numpy()
    np.testing.assert_allclose(last[0], 10 * last[1], rtol=1e-5)
    slow, fast = (values_of(result, **{name: speed}) for speed in (20.0, 200.0))
    np.testing.assert_allclose(slow, fast, rtol=1e-6)  # the same order of events


def test_a_resumed_training_is_the_same_to_the_bit(tmp_path):
    whole, kept = train(), fp.Checkpoints(tmp_path / "kept", min_seconds=0)
    with pytest.raises(InterruptedError):
        train(checkpoints=kept, callbacks=[breaking.Stop(at=4)])
    again = train(checkpoints=kept)
    np.testing.assert_array_equal(values_of(again), values_of(whole))
