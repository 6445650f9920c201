"""The table of properties that every algorithm and contract probe passes."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import (
    checkpoint,
    clients,
    compiled,
    driver,
    results,
    settings,
    struct,
)
from tests import problems
from tests.algorithms import cases, probes, toy

COHORT = 5
KEY = jax.random.key(3, impl="threefry2x32")
VMAP = clients.Execution()
# Sums over at most 9 examples and 8 clients in another order, a few steps of a problem
# with condition number below 10: 1e3 units in the last place.
TIGHT = 1e3 * np.finfo(np.float64).eps
all_cases = pytest.mark.parametrize("name", cases.CASES)


def cases_with(costly, wide=(), always=()):
    """Cases of a property; what takes long is run with --all-algorithms only."""
    skipped = ("light", "variant") if costly else ("variant",)
    return [
        pytest.param(
            name,
            marks=[pytest.mark.wide]
            * (name in wide or (case.depth in skipped and name not in always)),
        )
        for name, case in cases.CASES.items()
    ]


most_cases = pytest.mark.parametrize("name", cases_with(costly=False))
costly_cases = pytest.mark.parametrize("name", cases_with(True, ("two_exchanges",)))


def make_process(name, *, full=False, everyone=False, attack=True):
    case = cases.CASES[name]
    process = fp.FederatedProcess(
        algorithm=case.full() if full else case.make(),
        aggregator=None if full else case.aggregator,
        participation=fp.AllClients() if everyone else fp.UniformCohort(size=COHORT),
        work=fp.FullWork() if full else fp.Stragglers(fraction=0.3, max_epochs=2),
        attack=case.attack if attack else None,
    )
    return struct.as_arrays(process, jnp.zeros(()).dtype)


@functools.cache
def setting(name, everyone=False):
    federation = toy.make_federation()
    model = cases.CASES[name].model.for_federation(federation)
    process = make_process(name, everyone=everyone)
    return process, model, federation


@functools.partial(jax.jit, static_argnames=("model", "execution"))
def compiled_round(process, state, model, federation, execution):
    return process.round(state, model, federation, execution)


@functools.partial(jax.jit, static_argnames="model")
def compiled_init(process, key, model, federation):
    return process.init(key, model, federation)


@functools.cache
def warm_state(name, everyone=False):
    """A state after two rounds, so that rows differ between clients."""
    process, model, federation = setting(name, everyone)
    state = compiled_init(process, KEY, model, federation)
    for _ in range(2):
        state, _ = compiled_round(process, state, model, federation, VMAP)
    return state


def one_round(name, *, everyone=False, execution=VMAP):
    process, model, federation = setting(name, everyone)
    state = warm_state(name, everyone)
    return compiled_round(process, state, model, federation, execution)


def assert_close(a, b, tolerance=TIGHT):
    for x, y in zip(toy.leaves(a), toy.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def assert_same(a, b):
    for x, y in zip(toy.leaves(a), toy.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@most_cases
def test_state_layout_and_stability(name):
    process, model, federation = setting(name)
    first = jax.eval_shape(lambda key: process.init(key, model, federation), KEY)
    for leaf in jax.tree.leaves((first.clients, first.messages)):
        assert leaf.shape[0] == toy.NUM_CLIENTS
    after = jax.eval_shape(lambda s: process.round(s, model, federation)[0], first)
    assert jax.tree.structure(first) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    for leaf in jax.tree.leaves(one_round(name)[0]):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert jnp.isfinite(leaf).all()


@most_cases
def test_same_key_same_result(name):
    assert_same(one_round(name), one_round(name))


EXECUTIONS = ("chunk=3", "shard=8")
WIDE_EXECUTIONS = ("chunk=2", "shard=1", "shard=2", "shard=4")
BOTH = clients.Execution(mode="shard", num_devices=2, chunk_size=3, by_size=True)
PAIRS = [
    pytest.param(name, execution, marks=case.marks)
    for case in cases_with(costly=True)
    for name in case.values
    for execution in (EXECUTIONS if name == "flame" else ()) + (BOTH,)
]
PAIRS += [pytest.param("flame", e, marks=pytest.mark.wide) for e in WIDE_EXECUTIONS]


@pytest.mark.parametrize(("name", "execution"), PAIRS, ids=str)
def test_execution_changes_rounding_only(name, execution):
    state, info = one_round(name)
    other, other_info = one_round(name, execution=clients.Execution.parse(execution))
    assert_close(state, other)
    assert_close(info, other_info)


@costly_cases
def test_loop_reference(name):
    process, model, federation = setting(name)
    with jax.disable_jit():
        state, _ = process.round(
            warm_state(name), model, federation, clients.Execution(mode="loop")
        )
    assert_close(one_round(name)[0], state)


# Centralized training shuffles the union of all clients, whose order and slots follow
# the clients' order and padding.
MIXING = ("fedacs", "fedamp", "heur_fedamp", "own_down")


def federated_cases(*without):
    found, without = cases_with(costly=True, always=MIXING), ("centralized", *without)
    names = [case for case in found if case.values[0] not in without]
    return pytest.mark.parametrize("name", names)


# FedFomo's affinities have clients on both axes; its own file permutes them.
@federated_cases("fedfomo")
def test_permuting_clients_permutes_results(name):
    order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
    process, model, federation = setting(name, everyone=True)
    state = warm_state(name, everyone=True)
    rows = clients.take((state.clients, state.messages), jnp.asarray(order))
    permuted = dataclasses.replace(state, clients=rows[0], messages=rows[1])
    new, _ = one_round(name, everyone=True)
    other, _ = compiled_round(
        process, permuted, model, toy.make_federation(order=order), VMAP
    )
    assert_close(new.server, other.server)
    assert_close(clients.take(new.clients, jnp.asarray(order)), other.clients)


@federated_cases()
def test_padding_changes_nothing(name):
    process, model, federation = setting(name)
    state, _ = one_round(name)
    padded = toy.make_federation(padding=5)
    other, _ = compiled_round(process, warm_state(name), model, padded, VMAP)
    assert_close(state, other)


@most_cases
def test_absent_clients_are_bit_identical(name):
    process, model, federation = setting(name)
    before = probes.with_row_garbage(warm_state(name))
    after, info = compiled_round(process, before, model, federation, VMAP)
    absent = np.setdiff1d(np.arange(toy.NUM_CLIENTS), np.asarray(info.cohort))
    assert len(absent) == toy.NUM_CLIENTS - COHORT
    rows = (before.clients, before.messages), (after.clients, after.messages)
    for a, b in zip(toy.leaves(rows[0]), toy.leaves(rows[1]), strict=True):
        np.testing.assert_array_equal(a[absent], b[absent])


def run(name, fields, *, segment=2, rounds=4, store=None, interrupt=None, **options):
    """Runs points that differ in one traced field through the driver."""
    process, model, federation = setting(name)
    field = cases.CASES[name].field[0]
    processes = [struct.replace_field(process, field, value) for value in fields]
    first, *others = processes
    points = [{field: value} for value in fields]
    group = problems.group(
        *(KEY, first, cases.CASES[name].model, federation, *others), points=points
    )
    options = {"execution": "vmap", "evaluate_on": ("test",)} | options
    plan = settings.Settings.parse(rounds, eval_every=segment, **options)
    interrupt = interrupt or (lambda: None)
    return driver.run_group(group, plan, store=store, interrupt=interrupt)


@costly_cases
def test_grid_equals_single_runs_and_segments_are_bit_identical(name):
    field, other = cases.CASES[name].field
    first = struct.get_field(make_process(name), field)
    together, states = run(name, [float(first), other])
    assert together.diverged_at.tolist() == [-1, -1]
    for number, value in enumerate([float(first), other]):
        alone, state = run(name, [value])
        for metric in together.metrics:
            np.testing.assert_allclose(
                together.metrics[metric][number], alone.metrics[metric][0], rtol=1e-9
            )
    longer, long_state = run(name, [other], segment=3)
    assert_same(state, long_state)
    assert longer.rounds.tolist() == [0, 3, 4]


@costly_cases
def test_a_resumed_grid_is_bit_identical(name, tmp_path):
    """Interrupted after half of the rounds, continued from what is on the disk."""
    field, other = cases.CASES[name].field
    values = [float(struct.get_field(make_process(name), field)), other]
    expected, states = run(name, values)
    options = checkpoint.Checkpoints(tmp_path, min_seconds=0)
    questions = iter([None, "enough"])
    with pytest.raises(driver.Interrupted) as stopped:
        run(
            name,
            values,
            store=options.store(0, name),
            interrupt=lambda: next(questions),
        )
    assert stopped.value.done == 2
    resumed, resumed_states = run(name, values, store=options.store(0, name))
    assert_same(states, resumed_states)
    seconds = {"compile_seconds": 0.0, "run_seconds": 0.0}
    ours, theirs = (
        results.Result(groups=(dataclasses.replace(record, **seconds),), provenance={})
        for record in (resumed, expected)
    )
    assert ours == theirs


@costly_cases
def test_scan_equals_python_loop(name):
    process, model, federation = setting(name)
    field, value = cases.CASES[name].field
    process = struct.replace_field(process, field, jnp.asarray(value))
    state = compiled_init(process, KEY, model, federation)
    for _ in range(4):
        state, _ = compiled_round(process, state, model, federation, VMAP)
    _, scanned = run(name, [value])
    # Four rounds of rounding differences between two programs.
    assert_close(state, jax.tree.map(lambda leaf: leaf[0], scanned), 4 * TIGHT)


@costly_cases
def test_new_values_do_not_retrace(name):
    field, value = cases.CASES[name].field
    run(name, [value])
    programs = (compiled.segment, compiled.evaluate)
    before = [program._cache_size() for program in programs]
    run(name, [0.9 * value])
    run(name, [0.8 * value], rounds=6)
    assert [program._cache_size() for program in programs] == before


@pytest.mark.parametrize("name", [n for n, c in cases.CASES.items() if c.limit])
def test_converges_on_the_quadratic(name):
    federation = toy.make_federation(classes=False)
    model = fp.Quadratic().for_federation(federation)
    process = make_process(name, full=True, everyone=True, attack=False)
    state = process.init(KEY, model, federation)

    @jax.jit
    def many(state):
        return jax.lax.fori_loop(
            0, 300, lambda _, s: process.round(s, model, federation)[0], state
        )

    np.testing.assert_allclose(
        many(state).server["theta"], cases.CASES[name].limit(), atol=1e-6
    )


@costly_cases
def test_round_exports_for_tpu_and_cuda(name):
    process, model, federation = setting(name)

    def step(state_key_data, state):
        key = jax.random.wrap_key_data(state_key_data, impl="threefry2x32")
        state, _ = process.round(dataclasses.replace(state, key=key), model, federation)
        return jax.tree.leaves(dataclasses.replace(state, key=None))

    state = warm_state(name)
    data = jax.random.key_data(state.key)
    exported = jax.export.export(jax.jit(step), platforms=["tpu", "cuda"])(
        data, dataclasses.replace(state, key=None)
    )
    assert exported.platforms == ("tpu", "cuda")


@costly_cases
def test_float32_round(name):
    federation = toy.make_federation(dtype=jnp.float32)
    process = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), make_process(name))
    model = cases.CASES[name].model.for_federation(federation)

    def single(tree):
        return jax.tree.map(
            lambda leaf: (
                leaf.astype(jnp.float32)
                if jnp.issubdtype(leaf.dtype, jnp.floating)
                else leaf
            ),
            tree,
        )

    state, _ = compiled_round(
        process, single(warm_state(name)), model, federation, VMAP
    )
    reference, _ = one_round(name)
    for a, b in zip(toy.leaves(state), toy.leaves(reference), strict=True):
        # One round: a few hundred operations of float32 on values of order one.
        np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("mode", ["stop", "drop", "freeze"])
def test_nonfinite_messages_never_enter(mode):
    """A client that sends NaN once is counted, and the server stays finite."""

    @struct.pytree_dataclass
    class Poison:
        def init(self, messages):
            return None

        def __call__(self, key, state, messages, malicious, reference):
            bad = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), messages)
            return clients.select_rows(malicious, bad, messages), state

    federation = toy.make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=cases.SGD), attack=Poison(), on_nonfinite=mode
    )
    start = process.init(KEY, model, federation)
    state, info = process.round(start, model, federation)
    assert info.num_nonfinite == 1
    assert all(np.isfinite(leaf).all() for leaf in toy.leaves(state.server))
    assert all(np.isfinite(leaf).all() for leaf in toy.leaves(state.messages))
    moved = any(
        (a != b).any()
        for a, b in zip(toy.leaves(start.server), toy.leaves(state.server), strict=True)
    )
    assert moved == (mode != "freeze")
    assert int(state.round) == 1


WIDE_RULES = [fp.MeaMed(), fp.CenteredClipping(), fp.NormClipping(), fp.Bucketing()]
RULES = [None, fp.CoordinateMedian(), fp.GeometricMedian(), fp.TrimmedMean()]
RULES += [pytest.param(rule, marks=pytest.mark.wide) for rule in WIDE_RULES]


@pytest.mark.parametrize("rule", RULES)
def test_sharded_round_gathers_no_rows(rule):
    """A compiled sharded round contains no all-gather of client rows."""
    federation = toy.make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    algorithm = fp.FedPlus(local=cases.SGD, aggregate_over="all")
    process = fp.FederatedProcess(algorithm=algorithm, aggregator=rule or fp.Mean())
    execution = clients.Execution(mode="shard", chunk_size=1)
    process = struct.as_arrays(process)
    state = process.init(KEY, model, federation)
    state = clients.shard_rows(state, toy.NUM_CLIENTS, execution)
    federation = clients.shard_rows(federation, toy.NUM_CLIENTS, execution)
    args = (process, state, model, federation, execution)
    text = compiled_round.lower(*args).compile().as_text()
    gathers = [line for line in text.splitlines() if " all-gather(" in line]
    rows = ("[8,3,4]", "[8,3]", "[8,12]", "[8,15]")  # leaves, and all in one vector
    assert not [line for line in gathers if any(shape in line for shape in rows)]
