"""Networks with one hidden layer on the toy federation, and the same in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from fedjax_pfl.testing import toy

CLOSE = {"rtol": 1e-11, "atol": 1e-12}  # a few steps on values of order one
KEY = jax.random.key(3, impl="threefry2x32")
MODEL = fp.MLP(widths=(4,))


def with_labels(labels, counts=toy.COUNTS):
    """The toy federation, where clients train on labels `[N, M]` of their own."""
    federation = toy.make_federation()
    index, slots = np.asarray(federation.train.index), np.arange(toy.COUNTS.max())
    real = np.where(slots < toy.COUNTS[:, None], index, 1)
    padded = np.where(slots < np.asarray(counts)[:, None], real, 0)
    train = dataclasses.replace(
        federation.train,
        index=jnp.asarray(padded, jnp.int32),
        num_examples=jnp.asarray(counts, jnp.int32),
        labels=jnp.asarray(np.broadcast_to(labels, index.shape), jnp.int32),
    )
    return dataclasses.replace(federation, train=train)


def drawn_labels():
    """Labels with which most clients lack a class."""
    rng = np.random.default_rng(1)
    return rng.integers(3, size=(8, 9)) * rng.integers(2, size=(8, 1))


def examples(federation, client):
    """One client's inputs and labels."""
    data = federation.train
    count = np.asarray(data.num_examples)[client]
    rows = np.asarray(data.index)[client, :count]
    return np.asarray(data.x)[rows], np.asarray(data.labels)[client, :count]


@functools.partial(jax.jit, static_argnames="model")
def _started(process, federation, model):
    return process.init(KEY, model, federation)


@functools.partial(jax.jit, static_argnames="model")
def _round(process, state, federation, model):
    return process.round(state, model, federation)


def trained(algorithm, federation, num_rounds=1):
    """States before and after each round, with five members; and all reports."""
    model = MODEL.for_federation(federation)
    process = fp.FederatedProcess(
        algorithm=algorithm, participation=fp.UniformCohort(size=5)
    )
    states, infos = [_started(process, federation, model)], []
    for _ in range(num_rounds):
        state, info = _round(process, states[-1], federation, model)
        states.append(state)
        infos.append(info)
    plain = [dataclasses.replace(state, key=None) for state in states]
    return jax.tree.map(np.asarray, (plain, infos))


def predictions(algorithm, federation, state, client, x):
    """What every predictor of one client says of inputs, by name."""
    train = federation.train
    own, rows = jax.tree.map(lambda leaf: leaf[client], (state.clients, train.rows()))
    data = train.pool().with_rows(rows)
    model = MODEL.for_federation(federation)

    @jax.jit
    def outputs(server, own, data, x):
        view = fp.ClientView(key=KEY, round=0, data=data)
        found = algorithm.predictors(view, server, own, model)
        return {name: fn(x) for name, fn in found.items()}

    return jax.tree.map(np.asarray, outputs(state.server, own, data, x))


def softmax(logits):
    """Rows of probabilities."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def unpacked(params, names=("hidden_0", "head")):
    """`(V, u, W, c)` of an MLP with one hidden layer, or of other layers."""
    return tuple(params[name][leaf] for name in names for leaf in ("kernel", "bias"))


def stepped(point, slope, learning_rate=0.5):
    """One step of gradient descent on a tuple of arrays."""
    return tuple(a - learning_rate * b for a, b in zip(point, slope, strict=True))


def averaged(sent, counts):
    """Means of tuples of arrays, weighted by examples."""
    columns = zip(*sent, strict=True)
    return [np.average(leaf, axis=0, weights=counts) for leaf in columns]


def assert_close(found, wanted):
    """Tuples of arrays are equal to rounding."""
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)
