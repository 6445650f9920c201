"""kNN-Per: predictions against a search in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import knn_per
from fedjax_pfl.testing import compiled_rounds, toy
from tests.algorithms import perceptrons
from tests.lanes import wide

MODEL = fp.MLP(widths=(4,))
LOCAL = fp.SGD(learning_rate=0.3, epochs=2, batch_size=2)
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def trained(algorithm, rounds=3):
    federation = toy.make_federation()
    model = MODEL.for_federation(federation)
    process = fp.FederatedProcess(
        algorithm=algorithm,
        participation=fp.UniformCohort(size=5),
        work=fp.Stragglers(fraction=0.5, max_epochs=2),
    )
    state = compiled_rounds.init(process, jax.random.key(0), model, federation)
    for _ in range(rounds):
        state, _ = compiled_rounds.run_round(process, state, model, federation)
    return state


def forward(params, x):
    """Features and probabilities of an MLP with one hidden layer."""
    kernel, bias, head_kernel, head_bias = perceptrons.unpacked(params)
    z = np.maximum(x @ kernel.T + bias, 0)
    return z, perceptrons.softmax(z @ head_kernel.T + head_bias)


def searched(params, x, y, queries, k, scale):
    """Shares of classes among neighbors, one query after the other."""
    stored, found = forward(params, x)[0], []
    for z in forward(params, queries)[0]:
        distances = [np.sum((z - other) ** 2) for other in stored]
        shares = np.zeros(3)
        for j in sorted(range(len(x)), key=distances.__getitem__)[:k]:
            shares[y[j]] += np.exp(-distances[j] / (z.size * scale))
        found.append(shares / shares.sum())
    return np.array(found)


@pytest.mark.parametrize(("k", "scale", "lam"), [(3, 0.5, 0.3), wide(20, 2.0, 0.9)])
def test_predictions_are_those_of_a_search_in_numpy(k, scale, lam):
    algorithm = algorithms.KNNPer(lam=lam, scale=scale, num_neighbors=k)
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    model = MODEL.for_federation(federation)
    params = model.init(jax.random.key(4))
    state = dataclasses.replace(trained(algorithm, 0), server=params)
    queries = np.random.default_rng(0).normal(size=(40, 4))
    for client in (2, 5):  # with nine examples, and with one
        found = perceptrons.predictions(algorithm, federation, state, client, queries)
        x, y = perceptrons.examples(federation, client)
        params_of = jax.tree.map(np.asarray, params)
        probabilities = forward(params_of, queries)[1]
        shares = searched(params_of, x, y, queries, k, scale)
        mix = lam * shares + (1 - lam) * probabilities
        np.testing.assert_allclose(np.exp(found["personal"]), mix, **CLOSE)
        np.testing.assert_allclose(
            perceptrons.softmax(found["global"]), probabilities, **CLOSE
        )


@pytest.mark.wide
def test_without_neighbors_it_is_the_global_network():
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    state = trained(fp.FedAvg(local=LOCAL))
    queries = np.random.default_rng(1).normal(size=(10, 4))
    algorithm = algorithms.KNNPer(lam=0.0)
    found = perceptrons.predictions(algorithm, federation, state, 2, queries)
    wanted = np.log(perceptrons.softmax(found["global"]))
    np.testing.assert_allclose(found["personal"], wanted, **CLOSE)
    # A client without examples has no neighbors, whatever lam is.
    counts = np.where(np.arange(8) == 2, 0, toy.COUNTS)
    federation = perceptrons.with_labels(perceptrons.drawn_labels(), counts)
    algorithm = algorithms.KNNPer(lam=0.8)
    found = perceptrons.predictions(algorithm, federation, state, 2, queries)
    np.testing.assert_allclose(found["personal"], wanted, **CLOSE)


def test_weights_of_far_neighbors_do_not_underflow_together():
    rows = jnp.array([[0.0], [1.0], [3.0]], jnp.float32)
    shares = knn_per.neighbor_shares(
        *(jnp.array([[1e4]], jnp.float32), rows, jnp.array([0, 1, 2])),
        jnp.array([True, True, True]),
        num_neighbors=3,
        num_classes=3,
        scale=1.0,
    )
    np.testing.assert_allclose(shares, [[0.0, 0.0, 1.0]])


@pytest.mark.parametrize("classes", [True, False])
def test_models_without_features_or_classes_are_refused(classes):
    model = fp.LogisticRegression() if classes else MODEL
    match = "before a head for kNN-Per" if classes else "a model of classes for kNN-Per"
    federation = toy.make_federation(classes=classes)
    process = fp.FederatedProcess(algorithm=algorithms.KNNPer())
    with pytest.raises(fp.InputError, match=match):
        process.init(jax.random.key(0), model.for_federation(federation), federation)
