"""Layers with one parameter layout on every backend.

Dense kernels are `[out, in]`, convolution kernels `[height, width, in, out]`, images
`[B, height, width, channels]`.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "CONVOLUTIONS",
    "average_pool",
    "conv",
    "dense",
    "dropout",
    "flatten_inputs",
    "forms",
    "lstm",
    "max_pool",
    "product",
    "standardize",
]

CONVOLUTIONS = ("rows", "whole", "xla")
"""Forms of a convolution: a product per kernel row, one in all, or XLA's own."""

_SHORT = 64  # values of a row of a kernel, below which a product is slow
# Bytes of windows that fit in the second cache of a core, and the fewest blocks of them
# that pay where the kernel is one product (measured with JAX 0.10 and 0.12).
_BLOCK, _BLOCKS = 1 << 19, 16


class _Forms(NamedTuple):
    """How layers compute; no convolution is the form that `conv` picks."""

    bfloat16_products: bool = False
    convolution: str | None = None


_FORMS = contextvars.ContextVar("forms", default=_Forms())  # noqa: B039 (a tuple)


@contextlib.contextmanager
def forms(**fields: Any) -> Iterator[None]:
    """Sets fields of `_Forms` for layers that are called inside, by code of models."""
    # Programs are compiled by their model, so a form must follow from its fields.
    token = _FORMS.set(_FORMS.get()._replace(**fields))
    try:
        yield
    finally:
        _FORMS.reset(token)


