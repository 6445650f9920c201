"""Messages that clients' states tell: not kept, and the training is the same."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import sharding
from fedjax_pfl.testing import compiled_rounds
from tests import problems
from tests.lanes import wide

ROUNDS = 12
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def _process(size=None, on_nonfinite="stop", **fields):
    """FLAME; only where a bad round must be undone are its messages kept."""
    return fp.FederatedProcess(
        algorithm=fp.Flame(kappa=2.0, local=problems.full_gradient_steps(steps=2)),
        participation=fp.AllClients() if size is None else fp.UniformCohort(size=size),
        on_nonfinite=on_nonfinite,
        **fields,
    )


@pytest.mark.parametrize(
    "execution", ["vmap", *map(wide, ("chunk=1", "chunk=4", "shard=4"))]
)
@pytest.mark.parametrize("size", [wide(None), 3])
def test_a_training_is_that_with_kept_messages(size, execution):
    problem = problems.waves()
    how = sharding.Execution.parse(execution)
    found = []
    for mode in ("stop", "drop"):
        process = _process(size, mode)
        state = problems.first_state(process, problem)
        assert ("messages" not in state.rows) == (mode == "stop")
        # Round 100 computes the mean anew, from everybody's state.
        state = dataclasses.replace(state, round=jnp.asarray(95, jnp.int32))
        run = jax.jit(process.round, static_argnums=(1, 3))
        for _ in range(ROUNDS):
            state, _ = run(state, problem.model, problem.federation, how)
        rows = state.clients
        messages = process.messages_of(state)
        found.append((state.server, rows, state.memory["mean"], messages))
    ours, theirs = found
    chex.assert_trees_all_close(ours, theirs, **CLOSE)
    mean = np.mean(ours[3]["theta"], axis=0)
    np.testing.assert_allclose(ours[0]["theta"], mean, **CLOSE)


@pytest.mark.parametrize(
    ("fields", "tells"),
    [
        ({}, True),
        ({"size": 2}, True),
        ({"attack": fp.attacks.SignFlip()}, False),
        ({"transforms": (fp.ClipNorm(norm=1.0),)}, False),
        ({"aggregator": fp.aggregators.CoordinateMedian()}, False),
        ({"on_nonfinite": "freeze"}, False),
        ({"on_nonfinite": "drop"}, False),
    ],
)
def test_messages_are_kept_where_what_arrives_may_differ(fields, tells):
    process = _process(**fields)
    state = problems.first_state(process, problems.waves())
    assert ("messages" not in state.rows) == tells
    late = dataclasses.replace(process, participation=fp.Buffered(size=2))
    assert "messages" in problems.first_state(late, problems.waves()).rows


@pytest.mark.parametrize("size", [None, wide(4)])
def test_what_is_not_finite_has_no_part_in_the_mean(size):
    """The client counts with the message that it sent before."""
    problem = problems.waves()
    process, parts = _process(size), (problem.model, problem.federation)
    state = problems.first_state(process, problem)
    state, _ = compiled_rounds.run_round(process, state, *parts)
    before = process.messages_of(state)["theta"]
    theta = state.clients.theta["theta"].at[2].set(jnp.nan)
    broken = dataclasses.replace(state.clients, theta={"theta": theta})
    state = dataclasses.replace(state, clients=broken)
    after, info = compiled_rounds.run_round(process, state, *parts)
    cohort = list(np.asarray(info.cohort))
    assert (2 in cohort) == (int(info.num_nonfinite) > 0)
    sent = np.array(process.messages_of(after)["theta"])
    assert np.isnan(sent[2]).all() == (2 in cohort)
    sent[2] = before[2]
    np.testing.assert_allclose(after.server["theta"], sent.mean(axis=0), **CLOSE)
