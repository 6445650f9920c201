"""The synthetic market has the facts that its documentation states."""

import dataclasses

import numpy as np
import pytest

from fedjax_pfl import portfolio
from tests.data import samples

LONG = portfolio.SyntheticMarket(num_days=20_000)


def returns_of(source):
    market = source.load(data_dir=None, features=1)
    return np.diff(np.log(market.prices[..., 0]), axis=0)


def autocorrelation(values, lag):
    centered = values - values.mean(axis=0)
    product = (centered[lag:] * centered[:-lag]).mean(axis=0)
    return product / centered.var(axis=0)


def test_shape_dates_and_one_market_per_seed():
    source = portfolio.SyntheticMarket()
    market = source.load(data_dir=None, features=3)
    assert market.prices.shape == (3271 + 252, 50, 3)
    assert len(set(market.tickers)) == 50
    assert str(market.dates[0]) == "2006-01-03"
    assert np.is_busday(market.dates).all()
    assert (np.diff(market.dates).astype(int) > 0).all()
    closes = source.load(data_dir=None, features=1).prices
    np.testing.assert_array_equal(closes[..., 0], market.prices[..., 0])
    other = dataclasses.replace(source, seed=1).load(data_dir=None, features=1)
    assert (other.prices != closes).all()
    assert source.load(data_dir=None, features=3) is market


def test_volatility_follows_the_parameters():
    stress = LONG.regimes()
    share = LONG.stress_days / (LONG.stress_days + LONG.calm_days)
    # The chain forgets at rate 1/30 + 1/120: 20,000 days are worth some 400 draws.
    assert abs(stress.mean() - share) < 4 * np.sqrt(share * (1 - share) / 400)
    returns = returns_of(LONG)
    calm, wild = ~stress[1:], stress[1:]
    ratio = returns[wild].std(axis=0) / returns[calm].std(axis=0)
    np.testing.assert_allclose(ratio.mean(), LONG.stress, rtol=0.05)
    one = dataclasses.replace(LONG, beta_spread=0.0, drift_spread=0.0, stress=1.0)
    yearly = returns_of(one).std(axis=0) * np.sqrt(252)
    # The variance of 20,000 draws with kurtosis 9 has relative error sqrt(8 / 20000).
    expected = np.sqrt(0.12**2 + 0.08**2 + 0.18**2)
    np.testing.assert_allclose(yearly, expected, rtol=4 * np.sqrt(8 / 20_000) / 2)


def test_volatility_clusters_and_returns_do_not_repeat():
    returns = returns_of(LONG)
    size = np.abs(returns)
    for lag in (1, 5, 20):
        assert autocorrelation(size, lag).mean() > 0.05
    # Correlated assets: at most 50 times fewer draws, hence no average over them.
    assert np.abs(autocorrelation(returns, 1)).max() < 0.06
    calm = returns_of(dataclasses.replace(LONG, stress=1.0))
    assert abs(autocorrelation(np.abs(calm), 5).mean()) < 0.02


def test_tails_are_heavy_with_and_without_regimes():
    def kurtosis(values):
        centered = values - values.mean(axis=0)
        return (centered**4).mean(axis=0) / centered.var(axis=0) ** 2

    assert np.median(kurtosis(returns_of(LONG))) > 5
    calm = dataclasses.replace(LONG, stress=1.0)
    assert np.median(kurtosis(returns_of(calm))) > 3.5
    normal = dataclasses.replace(calm, degrees=1e6)
    np.testing.assert_allclose(kurtosis(returns_of(normal)), 3, atol=0.25)


def test_sectors_are_correlated_more_than_the_market():
    source = dataclasses.replace(LONG, beta_spread=0.0, stress=1.0, degrees=30.0)
    found = np.corrcoef(returns_of(source).T)
    sector = np.arange(50) % 5
    same = (sector[:, None] == sector) & ~np.eye(50, dtype=bool)
    other = sector[:, None] != sector
    variance = 0.12**2 + 0.08**2 + 0.18**2
    # Standard error of one correlation: 1 / sqrt(20000) = 0.007.
    np.testing.assert_allclose(
        found[same], (0.12**2 + 0.08**2) / variance, atol=5 * 0.01
    )
    np.testing.assert_allclose(found[other], 0.12**2 / variance, atol=5 * 0.01)


def test_drifts_follow_the_parameters():
    source = dataclasses.replace(LONG, drift=0.3, drift_spread=0.0)
    yearly = returns_of(source).mean() * 252
    # All assets share the market, of 0.12 * sqrt(2.05) a year, over 79 years.
    assert abs(yearly - 0.3) < 4 * 0.2 / np.sqrt(79)


def test_highs_and_lows_have_the_law_of_a_brownian_bridge():
    source = dataclasses.replace(LONG, num_assets=1, num_days=50_000)
    prices = source.load(data_dir=None, features=3).prices[:, 0]
    close, high, low = np.log(prices).T
    assert (high >= close).all() and (close >= low).all()
    before = close[:-1]
    assert (high[1:] >= before - 1e-12).all() and (low[1:] <= before + 1e-12).all()
    _, std = source._factors()
    variance = std[1:, 0] ** 2
    change = close[1:] - before
    for extreme in (high[1:] - before, low[1:] - before):
        # exp(-2 x (x - r) / s^2) of the extreme x is uniform, hence of mean 1/2.
        uniform = np.exp(-2 * extreme * (extreme - change) / variance)
        error = 1 / np.sqrt(12 * len(uniform))
        assert abs(uniform.mean() - 0.5) < 4 * error
        assert abs((uniform < 0.1).mean() - 0.1) < 4 * error


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"degrees": 2.0}, "Expected degrees to be a finite number above 2"),
        ({"stress": 0.5}, "Expected stress to be a finite number at least 1"),
        ({"own_volatility": -1.0}, "Expected own_volatility"),
        ({"num_assets": 0}, "Expected num_assets"),
        ({"calm_days": 0.0}, "Expected calm_days"),
        ({"seed": -1}, "Expected seed"),
    ],
)
def test_bad_parameters_get_one_sentence(fields, sentence):
    samples.refusal(portfolio.SyntheticMarket, **fields, match=sentence)
