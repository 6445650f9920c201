"""Loops of traced bounds that are differentiated in reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.core import client_map, loops, sharding
from tests.lanes import wide

KEY = jax.random.key(0, impl="threefry2x32")
MOST = 5


def loss(lam, bounds, run):
    """Sums what loops of every lane's own bound lead to.

    A turn reads a parameter, a constant, a key and the number of its lane; of its state
    one leaf moves, one counts and one stays as it is.
    """
    shared = jnp.linspace(0.5, 1.5, 3) * lam.mean()

    def one(own, bound):
        key = jax.random.fold_in(KEY, bound)

        def body(number, state):
            x, anchor, count = state
            noise = jax.random.uniform(jax.random.fold_in(key, number), (3,))
            new = x - 0.1 * own * (x - anchor) ** 2 + shared * noise
            is_own = number < bound
            return jnp.where(is_own, new, x), anchor, count + is_own

        start = (shared * own, jnp.ones(3), jnp.zeros((), jnp.int32))
        x, anchor, count = run(bound, body, start)
        return (jnp.sin(x) * anchor).sum() * count

    return jax.vmap(one)(lam, bounds).sum()


def bounded(bound, body, start):
    return loops.bounded(client_map.lane_max(bound), MOST, body, start)


def unrolled(bound, body, start):
    del bound  # a turn beyond it changes nothing
    for number in range(MOST):
        start = body(jnp.int32(number), start)
    return start


@pytest.mark.parametrize("bounds", [[2, 4, 0], [5, 5, 5], [0, 0, 0]])
def test_a_loop_with_a_way_back_has_the_derivatives_of_its_turns(bounds):
    bounds = jnp.asarray(bounds)
    with jax.enable_x64(True):
        lam = jnp.asarray([0.3, 0.7, 1.1])
        both = jax.jit(jax.value_and_grad(loss), static_argnums=2)
        wanted = both(lam, bounds, unrolled)
        with loops.reversible():
            value, slope = both(lam, bounds, bounded)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-13)
    np.testing.assert_allclose(slope, wanted[1], rtol=1e-12)


def test_a_loop_in_a_loop_has_them_too():
    """Of x <- a x, three times by four turns: x = a^12."""

    def run(a):
        def outer(number, x):
            return loops.bounded(jnp.int32(4), 6, lambda i, s: a * s, x)

        return loops.bounded(jnp.int32(3), 3, outer, jnp.ones(()))

    with loops.reversible():
        slope = jax.grad(run)(1.1)
    np.testing.assert_allclose(slope, 12 * 1.1**11, rtol=1e-12)


def test_only_what_moves_is_kept():
    """Neither the state's constant leaf nor the examples take memory in every turn."""

    def run(a, examples):
        def body(number, state):
            x, anchor = state
            return x * a + anchor.sum() + examples[number], anchor

        return loops.bounded(jnp.int32(3), 7, body, (a, jnp.ones(1000)))[0]

    with loops.reversible():
        back = jax.eval_shape(lambda a, e: jax.vjp(run, a, e[:])[1], 1.0, jnp.ones(50))
    sizes = [leaf.size for leaf in jax.tree.leaves(back)]
    assert sum(sizes) < 7 + 1000 + 3 * 50


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("chunk", [wide(1), 2, wide(3)])
def test_chunks_have_the_derivatives_of_all_rows(chunk, by_size):
    """Of states, outputs and sums over all rows, those of padding left out."""
    execution = sharding.Execution("chunk", chunk, by_size=by_size)
    work = jnp.asarray([3.0, 1.0, 2.0, 5.0, 4.0])
    weights = jnp.arange(1.0, 6.0)

    def total(rows, shared, execution):
        states, (outputs, sums) = client_map.move_clients(
            lambda state, row, shared: (
                state * row,
                (jnp.sin(shared * row), jnp.exp(row + shared)),
            ),
            *(rows, rows, shared, execution, work),
            summed=True,
        )
        return (weights * (states + outputs)).sum() + sums**2

    slopes = jax.jit(jax.grad(total, argnums=(0, 1)), static_argnums=2)
    rows = jnp.linspace(0.1, 0.9, 5)
    with loops.reversible():
        ours = slopes(rows, 2.0, execution)
    wanted = slopes(rows, 2.0, sharding.Execution("vmap"))
    for slope, right in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(slope, right, rtol=1e-12)
