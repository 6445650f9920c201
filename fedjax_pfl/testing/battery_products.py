"""Products, convolutions and linear systems, compared with NumPy in 64 bits."""

import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl.testing.battery_inputs import (
    EPS,
    Comparison,
    normal,
    product_bound,
    run,
)

__all__ = [
    "convolutions",
    "crowded_ranks",
    "fused_rows",
    "linear_systems",
    "matrix_products",
    "vmapped_products",
]


def vmapped_products() -> Iterator[Comparison]:
    """Yields sums of squares of small products about the sizes of JAX#39103."""
    dtypes = ["float32"] + ["float64"] * jax.config.read("jax_enable_x64")
    for dtype in dtypes:
        eps = float(np.finfo(dtype).eps)
        for size in (3, 10):
            m = normal(size, size).astype(dtype)
            squares = jax.vmap(lambda r, m=m: jnp.sum((m @ r) ** 2))
            for rows in (1, 1000, 16385, 20000, 32768, 33000, 36000, 40000, 45000):
                x = normal(rows, size).astype(dtype)
                product = x.astype(np.float64) @ m.T.astype(np.float64)
                # Twice the error of a product times the product, and that of the sum;
                # doubled, since in float64 NumPy is off as well.
                error = 2 * product_bound(x, m.T, eps) * (np.abs(product) + eps)
                right = (product**2).sum(axis=1)
                bound = 2 * (error.sum(axis=1) + eps * (size + 2) * right)
                yield f"{rows} rows of {size} {dtype}", run(squares, x), right, bound


def crowded_ranks() -> Iterator[Comparison]:
    """Yields sums of products of seven axes that crash JAX 0.10.2 and 0.11.0."""
    if jax.default_backend() != "cpu":
        return
    program = """
import jax, jax.numpy as jnp, numpy as np
x = np.ones((3, 1, 2, 2, 8, 8, 8), np.float32)
jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(x, 2 * x).block_until_ready()
a, b = np.ones((10, 4, 6), np.float32), np.ones((10, 4, 6, 9, 9, 9, 9), np.float32)
crowd = jax.jit(lambda a, b: jnp.sum(a[..., None, None, None, None] * b, axis=2))
crowd(a, b).block_until_ready()
"""
    # JAX#40412 and JAX#39257 end the process, so it is one of its own.
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120
    )
    yield "exit status of sums over seven axes", process.returncode, 0, 0


def fused_rows() -> Iterator[Comparison]:
    """Yields products that are fused with their rows and with their sums."""
    for rows in (2000, 33000, 36000):
        x, w = normal(rows, 5), normal(5, 7)
        exact = x.astype(np.float64), w.astype(np.float64)

        def softmax_loss(x: jax.Array, w: jax.Array):
            return jax.nn.logsumexp((2 * x) @ w, axis=1).sum()

        logits = 2 * exact[0] @ exact[1]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        right = np.log(shifted.sum(axis=1)) + logits.max(axis=1)
        share = shifted / shifted.sum(axis=1, keepdims=True)
        # Errors of a row's logits, 6 EPS, its sum, and a sum of all rows in some order.
        size = np.abs(2 * exact[0]) @ np.abs(exact[1])
        bound = EPS * (16 * size.sum() + rows * np.abs(right).sum() / 100)
        value, gradient = run(jax.value_and_grad(softmax_loss, argnums=1), x, w)
        yield f"loss of {rows} rows", value, right.sum(), bound
        slope = 2 * exact[0].T @ share
        limit = EPS * (rows / 4 + 64) * (2 * np.abs(exact[0]).T @ share)
        yield f"gradient of {rows} rows", gradient, slope, limit


def matrix_products() -> Iterator[Comparison]:
    """Yields products, plain and batched on both sides."""
    for n, k, m in ((1, 1, 1), (5, 784, 10), (100, 33, 257), (1000, 64, 3)):
        a, b = normal(n, k), normal(k, m)
        right = a.astype(np.float64) @ b.astype(np.float64)
        product = run(jnp.matmul, a, b)
        yield f"{n} x {k} x {m}", product, right, product_bound(a, b)
    a, b = normal(50, 20, 30), normal(50, 30, 10)
    right = a.astype(np.float64) @ b.astype(np.float64)
    bound = product_bound(a, b)
    yield "batched", run(jax.vmap(jnp.matmul), a, b), right, bound
    vectors = run(jax.vmap(lambda m, r: m @ r), a, b[..., 0])
    yield "a vector per client", vectors, right[..., 0], bound[..., 0]
    turned = run(lambda a, b: jnp.einsum("gij,gjk->gki", a, b), a, b)
    yield "batched and turned", turned, right.swapaxes(1, 2), bound.swapaxes(1, 2)


