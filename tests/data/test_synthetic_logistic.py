"""Synthetic(zeta, beta) of FedProx and its traps."""

import numpy as np
import pytest
import scipy.stats

from fedjax_pfl.data import Synthetic, sources
from tests.data import samples


def load(seed=0, num_clients=30, **options):
    return Synthetic(**options).load(data_dir=None, seed=seed, num_clients=num_clients)


def labels_of_truth(dataset, shifted):
    """Labels by the model as it is written, sample by sample, and their margins."""
    truth, labels, margins = dataset.truth, [], []
    for x, k in zip(dataset.x.astype(float), dataset.client, strict=True):
        shift = truth["shifts"][k] if shifted else np.zeros(dataset.num_classes)
        logits = [
            sum(x[j] * (truth["weights"][k, j, c] + shift[c]) for j in range(len(x)))
            + truth["biases"][k, c]
            + shift[c]
            for c in range(dataset.num_classes)
        ]
        labels.append(int(np.argmax(logits)))
        margins.append(np.diff(np.sort(logits)[-2:])[0])
    return labels, margins


@pytest.mark.parametrize(
    ("mode", "shifted"), [("class_shift", True), ("paper", True), ("paper", False)]
)
def test_labels_are_those_of_the_clients_model(mode, shifted):
    dataset = load(num_clients=4, mode=mode, dim=7, num_classes=5, max_examples=60)
    labels, margins = labels_of_truth(dataset, shifted)
    # A sum of 8 products below 100 is rounded by less than 1e-12.
    assert min(margins) > 1e-10 and dataset.y.tolist() == labels
    assert len(set(labels)) >= 3


def test_the_published_labels_do_not_depend_on_zeta():
    for scale in ("std", "var"):
        without, far = (
            load(zeta=zeta, beta=10.0, mode="paper", scale=scale)
            for zeta in (0.0, 1000.0)
        )
        np.testing.assert_array_equal(without.x, far.x)
        np.testing.assert_array_equal(without.y, far.y)
        assert not without.truth["shifts"].any()
        assert np.abs(far.truth["shifts"]).max() > 30
        assert (far.truth["shifts"] == far.truth["shifts"][:, :1]).all()


def test_class_shifts_make_labels_depend_on_zeta():
    without, some, far = (load(zeta=zeta) for zeta in (0.0, 1.0, 1000.0))
    np.testing.assert_array_equal(without.x, far.x)
    agreement = [(without.y == other.y).mean() for other in (some, far)]
    assert agreement[1] < agreement[0] < 0.8
    # With zeta = 0 both modes are one model, but for what is drawn after the shifts.
    paper = load(zeta=0.0, mode="paper")
    np.testing.assert_array_equal(without.truth["weights"], paper.truth["weights"])
    # Far shifts leave the logits u_c (1 + sum x): the largest or the smallest shift.
    up = 1 + far.x.astype(float).sum(axis=1) > 0
    shifts = far.truth["shifts"][far.client]
    wanted = np.where(up, shifts.argmax(axis=1), shifts.argmin(axis=1))
    assert (far.y == wanted).mean() > 0.95


@pytest.mark.parametrize(("scale", "least"), [("std", 0.9), ("var", 0.5)])
def test_the_naive_softmax_makes_most_labels_class_0(scale, least):
    options = {"zeta": 1000.0, "beta": 10.0, "scale": scale}
    for seed in range(3):
        naive = load(seed, mode="paper_naive", **options)
        stable = load(seed, mode="paper", **options)
        # Measured: 0.99 to 1 with standard deviations, 0.60 to 0.92 with variances.
        assert (naive.y == 0).mean() > least
        assert (stable.y == 0).mean() < 0.4
        np.testing.assert_array_equal(naive.x, stable.x)
        # Where it did not overflow, it finds the largest logit, but for ties of the
        # smallest numbers.
        wrong = (naive.y != stable.y) & (naive.y > 0)
        assert wrong.sum() <= 0.02 * (naive.y > 0).sum()


def test_the_naive_softmax_is_right_where_nothing_overflows():
    options = {"zeta": 0.1, "beta": 0.1}
    naive, stable = (load(mode=mode, **options) for mode in ("paper_naive", "paper"))
    np.testing.assert_array_equal(naive.y, stable.y)


