"""The incrementally kept mean, while huge messages come and go."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.round.parts import mailbox
from tests import problems
from tests.engine import faults

KEY = jax.random.key(0)
ROUNDS = 60


@struct.pytree_dataclass
class Reports(base.SingleExchange):
    """Messages that depend on client and round alone; the server keeps their mean."""

    single: bool = struct.static_field(default=True)

    @property
    def aggregate_over(self):
        return "all"

    def _message(self, round, client_id):
        dtype = jnp.float32 if self.single else jnp.float64
        phases = jnp.arange(5.0) * (client_id + 1.0)
        return {"theta": (1 + jnp.sin(phases + round)).astype(dtype)}

    def init(self, key, model, population, data):
        zero = jnp.zeros((), jnp.int32)
        return self._message(zero, zero), None, self._message(zero, data.client_id)

    def client_update(self, view, down, client, model):
        message = self._message(view.round, view.data.client_id)
        return client, view.upload(message), {}

    def predictors(self, view, server, client, model):
        return {}


@struct.pytree_dataclass
class WithTheFirstTwo(core.Participation):
    """The first two clients, who are malicious, and another one."""

    def cohort_size(self, num_clients):
        return 3

    def __call__(self, key, num_clients):
        other = jax.random.randint(
            key, (), faults.NUM_MALICIOUS, num_clients, jnp.int32
        )
        return jnp.stack([jnp.int32(0), jnp.int32(1), other])


def _keeps_mean(value, *, single=True, **fields):
    attack = {"turn": -1.0, "fade": 1.0, "last": 12.0}
    attack |= {name: fields.pop(name) for name in attack if name in fields}
    attack = jax.tree.map(jnp.asarray, attack | {"value": value})
    parts = {
        "aggregator": fp.aggregators.Mean(),
        "participation": fp.UniformCohort(size=3),
    }
    return fp.FederatedProcess(
        algorithm=Reports(single=single),
        attack=faults.Sends(**attack),
        **(parts | fields),
    )


def _exact_mean(states, weighting="uniform"):
    rows = states.rows["messages"]["theta"].astype(np.longdouble)
    share = faults.problem().alpha(weighting).astype(np.longdouble)
    return np.einsum("n,rnd->rd", share, rows), rows


def _check_kept_mean(process, size, weighting="uniform"):
    """Huge messages came, and went, and the mean is that of the cache all the time."""
    states, _, _ = problems.run(process, faults.problem(), ROUNDS)
    exact, rows = _exact_mean(states, weighting)
    largest = np.abs(rows).max(axis=(1, 2))
    assert largest.max() >= 0.99 * size and largest[-1] < 3
    # Four sums a round of at most 16 times the mean; and as long as huge rows are
    # there, what sums over the cache round as well.
    sums = 16 * np.abs(exact).max(axis=1) + np.where(largest < 3, 0, largest)
    error = np.abs(states.memory["mean"]["theta"] - exact).max(axis=1)
    eps = np.finfo(states.memory["mean"]["theta"].dtype).eps
    assert (error <= 4 * ROUNDS * eps * sums).all(), size
    np.testing.assert_array_equal(
        states.server["theta"][1:], states.memory["mean"]["theta"][1:]
    )


@pytest.mark.parametrize(
    ("aggregator", "single"), [("mean", True), ("weighted_mean", False)]
)
def test_the_kept_mean_is_that_of_the_cache_after_huge_messages(aggregator, single):
    weighting = "uniform" if aggregator == "mean" else "examples"
    rule = fp.algorithms.AGGREGATORS[aggregator]()
    for size in (1e6, 1e38, 3e38) if single else (1e6, 1e200, 1e308, 1.7e308):
        for turn in (1.0, -1.0):
            process = _keeps_mean(size, aggregator=rule, single=single, turn=turn)
            _check_kept_mean(process, size, weighting)


def test_the_kept_mean_survives_huge_messages_that_cancel():
    """Two of opposite sign come and go together: the mean itself is never large."""
    for size in (1e8, 1e38):
        process = _keeps_mean(size, participation=WithTheFirstTwo())
        _check_kept_mean(process, size)


def test_the_kept_mean_survives_huge_messages_that_fade():
    """No round's mean is much smaller than that of the round before."""
    _check_kept_mean(_keeps_mean(1e9, fade=0.5, turn=1.0, last=faults.NEVER), 1e9)