def _correlation(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Convolves without padding `[B, H, W, I]` and `[h, w, I, O]`, in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(
        x.astype(np.float64), w.shape[:2], axis=(1, 2)
    )
    return np.einsum("bhwixy,xyio->bhwo", windows, w.astype(np.float64))


def _convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout)


def convolutions() -> Iterator[Comparison]:
    """Convolutions and their gradients, with a kernel for all and one per client."""
    x, w = normal(6, 4, 12, 11, 3), normal(6, 5, 5, 3, 4)
    pairs = list(zip(x, w, strict=True))
    right = np.stack([_correlation(a, b) for a, b in pairs])
    size = np.stack([_correlation(np.abs(a), np.abs(b)) for a, b in pairs])
    # 5 * 5 * 3 products of each place, and one more rounding.
    yield "one kernel", run(_convolve, x[0], w[0]), right[0], 76 * EPS * size[0]
    yield "a kernel per client", run(jax.vmap(_convolve), x, w), right, 76 * EPS * size
    ones = np.ones_like(right)

    def total(x: jax.Array, w: jax.Array):
        return _convolve(x, w).sum()

    # d sum / d w[x, y, i, o] sums the image's part that the kernel's place visits.
    windows = np.lib.stride_tricks.sliding_window_view(x, (8, 7), axis=(2, 3))
    sums = windows.astype(np.float64).sum(axis=(1, -1, -2))
    sizes = np.abs(windows.astype(np.float64)).sum(axis=(1, -1, -2))
    slopes = np.broadcast_to(sums[..., None], w.shape)
    terms = ones[0, ..., 0].size
    bound = EPS * (terms + 1) * np.broadcast_to(sizes[..., None], w.shape)
    slope = jax.vmap(jax.grad(total, argnums=1))
    yield "gradients of kernels", run(slope, x, w), slopes, bound

    # d sum / d x is the full correlation of ones with the turned kernel.
    padded = np.pad(ones[..., :1], ((0, 0), (0, 0), (4, 4), (4, 4), (0, 0)))
    turned = w[:, ::-1, ::-1].sum(axis=-1, keepdims=True, dtype=np.float64)
    turned = turned.swapaxes(3, 4)
    weight = np.abs(w[:, ::-1, ::-1]).sum(axis=-1, keepdims=True).swapaxes(3, 4)
    slopes = np.stack([_correlation(a, b) for a, b in zip(padded, turned, strict=True)])
    bound = np.stack([_correlation(a, b) for a, b in zip(padded, weight, strict=True)])
    slope = run(jax.vmap(jax.grad(total)), x, w)
    yield "gradients of images", slope, slopes, 101 * EPS * bound


def linear_systems() -> Iterator[Comparison]:
    """Yields solutions of small systems with condition numbers below 100."""
    a = normal(30, 8, 8)
    # Positive definite, and so well conditioned that bounds stay tight.
    a = (a @ a.swapaxes(1, 2) + 8 * np.eye(8)).astype(np.float32)
    b = normal(30, 8)
    exact = a.astype(np.float64)
    right = np.linalg.solve(exact, b.astype(np.float64)[..., None])[..., 0]
    condition = np.linalg.cond(exact)[:, None]
    bound = 64 * EPS * condition * np.abs(right).max(axis=1, keepdims=True)
    solution = run(lambda a, b: jnp.linalg.solve(a, b[..., None])[..., 0], a, b)
    yield "solve", solution, right, bound
    factor = run(jnp.linalg.cholesky, a)
    size = np.abs(np.linalg.cholesky(exact)).max() * 64 * EPS * condition.max()
    yield "cholesky", factor, np.linalg.cholesky(exact), size
