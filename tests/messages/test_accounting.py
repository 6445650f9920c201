"""Epsilon of the ways to take part: beside dp-accounting itself, and closed forms."""

import math

import jax
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from fedjax_pfl.local import CyclicCohorts
from fedjax_pfl.messages import accounting
from tests.lanes import wide
from tests.messages.private import exact_epsilon

dp = pytest.importorskip("dp_accounting")
REPLACE = dp.NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("rate", "capacity"), [(0.1, 50), (0.1, 12)], ids=["never full", "often full"]
)
def test_clients_drawn_each_by_itself_are_accounted_as_dp_accounting_does(
    rate, capacity
):
    from dp_accounting import pld

    z, delta, num_clients, rounds = 4.0, 1e-5, 50, 22
    found = accounting.poisson_epsilons(z, delta, rate, capacity, num_clients, rounds)
    event = dp.TruncatedSubsampledGaussianDpEvent(num_clients, rate, capacity, z)
    if capacity == num_clients:
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z))

    def direct(number):
        accountant = pld.PLDAccountant(REPLACE, accounting.INTERVAL)
        return accountant.compose(event, number).get_epsilon(delta)

    for number in (1, 16, rounds):
        assert found[number - 1] == pytest.approx(direct(number), abs=1e-6)
    assert found[20] > direct(21)  # where the next one's is shown
    assert (np.diff(found) >= 0).all()
    whole = accounting.epsilons(z, delta, num_clients, num_clients, rounds)
    assert found[-1] < whole[-1]


def test_a_small_capacity_is_no_secret_sample():
    setting = (4.0, 1e-5, 0.5)
    wide, narrow = (
        accounting.poisson_epsilons(*setting, capacity, 20, 1)[0]
        for capacity in (20, 8)
    )
    assert narrow > wide


@pytest.mark.parametrize(("z", "delta"), [(2.0, 1e-5), (5.0, 1e-6)])
def test_one_round_of_everybody_has_the_exact_epsilon(z, delta):
    exact = exact_epsilon(2 / z, delta)
    (drawn,) = accounting.poisson_epsilons(z, delta, 1.0, 10, 10, 1)
    assert drawn == pytest.approx(exact, abs=1e-9)
    assert accounting.epsilons(z, delta, 10, 10, 1)[0] == pytest.approx(exact, abs=1e-9)


def test_without_noise_nothing_is_private():
    assert np.isinf(accounting.poisson_epsilons(0.0, 1e-5, 0.1, 5, 10, 3)).all()
    assert np.isinf(accounting.gaussian_epsilons(0.0, 1e-5, [1, 2])).all()
    assert np.isinf(accounting.epsilons(0.0, 1e-5, 5, 10, 3)).all()


@pytest.mark.parametrize(
    ("num_clients", "size"), [wide(12, 4), (10, 3), (7, 5), wide(5, 5)]
)
def test_turns_count_who_takes_part_most(num_clients, size):
    cohorts, rounds = CyclicCohorts(size=size), 2 * num_clients
    of_round = jax.jit(jax.vmap(lambda r: cohorts.in_round(None, num_clients, r)))
    members = np.asarray(of_round(np.arange(rounds)))
    times = np.zeros((rounds, num_clients), int)
    for number, rows in enumerate(members):
        assert len(set(rows.tolist())) == size and (np.diff(rows) > 0).all()
        times[number:, rows] += 1
    bound = accounting.cyclic_participations(size, num_clients, rounds)
    assert times.max(axis=1).tolist() == bound
    separation = cohorts.separation(num_clients)
    for start in range(rounds - separation + 1):
        in_a_row = members[start : start + separation].reshape(-1)
        assert len(set(in_a_row.tolist())) == len(in_a_row)


