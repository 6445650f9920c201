"""The step search in blocks against the published one, trial by trial in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms import common_descent

CLIENTS = 4
NEVER = 1e9  # a loss that passes nothing


def fairness(losses):
    return -losses.sum() / (np.linalg.norm(losses) * np.sqrt(len(losses)))


def one_by_one(table, before, rate, sigma, slopes, fair_slope, s, beta, missing, fair):
    """Algorithm 1 with losses from a table `[trials, K]`; step, rule and trials."""
    largest = rate if missing else 2.0**s * rate
    smallest = 0.5**s * rate / sigma
    trials = []
    while largest * 0.5 ** len(trials) >= smallest * (1 - 1e-6):
        step, losses = largest * 0.5 ** len(trials), table[len(trials)]
        trials.append((step, losses))
        if not np.isfinite(losses).all():
            continue
        enough = (before - losses >= -beta * step * slopes).all()
        if fair:
            fall = fairness(before) - fairness(losses)
            enough &= fall >= -beta * step * min(fair_slope, 0)
        if enough:
            return step, 1, len(trials)
    finite = [x for x in trials if np.isfinite(x[1]).all()]
    better = [x for x in finite if x[1].mean() < before.mean()]
    if better:
        return better[0][0], 2, len(trials)
    if finite:
        means = [x[1].mean() for x in finite]
        return finite[int(np.argmin(means))][0], 3, len(trials)
    return 0.0, 0, len(trials)


def direction(sigma):
    """Only sigma matters to the search."""
    fields = dict.fromkeys(
        ("vector", "norm", "mean_norm", "weights", "products", "gap", "worst"),
        jnp.zeros(()),
    )
    flags = dict.fromkeys(("guarded", "stationary"), jnp.zeros((), bool))
    return common_descent.Direction(sigma=jnp.asarray(sigma), **fields, **flags)


@functools.partial(jax.jit, static_argnames="search")
def searched(table, before, rate, sigma, slopes, fair_slope, missing, fair, *, search):
    first, _ = search.bounds(rate, sigma, missing)

    def trial(steps):
        number = jnp.round(jnp.log2(first / jnp.where(steps > 0, steps, 1)))
        known = table[jnp.clip(number, 0, len(table) - 1).astype(int)]
        return jnp.where((steps > 0)[:, None], known, before[None]).T

    return search(
        trial,
        rate=rate,
        direction=direction(sigma),
        slopes=slopes,
        fair_slope=fair_slope,
        present=jnp.ones(CLIENTS, bool),
        is_fair=fair,
        is_missing=missing,
    )


@pytest.mark.parametrize("s", [0, 1, 3])
def test_blocks_of_trials_find_what_one_after_another_finds(s):
    search = common_descent.Armijo(doublings=s, decrease=1e-4)
    rng = np.random.default_rng(s)
    rules = []
    for number in range(60):
        sigma, rate = 2 ** rng.uniform(0, 7), 0.3
        missing, fair = bool(rng.integers(2)), bool(rng.integers(2))
        before = rng.uniform(1, 2, CLIENTS)
        slopes = -rng.uniform(0, 1, CLIENTS)
        # From hopeless to easy; some trials are not finite, at times all.
        level = rng.choice([-0.02, 0.1, 0.6, 3.0])
        table = before + level * rng.normal(-0.3, 1, (40, CLIENTS))
        table = np.maximum(table, 0.05)
        lost = rng.uniform(size=40) < rng.choice([0, 0.3, 1], p=[0.6, 0.3, 0.1])
        table[lost, rng.integers(CLIENTS)] = rng.choice([np.nan, np.inf])
        given = (table, before, rate, sigma, slopes, -0.2)
        expected = one_by_one(*given, s, 1e-4, missing, fair)
        found = searched(*given, missing, fair, search=search)
        assert (float(found.step), int(found.rule), int(found.trials)) == expected, (
            number
        )
        np.testing.assert_array_equal(found.before, before)
        if expected[1]:
            place = round(np.log2((rate if missing else rate * 2**s) / expected[0]))
            np.testing.assert_array_equal(found.after, table[place])
        rules.append(expected[1])
    assert set(rules) == {0, 1, 2, 3}


@pytest.mark.parametrize("missing", [False, True])
def test_the_number_of_trials_is_the_formula(missing):
    for s in (0, 1, 5):
        search = common_descent.Armijo(doublings=s)
        for sigma in (1.0, 1.7, 4.0, 900.0):
            table = np.full((40, CLIENTS), NEVER)
            before, slopes = np.ones(CLIENTS), -np.ones(CLIENTS)
            given = (table, before, 0.1, sigma, slopes, 0.0, missing, False)
            found = searched(*given, search=search)
            most = (s if missing else 2 * s) + np.log2(sigma)
            assert found.trials == np.floor(most) + 1


def test_no_increase_is_accepted_where_that_is_asked_for():
    table = np.full((40, CLIENTS), NEVER)
    table[1] = 1.5
    before, slopes = np.ones(CLIENTS), -np.ones(CLIENTS)
    given = (table, before, 0.1, 4.0, slopes, 0.0, False, False)
    papers = searched(*given, search=common_descent.Armijo())
    assert (float(papers.step), int(papers.rule)) == (0.1, 3)
    ours = searched(*given, search=common_descent.Armijo(reject_increase=True))
    assert (float(ours.step), int(ours.rule)) == (0, 0)
    np.testing.assert_array_equal(ours.after, before)
