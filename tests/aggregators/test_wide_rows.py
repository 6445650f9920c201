"""Rows so long that maxima over them leave out NaN on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp

RULES = {
    "geometric_median": fp.GeometricMedian(max_iterations=3),
    "krum": fp.Krum(),
    "multi_krum": fp.Krum(num_selected=None),
    "bulyan": fp.aggregators.Bulyan(num_malicious=0),
    "mixing": fp.aggregators.NearestNeighborMixing(rule=fp.aggregators.Mean()),
}


@pytest.mark.parametrize("name", RULES)
def test_a_long_row_with_one_nan_takes_no_part(name):
    rows = np.random.default_rng(0).normal(size=(7, 60_000)).astype(np.float32)
    broken = rows.copy()
    broken[3, 30_000] = np.nan
    rule = jax.jit(
        lambda rows, weights: RULES[name](
            jax.random.key(0), rows, weights, jnp.zeros(60_000, jnp.float32)
        )[0]
    )
    expected = rule(rows, jnp.ones(7).at[3].set(0))
    np.testing.assert_array_equal(rule(broken, jnp.ones(7)), expected)