_BFLOAT16 = lax.DotAlgorithmPreset.BF16_BF16_F32
_rounded = functools.partial(lax.reduce_precision, exponent_bits=8, mantissa_bits=7)
# Rounds a value, and keeps its cotangent; and the other way round.
_operand = jax.custom_jvp(lambda x: _rounded(x))
_operand.defjvps(lambda tangent, out, x: tangent)
_output = jax.custom_jvp(lambda x: x)
_output.defjvps(lambda tangent, out, x: _rounded(tangent))


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies `[M, K]` and `[K, N]`, by default in their dtype."""
    if not _FORMS.get().bfloat16_products:
        return a @ b
    # A CPU ignores it, and multiplies the rounded operands as float32: the same sums.
    # Operands of the product and of both of its gradients are rounded; sums keep the
    # dtype of `a`.
    algorithm = _BFLOAT16 if a.dtype == b.dtype == jnp.float32 else None
    return _output(jnp.matmul(_operand(a), _operand(b), precision=algorithm))


def dense(kernel: jax.Array, bias: jax.Array, x: jax.Array) -> jax.Array:
    """Applies `x kernel^T + bias`: `[B, inputs]` to `[B, outputs]`."""
    # Weights are `[out, in]`: 1.7 times faster on a CPU.
    return product(x, kernel.T) + bias[None, :]


def flatten_inputs(x: jax.Array) -> jax.Array:
    """Flattens `[B, ...]` to `[B, inputs]`."""
    return x.reshape(x.shape[0], -1)


def _steps(x: jax.Array, axis: int, size: int, stride: int) -> list[jax.Array]:
    """Returns the first, second, ... element of every window along one axis."""
    last = (x.shape[axis] - size) // stride * stride
    return [lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(size)]


def conv(
    kernel: jax.Array,
    bias: jax.Array | None,
    x: jax.Array,
    *,
    stride: int = 1,
    padding: int = 0,
) -> jax.Array:
    """Convolves (cross-correlates) images with `[size, size, channels, filters]`."""
    # One matrix product per kernel row, or one for the whole kernel if its rows are
    # short, as in a first layer. Clients have kernels of their own: under `vmap` these
    # stay batched matrix products; XLA's convolution would become a grouped one, with
    # gradients up to 15 times slower on a CPU.
    size, _, channels, filters = kernel.shape
    form = _FORMS.get().convolution
    if form is None:
        form = "whole" if size * channels < _SHORT else "rows"
    if form == "xla":  # in full: its own products are not rounded
        outputs = lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return outputs if bias is None else outputs + bias[None, None, None, :]
    if padding:
        x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    per_product = size if form == "rows" else size * size  # a row, or the whole kernel
    kernel = kernel.reshape(-1, per_product * channels, filters)
    each = _images_at_once(kernel, x, size, stride)
    convolve = functools.partial(_convolve, size=size, stride=stride)
    if each is None:
        outputs = convolve(kernel, x)
    else:
        # The backward pass makes the windows again, which is faster than to read them.
        convolve = jax.checkpoint(convolve, prevent_cse=False)
        padded = jnp.pad(x, ((0, -len(x) % each), (0, 0), (0, 0), (0, 0)))
        blocks = padded.reshape(-1, each, *x.shape[1:])
        outputs = lax.map(functools.partial(convolve, kernel), blocks)
        outputs = outputs.reshape(-1, *outputs.shape[2:])[: len(x)]
    return outputs if bias is None else outputs + bias[None, None, None, :]


def _images_at_once(
    kernel: jax.Array, x: jax.Array, size: int, stride: int
) -> int | None:
    """Returns how many images' windows a core's cache holds, or None for all."""
    height, width = ((length - size) // stride + 1 for length in x.shape[1:3])
    each = height * width * kernel.shape[1] * x.dtype.itemsize
    most = max(1, _BLOCK // max(each, 1))
    # A single product gains less from short windows than those of rows.
    fewest = _BLOCKS if len(kernel) == 1 else 2
    is_small = len(x) <= most or len(x) * each <= fewest * _BLOCK
    if jax.default_backend() != "cpu" or is_small:
        return None
    # The last block is padded: as little as possible.
    return min(range((most + 1) // 2, most + 1), key=lambda n: (-len(x) % n, -n))


def _convolve(kernel: jax.Array, x: jax.Array, *, size: int, stride: int) -> jax.Array:
    """Convolves with a kernel `[products, K, filters]`: one row each, or the whole."""
    # New lengths are (length + 2 padding - size) // stride + 1.
    windows = jnp.concatenate(_steps(x, 2, size, stride), axis=3)
    rows = _steps(windows, 1, size, stride)
    shape = (*rows[0].shape[:3], kernel.shape[2])
    if len(kernel) == 1:
        rows = [jnp.concatenate(rows, axis=3)]
    products = [
        product(row.reshape(-1, row.shape[3]), weights)
        for row, weights in zip(rows, kernel, strict=True)
    ]
    return functools.reduce(jnp.add, products).reshape(shape)


def max_pool(
    x: jax.Array, *, size: int = 2, stride: int = 2, padding: int = 0
) -> jax.Array:
    """Returns the largest value of every window; values in no window are left out."""
    if size == stride and not padding:  # windows side by side; faster
        batch, height, width, channels = x.shape
        rows, columns = height // size, width // size
        x = x[:, : rows * size, : columns * size]
        # One by one, since maxima over axes leave out NaN on a CPU (docs/platforms.md).
        x = x.reshape(batch, rows, size, columns * size, channels)
        x = functools.reduce(jnp.maximum, [x[:, :, i] for i in range(size)])
        x = x.reshape(batch, rows, columns, size, channels)
        return functools.reduce(jnp.maximum, [x[:, :, :, j] for j in range(size)])
    border = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    # Padding is never the largest.
    x = jnp.pad(x, border, constant_values=-jnp.inf)
    for axis in (2, 1):
        x = functools.reduce(jnp.maximum, _steps(x, axis, size, stride))
    return x


def average_pool(x: jax.Array) -> jax.Array:
    """Averages over all pixels, `[B, height, width, channels]` to `[B, channels]`."""
    return x.mean(axis=(1, 2))


def standardize(kernel: jax.Array, gain: jax.Array) -> jax.Array:
    """Standardizes the weights of every filter: `gain (W - mean) / (std + 1e-5)`."""
    axes = tuple(range(kernel.ndim - 1))
    fan_in = kernel.size // kernel.shape[-1]
    centered = kernel - kernel.mean(axis=axes, keepdims=True)
    variance = (centered**2).mean(axis=axes, keepdims=True)
    positive = variance > 0  # the root has no derivative at 0
    deviation = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)
    scale = gain.reshape((1,) * len(axes) + gain.shape)
    # Divided by sqrt(fan-in), so that a filter keeps the variance of its inputs.
    return scale * centered / (deviation + 1e-5) / fan_in**0.5


def dropout(key: jax.Array, x: jax.Array, rate: float) -> jax.Array:
    """Replaces a share of values by zeros and scales the others by `1/(1 - rate)`."""
    mask = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(mask, x / (1 - rate), 0)


def lstm(
    input_kernel: jax.Array, state_kernel: jax.Array, bias: jax.Array, x: jax.Array
) -> jax.Array:
    """Runs one LSTM layer from zero, `[time, B, inputs]` to `[time, B, width]`."""
    time, batch, inputs = x.shape
    # The inputs of all steps at once: one large product instead of many small ones.
    driven = dense(input_kernel, bias, x.reshape(time * batch, inputs))

    # c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g) and h_t = sigmoid(o) tanh(c_t) with
    # (i, f, g, o) = input_kernel x_t + state_kernel h_(t-1) + bias.
    def step(carry: tuple[jax.Array, jax.Array], driven: jax.Array):
        state, cell = carry
        gates = jnp.split(driven + product(state, state_kernel.T), 4, axis=1)
        write, keep, content, read = gates
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(write) * jnp.tanh(content)
        state = jax.nn.sigmoid(read) * jnp.tanh(cell)
        return (state, cell), state

    zero = jnp.zeros((batch, state_kernel.shape[1]), driven.dtype)
    return lax.scan(step, (zero, zero), driven.reshape(time, batch, -1))[1]
