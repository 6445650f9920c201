"""FedROD against NumPy, balanced softmax against its definition, and FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms, core, models
from fedjax_pfl.algorithms import fedrod
from fedjax_pfl.testing import toy
from tests import problems
from tests.algorithms import perceptrons
from tests.algorithms.perceptrons import (
    CLOSE,
    KEY,
    assert_close,
    averaged,
    drawn_labels,
    examples,
    softmax,
    stepped,
    trained,
    unpacked,
    with_labels,
)

STEPS = problems.full_gradient_steps(2, 0.5)


def slopes(x, y, network, head, counts=None):
    """Gradients by hand: of the generic loss in the network, the other in the head.

    `network` and `head` are `(V, u, W, c)` and `(W, c)`: `relu(x V' + u) W' + c`.
    """
    v, u, w, c = network
    counts = np.bincount(y, minlength=len(c)) if counts is None else counts
    z = np.maximum(x @ v.T + u, 0)
    target = np.eye(len(c))[y]
    with np.errstate(divide="ignore"):
        error = (softmax(z @ w.T + c + np.log(counts)) - target) / len(y)
    back = error @ w * (z > 0)
    personal = softmax(z @ (w + head[0]).T + c + head[1]) - target
    network = (back.T @ x, back.sum(axis=0), error.T @ z, error.sum(axis=0))
    return network, (personal.T @ z / len(y), personal.mean(axis=0))


def head_of(tree, client):
    """`(W, c)` of one client."""
    return tree["head"]["kernel"][client], tree["head"]["bias"][client]


def test_rounds_are_the_equations_in_numpy():
    federation = with_labels(drawn_labels())
    states, infos = trained(algorithms.FedROD(local=STEPS), federation, 2)
    assert not np.any(head_of(states[0].clients, 0)[0])
    for old, new, info in zip(states, states[1:], infos, strict=False):
        sent = []
        for i in info.cohort:
            network, head = unpacked(old.server.network), head_of(old.clients, i)
            for _ in range(2):
                found = slopes(*examples(federation, i), network, head)
                network, head = stepped(network, found[0]), stepped(head, found[1])
            sent.append(network)
            assert_close(head_of(new.clients, i), head)
        counts = toy.COUNTS[info.cohort]
        assert_close(unpacked(new.server.network), averaged(sent, counts))
        for i in np.setdiff1d(np.arange(8), info.cohort):
            before, after = (head_of(s.clients, i) for s in (old, new))
            np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(info.client["gradient_evaluations"], 2 * counts)


@pytest.mark.wide
def test_heads_from_class_frequencies_are_the_equations_in_numpy():
    federation = with_labels(drawn_labels())
    algorithm = algorithms.FedROD(hyper_width=6, local=STEPS)
    states, infos = trained(algorithm, federation, 2)
    assert states[0].clients is None
    assert not np.any(states[0].server.hyper["head"]["kernel"])
    for old, new, info in zip(states, states[1:], infos, strict=False):
        sent = []
        for i in info.cohort:
            x, y = examples(federation, i)
            share = np.bincount(y, minlength=3) / len(y)
            network, hyper = map(unpacked, (old.server.network, old.server.hyper))
            for _ in range(2):
                v, u, w, c = hyper
                hidden = np.maximum(v @ share + u, 0)
                flat = w @ hidden + c  # the bias, then the kernel
                head = flat[3:].reshape(3, 4), flat[:3]
                for_network, (kernel, bias) = slopes(x, y, network, head)
                error = np.concatenate([bias, kernel.reshape(-1)])
                back = error @ w * (hidden > 0)
                slope = np.outer(back, share), back, np.outer(error, hidden), error
                network, hyper = stepped(network, for_network), stepped(hyper, slope)
            sent.append(network + hyper)
        found = unpacked(new.server.network) + unpacked(new.server.hyper)
        assert_close(found, averaged(sent, toy.COUNTS[info.cohort]))
    assert np.all(states[-1].server.hyper["head"]["bias"])


def test_equal_counts_are_fedavg():
    counts = np.array([6, 3] * 4)
    federation = with_labels(np.arange(9) % 3, counts)
    states, (info,) = trained(algorithms.FedROD(local=STEPS), federation)
    sent = []
    for i in info.cohort:
        network = unpacked(states[0].server.network)
        for _ in range(2):
            data = examples(federation, i)
            found = slopes(*data, network, head_of(states[0].clients, i), np.ones(3))
            network = stepped(network, found[0])
        sent.append(network)
    wanted = averaged(sent, counts[info.cohort])
    assert_close(unpacked(states[1].server.network), wanted)


def test_clients_of_one_class_move_their_own_heads_only():
    federation = with_labels(np.arange(8)[:, None] % 3)
    states, (info,) = trained(algorithms.FedROD(local=STEPS), federation)
    networks = (unpacked(state.server.network) for state in states)
    for before, after in zip(*networks, strict=True):
        np.testing.assert_allclose(before, after, rtol=1e-14)  # a mean of equals
    assert (states[1].clients["head"]["bias"][info.cohort] != 0).all()


def test_balanced_softmax_is_weighted_by_frequencies():
    dtype = jnp.float32
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)) * 5, dtype)
    counts, labels = jnp.asarray([4.0, 0.0, 2.0], dtype), jnp.asarray([0, 2, 2, 0])
    model = models.LogisticRegression(inputs=1, num_classes=3)
    batch = core.Batch(x=logits, y=labels, weight=jnp.ones(4, dtype))

    def loss(logits):
        return model.loss(fedrod.balanced(logits, counts), batch)

    value, gradient = jax.jit(jax.value_and_grad(loss))(logits)
    raw = np.asarray(counts, float) * np.exp(np.asarray(logits, float))
    share = raw / raw.sum(axis=1, keepdims=True)
    tolerance = 10 * np.finfo(dtype).eps
    np.testing.assert_allclose(
        value, -np.log(share[np.arange(4), labels]).mean(), rtol=tolerance
    )
    wanted = (share - np.eye(3)[labels]) / 4
    np.testing.assert_allclose(gradient, wanted, rtol=0, atol=tolerance)
    assert not np.any(gradient[:, 1]) and gradient.dtype == dtype


@pytest.mark.wide
@pytest.mark.parametrize("name", ["lstm", "cifar_cnn"])
def test_a_sum_of_heads_is_a_sum_of_outputs(name):
    """Also under dropout with one key, and where two classes are one output."""
    if name == "lstm":
        model = models.LSTM(width=3, embedding_size=2, input_shape=(4,), num_classes=2)
        x = jnp.asarray([[0, 1, 2, 1], [2, 2, 0, 1]])
    else:
        model = models.CifarCNN(input_shape=(16, 16), num_classes=3)
        x = jax.random.normal(KEY, (2, 16, 16))
    constants = {"embeddings": jax.random.normal(KEY, (3, 2))}

    @jax.jit
    def outputs():
        params, other = map(model.init, jax.random.split(KEY))

        def apply(*heads):
            head = jax.tree.map(lambda *leaves: sum(leaves), *heads)
            whole = params | {"head": head}
            return model.apply(whole, x, key=KEY, constants=constants)

        a, b = params["head"], other["head"]
        return apply(a, b), apply(a), apply(b)

    both, first, second = outputs()
    np.testing.assert_allclose(both, first + second, **CLOSE)
    assert np.abs(second).max() > 1e-3


def test_predictors_add_the_own_head():
    federation, algorithm = with_labels(drawn_labels()), algorithms.FedROD(local=STEPS)
    state, i = trained(algorithm, federation, 2)[0][-1], 3
    x = np.random.default_rng(0).normal(size=(4, 4))
    found = perceptrons.predictions(algorithm, federation, state, i, x)
    (v, u, w, c), head = unpacked(state.server.network), head_of(state.clients, i)
    z = np.maximum(x @ v.T + u, 0)
    wanted = {"global": z @ w.T + c, "personal": z @ (w + head[0]).T + c + head[1]}
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, **CLOSE)


def test_wrong_fields_and_models_get_one_sentence():
    with pytest.raises(fp.InputError, match="hyper_width to be a whole number of at"):
        algorithms.FedROD(hyper_width=0)
    with pytest.raises(fp.InputError, match="head to be text, got 3"):
        algorithms.FedROD(head=3)  # pyright: ignore[reportArgumentType]
    process = fp.FederatedProcess(algorithm=algorithms.FedROD())
    with pytest.raises(fp.InputError, match="a model of classes for FedROD, whose los"):
        problems.first_state(process, problems.regressions())
