"""What models compute, each as one compiled program and not operation by operation."""

import jax
import numpy as np


def _compiled(name):
    def call(model, *args, **given):
        return getattr(model, name)(*args, **given)

    return jax.jit(call, static_argnums=0)


apply, loss, metrics = map(_compiled, ("apply", "loss", "metrics"))
with_statistics = _compiled("apply_with_statistics")
_init = _compiled("init")


def init(model, key):
    """First parameters as NumPy arrays, with which tests calculate."""
    return jax.tree.map(np.asarray, _init(model, key))