def test_sizes_are_lognormal_and_fifty():
    dataset = load(num_clients=3000, dim=1, num_classes=2, max_examples=2000)
    sizes = np.bincount(dataset.client, minlength=3000)
    assert sizes.min() >= 50 and sizes.max() == 2000
    # P(n <= 50 + s) = P(lognormal < s + 1); the distance of the two is below
    # 1.95 / sqrt(n) in 999 of 1000 draws (Kolmogorov and Smirnov).
    steps = np.arange(1900)
    found = np.searchsorted(np.sort(sizes), 50 + steps, side="right") / 3000
    wanted = scipy.stats.lognorm(s=2.0, scale=np.exp(4.0)).cdf(steps + 1)
    assert np.abs(found - wanted).max() < 1.95 / np.sqrt(3000)
    assert np.bincount(load(max_examples=20).client).tolist() == [20] * 30


@pytest.mark.parametrize(("scale", "std"), [("std", 4.0), ("var", 2.0)])
def test_centers_and_inputs_have_their_spread(scale, std):
    dataset = load(
        num_clients=2000, beta=4.0, scale=scale, num_classes=2, max_examples=3
    )
    centers = dataset.truth["centers"]
    # Means of 60 entries N(B_k, 1) are N(0, std^2 + 1/60); a standard deviation of n
    # draws has relative standard error 1 / sqrt(2 n).
    means = centers.mean(axis=1).std() / np.sqrt(std**2 + 1 / 60)
    assert abs(means - 1) < 5 / np.sqrt(2 * 2000)
    within = (centers - centers.mean(axis=1, keepdims=True)).std() / np.sqrt(59 / 60)
    assert abs(within - 1) < 5 / np.sqrt(2 * centers.size)
    residuals = dataset.x - centers[dataset.client]
    ratio = residuals.std(axis=0) / np.arange(1, 61) ** -0.6
    assert np.abs(ratio - 1).max() < 5 / np.sqrt(2 * len(residuals))
    shifts = load(2, num_clients=2000, zeta=4.0, scale=scale, dim=1, max_examples=1)
    shifts = shifts.truth["shifts"]
    assert shifts.shape == (2000, 10)
    assert abs(shifts.std() / std - 1) < 5 / np.sqrt(2 * shifts.size)
    # Entries of one client are independent: their correlation is about 0.
    assert abs(np.corrcoef(shifts[:, 0], shifts[:, 1])[0, 1]) < 5 / np.sqrt(2000)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"zeta": -1.0}, "zeta .* at least 0 .*, got -1.0"),
        ({"zeta": float("nan")}, "zeta .* got nan"),
        ({"beta": -0.5}, "beta .* at least 0 .*, got -0.5"),
        ({"beta": 1e31}, "beta .* at most 1e.30, got 1e.31"),
        ({"mode": "papers"}, "Unknown mode 'papers' .did you mean 'paper'"),
        ({"scale": "variance"}, "Unknown scale 'variance'; allowed: std, var"),
        ({"dim": 0}, "dim .* at least 1, got 0"),
        ({"num_classes": 0}, "num_classes .* got 0"),
        ({"extra": 0}, "extra .* at least 1, got 0"),
        ({"max_examples": 0}, "max_examples .* got 0"),
        ({"sigma": -2.0}, "sigma .* at least 0, got -2.0"),
        ({"mean": float("inf")}, "mean .* got inf"),
        ({"dim": 2**31 - 1}, "'synthetic' of 20 clients would take .* GB"),
        ({"mean": 1e308}, "would take .* GB of memory"),  # known once sizes are drawn
        ({"sigma": 1e308}, "would take .* GB of memory"),
    ],
)
def test_wrong_options_get_a_sentence(options, sentence):
    samples.refusal(sources.load_dataset, "synthetic", **options, match=sentence)


@pytest.mark.parametrize("mode", ["class_shift", "paper", "paper_naive"])
def test_extreme_options_give_data_without_a_warning(mode):
    options = {"mode": mode, "max_examples": 9, "sigma": 1e308}
    for zeta, beta in ((1e30, 1e30), (0.0, 0.0), (5e-324, 5e-324)):
        dataset = load(zeta=zeta, beta=beta, **options)
        assert np.isfinite(dataset.x).all() and set(np.bincount(dataset.client)) == {9}
