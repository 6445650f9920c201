"""FedFomo: trainings against loops in NumPy, whom clients get models from, limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import local
from fedjax_pfl.algorithms import FedFomo, fedfomo
from fedjax_pfl.core import byte_counts, client_rows, struct
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.engine import faults
from tests.setups import with_malicious

LOCAL = problems.full_gradient_steps(2, 0.2)
KEY = jax.random.key(5, impl="threefry2x32")
_choose = jax.jit(fedfomo.choose, static_argnums=4)


def examples(problem, client):
    """Inputs and targets of one client, the last fifth held out: two pairs."""
    train = problem.federation.train
    rows = np.asarray(train.index)[client][: int(train.num_examples[client])]
    x, y = np.asarray(train.x)[rows], np.asarray(train.y)[rows]
    cut = len(rows) - max(1, len(rows) // 5)
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def half_mean_square(data, theta):
    x, y = data
    return 0.5 * np.square(x @ theta - y).mean()


def trained(data, theta):
    x, y = data
    for _ in range(2):
        theta = theta - 0.2 * x.T @ (x @ theta - y) / len(y)
    return theta


def simulate(problem, cohorts, sent):
    """A training in which everybody's last model is downloaded."""
    n, d = problem.estimates.shape
    theta, start, messages = (np.zeros((n, d)) for _ in range(3))
    affinity, path = np.zeros((n, n)), []
    for cohort in cohorts:
        received = messages.copy()
        for i in cohort:
            train, held = examples(problem, i)
            before = half_mean_square(held, start[i])
            total, moved = 0.0, np.zeros(d)
            for j in range(n):
                model = theta[i] if j == i else messages[j]
                distance = np.linalg.norm(model - start[i])
                if distance > 0:
                    weight = (before - half_mean_square(held, model)) / distance
                    affinity[i, j] += weight * (i != j)
                    total += max(0, weight)
                    moved += max(0, weight) * (model - start[i])
            start[i] = start[i] + moved / total if total > 0 else theta[i]
            theta[i] = trained(train, start[i])
            received[i] = sent(i, theta[i])
        messages = received
        path.append((theta.copy(), start.copy(), affinity.copy(), messages))
    return (np.stack(each) for each in zip(*path, strict=True))


def test_a_training_equals_a_loop_in_numpy_and_attacks_reach_it():
    """Partial participation, and a client that always sends the same model."""
    problem = with_malicious(problems.regressions(), 1)
    process = fp.FederatedProcess(
        algorithm=FedFomo(num_models=9, local=LOCAL),
        participation=fp.UniformCohort(size=3),
        attack=faults.Sends(value=jnp.asarray(0.4)),
    )
    states, infos, _ = problems.run(process, problem, 7)

    def sent(i, theta):
        return np.full(3, 0.4) if i == 1 else theta

    theta, start, affinity, messages = simulate(problem, infos.cohort, sent)
    found = states.clients
    np.testing.assert_allclose(found.theta["theta"][1:], theta, rtol=1e-10)
    np.testing.assert_allclose(found.start["theta"][1:], start, rtol=1e-10)
    np.testing.assert_allclose(found.affinity[1:], affinity, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        states.rows["messages"]["theta"][1:], messages, rtol=1e-10
    )
    # The global model is the mean of what was received.
    np.testing.assert_allclose(
        states.server["theta"][1:], messages.mean(axis=1), rtol=1e-10
    )
    honest, *_ = simulate(problem, infos.cohort, lambda i, theta: theta)
    moved = np.abs(honest - theta).max(axis=(0, 2))
    assert moved[0] > 1e-2 and infos.client["improving_models"].sum() > 10
    assert byte_counts.total(infos.bytes_down)[0] == 3 * 4 * 3 * 8
    assert byte_counts.total(infos.bytes_up)[0] == 3 * 3 * 8


def one_client(problem, number):
    data = problem.federation.train
    return data.pool().with_rows(jax.tree.map(lambda leaf: leaf[number], data.rows()))


@jax.jit
def _mixture(start, theta, models, chosen, data):
    model = fp.models.LinearRegression(inputs=3)
    client = fedfomo.FedFomoClient(
        theta={"theta": theta}, start={"theta": start}, affinity=None
    )
    objective = local.DataLoss(model)
    mixed, weights, share = fedfomo._mixture(
        objective, client, {"theta": models}, chosen, data
    )
    return mixed["theta"], weights, share


def test_without_positive_weights_the_own_model_stays():
    problem = problems.regressions()
    data = one_client(problem, 4)
    best, worse = jnp.asarray(problem.estimates[4]), jnp.ones(3)
    models = best[None] + jnp.array([[1.0, 0, 0], [0, -2, 0], [1e200, 0, 0]])
    chosen = jnp.arange(3)
    mixed, weights, share = _mixture(best, worse, models, chosen, data)
    np.testing.assert_array_equal(mixed, worse)
    assert (weights[:2] < 0).all() and weights[2] == 0 and share == 1
    # The start itself, and a model whose loss overflows, have weight 0.
    models = jnp.stack([worse, best, models[2]])
    mixed, weights, share = _mixture(worse, worse, models, chosen, data)
    np.testing.assert_allclose(mixed, best, rtol=1e-12)
    assert weights[0] == weights[2] == 0 and weights[1] > 0 and share == 0


