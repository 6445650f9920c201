"""FedProto against NumPy with gradients by hand, and nearest prototypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import fedproto
from fedjax_pfl.testing import compiled_rounds, toy
from tests.algorithms import perceptrons

FULL = fp.SGD(learning_rate=0.5, epochs=2, batch_size=64)


def forward(point, x):
    """Hidden sums, features and logits of an MLP with one hidden layer."""
    kernel, bias, head_kernel, head_bias = point
    sums = x @ kernel.T + bias
    z = np.maximum(sums, 0)
    return sums, z, z @ head_kernel.T + head_bias


def slope(point, x, y, prototypes, known, lam):
    """Gradient of the mean cross-entropy and the distance to prototypes."""
    sums, z, logits = forward(point, x)
    errors = (perceptrons.softmax(logits) - np.eye(3)[y]) / len(y)
    back = errors @ point[2]
    gaps = (z - prototypes[y]) * known[y][:, None]
    back = back + lam * 2 * gaps / (z.shape[1] * len(y))
    hidden = back * (sums > 0)
    return hidden.T @ x, hidden.sum(axis=0), errors.T @ z, errors.sum(axis=0)


def test_rounds_are_the_equations_in_numpy():
    lam = 0.8
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    algorithm = algorithms.FedProto(lam=lam, local=FULL)
    states, infos = perceptrons.trained(algorithm, federation, num_rounds=4)
    rows = [
        perceptrons.unpacked(jax.tree.map(lambda leaf, i=i: leaf[i], states[0].clients))
        for i in range(8)
    ]
    prototypes, known = np.zeros((3, 4)), np.zeros(3)
    for state, info in zip(states[1:], infos, strict=True):
        totals, counts = np.zeros((3, 4)), np.zeros(3)
        for i in info.cohort:
            x, y = perceptrons.examples(federation, i)
            for _ in range(2):
                gradient = slope(rows[i], x, y, prototypes, known, lam)
                rows[i] = perceptrons.stepped(rows[i], gradient)
            for z, c in zip(forward(rows[i], x)[1], y, strict=True):
                totals[c] += z
                counts[c] += 1
        for c in np.flatnonzero(counts):
            prototypes[c], known[c] = totals[c] / counts[c], 1
        np.testing.assert_allclose(
            state.server.prototypes, prototypes, **perceptrons.CLOSE
        )
        np.testing.assert_array_equal(state.server.known, known)
        for i, row in enumerate(rows):
            params = jax.tree.map(lambda leaf, i=i: leaf[i], state.clients)
            perceptrons.assert_close(perceptrons.unpacked(params), row)
    assert known.all() and np.abs(prototypes).max() > 0.1


def test_a_class_without_members_keeps_its_prototype():
    labels = np.zeros((8, 9), int)
    federation = perceptrons.with_labels(labels)
    model = perceptrons.MODEL.for_federation(federation)
    process = fp.FederatedProcess(algorithm=algorithms.FedProto(local=FULL))
    state = compiled_rounds.init(process, jax.random.key(0), model, federation)
    server = fedproto.FedProtoServer(
        prototypes=jnp.arange(12.0).reshape(3, 4), known=jnp.array([1.0, 1.0, 0.0])
    )
    state = fp.core.struct.replace_field(state, "server", server)
    after, _ = compiled_rounds.run_round(process, state, model, federation)
    found = after.server
    np.testing.assert_array_equal(found.prototypes[1:], server.prototypes[1:])
    np.testing.assert_array_equal(found.known, [1, 1, 0])
    assert np.abs(found.prototypes[0] - server.prototypes[0]).max() > 0.1


def test_prototypes_predict_the_nearest_class():
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    algorithm = algorithms.FedProto(local=FULL)
    states, _ = perceptrons.trained(algorithm, federation, 2)
    x = np.random.default_rng(0).normal(size=(20, 4))
    state = states[-1]
    found = perceptrons.predictions(algorithm, federation, state, 2, x)
    point = perceptrons.unpacked(jax.tree.map(lambda leaf: leaf[2], state.clients))
    _, z, logits = forward(point, x)
    np.testing.assert_allclose(found["personal"], logits, **perceptrons.CLOSE)
    gaps = [[np.sum((row - c) ** 2) for c in state.server.prototypes] for row in z]
    np.testing.assert_array_equal(
        found["prototypes"].argmax(axis=1), np.argmin(gaps, axis=1)
    )
    first = perceptrons.predictions(algorithm, federation, states[0], 2, x)
    assert np.ptp(first["prototypes"]) == 0
    some = fedproto.nearest_prototype(
        jnp.zeros((1, 2)), jnp.array([[0.0, 0.0], [5.0, 5.0]]), jnp.array([0.0, 1.0])
    )
    assert some.argmax(axis=1).tolist() == [1]


def test_messages_are_prototypes_and_no_networks():
    federation = perceptrons.with_labels(perceptrons.drawn_labels())
    algorithm = algorithms.FedProto(local=FULL)
    _, infos = perceptrons.trained(algorithm, federation)
    numbers = 3 * 4 + 3  # of three classes, and how many examples they have
    for words in (infos[0].bytes_up, infos[0].bytes_down):
        assert fp.core.byte_counts.total(words) == 5 * 8 * numbers


@pytest.mark.parametrize("classes", [True, False])
def test_models_without_features_or_classes_are_refused(classes):
    model = fp.LogisticRegression() if classes else perceptrons.MODEL
    match = "before a head for FedProto" if classes else "a model of classes for FedPr"
    federation = toy.make_federation(classes=classes)
    process = fp.FederatedProcess(algorithm=algorithms.FedProto())
    with pytest.raises(fp.InputError, match=match):
        process.init(jax.random.key(0), model.for_federation(federation), federation)
