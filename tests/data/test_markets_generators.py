"""Generators against moments, and an independent slow Markov chain."""

import collections

import jax
import numpy as np
import pytest
from scipy import stats

from fedjax_pfl import portfolio
from tests.data import samples
from tests.lanes import wide


def rngs(count, seed=0):
    return [np.random.default_rng((seed, k)) for k in range(count)]


def sampled(generator, returns, count, days, seed=0):
    (sample,) = generator.fit([np.random.default_rng(seed)], [returns])
    return sample(rngs(count, seed), days)


def history(days=400, seed=1):
    """Three correlated assets with drift; the last one is listed late."""
    rng = np.random.default_rng(seed)
    factor = np.array([[0.01, 0, 0], [0.008, 0.006, 0], [0.0, 0.01, 0.02]])
    returns = np.array([1e-3, 0, -5e-4]) + rng.standard_normal((days, 3)) @ factor.T
    returns[:150, 2] = np.nan
    return returns


@pytest.mark.parametrize("correlated", [False, True])
def test_brownian_motion_has_the_fitted_moments(correlated):
    returns = history()
    generator = portfolio.GeometricBrownianMotion(correlated=correlated)
    found = sampled(generator, returns, 200, 252).reshape(-1, 3)
    mean, std = np.nanmean(returns, axis=0), np.nanstd(returns, axis=0, ddof=1)
    count = len(found)
    assert (np.abs(found.mean(axis=0) - mean) < 4 * std / np.sqrt(count)).all()
    np.testing.assert_allclose(found.std(axis=0), std, rtol=4 / np.sqrt(2 * count))
    expected = np.corrcoef(returns[150:].T) if correlated else np.eye(3)
    correlation = np.corrcoef(found.T)
    np.testing.assert_allclose(correlation, expected, atol=4 / np.sqrt(count))
    for values in found.T:
        standard = (values - values.mean()) / values.std()
        assert stats.kstest(standard[:5000], "norm").pvalue > 1e-4
    # Independent over time.
    lagged = (found[1:] * found[:-1]).mean(axis=0) - found.mean(axis=0) ** 2
    assert (np.abs(lagged) < 4 * std**2 / np.sqrt(count)).all()


def test_growth_of_an_asset_without_variance_is_its_mean():
    returns = history()
    returns[:, 1] = 0.002
    for correlated in (False, True):
        generator = portfolio.GeometricBrownianMotion(correlated=correlated)
        found = sampled(generator, returns, 2, 50)
        np.testing.assert_allclose(found[..., 1], 0.002, rtol=1e-12)
        assert np.isfinite(found).all() and found[..., 2].std() > 0


class SlowMarkov:
    """Back-off chain by dictionaries of tuples, one asset, one law at a time."""

    def __init__(self, returns, bins, order, min_count):
        self.order, self.min_count = order, min_count
        edges = [np.quantile(returns, k / bins) for k in range(1, bins)]
        self.binned = [sum(r >= edge for edge in edges) for r in returns]
        self.members = collections.defaultdict(list)
        for r, b in zip(returns, self.binned, strict=True):
            self.members[b].append(r)
        self.seen = collections.defaultdict(collections.Counter)
        for t, b in enumerate(self.binned):
            for length in range(min(order, t) + 1):
                self.seen[tuple(self.binned[t - length : t])][b] += 1

    def law(self, past):
        """Probability of each bin after a list of bins."""
        for length in range(min(self.order, len(past)), 0, -1):
            counts = self.seen[tuple(past[-length:])]
            if counts.total() >= self.min_count:
                break
        else:
            counts = self.seen[()]
        return {b: count / counts.total() for b, count in counts.items()}

    def bin_of(self, value):
        return next(b for b, values in self.members.items() if value in values)


@pytest.mark.parametrize(
    ("bins", "order", "min_count", "days"),
    [(5, 3, 5, 400), (3, 2, 1, 40), (2, 0, 5, 30), (5, 3, 5, 2), (4, 2, 10_000, 60)],
)
def test_markov_follows_the_law_with_back_off(bins, order, min_count, days):
    returns = np.random.default_rng(3).normal(0, 0.01, days)
    generator = portfolio.VariableOrderMarkov(
        bins=bins, order=order, min_count=min_count
    )
    slow = SlowMarkov(returns, bins, order, min_count)
    count, length = 4000, 6
    found = sampled(generator, returns[:, None], count, length)[..., 0]
    assert set(found.ravel()) <= set(returns)
    binned = {value: slow.bin_of(value) for value in set(found.ravel())}
    seen, expected = collections.Counter(), collections.Counter()
    for path in found:
        past = list(slow.binned)
        for value in path:
            context = tuple(past[-order:]) if order else ()
            for b, probability in slow.law(past).items():
                expected[context, b] += probability
            seen[context, binned[value]] += 1
            past.append(binned[value])
    assert set(seen) <= set(expected)  # nothing that the slow chain rules out
    often = [key for key in expected if expected[key] >= 20]
    # The chi-square statistic of counts given the contexts that occurred.
    statistic = sum((seen[k] - expected[k]) ** 2 / expected[k] for k in often)
    assert stats.chi2(len(often)).sf(statistic) > 1e-4
    for values in slow.members.values():
        inside = np.isin(found, values)
        if len(values) > 1 and inside.sum() >= 20 * len(values):
            counts = [(found == value).sum() for value in values]
            assert stats.chisquare(counts).pvalue > 1e-5


