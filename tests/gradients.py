"""Rows of gradients for tests of common descent, and compiled ways to use them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.algorithms.common_descent import protection

DEMO = np.array([[1, -0.3, 0], [-1, 1, -0.2], [-1, -1, 1]])
DEMO_LOSSES = np.array([1.0, 2.0, 3.0])


@functools.partial(jax.jit, static_argnames="fields")
def make(gradients, losses, present, history=None, used=None, *, fields):
    fair = common_descent.fairness(losses, present)
    given = dict(fields)
    return common_descent.make_rows(gradients, present, fair, history, used, **given)


find = jax.jit(common_descent.common_descent)
move = jax.jit(common_descent.protected_moves, static_argnames=("protection", "length"))
protect = jax.jit(protection.protected_coefficients, static_argnames="protection")


def rows_of(gradients, losses, *, dtype=jnp.float64, present=None, **fields):
    """Rows of one leaf."""
    present = jnp.ones(len(losses), bool) if present is None else jnp.asarray(present)
    given = {"theta": jnp.asarray(gradients, dtype)}
    losses = jnp.asarray(losses, dtype)
    more = [fields.pop(name, None) for name in ("history", "used")]
    return make(given, losses, present, *more, fields=tuple(fields.items()))


def matrix(rows):
    """The scaled rows `[J, D]` in NumPy."""
    return np.asarray(rows.scales)[:, None] * np.asarray(rows.vectors["theta"])


def drawn(seed, clients=6, dim=9):
    """Gradients of very different sizes, with something in common, and losses."""
    rng = np.random.default_rng(seed)
    sizes = 10 ** rng.uniform(-2, 1, clients)
    gradients = rng.normal(size=(clients, dim)) + 0.8 * rng.normal(size=dim)
    return sizes[:, None] * gradients, rng.uniform(0.2, 3, clients)
