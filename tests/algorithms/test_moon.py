"""MOON against NumPy with gradients by differences, and its contrast."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import moon
from fedjax_pfl.core import tree_paths
from fedjax_pfl.testing import compiled_rounds, toy
from tests.setups import process

KEY = jax.random.key(0)
FULL = fp.SGD(learning_rate=0.5, epochs=2, batch_size=64)
MODEL = fp.MLP(widths=(5,))
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def run(whole, rounds, model=MODEL, **fields):
    """States before and after all rounds, and reports."""
    federation = toy.make_federation(**fields)
    model = model.for_federation(federation)
    states, infos = [compiled_rounds.init(whole, KEY, model, federation)], []
    for _ in range(rounds):
        state, info = compiled_rounds.run_round(whole, states[-1], model, federation)
        states.append(state)
        infos.append(info)
    return states, infos


@functools.cache
def examples(client):
    batch = toy.make_federation().train.examples(client)
    return np.asarray(batch.x), np.asarray(batch.y)


def forward(params, x):
    """Features and logits of an MLP with one hidden layer."""
    hidden, head = params["hidden_0"], params["head"]
    z = np.maximum(x @ hidden["kernel"].T + hidden["bias"], 0)
    return z, z @ head["kernel"].T + head["bias"]


def cosine(a, b):
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.divide((a * b).sum(axis=1), norms, out=0 * norms, where=norms > 0)


def objective(params, client, received, previous, mu, temperature):
    x, y = examples(client)
    z, logits = forward(params, x)
    entropy = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    near = np.exp(cosine(z, forward(received, x)[0]) / temperature)
    far = np.exp(cosine(z, forward(previous, x)[0]) / temperature)
    return (entropy - mu * np.log(near / (near + far))).mean()


def numbers(tree):
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64), tree)


def slope(function, params, step=1e-6):
    """Central differences of a function of nested dictionaries."""
    found = jax.tree.map(np.zeros_like, params)
    for name, leaf in tree_paths.by_name(params).items():
        target = tree_paths.by_name(found)[name]
        for place in np.ndindex(leaf.shape):
            value, sides = leaf[place], []
            for sign in (1, -1):
                leaf[place] = value + sign * step
                sides.append(function(params))
            leaf[place] = value
            target[place] = (sides[0] - sides[1]) / (2 * step)
    return found


def test_rounds_are_the_equations_in_numpy():
    mu, temperature = 2.0, 0.7
    algorithm = algorithms.MOON(mu=mu, temperature=temperature, local=FULL)
    states, infos = run(process(algorithm, 3), 3)
    w = numbers(states[0].server)
    previous = [numbers(w) for _ in range(8)]
    for state, info in zip(states[1:], infos, strict=True):
        total, count = jax.tree.map(np.zeros_like, w), 0
        for i in np.asarray(info.cohort):
            theta = numbers(w)
            for _ in range(2):
                gradient = slope(
                    lambda p, i=i, w=w: objective(
                        p, i, w, previous[i], mu, temperature
                    ),
                    theta,
                )
                theta = jax.tree.map(lambda a, g: a - 0.5 * g, theta, gradient)
            previous[i] = numbers(theta)
            total = jax.tree.map(lambda a, b, i=i: a + toy.COUNTS[i] * b, total, theta)
            count += toy.COUNTS[i]
        w = jax.tree.map(lambda a, n=count: a / n, total)
        kept = jax.tree.map(lambda *rows: np.stack(rows), *previous)
        for found, expected in ((state.server, w), (state.clients, kept)):
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, atol=1e-7),
                *(found, expected),
            )


def test_the_contrast_of_known_vectors():
    z = jnp.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    near = jnp.array([[2.0, 0.0], [4.0, -3.0], [1.0, 0.0], [-1.0, -1.0]])
    far = jnp.array([[0.0, 1.0], [3.0, 4.0], [0.0, 1.0], [2.0, 2.0]])
    found = jax.jit(moon.contrast)(z, near, far, 0.5)
    gaps = np.array([0 - 1, 1 - 0, 0, 1 + 1]) / 0.5
    np.testing.assert_allclose(found, np.log1p(np.exp(gaps)), rtol=1e-12)
    slopes = jax.jit(jax.grad(lambda z: moon.contrast(z, near, far, 0.5).sum()))(z)
    assert np.isfinite(slopes).all() and not slopes[2].any()


def test_predictors_are_the_global_and_on_demand_the_last_network():
    one, two = {"a": 1.0}, {"a": 2.0}
    assert algorithms.MOON().parameters(one, two) == {"global": one}
    both = algorithms.MOON(keeps_local=True).parameters(one, two)
    assert both == {"global": one, "personal": two}


def test_models_without_features_are_refused():
    with pytest.raises(fp.InputError, match="for MOON, .* got LogisticRegression"):
        run(process(algorithms.MOON()), 1, model=fp.LogisticRegression())