def test_models_equal_to_rounding_weigh_nothing_and_one_model_is_kept_exactly():
    problem = problems.regressions()
    data = one_client(problem, 4)
    best = jnp.asarray(problem.estimates[4])
    rng = np.random.default_rng(3)
    for dtype in (jnp.float32, jnp.float64):
        for _ in range(20):
            start = jnp.asarray(best + rng.normal(size=3), dtype)
            # What is left of a third of a model, thrice: some last bits differ.
            again = (start / 3 + start / 3) + start / 3
            nearby = jnp.nextafter(start, jnp.full(3, jnp.inf, dtype))
            other = jnp.asarray(best + rng.normal(size=3) / 10, dtype)
            models, chosen = jnp.stack([again, nearby, other]), jnp.arange(3)
            mixed, weights, share = _mixture(start, start, models, chosen, data)
            assert (weights[:2] == 0).all() and share == 0 and weights[2] > 0
            np.testing.assert_array_equal(mixed, other)


def test_choices_are_distinct_others_of_largest_affinity():
    affinity, everyone = jnp.array([3.0, 9.0, -1.0, 5.0, 0.0, 4.0]), jnp.arange(6)
    for own in range(6):
        found = _choose(KEY, affinity, everyone, own, 3, 0.0)
        others = [i for i in (1, 3, 5, 0, 4, 2) if i != own]
        assert set(found.tolist()) == set(others[:3])
    assert set(_choose(KEY, affinity, everyone, 2, 5, 0.7).tolist()) == {0, 1, 3, 4, 5}
    assert _choose(KEY, affinity, everyone, 2, 0, 0.7).shape == (0,)


def test_exploration_is_even_and_as_frequent_as_epsilon():
    keys, everyone = jax.random.split(KEY, 4000), jnp.arange(8)
    draw = jax.vmap(_choose, (0, None, None, None, None, None))
    rows = np.asarray(draw(keys, 8.0 - everyone, everyone, 7, 3, 0.3))
    counts = np.stack([(rows == i).any(axis=1) for i in everyone])
    assert (counts.sum(axis=0) == 3).all() and not counts[7].any()  # distinct, others
    # The k-th best is dropped with 3 - k or more slots exploring, unless drawn again.
    explored = np.array([0.7**3, 3 * 0.7**2 * 0.3, 3 * 0.7 * 0.3**2, 0.3**3])
    drawn = explored * np.arange(4) / (4 + np.arange(4))  # of 4 + k left, k are drawn
    for place in range(3):
        kept = explored[: 3 - place].sum() + drawn[3 - place :].sum()
        assert abs(counts[place].mean() - kept) < 5 * np.sqrt(0.25 / 4000)
    for place in range(3, 7):
        assert abs(counts[place].mean() - drawn.sum()) < 5 * np.sqrt(0.25 / 4000)
    # Equal affinities are ordered at random.
    ties = np.asarray(draw(keys, jnp.zeros(8), everyone, 7, 3, 0.0))
    shares = np.bincount(ties.reshape(-1), minlength=8)[:7] / 4000
    np.testing.assert_allclose(shares, 3 / 7, atol=5 * np.sqrt(0.25 / 4000))


def test_choices_belong_to_identities():
    order = np.array([3, 0, 4, 1, 2])
    affinity, own = jnp.array([0.0, 2.0, 0.0, 0.0, 1.0]), 2
    first = _choose(KEY, affinity, jnp.arange(5), own, 3, 0.5)
    place = int(np.flatnonzero(order == own)[0])
    moved = _choose(KEY, affinity[order], jnp.asarray(order), place, 3, 0.5)
    assert set(first.tolist()) == set(order[moved].tolist())


@pytest.mark.wide
def test_permuting_clients_permutes_results():
    order = np.array([3, 0, 7, 5, 1, 2, 6, 4])
    algorithm = FedFomo(num_models=3, epsilon_decay=0.0, local=fp.SGD(batch_size=4))
    process = struct.as_arrays(fp.FederatedProcess(algorithm=algorithm), jnp.float64)
    step = jax.jit(process.round, static_argnums=1)
    found = []
    for federation in (toy.make_federation(), toy.make_federation(order=order)):
        model = fp.LogisticRegression().for_federation(federation)
        state = compiled_rounds.init(process, KEY, model, federation)
        for _ in range(4):
            state, _ = step(state, model, federation)
        found.append(state.clients)
    plain = client_rows.take(found[0], jnp.asarray(order))
    plain = dataclasses.replace(plain, affinity=plain.affinity[:, order])
    for a, b in zip(toy.leaves(plain), toy.leaves(found[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_the_last_examples_are_held_out():
    counts, federation = [], toy.make_federation()
    hold_out = jax.jit(fedfomo.hold_out, static_argnums=1)
    for number, size in enumerate(toy.COUNTS):
        data = federation.train
        rows = client_rows.take(data.rows(), jnp.asarray(number))
        labels = jnp.arange(rows["index"].shape[0])
        one = data.pool().with_rows(rows | {"labels": labels})
        first, last = hold_out(one, 0.29)
        kept, held = int(first.num_examples), int(last.num_examples)
        assert kept + held == size
        own = np.asarray(rows["index"])[:size]
        np.testing.assert_array_equal(first.index[:kept], own[:kept])
        np.testing.assert_array_equal(last.index[:held], own[kept:])
        np.testing.assert_array_equal(last.labels[:held], np.arange(kept, size))
        counts.append(held)
    # Of 5, 2, 9, 4, 7, 1, 6 and 3 examples.
    assert counts == [1, 1, 2, 1, 2, 0, 1, 1]
    hundred = dataclasses.replace(
        one, index=jnp.arange(100), labels=None, num_examples=jnp.asarray(100)
    )
    assert int(hold_out(hundred, 0.29)[1].num_examples) == 29
