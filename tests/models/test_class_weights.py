"""Weights of classes in the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import Batch

WEIGHTS = (1.0, 9.0, 0.5)


@pytest.mark.parametrize("kind", [fp.MLP, fp.LogisticRegression])
def test_examples_count_as_their_classes_do(kind):
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    weight = rng.integers(2, size=20)
    given = (jnp.asarray(v) for v in (np.zeros((20, 1)), y, weight * 1.0))
    batch = Batch(**dict(zip(("x", "y", "weight"), given, strict=True)))
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(20), y]
    each = weight * np.array(WEIGHTS)[y]
    model = kind(num_classes=3, class_weights=WEIGHTS)
    outputs = jnp.asarray(logits)
    wanted = (losses * each).sum() / each.sum()
    np.testing.assert_allclose(model.loss(outputs, batch), wanted, rtol=1e-6)
    np.testing.assert_allclose(model.metrics(outputs, batch)["loss"], losses, rtol=1e-6)


@pytest.mark.wide
def test_rare_classes_are_found_with_larger_weights():
    rng = np.random.default_rng(0)
    y = (rng.random(800) < 0.1).astype(int)
    x = rng.normal(size=(800, 3)) + y[:, None]
    made = fp.Federation.from_arrays(x, y, rng.integers(4, size=800))
    recall = []
    for weights in (None, (1.0, 9.0)):
        model = fp.LogisticRegression(class_weights=weights)
        process = fp.FederatedProcess(algorithm=fp.FedAvg())
        args = (jax.random.key(0), process, model, made, 20)
        clients = fp.simulate(*args, progress=False).clients()
        recall.append(clients[clients["metric"] == "recall"]["value"].mean())
    assert recall[1] > recall[0] + 0.3


def test_other_numbers_of_weights_are_one_sentence():
    made = fp.load_federation("digits", num_clients=3)
    with pytest.raises(fp.InputError, match="for each of 10 classes, got 2"):
        fp.MLP(class_weights=(1.0, 2.0)).for_federation(made)
    with pytest.raises(fp.InputError, match="class_weights"):
        fp.MLP(class_weights=(1.0, -2.0))
