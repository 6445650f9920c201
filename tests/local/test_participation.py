"""Cohorts are exact uniform draws; budgets belong to the client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.local import participation
from tests import problems

KEY = jax.random.key(7, impl="threefry2x32")


_draw = jax.jit(lambda part, count: part(KEY, count), static_argnums=1)
_work = jax.jit(lambda work, ids: work(KEY, ids))


def test_all_clients_are_all_rows_in_order():
    everyone = participation.AllClients()
    rows = everyone(KEY, 5)
    assert rows.tolist() == [0, 1, 2, 3, 4] and rows.dtype == jnp.int32
    assert everyone.cohort_size(5) == 5


@pytest.mark.parametrize(
    ("num_clients", "size"),
    [(1, 1), (50, 10), (65536, 1000), (70000, 60000)]
    + [(65537, 8192), (65537, 1), (2**31 - 1, 300)],
)
def test_cohort_is_distinct_ascending_and_in_range(num_clients, size):
    cohort = np.asarray(_draw(participation.UniformCohort(size=size), num_clients))
    assert cohort.shape == (size,) and cohort.dtype == np.int32
    assert (np.diff(cohort) > 0).all()
    assert cohort[0] >= 0 and cohort[-1] < num_clients


def test_a_participation_object_may_see_the_round():
    @struct.pytree_dataclass
    class Turns(core.Participation):
        """Two clients after the other."""

        def cohort_size(self, num_clients):
            return 2

        def in_round(self, key, num_clients, round):
            return jnp.sort((2 * round + jnp.arange(2, dtype=jnp.int32)) % num_clients)

    problem = problems.waves()
    process = fp.FederatedProcess(algorithm=fp.FedAvg(), participation=Turns())
    _, infos, _ = problems.run(process, problem, 4)
    assert infos.cohort.tolist() == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_a_cohort_of_everyone_is_everyone():
    assert participation.UniformCohort(size=6)(KEY, 6).tolist() == list(range(6))


def test_the_key_decides():
    draw = participation.UniformCohort(size=10)
    other = jax.random.key(8, impl="threefry2x32")
    assert (draw(KEY, 1000) == draw(KEY, 1000)).all()
    assert (draw(KEY, 1000) != draw(other, 1000)).any()


def _drawn(draw, num_clients, size, repeats):
    """Cohorts `[repeats, K]` of one of the two code paths, sorted."""
    keys = jax.random.split(KEY, repeats)
    cohorts = jax.jit(jax.vmap(lambda key: draw(key, num_clients, size)))(keys)
    return np.sort(np.asarray(cohorts), axis=1)


PATHS = [participation._draw_by_sorting, participation._draw_distinct]


@pytest.mark.parametrize("draw", PATHS)
def test_every_subset_is_equally_likely(draw):
    # 2 of 6: 15 subsets, 6000 draws, both paths. A draw that drops repeats wrongly (for
    # example by value instead of by position) favors small rows.
    cohorts = _drawn(draw, 6, 2, 6000)
    assert (cohorts[:, 0] < cohorts[:, 1]).all()
    _, counts = np.unique(cohorts[:, 0] * 6 + cohorts[:, 1], return_counts=True)
    assert len(counts) == 15
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("draw", PATHS)
def test_every_client_is_equally_likely(draw):
    cohorts = _drawn(draw, 200, 20, 2000)
    counts = np.bincount(cohorts.ravel(), minlength=200)
    # Members of a cohort exclude each other: a client's variance is K/N (1 - K/N).
    statistic = np.square(counts - 200.0).sum() / (2000 * 0.1 * 0.9) * (199 / 200)
    assert 1e-3 < scipy.stats.chi2(199).sf(statistic) < 1 - 1e-3


def test_large_population_is_covered_evenly():
    cohorts = _drawn(participation._draw_distinct, 10**6, 1000, 200)
    counts = np.histogram(cohorts, bins=50, range=(0, 10**6))[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_a_cohort_may_be_of_the_first_clients_only():
    few = participation.UniformCohort(size=3, among=5)
    keys = jax.random.split(KEY, 300)
    of_five = participation.UniformCohort(size=3)
    both = jax.jit(jax.vmap(lambda key: (few(key, 100), of_five(key, 5))))
    cohorts, expected = map(np.asarray, both(keys))
    assert sorted(np.unique(cohorts).tolist()) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(cohorts, expected)


def test_the_cost_of_a_cohort_follows_its_size():
    draw = jax.jit(participation.UniformCohort(size=100), static_argnums=1)
    text = draw.lower(KEY, 10**8).as_text()
    assert "100000000x" not in text


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"size": 50}, "20, got size=50"),
        ({"size": 0}, "size to be a whole number .* got 0"),
        ({"size": 3, "among": 50}, "20, got among=50"),
        ({"size": 3, "among": 2}, "among"),
    ],
)
def test_wrong_cohorts_are_named(fields, match):
    with pytest.raises(checks.InputError, match=match):
        participation.UniformCohort(**fields).cohort_size(20)


def test_full_work_has_no_caps():
    budget = _work(participation.FullWork(), jnp.arange(3))
    assert (budget.epochs == participation.NO_CAP).all()
    assert (budget.steps == participation.NO_CAP).all()
    assert not budget.straggler.any() and budget.epochs.dtype == jnp.int32


def test_stragglers_have_the_promised_law():
    """As many as promised in every cohort, everyone equally often, evenly early."""
    work = participation.Stragglers(fraction=0.3, max_epochs=5)
    keys = jax.random.split(KEY, 2000)
    budget = jax.jit(jax.vmap(lambda key: work(key, jnp.arange(20))))(keys)
    straggler, epochs = np.asarray(budget.straggler), np.asarray(budget.epochs)
    assert (straggler.sum(axis=1) == 6).all()
    # Stragglers of a round exclude each other: a client's variance is x (1 - x).
    statistic = np.square(straggler.sum(axis=0) - 600.0).sum() / (2000 * 0.21) * 19 / 20
    assert 1e-3 < scipy.stats.chi2(19).sf(statistic) < 1 - 1e-3
    values, counts = np.unique(epochs[straggler], return_counts=True)
    assert values.tolist() == [1, 2, 3, 4]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    assert (epochs[~straggler] == participation.NO_CAP).all()


@pytest.mark.parametrize(
    ("fraction", "size", "active"),
    [(0.9, 10, 1), (0.5, 10, 5), (0.5, 5, 2), (0, 7, 7), (0.9, 5, 0), (1.0, 50, 0)],
)
def test_the_number_of_active_members_is_rounded_as_in_fedprox(fraction, size, active):
    work = participation.Stragglers(fraction=fraction)
    assert int((~_work(work, jnp.arange(size)).straggler).sum()) == active
    assert active == round((1 - fraction) * size)


def test_clients_have_budgets_of_their_own():
    work = participation.ClientBudgets(epochs=(3, 0, 7))
    budget = _work(work, jnp.array([5, 0, 1, 3]))
    assert budget.epochs.tolist() == [7, 3, 0, 3]
    assert not budget.straggler.any()


@pytest.mark.parametrize("epochs", [(), (1, -1), (1.5,), 3])
def test_wrong_budgets_are_named(epochs):
    with pytest.raises(checks.InputError, match="epochs"):
        participation.ClientBudgets(epochs=epochs)


def test_budgets_belong_to_the_client_not_to_the_slot():
    work = participation.Stragglers(fraction=0.5, max_epochs=10)
    ids = jnp.array([9, 2, 40, 7])
    one = _work(work, ids)
    other = _work(work, ids[::-1])
    assert (one.epochs[::-1] == other.epochs).all()


def test_fraction_is_traced():
    @jax.jit
    def count(work):
        return work(KEY, jnp.arange(100)).straggler.sum()

    few, many = (
        count(participation.Stragglers(fraction=jnp.float32(f))) for f in (0.1, 0.9)
    )
    assert few < many and count._cache_size() == 1


@pytest.mark.parametrize(
    "fields", [{"fraction": 1.5}, {"fraction": -0.1}, {"max_epochs": 1}]
)
def test_wrong_work_is_named(fields):
    with pytest.raises(checks.InputError, match=next(iter(fields))):
        participation.Stragglers(**fields)
