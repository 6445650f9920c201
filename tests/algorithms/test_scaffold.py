"""SCAFFOLD against its equations in NumPy, the optimum and gradient descent."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.core import byte_counts, client_rows, struct
from tests import problems
from tests.algorithms import test_reductions
from tests.lanes import wide
from tests.setups import process, with_malicious

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
ETA = 0.2


def scaffold(steps, eta=ETA, **fields):
    local = problems.full_gradient_steps(steps, eta)
    return algorithms.Scaffold(local=local, **fields)


@pytest.mark.parametrize(("option", "decay"), [("difference", 0.9), ("refresh", None)])
def test_rounds_are_the_equations_in_numpy(option, decay):
    # Stragglers take their own numbers of steps, which the reports tell.
    problem, rate = problems.waves(), 0.7
    whole = process(
        struct.replace_field(
            scaffold(4, option=option, server_learning_rate=rate), "local.decay", decay
        ),
        3,
        work=fp.Stragglers(fraction=0.6, max_epochs=4),
    )
    states, infos, _ = problems.run(whole, problem, 12)
    x = states.server.model["theta"][0]
    own, control, counts = np.zeros((6, 3)), np.zeros(3), []
    sizes = np.asarray(problem.federation.train.num_examples)
    for number in range(12):
        moves, changes = [], []
        eta = ETA * (1 if decay is None else decay**number)
        for place, i in enumerate(infos.cohort[number]):
            evaluations = infos.client["gradient_evaluations"][number, place]
            steps = evaluations // sizes[i] - (option == "refresh")
            counts.append(steps)
            y = x
            for _ in range(steps):
                y = y - eta * (problem.gradient(i, y) - own[i] + control)
            new = problem.gradient(i, x)
            if option == "difference":
                new = own[i] - control + (x - y) / (steps * eta)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = x + rate * np.mean(moves, axis=0)
        control = control + 3 / 6 * np.mean(changes, axis=0)
        found = states.server.model, states.server.control
        np.testing.assert_allclose(found[0]["theta"][number + 1], x, **CLOSE)
        np.testing.assert_allclose(found[1]["theta"][number + 1], control, **CLOSE)
        np.testing.assert_allclose(states.clients["theta"][number + 1], own, **CLOSE)
        np.testing.assert_allclose(control, own.mean(axis=0), **CLOSE)
    assert set(counts) == {1, 2, 3, 4}


def optimum(problem):
    """Minimizer of the plain mean of the quadratics."""
    right = np.einsum("nij,nj->i", problem.curvature, problem.estimates)
    return np.linalg.solve(problem.curvature.sum(axis=0), right)


def fedavg_limit(problem, eta, steps):
    """Fixed point of the mean of `steps` full gradient steps of every client."""
    eye = np.eye(problem.estimates.shape[1])
    maps = np.stack(
        [np.linalg.matrix_power(eye - eta * a, steps) for a in problem.curvature]
    )
    right = np.einsum("nij,nj->i", eye - maps, problem.estimates)
    return np.linalg.solve((eye - maps).sum(axis=0), right)


@pytest.mark.wide
def test_fedavg_ends_beside_the_optimum_and_scaffold_at_it():
    problem, eta, steps = problems.regressions(), 0.1, 10
    best, beside = optimum(problem), fedavg_limit(problem, eta, steps)
    local = problems.full_gradient_steps(steps, eta)
    averaging = fp.FedAvg(local=local, weighting="uniform")
    states, _, _ = problems.run(process(averaging), problem, 300)
    np.testing.assert_allclose(states.server["theta"][-1], beside, atol=1e-9)
    assert np.linalg.norm(beside - best) > 0.05
    for option, size in (("difference", None), ("refresh", None), ("difference", 2)):
        algorithm = scaffold(steps, eta, option=option)
        rounds = 300 if size is None else 1500
        states, _, _ = problems.run(process(algorithm, size), problem, rounds)
        x, own = states.server.model["theta"][-1], states.clients["theta"][-1]
        np.testing.assert_allclose(x, best, atol=1e-8)
        # The estimates end at the clients' gradients there, which cancel.
        at_best = problem.gradients(np.tile(best, (5, 1)))
        np.testing.assert_allclose(own, at_best, atol=1e-7)
        assert np.abs(at_best).max() > 0.1


def test_controls_after_scaled_steps_are_those_of_float64():
    # The only member's change is the server's; n / 3 is no float32.
    problem = problems.waves()
    local = fp.SGD(learning_rate=ETA, batch_size=3, remainder="scaled")
    states, infos, _ = problems.run(
        process(algorithms.Scaffold(local=local), 1), problem, 1
    )
    client = infos.cohort[0, 0]
    size = int(problem.federation.train.num_examples[client])
    assert size % 3
    before, after = states.server.model["theta"]
    np.testing.assert_allclose(
        states.clients["theta"][1, client], (before - after) / (ETA * size / 3), **CLOSE
    )


@pytest.mark.wide
def test_one_full_batch_step_of_everybody_is_gradient_descent():
    # With weight decay as a part of f_i, in both options.
    problem, decay, found = problems.waves(), 0.1, []
    local = problems.full_gradient_steps(1, ETA, weight_decay=decay)
    for option in ("difference", "refresh"):
        algorithm = algorithms.Scaffold(local=local, option=option)
        states, _, _ = problems.run(process(algorithm), problem, 10)
        found.append(states)
        x = states.server.model["theta"][0]
        for number in range(10):
            gradients = problem.gradients(np.tile(x, (6, 1))) + decay * x
            np.testing.assert_allclose(
                states.clients["theta"][number + 1], gradients, **CLOSE
            )
            x = x - ETA * gradients.mean(axis=0)
            np.testing.assert_allclose(
                states.server.model["theta"][number + 1], x, **CLOSE
            )
    np.testing.assert_allclose(
        found[0].server.model["theta"], found[1].server.model["theta"], **CLOSE
    )


def test_without_controls_it_is_fedavg():
    def forget(state):
        server = dataclasses.replace(
            state.server, control={"theta": 0 * state.server.control["theta"]}
        )
        rows = {"theta": 0 * state.clients["theta"]}
        return dataclasses.replace(state, server=server, clients=rows)

    algorithm = algorithms.Scaffold(local=test_reductions.LOCAL)
    ours = test_reductions.run(algorithm, before=forget).server.model
    theirs = test_reductions.reference("uniform").server
    np.testing.assert_allclose(ours["theta"], theirs["theta"], **CLOSE)


@fp.pytree_dataclass
class Lost(fp.core.Attack):
    """Replaces both parts of malicious messages by NaN, so that they are dropped."""

    def __call__(self, key, state, messages, malicious, reference):
        bad = {"model": {"theta": jnp.nan}, "control": {"theta": jnp.nan}}
        rows = client_rows.broadcast(bad, malicious.shape[0])
        bad = {
            k: {"theta": rows[k]["theta"][:, None] + 0 * messages[k]["theta"]}
            for k in bad
        }
        return client_rows.select_rows(malicious, bad, messages), state


def test_attacks_replace_both_parts_and_lost_messages_are_not_counted():
    problem, bad = with_malicious(problems.waves(), 1), np.arange(6) == 1
    flipped, infos, _ = problems.run(
        process(scaffold(1), attack=fp.SignFlip(scale=3.0)), problem, 1
    )
    x = flipped.server.model["theta"][0]
    own = problem.gradients(np.tile(x, (6, 1)))  # of the only step of everybody
    sent = np.where(bad[:, None], -3, 1) * own
    np.testing.assert_allclose(
        flipped.server.model["theta"][1], x - ETA * sent.mean(axis=0), **CLOSE
    )
    np.testing.assert_allclose(
        flipped.server.control["theta"][1], sent.mean(axis=0), **CLOSE
    )
    np.testing.assert_allclose(flipped.clients["theta"][1], own, **CLOSE)

    lost, _, _ = problems.run(process(scaffold(1), attack=Lost()), problem, 1)
    np.testing.assert_allclose(
        lost.server.model["theta"][1], x - ETA * own[~bad].mean(axis=0), **CLOSE
    )
    np.testing.assert_allclose(
        lost.server.control["theta"][1], own[~bad].sum(axis=0) / 6, **CLOSE
    )
    for words in (infos.bytes_up, infos.bytes_down):
        assert byte_counts.total(words)[0] == 6 * 2 * 3 * 8


@fp.pytree_dataclass
class NoWork(fp.core.Work):
    """A budget without a single step."""

    def __call__(self, key, client_ids):
        none = jnp.zeros(client_ids.shape, jnp.int32)
        return fp.core.Budget(epochs=none, steps=none, straggler=none > 0)


@pytest.mark.parametrize("option", ["difference", wide("refresh")])
def test_a_client_without_a_step_changes_nothing(option):
    problem, rng = problems.waves(), np.random.default_rng(0)
    whole = process(scaffold(2, option=option), work=NoWork())
    state = problems.first_state(whole, problem)
    control = {"theta": jnp.asarray(rng.normal(size=3))}
    state = dataclasses.replace(
        state,
        server=dataclasses.replace(state.server, control=control),
        clients={"theta": jnp.asarray(rng.normal(size=(6, 3)))},
    )
    idle, _, _ = problems.run(whole, problem, 1, state=state)
    np.testing.assert_array_equal(idle.clients["theta"][1], idle.clients["theta"][0])
    for tree in (idle.server.model, idle.server.control):
        np.testing.assert_array_equal(tree["theta"][1], tree["theta"][0])
