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
