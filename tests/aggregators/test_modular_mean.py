"""Modular sums against Python's integers, and the mean made of them."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import fedjax_pfl as fp
from fedjax_pfl.aggregators import ModularMean
from fedjax_pfl.aggregators.modular_mean import modular_sum
from fedjax_pfl.messages import Encoding, TopK

KEY = jax.random.key(0, impl="threefry2x32")
WORD = st.integers(-(2**31), 2**31 - 1)


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(WORD, min_size=5, max_size=5), st.integers(2, 32))
def test_sums_are_those_of_whole_numbers_modulo_a_power_of_two(numbers, bits):
    total, overflowed = modular_sum(jnp.asarray(numbers, jnp.int32), bits)
    exact, half = sum(numbers), 2 ** (bits - 1)
    assert int(total) == (exact + half) % 2**bits - half
    assert bool(overflowed) == (not -half <= exact < half)


def test_sums_of_as_many_rows_as_are_allowed_are_exact():
    rng = np.random.default_rng(0)
    rows = rng.integers(-(2**31), 2**31, (2**16 - 1, 3))
    total, overflowed = modular_sum(jnp.asarray(rows, jnp.int32), 31)
    exact = rows.sum(axis=0)
    assert ((exact - np.asarray(total)) % 2**31 == 0).all() and overflowed.all()
    rows = np.array([[2**14], [-3]]).repeat([2**15, 2**15 - 1], axis=0)
    total, overflowed = modular_sum(jnp.asarray(rows, jnp.int32), 31)
    assert int(total[0]) == rows.sum() and not overflowed


def test_means_are_near_and_dropped_rows_have_no_part():
    rng = np.random.default_rng(1)
    rows, point = rng.normal(size=(6, 8)), rng.normal(size=8)
    rows[1], rows[4] = np.nan, 1e30
    weights = np.array([2.0, 1, 5, 1, 0, 3])
    rule = ModularMean(bits=20, step=2.0**-10)
    mean, info = jax.jit(rule)(None, jnp.asarray(rows), jnp.asarray(weights), point)
    left = rows[[0, 2, 3, 5]]
    whole = np.round((left - point) * 2**10).astype(int)
    expected = point + whole.sum(axis=0) / 2**10 / 4
    np.testing.assert_allclose(mean, expected, rtol=1e-15)
    assert np.abs(mean - left.mean(axis=0)).max() <= 2.0**-11
    assert (info.overflowed, info.cut) == (0, 0)
    nobody, _ = rule(None, jnp.asarray(rows), jnp.zeros(6), point)
    np.testing.assert_array_equal(nobody, point)


def test_overflows_are_seen_and_wrong_by_the_modulus():
    rows = jnp.array([[100.0, 1.0], [100.0, -2.0], [0.0, 500.0]])
    mean, info = ModularMean(bits=8, step=1.0)(None, rows, jnp.ones(3), jnp.zeros(2))
    np.testing.assert_allclose(mean, [(200 - 256) / 3, (1 - 2 + 127) / 3])
    assert (info.overflowed, info.cut) == (1, 1)


def test_a_training_counts_its_bytes_and_reports_overflows():
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(), aggregator=ModularMean(bits=20)
    )
    run = (KEY, process, fp.LogisticRegression())
    spec = fp.FederationSpec("digits", num_clients=4)
    axes = {"aggregator.step": [ModularMean().step, 1e-9]}
    (group,) = fp.grid(*run, spec, axes, 3, progress=False).groups
    loss = group.metrics["loss"][0]
    assert loss[-1].mean() < loss[0].mean()
    assert (group.per_round["bytes_up"] == 4 * 650 * 20 / 8).all()
    overflowed, cut = (
        group.per_round[f"aggregator_{name}"] for name in ("overflowed", "cut")
    )
    assert (overflowed[0] == 0).all() and (overflowed[1] > 0).any()
    assert (cut[1] > 0).all()


def test_parts_of_messages_are_refused():
    half = TopK(fraction=0.5).encoding(Encoding.plain(jnp.ones(4)))
    with pytest.raises(fp.InputError, match="ModularMean to see whole messages"):
        ModularMean().encoding(half)
