"""The majority class against counts in NumPy."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import byte_counts, checks
from fedjax_pfl.testing import compiled_rounds, toy


def test_every_client_predicts_its_most_frequent_label():
    """Padding does not count, the lower class wins ties, messages are empty."""
    federation = toy.make_federation(padding=3)
    model = fp.LogisticRegression().for_federation(federation)
    process = fp.FederatedProcess(algorithm=fp.Majority())
    state = compiled_rounds.init(process, jax.random.key(0), model, federation)
    state, info = compiled_rounds.run_round(process, state, model, federation)
    assert byte_counts.total(info.bytes_up) == 0
    labels = np.asarray(federation.train.y)
    for client, rows in enumerate(np.asarray(federation.train.index)):
        data = federation.train.pool().with_rows(
            jax.tree.map(lambda leaf, i=client: leaf[i], federation.train.rows())
        )
        found = process.predictors(None, state, None, model, data)
        logits = np.asarray(found["personal"](np.zeros((2, 4))))
        counts = np.bincount(labels[rows[: toy.COUNTS[client]]], minlength=3)
        assert logits.argmax(axis=1).tolist() == [counts.argmax()] * 2
        expected = (counts + 1) / (counts.sum() + 3)
        np.testing.assert_allclose(np.exp(logits[0]), expected, rtol=1e-12)


def test_a_model_without_classes_is_refused():
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=2)
    process = fp.FederatedProcess(algorithm=fp.Majority())
    with pytest.raises(checks.InputError, match="classes"):
        fp.simulate(jax.random.key(0), process, fp.models.Quadratic(), spec.build(), 1)