@pytest.mark.parametrize("period", [1, 2, 5, 8])
def test_nodes_of_trees_are_counted(period):
    rounds = 2 * period + 3
    found = accounting.tree_participations(period, rounds)
    for done in range(1, rounds + 1):
        most = 0
        for first in range(0, done, period):
            leaves = min(period, done - first)
            nodes = [
                range(end - 2**level, end)
                for level in range(leaves.bit_length())
                for end in range(2**level, leaves + 1, 2**level)
            ]
            most += max(sum(leaf in node for node in nodes) for leaf in range(leaves))
        assert found[done - 1] == most


def test_trees_are_accounted_as_dp_accounting_does():
    from dp_accounting import rdp

    z, delta, period, trees = 6.0, 1e-5, 5, 3
    counts = accounting.tree_participations(period, period * trees)
    exact = accounting.gaussian_epsilons(z, delta, counts)[-1]
    assert exact == pytest.approx(exact_epsilon(2 / z * math.sqrt(9), delta), abs=1e-6)
    special = dp.NeighboringRelation.REPLACE_SPECIAL
    tree = rdp.RdpAccountant(neighboring_relation=special)
    tree.compose(dp.SingleEpochTreeAggregationDpEvent(z / 2, period), trees)
    gaussian = rdp.RdpAccountant(neighboring_relation=special)
    gaussian.compose(dp.GaussianDpEvent(z / 2), counts[-1])
    upper = gaussian.get_epsilon(delta)
    assert tree.get_epsilon(delta) == pytest.approx(upper, abs=1e-6)
    assert exact <= upper


def test_everybody_in_many_rounds_is_one_exact_gaussian():
    z, delta = 1.3, 1e-5
    found = accounting.epsilons(z, delta, 40, 40, 30)
    exact = [exact_epsilon(2 / z * math.sqrt(r), delta) for r in range(1, 31)]
    np.testing.assert_allclose(found, exact, atol=1e-6)
    assert accounting.epsilon_after(z, delta, 8, 100, 0) == 0


@pytest.mark.parametrize(("z", "population"), [(2.0, 12), wide(8.0, 5), wide(8.0, 40)])
def test_epsilon_does_not_fall_as_cohorts_grow(z, population):
    sizes = sorted({1, population // 2, 3 * population // 4, population - 1})
    for delta, rounds in ((1e-3, 7), (1e-6, 1), (1e-6, 100)):
        setting = population, rounds
        found = [accounting.epsilon_after(z, delta, k, *setting) for k in sizes]
        whole = accounting.epsilon_after(z, delta, population, *setting)
        assert (np.diff([*found, whole]) >= 0).all()


@pytest.mark.parametrize("rounds", [1, 7])
def test_epsilon_does_not_fall_as_drawing_becomes_likely(rounds):
    rates = [0.05, 0.5, 0.95, 1.0]
    found = [accounting.poisson_epsilons(2.0, 1e-5, q, 12, 12, rounds) for q in rates]
    assert (np.diff(found, axis=0) >= 0).all()
    assert found[-1][-1] <= accounting.epsilons(2.0, 1e-5, 12, 12, rounds)[-1]


def test_epsilon_of_a_draw_bounds_that_of_a_pair_of_neighbors():
    # One client sends c or -c, all others 0: the sum is a mixture of Gaussians.
    z, delta, population = 2.0, 1e-3, 12
    x = np.linspace(-20, 20, 40_001)
    here, above, below = (stats.norm.pdf(x, mean, z) for mean in (0, 1, -1))
    for size in (3, 9, 11):
        q = size / population
        first, second = ((1 - q) * here + q * there for there in (above, below))

        def excess(epsilon, first=first, second=second):
            gap = np.maximum(first - math.exp(epsilon) * second, 0)
            return integrate.trapezoid(gap, x) - delta

        least = optimize.brentq(excess, 0.0, 10.0)
        bound = accounting.epsilon_after(z, delta, size, population, 1)
        assert least <= bound <= exact_epsilon(2 / z, delta) + 1e-9
