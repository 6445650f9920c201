"""Poisoned labels and noisy inputs: who gets how much."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data import corruption, splits
from tests.data import samples

KINDS = tuple(corruption.LABEL_POISONINGS.values())


def poisoned(poisoning, labels, num_classes, seed=0):
    return poisoning(np.random.default_rng(seed), np.asarray(labels), num_classes)


def test_the_maps_by_hand():
    labels = [0, 1, 2, 3, 4]
    assert poisoned(corruption.FlippedLabels(), labels, 5).tolist() == [4, 3, 2, 1, 0]
    assert poisoned(corruption.PairwiseLabels(), labels, 5).tolist() == [1, 2, 3, 4, 0]
    assert poisoned(corruption.FlippedLabels(), [0, 1, 1], 2).tolist() == [1, 0, 0]


def test_uniform_labels_are_uniform_and_independent_of_the_truth():
    labels = np.repeat(np.arange(5), 20_000)
    found = poisoned(corruption.UniformLabels(), labels, 5)
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels, found), 1)
    assert np.abs(counts / 20_000 - 0.2).max() < 5 * np.sqrt(0.16 / 20_000)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    fraction=st.floats(0, 1),
    count=st.integers(0, 60),
    num_classes=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_poisoned_labels_are_labels(kind, fraction, count, num_classes, seed):
    labels = np.random.default_rng(1).integers(num_classes, size=count)
    before = labels.copy()
    found = poisoned(kind(fraction=fraction), labels, num_classes, seed)
    again = poisoned(kind(fraction=fraction), labels, num_classes, seed)
    np.testing.assert_array_equal(found, again)
    np.testing.assert_array_equal(labels, before)
    assert found.dtype == np.int32 and found.shape == labels.shape
    assert ((found >= 0) & (found < num_classes)).all()
    assert (found != labels).sum() <= round(fraction * count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fraction_of_the_labels_is_replaced_and_a_larger_one_keeps_them(kind):
    labels = np.zeros(1000, np.int32)  # of ten classes: nearly every change is visible
    changed = [
        poisoned(kind(fraction=fraction), labels, 10) for fraction in (0.0, 0.3, 0.7)
    ]
    wrong = [(found != labels).sum() for found in changed]
    if kind is corruption.UniformLabels:
        assert wrong[0] == 0
        assert abs(wrong[1] - 270) < 5 * np.sqrt(27)
        assert abs(wrong[2] - 630) < 5 * np.sqrt(63)
    else:
        assert wrong == [0, 300, 700]
    kept = changed[1] != labels
    np.testing.assert_array_equal(changed[2][kept], changed[1][kept])


def test_replaced_labels_are_spread_over_the_client():
    found = poisoned(corruption.FlippedLabels(fraction=0.5), np.zeros(1000, int), 2)
    first = found[:500].sum()  # hypergeometric: 250 with a variance of 62.6
    assert abs(first - 250) < 5 * np.sqrt(62.6)
    other = poisoned(corruption.FlippedLabels(fraction=0.5), np.zeros(1000, int), 2, 1)
    assert (other != found).any()


def test_noise_of_all_or_of_malicious_clients():
    malicious = np.array([False, True, False, True])
    noise = corruption.FeatureNoise(std=0.4)
    np.testing.assert_allclose(noise.scales(4, malicious), [0.4] * 4, rtol=1e-6)
    some = dataclasses.replace(noise, who="malicious")
    np.testing.assert_allclose(some.scales(4, malicious), [0, 0.4, 0, 0.4], rtol=1e-6)
    graded = dataclasses.replace(noise, graded=True)
    np.testing.assert_allclose(
        graded.scales(4, malicious), [0.1, 0.2, 0.3, 0.4], rtol=1e-6
    )
    both = dataclasses.replace(some, graded=True)
    np.testing.assert_allclose(both.scales(4, malicious), [0, 0.2, 0, 0.4], rtol=1e-6)
    assert both.scales(4, malicious).dtype == np.float32


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        *((lambda k=k: k(fraction=1.1), "at most 1, got 1.1") for k in KINDS),
        *((lambda k=k: k(fraction=-0.1), "at least 0 .* got -0.1") for k in KINDS),
        *((lambda k=k: k(fraction="all"), "fraction .* got 'all'") for k in KINDS),
        (lambda: corruption.FeatureNoise(std=-1), "std .* at least 0, got -1"),
        (lambda: corruption.FeatureNoise(std=np.nan), "std .* got nan"),
        (lambda: corruption.FeatureNoise(who="honest"), "'honest'.*all, malicious"),
        (lambda: corruption.FeatureNoise(graded=1), "graded .* true or false, got 1"),
        (lambda: corruption.FeatureNoise(resample="no"), "resample .* got 'no'"),
    ],
)
def test_wrong_fields_get_a_sentence(make, sentence):
    samples.refusal(make, match=sentence)


@pytest.mark.parametrize(("num_clients", "fraction"), [(12, 0.96), (1, 0.6), (3, 1.0)])
def test_somebody_must_be_honest(num_clients, fraction):
    sentence = f"leave one of {num_clients} clients honest, got {fraction}, .*\\.$"
    samples.refusal(splits.malicious_clients, 0, num_clients, fraction, match=sentence)
    almost = splits.malicious_clients(0, num_clients, fraction - 1 / num_clients)
    assert almost.sum() == num_clients - 1


def test_registries():
    for registry in (corruption.LABEL_POISONINGS, corruption.FEATURE_NOISES):
        for name, kind in registry.items():
            assert kind.name == name and hash(kind()) == hash(kind())
