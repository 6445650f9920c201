"""APFL against its equations in NumPy and finite differences."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import apfl
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-11, "atol": 1e-12}  # some hundred roundings of values of order one
KEY = jax.random.key(3, impl="threefry2x32")
MINIBATCHES = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)


@pytest.mark.parametrize(
    ("adaptive", "rate"), [(True, 0.9), wide(True, None), wide(False, None)]
)
def test_rounds_are_the_equations_in_numpy(adaptive, rate):
    problem, eta, decay, steps = problems.waves(), 0.3, 0.05, 3
    algorithm = algorithms.APFL(
        alpha=0.4,
        adaptive=adaptive,
        alpha_learning_rate=rate,
        alpha_decay=decay,
        local=problems.full_gradient_steps(steps, eta),
    )
    states, infos, _ = problems.run(process(algorithm, 3), problem, 12)
    w = states.server["theta"][0]
    v, alpha = np.tile(w, (6, 1)), np.full(6, 0.4)
    counts = np.asarray(problem.federation.train.num_examples, float)
    for number in range(12):
        cohort = infos.cohort[number]
        assert np.isclose(infos.server["mean_alpha"][number], alpha[cohort].mean())
        copies = {}
        for i in infos.cohort[number]:
            copy = w
            for step in range(steps):
                slope = problem.gradient(i, alpha[i] * v[i] + (1 - alpha[i]) * copy)
                gap = v[i] - copy
                copy = copy - eta * problem.gradient(i, copy)
                v[i] = v[i] - eta * alpha[i] * slope
                if adaptive and step == 0:
                    change = (rate or eta) * (gap @ slope + decay * alpha[i])
                    alpha[i] = np.clip(alpha[i] - change, 0, 1)
            copies[i] = copy
        w = np.average(list(copies.values()), axis=0, weights=counts[list(copies)])
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)
        np.testing.assert_allclose(states.clients.v["theta"][number + 1], v, **CLOSE)
        np.testing.assert_allclose(states.clients.alpha[number + 1], alpha, **CLOSE)
    assert (np.ptp(alpha) > 1e-3) == adaptive


def warm(algorithm, problem):
    """A state whose own models differ from the global one, with given alphas."""
    rng = np.random.default_rng(5)
    state = problems.first_state(process(algorithm), problem)
    count, d = state.clients.v["theta"].shape
    rows = apfl.ApflClient(
        v={"theta": jnp.asarray(rng.normal(size=(count, d)))},
        alpha=jnp.linspace(0.2, 0.8, count),
    )
    return dataclasses.replace(state, clients=rows)


def test_a_step_follows_finite_differences_of_the_mixed_loss():
    problem, eta, rate, step = problems.waves(), 0.1, 0.05, 1e-6
    algorithm = algorithms.APFL(
        alpha_learning_rate=rate, local=problems.full_gradient_steps(1, eta)
    )
    start = warm(algorithm, problem)
    states, _, _ = problems.run(process(algorithm), problem, 1, state=start)
    w, alphas = np.asarray(start.server["theta"]), np.asarray(start.clients.alpha)
    for i, (v, alpha) in enumerate(zip(start.clients.v["theta"], alphas, strict=True)):
        v = np.asarray(v)

        def mixed(v, alpha, i=i):
            return problem.loss(i, alpha * v + (1 - alpha) * w)

        for_v = [
            (mixed(v + step * e, alpha) - mixed(v - step * e, alpha)) / (2 * step)
            for e in np.eye(len(v))
        ]
        for_alpha = (mixed(v, alpha + step) - mixed(v, alpha - step)) / (2 * step)
        found_v = (v - states.clients.v["theta"][1, i]) / eta
        found_alpha = (alpha - states.clients.alpha[1, i]) / rate
        # Central differences: step^2 of third derivatives, and eps / step.
        np.testing.assert_allclose(found_v, for_v, atol=1e-8)
        np.testing.assert_allclose(found_alpha, for_alpha, atol=1e-8)
        assert abs(for_alpha) > 1e-4


@pytest.mark.wide
def test_mixing_outputs_of_a_linear_model_mixes_parameters():
    problem, found = problems.waves(), []
    for mix in ("parameters", "outputs"):
        algorithm = algorithms.APFL(alpha=0.3, mix=mix, local=MINIBATCHES)
        found.append(problems.run(process(algorithm, 4), problem, 8)[0].clients)
    assert np.ptp(found[0].alpha[-1]) > 1e-3
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_alpha_stays_in_its_interval_and_reaches_both_ends():
    problem = problems.waves()
    algorithm = algorithms.APFL(
        alpha_learning_rate=1e4, local=problems.full_gradient_steps(1)
    )
    states, _, _ = problems.run(
        process(algorithm), problem, 1, state=warm(algorithm, problem)
    )
    assert set(states.clients.alpha[1]) == {0.0, 1.0}


@functools.cache
def network_state(mix):
    """A network's state after some rounds on the toy data, and all it took."""
    federation = toy.make_federation()
    model = fp.MLP(widths=(5,)).for_federation(federation)
    local = fp.SGD(learning_rate=0.5, epochs=2, batch_size=4)
    algorithm = algorithms.APFL(mix=mix, local=local)
    whole = process(algorithm)
    state = compiled_rounds.init(whole, KEY, model, federation)
    for _ in range(3):
        state, _ = compiled_rounds.run_round(whole, state, model, federation)
    return algorithm, model, federation, state


@pytest.mark.parametrize("mix", ["parameters", wide("outputs")])
def test_personal_predictor_mixes_with_the_latest_global_model(mix):
    algorithm, model, federation, state = network_state(mix)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, 4)))
    row = jax.tree.map(lambda leaf: leaf[3], state.clients)
    view = fp.ClientView(key=KEY, round=0, data=federation.train.pool())
    found = algorithm.predictors(view, state.server, row, model)
    found = jax.jit(lambda x: {name: fn(x) for name, fn in found.items()})(x)
    apply = jax.jit(model.apply)
    own, together = (apply(p, x) for p in (row.v, state.server))
    mixed = row.alpha * own + (1 - row.alpha) * together
    if mix == "parameters":
        both = jax.tree.map(
            lambda a, b: row.alpha * a + (1 - row.alpha) * b, row.v, state.server
        )
        assert np.abs(apply(both, x) - mixed).max() > 1e-6
        mixed = apply(both, x)
    np.testing.assert_allclose(found["personal"], mixed, **CLOSE)
    np.testing.assert_allclose(found["global"], together, **CLOSE)


@pytest.mark.wide
def test_mixing_outputs_of_a_network_is_another_method():
    one, other = (network_state(mix)[-1].clients for mix in ("parameters", "outputs"))
    assert np.abs(one.alpha - other.alpha).max() > 1e-6
