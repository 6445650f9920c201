"""Counts of bytes beyond 32 bits."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_pfl.core import byte_counts


@pytest.mark.parametrize("count", [0, 1, 2**30 - 1, 2**30, 2**32 + 5, 2**52 + 12345])
def test_counts_are_exact(count):
    words = byte_counts.words(count)
    assert words.dtype == jnp.uint32
    assert byte_counts.total(words) == count


def test_counts_of_compiled_programs_add_up():
    known, most = 2**35 - 1, 2**31 - 1

    @jax.jit
    def both(traced):
        return byte_counts.words(known) + byte_counts.words(traced)

    assert byte_counts.total(both(jnp.int32(most))) == known + most
    assert byte_counts.total(jnp.stack([both(0), both(1)])).tolist() == [
        known,
        known + 1,
    ]


@pytest.mark.parametrize("count", [0, 3, 2**30 - 1, 2**31 + 77, 2**36 + 12345])
@pytest.mark.parametrize("factor", [0, 1, 1000, 2**16 - 1])
def test_counts_of_one_client_are_multiplied(count, factor):
    times = jax.jit(byte_counts.times)
    words = times(byte_counts.words(count), jnp.int32(factor))
    assert words.dtype == jnp.uint32
    assert byte_counts.total(words) == count * factor
