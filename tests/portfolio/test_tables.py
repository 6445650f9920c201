"""Windows, numbering and sampling of price tables against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_pfl import portfolio
from fedjax_pfl.core import checks

DAYS, TRAIN, WINDOW, YEARS, YEAR = 40, 30, 7, 3, 10
ASSETS, FEATURES, PARTIES = 4, 3, 2
windows = jax.jit(portfolio.windows)


def tables(**fields):
    rows = PARTIES * (DAYS + YEARS * YEAR)
    rng = np.random.default_rng(0)
    prices = rng.uniform(0.5, 2, (rows, ASSETS, FEATURES)).astype(np.float32)
    shape = {"days": DAYS, "train_days": TRAIN, "window": WINDOW, "years": YEARS}
    shape |= {"year_days": YEAR, "rounds_per_year": 5} | fields
    return portfolio.PriceTables(prices=jnp.asarray(prices), **shape)


def history(block, day):
    """The days of one party up to `day`, one after the other, as a list of prices."""
    if day < DAYS:
        return block[: day + 1]
    year = (day - DAYS) // YEAR
    start = DAYS + year * YEAR
    return np.concatenate([block[:TRAIN], block[start : day + 1]])


def test_windows_are_the_last_days_of_the_party():
    given = tables()
    prices = np.asarray(given.prices)
    x, expected = [], []
    for party in range(PARTIES):
        first = party * given.block
        block = prices[first : first + given.block]
        for day in range(WINDOW - 1, given.block):
            seen = history(block, day)[-WINDOW:]
            expected.append((seen / seen[-1:, :, :1]).transpose(1, 0, 2))
            x.append((first, day, -1))
    x = np.asarray(x, np.int32)
    found = np.asarray(windows(given, x))
    assert found.shape == (len(x), ASSETS, WINDOW, FEATURES)
    # One division, which compilers may do by the reciprocal.
    np.testing.assert_allclose(found, np.stack(expected), rtol=2.5e-7)
    np.testing.assert_allclose(found[:, :, -1, 0], 1, rtol=2.5e-7)
    one = windows(given, x[-1])
    np.testing.assert_allclose(one, found[-1], rtol=2.5e-7)


def test_a_generated_year_shows_no_day_of_the_test_period():
    given = tables()
    held_out = slice(TRAIN, DAYS)
    changed = np.array(given.prices)
    changed[held_out] = np.nan
    days = DAYS + np.arange(YEARS * YEAR)
    x = np.asarray([(0, day, -1) for day in days], np.int32)
    spoiled = portfolio.PriceTables(**{**vars(given), "prices": changed})
    assert np.isfinite(windows(spoiled, x)).all()


def test_padding_has_finite_windows():
    found = np.asarray(windows(tables(), np.zeros((2, 3), np.int32)))
    np.testing.assert_allclose(found[..., 0], 1, rtol=2.5e-7)
    assert np.isfinite(found).all()


def test_previous_examples_were_observed_one_day_before():
    given = tables()
    numbers = np.arange(-1, given.slots, dtype=np.int32)
    expected = [-1, -1, *range(given.n_real - 1)]
    for year in range(YEARS):
        start = given.n_real + year * YEAR
        expected += [given.n_real - 1, *range(start, start + YEAR - 1)]
    found = jax.jit(portfolio.previous_example)(given, numbers)
    np.testing.assert_array_equal(found, expected)


def starts(given, decay, count, batch_size=8, round=0):
    keys = jax.random.split(jax.random.key(1), count)
    draw = jax.vmap(
        lambda key: portfolio.batch_positions(key, given, round, batch_size, decay)
    )
    return np.asarray(draw(keys))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("decay", [5e-5, 0.05, 0.5])
def test_starts_follow_the_truncated_geometric_distribution(decay, dtype):
    given, count, batch_size = tables(), 40_000, 8
    found = starts(given, jnp.asarray(decay, dtype), count, batch_size)
    np.testing.assert_array_equal(found - found[:, :1], [np.arange(8)] * count)
    last = given.n_real + YEAR - batch_size
    probability = decay * (1 - decay) ** (last - np.arange(last + 1))
    expected = count * probability / probability.sum()
    counts = np.bincount(found[:, 0], minlength=last + 1)
    seldom = expected < 5  # where the law of chi-square needs more
    expected = np.append(expected[~seldom], expected[seldom].sum())
    counts = np.append(counts[~seldom], counts[seldom].sum())
    kept = expected > 0
    # One draw of the test statistic: a correct sampler fails with probability 1e-4.
    assert stats.chisquare(counts[kept], expected[kept]).pvalue > 1e-4


def test_float32_reaches_every_start_of_thousands():
    given = tables(days=3400, train_days=3271, window=30, years=0)
    found = starts(given, jnp.float32(5e-5), 60_000, 50)[:, 0]
    last = given.n_real - 50
    assert found.min() >= 0 and found.max() <= last
    # Missing one of the 3192 starts in 60,000 draws has probability below 1e-4 for all
    # of them together: 3192 exp(-60000 * 0.92 / 3192) = 1e-4.
    assert len(np.unique(found)) == last + 1


def test_decay_one_draws_the_most_recent_batch():
    given = tables()
    found = starts(given, 1.0, 50)
    newest = given.n_real + YEAR - 8 + np.arange(8)
    np.testing.assert_array_equal(found, [newest] * 50)


@pytest.mark.parametrize(
    ("round", "year"), [(0, 0), (4, 0), (5, 1), (14, 2), (15, 2), (1000, 2)]
)
def test_a_round_samples_its_own_generated_year(round, year):
    given = tables()
    found = starts(given, 0.05, 200, 8, round)
    generated = found[found >= given.n_real] - given.n_real
    assert set(np.unique(generated // YEAR)) == {year}
    assert (np.diff(found)[found[:, 1:] != given.n_real + year * YEAR] == 1).all()


def test_without_generated_years_only_real_examples_are_drawn():
    given = tables(years=0)
    found = starts(given, 0.5, 500, given.n_real)
    np.testing.assert_array_equal(found, [np.arange(given.n_real)] * 500)
    assert given.slots == given.num_logical == given.n_real == TRAIN - WINDOW


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: tables(train_days=WINDOW), "Expected train_days to be"),
        (lambda: tables(train_days=DAYS + 1), "at most 40, got 41"),
        (lambda: tables(years=-1), "Expected years to be"),
        (lambda: starts(tables(), 0.5, 1, 34), "at most 33, got 34"),
        (lambda: starts(tables(), 0.0, 1), "Expected decay to be"),
        (lambda: starts(tables(), 1.5, 1), "at most 1, got 1.5"),
    ],
)
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        call()
