"""Every algorithm and contract probe has the properties of `fedjax_pfl.testing`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import testing
from fedjax_pfl.core import sharding, struct
from fedjax_pfl.testing import compiled_rounds, rounds, toy
from tests.algorithms import cases
from tests.lanes import few, wide

KEY = jax.random.key(3, impl="threefry2x32")
# For almost all cases; the others take long, and are checked with --all-algorithms for
# variants and light cases.
CHEAP = (
    "states_keep_their_layout",
    "states_stay_finite",
    "same_key_same_result",
    "absent_clients_are_bit_identical",
)
# Centralized training shuffles the union of all clients, whose order and slots follow
# the clients' order and padding. FedFomo's affinities have clients on both axes; its
# own file permutes them.
NOT_OF = {
    "permuting_clients_permutes_results": ("centralized", "fedfomo"),
    "padding_changes_nothing": ("centralized",),
}
# What the order of clients or padding could enter in mixtures is checked always.
MIXING = ("fedacs", "fedamp")
# Covered by the executions below, and by all cases' other properties.
FOR_FLAME = (
    "chunks_change_rounding_only",
    "nonfinite_messages_never_enter",
    "randomness_comes_from_keys",
)
FOR_TWO_EXCHANGES = (*NOT_OF, "devices_change_rounding_only")
# The properties that take longest: one scan over minibatches is compared with a loop
# that is not compiled; fields of solvers have tests of their own in every run.
ONE_CASE = {"loop_reference": "memory", "solver_fields_act": None}


@functools.cache
def subject(name):
    case = cases.CASES[name]
    field, value = case.field
    return testing.Subject(
        algorithm=case.algorithm,
        model=case.model,
        aggregator=case.aggregator,
        attack=case.attack,
        field=(f"algorithm.{field}", value),
    )


def is_wide(name, prop):
    """Whether a property of a case is checked with --all-algorithms only."""
    depth = cases.CASES[name].depth
    if prop in CHEAP:
        return depth == "variant"
    if prop in FOR_FLAME:
        return name != "flame"
    if prop in ONE_CASE:
        return name != ONE_CASE[prop]
    if prop in NOT_OF and name in MIXING:
        return False
    return depth != "full" or (
        name == "two_exchanges" and prop not in FOR_TWO_EXCHANGES
    )


PAIRS = [
    pytest.param(name, prop, marks=[pytest.mark.wide] * is_wide(name, prop))
    for prop in testing.PROPERTIES
    for name in cases.CASES
    if name not in NOT_OF.get(prop, ())
]


@pytest.mark.parametrize(("name", "prop"), PAIRS)
def test_property(name, prop):
    testing.check(prop, subject(name))


@pytest.mark.wide  # by default chunks on one and on two devices, by size
@pytest.mark.parametrize(
    "execution", ["chunk=2", "chunk=3", "shard=1", "shard=2", "shard=4", "shard=8"]
)
def test_execution_changes_rounding_only(execution):
    execution = sharding.Execution.parse(execution)
    rounds.execution_changes_rounding_only(subject("flame"), execution)


@pytest.mark.parametrize("mode", [wide("stop"), "freeze"])
def test_nonfinite_messages_in_other_modes(mode):
    rounds.nonfinite_messages_never_enter(subject("flame"), mode)


LIMITS = [name for name, case in cases.CASES.items() if case.limit]
# Ditto has a closed form in its own file; the others are variants of FedAvg.
TWICE = ("ditto", "fedprox", "schedule")
LIMITS = few([name for name in LIMITS if name not in TWICE], LIMITS)


@pytest.mark.parametrize("name", LIMITS)
def test_converges_on_the_quadratic(name):
    federation = toy.make_federation(classes=False)
    model = fp.models.Quadratic().for_federation(federation)
    process = fp.FederatedProcess(algorithm=cases.CASES[name].full)
    process = struct.as_arrays(process, jnp.zeros(()).dtype)

    @jax.jit
    def server():
        start = process.init(KEY, model, federation)
        return jax.lax.fori_loop(
            0, 300, lambda _, s: process.round(s, model, federation)[0], start
        ).server

    expected = cases.CASES[name].limit()
    np.testing.assert_allclose(server()["theta"], expected, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["ditto", "fedacs", "fedamp", "pfedme"])
def test_attacks_replace_messages_only(name):
    """What clients keep changes once they receive what attacked messages became."""
    at, found = subject(name).everyone, []
    for malicious in ((), (2,)):
        federation = toy.make_federation(malicious=malicious)
        first, _ = at.round(at.first(), federation=federation)
        second, _ = at.round(first, federation=federation)
        found.append([np.asarray(toy.leaves(s.clients)[0]) for s in (first, second)])
    honest, attacked = found
    np.testing.assert_array_equal(attacked[0], honest[0])
    changed = (attacked[1] != honest[1]).reshape(toy.NUM_CLIENTS, -1).any(axis=1)
    # FedACS leaves clients alone that resemble no other one.
    assert np.delete(changed, 2).all() or name == "fedacs" and changed.sum() > 4


WIDE_RULES = [
    None,
    fp.TrimmedMean(),
    fp.aggregators.MeaMed(),
    fp.aggregators.CenteredClipping(),
    fp.aggregators.NormClipping(),
    fp.aggregators.Bucketing(),
]
RULES = [fp.CoordinateMedian(), fp.GeometricMedian(), *map(wide, WIDE_RULES)]


@pytest.mark.parametrize("rule", RULES)
def test_sharded_round_gathers_no_rows(rule):
    """A compiled sharded round contains no all-gather of client rows."""
    federation = toy.make_federation()
    model = fp.LogisticRegression().for_federation(federation)
    algorithm = fp.FedPlus(local=cases.SGD, aggregate_over="all")
    process = fp.FederatedProcess(
        algorithm=algorithm, aggregator=rule or fp.aggregators.Mean()
    )
    execution = sharding.Execution(mode="shard", chunk_size=1)
    process = struct.as_arrays(process)
    state = process.init(KEY, model, federation)
    state = sharding.shard_rows(state, toy.NUM_CLIENTS, execution)
    federation = sharding.shard_rows(federation, toy.NUM_CLIENTS, execution)
    args = (process, state, model, federation, execution)
    text = compiled_rounds.run_round.lower(*args).compile().as_text()
    gathers = [line for line in text.splitlines() if " all-gather(" in line]
    rows = ("[8,3,4]", "[8,3]", "[8,12]", "[8,15]")  # leaves, and all in one vector
    assert not [line for line in gathers if any(shape in line for shape in rows)]
