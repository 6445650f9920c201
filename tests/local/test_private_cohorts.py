"""Clients drawn each by itself, and cohorts in turn."""

import jax
import numpy as np
import pytest
from scipy import stats

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.local import CyclicCohorts, PoissonCohort

KEY = jax.random.key(3, impl="threefry2x32")
N, SEEDS = 12, 6000


def drawn(cohort):
    """Who takes part, `bool[SEEDS, N]`, and rows `[SEEDS, K]`."""
    keys = jax.random.split(KEY, SEEDS)
    rows = np.asarray(jax.vmap(lambda k: cohort(k, N))(keys))
    present = np.asarray(jax.vmap(lambda k: cohort.present(k, N))(keys))
    took_part = np.zeros((SEEDS, N), bool)
    for number in range(SEEDS):
        took_part[number, rows[number][present[number]]] = True
    assert (took_part.sum(axis=1) == present.sum(axis=1)).all()
    return took_part, rows


def test_clients_are_drawn_each_by_itself_with_the_rate():
    rate = 0.3
    took_part, rows = drawn(PoissonCohort(rate=rate, capacity=N))
    assert (np.diff(rows, axis=1) > 0).all()
    error = np.sqrt(rate * (1 - rate) / SEEDS)
    assert (np.abs(took_part.mean(axis=0) - rate) < 5 * error).all()
    # Independent of one another: covariances of two are zero but for their error.
    covariance = np.cov(took_part.T.astype(float))
    off = covariance[~np.eye(N, dtype=bool)]
    assert (np.abs(off) < 5 * rate * (1 - rate) / np.sqrt(SEEDS)).all()
    counts = np.bincount(took_part.sum(axis=1), minlength=N + 1)
    expected = stats.binom.pmf(np.arange(N + 1), N, rate) * SEEDS
    keep = expected > 5
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    assert statistic < stats.chi2.ppf(1 - 1e-6, keep.sum())


def test_more_than_the_capacity_are_thinned_uniformly():
    rate, capacity = 0.5, 4
    took_part, rows = drawn(PoissonCohort(rate=rate, capacity=capacity))
    assert rows.shape == (SEEDS, capacity)
    sizes = stats.binom.pmf(np.arange(N + 1), N, rate)
    mean = (np.minimum(np.arange(N + 1), capacity) * sizes).sum() / N
    error = np.sqrt(mean * (1 - mean) / SEEDS)
    assert (np.abs(took_part.mean(axis=0) - mean) < 5 * error).all()
    assert took_part.sum(axis=1).max() == capacity


@pytest.mark.parametrize(("num_clients", "rate"), [(1000, 0.1), (50, 0.9), (20, 1.0)])
def test_a_capacity_of_its_own_choice_is_the_smallest_that_hardly_fails(
    num_clients, rate
):
    size = PoissonCohort(rate=rate).cohort_size(num_clients)
    assert stats.binom.sf(size, num_clients, rate) <= 1e-9
    assert size == 1 or stats.binom.sf(size - 1, num_clients, rate) > 1e-9


def test_everybody_takes_part_at_a_rate_of_one():
    cohort = PoissonCohort(rate=1.0)
    assert cohort(KEY, 9).tolist() == list(range(9))
    assert cohort.present(KEY, 9).all()


def test_cohorts_in_turn_have_an_order_of_their_own():
    rows = [CyclicCohorts(size=3, order=o).in_round(None, 9, 0) for o in range(4)]
    assert len({tuple(row.tolist()) for row in rows}) > 1
    # Also where r K is no number of 32 bits.
    far = CyclicCohorts(size=3).in_round(None, 9, 2**31 - 2)
    near = CyclicCohorts(size=3).in_round(None, 9, (2**31 - 2) % 3)
    assert far.tolist() == near.tolist()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PoissonCohort(rate=0.0), "rate .* above 0 .* got 0.0"),
        (lambda: PoissonCohort(rate=1.5), "rate .* at most 1, got 1.5"),
        (lambda: PoissonCohort(capacity=9).cohort_size(8), "of clients 8, got 9"),
        (lambda: CyclicCohorts(size=9).cohort_size(8), "of clients 8, got size=9"),
        (
            lambda: fp.FederatedProcess(
                algorithm=fp.FedPG(), participation=PoissonCohort(rate=0.5)
            ).check_cohort(4, 8),
            "one exchange per round with PoissonCohort, .* got FedPG",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make, match):
    with pytest.raises(checks.InputError, match=match):
        make()
