"""Rules as plain functions: arrays and trees, composition, one sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.aggregators import functions
from tests.aggregators import rules
from tests.lanes import wide

ROWS = rules.random_rows(7, 6)
WIDE = pytest.mark.wide
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("krum", fp.Krum()),
        pytest.param("multi_krum", fp.Krum(num_selected=None), marks=WIDE),
        pytest.param("trimmed_mean", fp.TrimmedMean(), marks=WIDE),
        ("centered_clipping", fp.aggregators.CenteredClipping()),
        wide("meamed", fp.aggregators.MeaMed()),
        wide("bulyan", fp.aggregators.Bulyan()),
        wide("norm_clipping", fp.aggregators.NormClipping()),
        wide("coordinate_median", fp.CoordinateMedian()),
        wide("geometric_median", fp.GeometricMedian()),
    ],
)
def test_a_function_is_the_class(name, rule):
    function = getattr(functions, name)
    tree = {"a": ROWS[:, :2], "b": ROWS[:, 2:].reshape(7, 2, 2)}
    zeros = jnp.zeros(6)
    expected, _ = rules.run(rule, jnp.asarray(ROWS), jnp.ones(7), zeros)
    # Compiled and not, distances and sums of leaves are formed in another order.
    np.testing.assert_allclose(function(ROWS), expected, rtol=1e-9, atol=1e-12)
    found = function(tree)
    found = np.concatenate([found["a"], found["b"].reshape(-1)])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.wide
def test_rows_to_rows_compose():
    rows = ROWS.copy()
    rows[2] = np.nan
    mixed = functions.nearest_neighbor_mixing(rows, num_malicious=1)
    assert np.isnan(mixed[2]).all() and np.isfinite(np.delete(mixed, 2, axis=0)).all()
    buckets = functions.bucketing(rules.KEY, mixed, np.eye(7).sum(0), size=2)
    assert buckets.shape == (4, 6) and np.isnan(buckets[3]).all()
    assert np.isfinite(functions.trimmed_mean(buckets)).all()
    mean = np.nanmean(functions.bucketing(rules.KEY, ROWS, size=1), axis=0)
    np.testing.assert_allclose(mean, ROWS.mean(axis=0), rtol=1e-12)


def test_buckets_take_a_permutation():
    order = np.array([6, 0, 3, 1, 5, 2, 4])
    buckets = functions.bucketing(KEY, ROWS, size=3, order=order)
    expected = [ROWS[order[i : i + 3]].mean(axis=0) for i in (0, 3, 6)]
    np.testing.assert_allclose(buckets, expected, rtol=1e-12)
    # A row that takes no part fills no bucket.
    weights = jnp.ones(7).at[3].set(0)
    buckets = functions.bucketing(KEY, ROWS, weights, size=3, order=order)
    kept = order[order != 3]
    expected = [ROWS[kept[i : i + 3]].mean(axis=0) for i in (0, 3)]
    np.testing.assert_allclose(buckets[:2], expected, rtol=1e-12)
    with pytest.raises(fp.InputError, match="permutation of 0, ..., 6"):
        functions.bucketing(KEY, ROWS, order=[0, 0, 1, 2, 3, 4, 5])


def test_a_traced_number_passes_and_the_reference_is_returned():
    run = jax.jit(lambda f: functions.trimmed_mean(ROWS, num_malicious=f))
    np.testing.assert_allclose(run(9.0), np.median(ROWS, axis=0), rtol=1e-12)
    found = functions.norm_clipping(ROWS, np.zeros(7), reference=np.arange(6))
    np.testing.assert_array_equal(found, np.arange(6.0))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: functions.krum(ROWS[:2]), "2 f . 3 <= K, got 0 with K=2"),
        (lambda: functions.bulyan(ROWS, num_malicious=2), "Bulyan .* got 2 with K=7"),
        (lambda: functions.krum({"a": ROWS, "b": ROWS[:3]}), "one leading axis"),
        (lambda: functions.meamed(ROWS.astype(int)), "floating dtype, got int"),
        (lambda: functions.krum(ROWS, np.ones(6)), r"shape \(7,\), got \(6,\)"),
        (lambda: functions.krum(ROWS, -np.ones(7)), "weights .* at least 0"),
        (lambda: functions.bucketing(rules.KEY, ROWS, size=0), "size"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call, match):
    with pytest.raises(fp.InputError, match=match):
        call()
