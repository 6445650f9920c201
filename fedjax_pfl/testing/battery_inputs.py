"""Inputs, compilation and error bounds of the battery's cases."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

__all__ = ["EPS", "Comparison", "normal", "product_bound", "rng", "run"]

EPS = float(np.finfo(np.float32).eps)

Comparison = tuple[str, Any, Any, Any]
"""What was computed, its value, the right value, and the largest error allowed."""


def rng() -> np.random.Generator:
    """Returns the same generator at every call."""
    return np.random.default_rng(20261123)


def normal(*shape: int) -> np.ndarray:
    """Draws normal numbers `float32[*shape]`, the same at every call."""
    return rng().normal(size=shape).astype(np.float32)


def run(fn: Callable[..., Any], *arrays: jax.typing.ArrayLike, **static: Any) -> Any:
    """Runs a function compiled, with products that accelerators do not round."""
    return _compiled(fn, **static)(*arrays)


@functools.cache
def _compiled(fn: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    """Compiles a function for arguments that are the same in every call."""

    def exact(*arrays: jax.Array):
        # Accelerators round the operands of products by default.
        with jax.default_matmul_precision("highest"):
            return fn(*arrays, **static)

    return jax.jit(exact)


def product_bound(a: np.ndarray, b: np.ndarray, eps: float = EPS) -> np.ndarray:
    """Bounds the error of `a @ b`: each of n products and sums is off by eps / 2."""
    a, b = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    return eps * (a.shape[-1] + 1) * (a @ b)
