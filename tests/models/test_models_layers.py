"""Layers against XLA's own operations, NumPy and their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fedjax_pfl.models import initializers, layers

USED = [  # size, stride, padding of every convolution in use, on odd and even images
    (3, 1, 1, (7, 8)),
    (3, 1, 0, (7, 8)),
    (7, 1, 3, (8, 7)),
    (5, 1, 0, (8, 7)),
    (3, 2, 1, (7, 7)),
    (3, 2, 1, (8, 9)),
    (1, 1, 0, (4, 5)),
    (1, 2, 0, (7, 7)),
    (1, 2, 0, (8, 9)),
]


def xla_conv(kernel, bias, x, stride, padding):
    found = lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return found + bias[None, None, None, :]


def conv_inputs(size, sides, clients=None):
    rng = np.random.default_rng(size)
    lead = () if clients is None else (clients,)
    kernel = jnp.asarray(rng.normal(size=(*lead, size, size, 3, 4)))
    bias = jnp.asarray(rng.normal(size=(*lead, 4)))
    return kernel, bias, jnp.asarray(rng.normal(size=(*lead, 2, *sides, 3)))


@pytest.mark.parametrize(("size", "stride", "padding", "sides"), USED)
@pytest.mark.parametrize("form", layers.CONVOLUTIONS)
def test_conv_and_its_gradients_are_those_of_xla(size, stride, padding, sides, form):
    arguments = conv_inputs(size, sides)

    @jax.jit
    def both(*arguments):
        with layers.forms(convolution=form):
            ours, pull = jax.vjp(
                lambda *a: layers.conv(*a, stride=stride, padding=padding), *arguments
            )
        theirs, expected = jax.vjp(lambda *a: xla_conv(*a, stride, padding), *arguments)
        cotangent = jnp.cos(theirs + jnp.arange(4.0)[None, None, None, :])
        return (ours, *pull(cotangent)), (theirs, *expected(cotangent))

    for found, wanted in zip(*both(*arguments), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["rows", "whole"])
@pytest.mark.parametrize("clients", [None, 2])
def test_images_in_blocks_are_convolved_like_all_at_once(form, clients):
    """Their windows need not fit in memory together, also for derivatives."""
    rng = np.random.default_rng(0)
    lead = () if clients is None else (clients,)
    kernel, bias, x = (
        jnp.asarray(rng.normal(size=(*lead, *shape)))
        for shape in ((5, 5, 12, 4), (4,), (29, 24, 24, 12))
    )

    def both(kernel, bias, x):
        def ours(*arguments):
            with layers.forms(convolution=form):
                return layers.conv(*arguments)

        conv = functools.partial(xla_conv, stride=1, padding=0)
        pairs = [jax.vjp(f, kernel, bias, x) for f in (ours, conv)]
        tangents = jnp.sin(kernel), jnp.sin(bias), jnp.sin(x)
        moved = [jax.jvp(f, (kernel, bias, x), tangents)[1] for f in (ours, conv)]
        cotangent = jnp.cos(pairs[1][0])
        values = [(out, *pull(cotangent)) for out, pull in pairs]
        return [(*v, m) for v, m in zip(values, moved, strict=True)]

    both = both if clients is None else jax.vmap(both)
    program = jax.jit(both).lower(kernel, bias, x).compile()
    for found, wanted in zip(*program(kernel, bias, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    windows = 29 * 20 * 20 * kernel[..., 0].size * x.dtype.itemsize
    assert program.memory_analysis().temp_size_in_bytes < windows


def test_conv_of_clients_with_kernels_of_their_own():
    arguments = conv_inputs(3, (6, 5), clients=3)
    conv = jax.jit(jax.vmap(lambda *a: layers.conv(*a, stride=2, padding=1)))
    ours = conv(*arguments)
    for client, found in enumerate(ours):
        wanted = xla_conv(*(leaf[client] for leaf in arguments), 2, 1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


def curvature(loss, point, direction):
    """Product of the Hessian and a direction, in forward and in reverse mode."""
    forward = jax.jvp(jax.grad(loss), (point,), (direction,))[1]
    reverse = jax.grad(lambda x: (jax.grad(loss)(x) * direction).sum())(point)
    return forward, reverse


def test_conv_has_second_derivatives_in_both_modes():
    kernel, bias, x = conv_inputs(3, (5, 5))
    direction = jnp.sin(kernel)

    @functools.partial(jax.jit, static_argnums=0)
    def products(conv):
        return curvature(lambda k: (conv(k, bias, x) ** 3).sum(), kernel, direction)

    wanted, _ = products(lambda *a: xla_conv(*a, 1, 1))
    for found in products(lambda *a: layers.conv(*a, padding=1)):
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_forms_of_convolutions_are_different_programs():
    """A product per kernel row, one in all, none; and what is picked, one in all."""
    kernel, bias, x = jnp.ones((3, 3, 4, 2)), jnp.ones(2), jnp.ones((1, 5, 5, 4))
    counts = []
    for form in (*layers.CONVOLUTIONS, None):
        with layers.forms(convolution=form):
            text = str(jax.make_jaxpr(lambda *a: layers.conv(*a))(kernel, bias, x))
        counts.append((text.count("dot_general"), text.count("conv_general")))
    assert counts == [(3, 0), (1, 0), (0, 1), (1, 0)]


def rounded(x):
    return x.astype(jnp.bfloat16).astype(x.dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_operands_are_rounded_in_products_and_in_their_gradients(dtype):
    rng = np.random.default_rng(0)
    a, b, cotangent = (
        jnp.asarray(rng.normal(size=shape), dtype) for shape in ((5, 7), (7, 3), (5, 3))
    )
    with layers.forms(bfloat16_products=True):
        found, pull = jax.vjp(jax.jit(lambda *ab: layers.product(*ab)), a, b)
        gradients = pull(cotangent)
        of_clients = jax.vmap(layers.product, (None, 0))(a, jnp.stack([b, -b]))
    left, right, back = rounded(a), rounded(b), rounded(cotangent)
    wanted = (left @ right, back @ right.T, left.T @ back)
    # Sums of a few terms in the dtype of the parameters.
    close = {"rtol": 0, "atol": 50 * jnp.finfo(jnp.float32).eps}
    for own, other in zip((found, *gradients), wanted, strict=True):
        assert own.dtype == dtype
        np.testing.assert_allclose(own, other, **close)
    np.testing.assert_allclose(of_clients[1], -wanted[0], **close)
    assert abs(found - a @ b).max() > 1e-3
    np.testing.assert_array_equal(layers.product(a, b), a @ b)


def test_rounded_products_have_derivatives_in_both_modes():
    rng = np.random.default_rng(1)
    x, kernel, direction = (jnp.asarray(rng.normal(size=(4, 3))) for _ in range(3))

    def loss(kernel):
        return (layers.product(x, kernel.T) ** 3).sum()

    def derivatives():
        slope = jax.jvp(loss, (kernel,), (direction,))[1]
        return slope, *curvature(loss, kernel, direction)

    exact = derivatives()
    with layers.forms(bfloat16_products=True):
        found = derivatives()
    for own, other in zip(found, exact, strict=True):
        # A few roundings to 8 bits, of terms that may cancel.
        np.testing.assert_allclose(own, other, rtol=0, atol=2**-5 * abs(other).max())
        assert abs(own - other).max() > 0


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_conv_is_its_definition(data):
    size = data.draw(st.integers(1, 3))
    stride, padding = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))
    height, width = (data.draw(st.integers(size, 5)) for _ in range(2))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    kernel = rng.normal(size=(size, size, 2, 3))
    x = rng.normal(size=(1, height, width, 2))
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows = range(0, height + 2 * padding - size + 1, stride)
    columns = range(0, width + 2 * padding - size + 1, stride)
    wanted = [
        [
            np.einsum("ijc,ijco->o", padded[0, r : r + size, c : c + size], kernel)
            for c in columns
        ]
        for r in rows
    ]
    conv = jax.jit(functools.partial(layers.conv, stride=stride, padding=padding))
    found = conv(jnp.asarray(kernel), None, jnp.asarray(x))
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "padding", "sides", "rows"),
    [(2, 0, (29, 4), 14), (2, 0, (8, 9), 4), (3, 1, (7, 8), 4), (3, 1, (8, 5), 4)],
)
def test_max_pool_and_its_gradient_are_those_of_xla(size, padding, sides, rows):
    # Below zero everywhere: a border of zeros would win.
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *sides, 3)) - 5)

    def theirs(x):
        return lax.reduce_window(
            x,
            -jnp.inf,
            lax.max,
            (1, size, size, 1),
            (1, 2, 2, 1),
            [(0, 0), (padding, padding), (padding, padding), (0, 0)],
        )

    def ours(x):
        return layers.max_pool(x, size=size, padding=padding)

    @jax.jit
    def both(x):
        (found, pull), (wanted, expected) = jax.vjp(ours, x), jax.vjp(theirs, x)
        return (found, *pull(found)), (wanted, *expected(found))

    assert ours(x).shape[1] == rows
    for found, wanted in zip(*both(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-15)


def test_a_filter_of_equal_weights_is_zero_and_has_a_gradient():
    kernel = jnp.full((3, 3, 2, 1), 0.5)

    def total(kernel):
        return (layers.standardize(kernel, jnp.ones(1)) ** 2).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(kernel)
    assert value == 0
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_zeroes_a_share_and_keeps_the_expectation(rate):
    x = jnp.arange(1.0, 6)
    keys = jax.random.split(jax.random.key(0), 4000)
    found = np.asarray(jax.vmap(lambda key: layers.dropout(key, x, rate))(keys))
    kept = found != 0
    np.testing.assert_allclose(found[kept], np.tile(x, (4000, 1))[kept] / (1 - rate))
    # Four standard errors of a frequency from 4,000 draws.
    error = 4 * np.sqrt(rate * (1 - rate) / 4000)
    np.testing.assert_allclose(kept.mean(axis=0), 1 - rate, atol=error)
    np.testing.assert_allclose(found.mean(axis=0) / x, 1, atol=error / (1 - rate))
    again = layers.dropout(keys[0], x, rate)
    np.testing.assert_array_equal(again, found[0])


SHAPE = (100, 200)


@pytest.mark.parametrize(
    ("scheme", "variance", "bound"),
    [
        ("pytorch", 1 / (3 * 50), 50**-0.5),
        ("glorot", 2 / (50 + 30), np.sqrt(6 / 80)),
        ("he", 2 / 50, np.inf),
    ],
)
def test_initial_weights(scheme, variance, bound):
    drawn = initializers.weights(jax.random.key(1), SHAPE, 50, 30, scheme)
    # The variance of 20,000 draws: relative standard error below sqrt(2 / 20000).
    np.testing.assert_allclose(np.mean(drawn**2), variance, rtol=4 * 0.01)
    assert abs(drawn).max() <= bound
    biases = initializers.biases(jax.random.key(1), SHAPE, 50, scheme)
    if scheme == "pytorch":
        np.testing.assert_allclose(np.mean(biases**2), variance, rtol=4 * 0.01)
    else:
        assert (biases == 0).all()


@pytest.mark.parametrize("size", [2, 3])
def test_pooling_keeps_nan(size):
    """JAX 0.9.1 and later leave NaN out of maxima over axes, on a CPU."""
    x = np.ones((40, 12, 12, 8), np.float32)
    x[3, 5, 7, 2] = np.nan
    pooled = np.asarray(
        jax.jit(lambda x: layers.max_pool(x, size=size, stride=size))(x)
    )
    assert np.isnan(pooled[3, 5 // size, 7 // size, 2])
    assert np.isnan(pooled).sum() == 1