def test_markov_remembers_the_last_training_days():
    """After up, up comes down, always; the first generated day obeys."""
    returns = np.tile([0.01, 0.011, -0.01], 60)
    generator = portfolio.VariableOrderMarkov(bins=2, order=2, min_count=5)
    for cut in range(3):
        past = returns[: len(returns) - cut]
        found = sampled(generator, past[:, None], 20, 9)[..., 0]
        following = np.tile(np.roll([0.01, 0.011, -0.01], cut), 3)
        np.testing.assert_array_equal(np.sign(found), [np.sign(following)] * 20)


def test_assets_with_equal_returns_have_empty_bins():
    returns = np.zeros((80, 2))
    returns[::9, 0] = 0.01
    found = sampled(portfolio.VariableOrderMarkov(), returns, 3, 100)
    assert set(np.unique(found[..., 0])) == {0.0, 0.01}
    np.testing.assert_array_equal(found[..., 1], 0)


SMALL_GAN = portfolio.WassersteinGAN(
    block=7, latent=4, width=8, num_steps=3, batch_size=5
)


@pytest.mark.parametrize(
    "generator",
    [
        portfolio.GeometricBrownianMotion(),
        portfolio.VariableOrderMarkov(),
        wide(SMALL_GAN),
    ],
    ids=["gbm", "markov", "gan"],
)
def test_a_year_does_not_depend_on_the_others(generator):
    assert type(generator) is portfolio.GENERATORS[generator.name]
    returns = history(250)
    together = generator.fit(rngs(2), [returns, returns[:, ::-1]])
    (alone,) = generator.fit(rngs(2)[1:], [returns[:, ::-1]])
    several = together[1](rngs(3), 40)
    assert several.shape == (3, 40, 3) and np.isfinite(several).all()
    np.testing.assert_array_equal(alone(rngs(3)[2:], 40)[0], several[2])
    assert (several[0] != several[1]).any()


def test_network_learns_correlations_and_has_the_moments():
    """Two assets that move together, one that moves against them, one that rests."""
    common = np.random.default_rng(4).normal(0.001, 0.01, (500, 1))
    returns = common * np.array([[1.0, 2.0, -1.0, 0.0]])
    returns[:100, 1] = np.nan
    generator = portfolio.WassersteinGAN(
        block=5, width=16, num_steps=300, learning_rate=3e-3
    )
    found = sampled(generator, returns, 400, 50).reshape(-1, 4)
    # Calibrated on 10,000 returns, measured on 20,000; those of a window depend on
    # each other, at worst all five of them.
    error = 4 * np.sqrt(5 * (1 / 10_000 + 1 / 20_000))
    mean, std = np.nanmean(returns, axis=0), np.nanstd(returns, axis=0)
    assert (np.abs(found.mean(axis=0) - mean) <= error * std).all()
    np.testing.assert_allclose(found.std(axis=0), std, rtol=error)
    correlation = np.corrcoef(found[:, :3].T)
    assert correlation[0, 1] > 0.8 and correlation[0, 2] < -0.8
    np.testing.assert_array_equal(found[:, 3], 0)


def test_network_of_a_short_history_has_short_windows():
    returns = np.random.default_rng(5).normal(0, 0.01, (6, 2))
    with jax.enable_x64(False):  # as users have it
        (sample,) = SMALL_GAN.fit(rngs(1), [returns])
    assert np.isfinite(sample(rngs(2), 20)).all()
    assert SMALL_GAN.fit([], []) == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: portfolio.VariableOrderMarkov(bins=1), "Expected bins to be"),
        (lambda: portfolio.VariableOrderMarkov(order=-1), "Expected order to be"),
        (lambda: portfolio.VariableOrderMarkov(bins=50, order=5), "100,000 contexts"),
        (lambda: portfolio.GeometricBrownianMotion(correlated=1), "correlated to be"),
        (lambda: portfolio.WassersteinGAN(latent=0), "Expected latent to be"),
        (lambda: portfolio.WassersteinGAN(learning_rate=0.0), "Expected learning_rate"),
    ],
)
def test_bad_options_get_one_sentence(make, sentence):
    samples.refusal(make, match=sentence)
