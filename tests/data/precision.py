"""32-bit mode, the default of users, for a part of a test."""

import contextlib

import jax


@contextlib.contextmanager
def narrow():
    """Switches 64-bit mode off; `jax.enable_x64` is missing in our oldest JAX."""
    jax.config.update("jax_enable_x64", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", True)
