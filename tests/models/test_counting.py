"""Metrics of counts, ranks and errors against NumPy, one example or pair at a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import core
from fedjax_pfl.models import counting, objectives

M = 14


def batch_of(labels, real):
    x = jnp.zeros((len(labels), 1))
    return core.Batch(x=x, y=jnp.asarray(labels), weight=jnp.asarray(real, float))


def confusion(labels, predictions, classes):
    counts = np.zeros((classes, classes), int)
    for label, prediction in zip(labels, predictions, strict=True):
        counts[label, prediction] += 1
    return counts


def rates(counts):
    """scikit-learn's conventions, but NaN for a second class without examples."""
    recalls, scores = [], []
    for k in range(len(counts)):
        actual, chosen = counts[k].sum(), counts[:, k].sum()
        if actual:
            recalls.append(counts[k, k] / actual)
        if actual or chosen:
            scores.append(2 * counts[k, k] / (actual + chosen))
    found = {"balanced_accuracy": np.mean(recalls), "macro_f1": np.mean(scores)}
    if len(counts) == 2:
        actual, chosen = counts[1].sum(), counts[:, 1].sum()
        found["precision"] = counts[1, 1] / chosen if chosen else 0.0
        found["recall"] = counts[1, 1] / actual if actual else np.nan
        found["f1"] = 2 * counts[1, 1] / max(actual + chosen, 1)
        if not actual:
            found |= {"precision": np.nan, "f1": np.nan}
    return found


def pairs(scores, positive):
    """Share of pairs in the right order, ties one half."""
    wins = [
        (a > b) + 0.5 * (a == b)
        for a, b in itertools.product(scores[positive], scores[~positive])
    ]
    return np.mean(wins) if wins else np.nan


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [2, 5])
def test_rates_are_those_of_the_confusion_matrix(classes, seed):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(M, classes))
    present = rng.choice(classes, size=rng.integers(1, classes + 1), replace=False)
    labels, real = rng.choice(present, size=M), np.arange(M) < M - seed
    outputs[~real] = np.nan
    counts = counting.class_counts(jnp.asarray(outputs), batch_of(labels, real))
    matrix = confusion(labels[real], outputs[real].argmax(axis=1), classes)
    np.testing.assert_array_equal(counts["hits"], np.diag(matrix))
    np.testing.assert_array_equal(counts["actual"], matrix.sum(axis=1))
    np.testing.assert_array_equal(counts["chosen"], matrix.sum(axis=0))
    found = counting.class_metrics(counts)
    wanted = rates(matrix)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("labels", "predictions", "wanted"),
    [
        ([0, 0, 0], [0, 1, 0], (np.nan, np.nan, np.nan)),  # no example of the class
        ([0, 1, 1], [0, 0, 0], (0.0, 0.0, 0.0)),  # some, none of which is predicted
        ([1, 1, 1], [1, 1, 0], (1.0, 2 / 3, 0.8)),
    ],
)
def test_rates_of_the_second_class_need_examples_of_it(labels, predictions, wanted):
    logits = jax.nn.one_hot(jnp.array(predictions), 2)
    counts = counting.class_counts(logits, batch_of(labels, [True] * 3))
    found = counting.class_metrics(counts)
    names = ("precision", "recall", "f1")
    np.testing.assert_allclose([found[name] for name in names], wanted)


@pytest.mark.parametrize("few", [0, M])
@pytest.mark.parametrize("is_wide", [True, False])
def test_area_is_the_share_of_pairs_in_order(monkeypatch, is_wide, few):
    monkeypatch.setattr(counting, "_FEW", few)  # all pairs, or sorted
    area = jax.jit(lambda *given: counting.auc(*given))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scores = rng.integers(6, size=M) / 2 - 1.0  # with ties
        scores[0], scores[1] = (np.inf, -np.inf) if seed == 1 else scores[:2]
        positive, real = rng.random(M) < 0.4, rng.random(M) < 0.8
        padded = np.where(real, scores, np.nan)
        with jax.enable_x64(is_wide):
            found = area(*map(jnp.asarray, (padded, positive, real)))
            eps = float(jnp.finfo(found.dtype).eps)
        wanted = pairs(scores[real], positive[real])
        np.testing.assert_allclose(found, wanted, rtol=M * eps, err_msg=str(seed))


@pytest.mark.parametrize("positive", [True, False])
def test_area_of_one_class_or_of_no_number_is_not_defined(positive):
    scores, ones = jnp.arange(4.0), jnp.ones(4)
    assert np.isnan(counting.auc(scores, jnp.full(4, positive), ones))
    labels = jnp.array([True, False, True, False])
    assert np.isnan(counting.auc(scores.at[2].set(jnp.nan), labels, ones))


def test_macro_area_is_the_mean_over_classes_with_both_kinds():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(M, 4)), rng.choice([0, 2, 3], size=M)
    real = np.arange(M) < M - 3
    given = jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(real)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    areas = [pairs(shares[real, k], labels[real] == k) for k in np.unique(labels[real])]
    np.testing.assert_allclose(counting.macro_auc(*given), np.mean(areas), rtol=1e-12)


@pytest.mark.parametrize("is_wide", [True, False])
def test_errors_of_large_targets(is_wide):
    rng = np.random.default_rng(0)
    targets = rng.normal(150_000, 40_000, size=5000)
    errors = rng.normal(0, 30_000, size=5000)
    real = rng.random(5000) < 0.9
    with jax.enable_x64(is_wide):
        given = (np.where(real, errors, np.nan), np.where(real, targets, np.nan))
        found = counting.error_metrics(*map(jnp.asarray, (*given, real)))
        eps = float(jnp.finfo(found["r2"].dtype).eps)
    errors, targets = errors[real], targets[real]
    wanted = {
        "rmse": np.sqrt(np.mean(errors**2)),
        "mae": np.mean(np.abs(errors)),
        "r2": 1 - np.sum(errors**2) / np.sum((targets - targets.mean()) ** 2),
    }
    for name, value in wanted.items():
        # Inputs are rounded, targets to 4 eps of their spread; sums are pairwise.
        np.testing.assert_allclose(found[name], value, rtol=50 * eps, err_msg=name)


@pytest.mark.parametrize("value", [0.0, 150_000.1])
def test_equal_targets_have_no_explained_variance(value):
    with jax.enable_x64(False):
        targets, real = jnp.full(7, value), jnp.ones(7)
        found = counting.error_metrics(jnp.ones(7), targets, real)
        assert np.isnan(found["r2"]) and found["rmse"] == found["mae"] == 1


@pytest.mark.parametrize("kind", [objectives.Classification, objectives.Regression])
def test_padded_rows_count_for_nothing(kind):
    rng = np.random.default_rng(0)
    is_regression = kind is objectives.Regression
    outputs = jnp.asarray(rng.normal(size=(M,) if is_regression else (M, 2)))
    targets = rng.normal(size=M) if is_regression else rng.integers(2, size=M)
    real = np.arange(M) < 9

    def measured(outputs, targets, real):
        batch, made = batch_of(targets, real), {}
        if isinstance(kind(), core.SummedModel):
            sums = kind().metric_sums(outputs, batch)
            made = kind().finish_metrics(sums, jnp.array(9))
        rows = kind().metric_rows(outputs, batch)
        return made | kind().finish_rows(rows, batch.weight > 0)

    some = measured(outputs[:9], targets[:9], real[:9])
    spoiled = jnp.where(real[:, None] if outputs.ndim > 1 else real, outputs, jnp.nan)
    for name, value in measured(spoiled, targets, real).items():
        np.testing.assert_allclose(value, some[name], rtol=1e-13, err_msg=name)