def test_without_huge_messages_the_mean_is_not_recomputed():
    """An error put into it stays as it is, though values of both signs come and go."""
    process = _keeps_mean(2.0, single=False)
    state = problems.first_state(process, faults.problem())
    wrong = jax.tree.map(lambda leaf: leaf + 1, state.memory["mean"])
    state = state.with_memory(mean=wrong)
    states, _, _ = problems.run(process, faults.problem(), ROUNDS, state=state)
    exact, _ = _exact_mean(states)
    error = (states.memory["mean"]["theta"] - exact).astype(float)
    np.testing.assert_allclose(error, 1, atol=4 * ROUNDS * np.finfo(float).eps)
    assert ROUNDS < mailbox.RECOMPUTE_EVERY


def test_the_kept_mean_does_not_depend_on_where_a_run_is_cut():
    process = _keeps_mean(3e38)
    whole, _, _ = problems.run(process, faults.problem(), ROUNDS)
    first, _, _ = problems.run(process, faults.problem(), 7)
    state = client_rows.take(first, -1)
    state = dataclasses.replace(state, key=KEY)
    rest, _, _ = problems.run(process, faults.problem(), ROUNDS - 7, state=state)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(rest), strict=True):
        np.testing.assert_array_equal(a[7:], b)


@functools.partial(jax.jit, static_argnames="num_rounds")
def _lanes(processes, states, num_rounds):
    problem = faults.problem()

    def one(process, state):
        state = dataclasses.replace(state, round=jnp.zeros((), jnp.int32))

        def step(state, _):
            return process.round(state, problem.model, problem.federation)

        return lax.scan(step, state, None, length=num_rounds)

    return jax.vmap(one)(processes, states)


def _stacked(values):
    members = [_keeps_mean(value) for value in values]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    states = [problems.first_state(member, faults.problem()) for member in members]
    return stack, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def test_a_lane_is_recomputed_alone():
    """The error put into the means of quiet lanes stays in them, bit by bit."""
    ends = []
    for value in (3e38, 1.5):
        process, states = _stacked([1.5, value, -0.5])
        shift = jnp.array([1, 0, 2], jnp.float32)[:, None]
        wrong = jax.tree.map(lambda leaf, s=shift: leaf + s, states.memory["mean"])
        states = states.with_memory(mean=wrong)
        ends.append(_lanes(process, states, ROUNDS)[0])
    for lane in (0, 2):
        a, b = (
            jax.tree.leaves(client_rows.take(end.memory["mean"], lane)) for end in ends
        )
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    mean = np.asarray(ends[0].rows["messages"]["theta"]).mean(axis=1)
    error = np.abs(ends[0].memory["mean"]["theta"] - mean).max(axis=1)
    eps = np.finfo(np.float32).eps
    assert error[1] <= 4 * ROUNDS * 16 * eps * np.abs(mean[1]).max()
    np.testing.assert_allclose(error[[0, 2]], [1, 2], atol=4 * ROUNDS * eps * 4)


def _sums(jaxpr, everybody, *, branches):
    """Counts products with everybody's rows, also in conditionals where wanted."""
    count = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            count += any(everybody in value.aval.shape for value in equation.invars)
        if branches or equation.primitive.name != "cond":
            inner = jax.tree.leaves(list(equation.params.values()))
            inner = [getattr(value, "jaxpr", value) for value in inner]
            for value in inner:
                if hasattr(value, "eqns"):
                    count += _sums(value, everybody, branches=branches)
    return count


def test_lanes_recompute_under_a_conditional():
    """Under vmap the sum over all clients stays inside a branch, not beside it."""
    process, states = _stacked([1.0, 2.0])
    everybody = states.rows["messages"]["theta"].shape[1]
    lanes = functools.partial(_lanes, num_rounds=1)
    jaxpr = jax.make_jaxpr(lanes)(process, states).jaxpr
    assert _sums(jaxpr, everybody, branches=True)
    assert not _sums(jaxpr, everybody, branches=False)
