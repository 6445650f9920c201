"""Inputs, compilation and error bounds of the battery's cases."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

__all__ = ["EPS", "Comparison", "compiled", "normal", "product_bound", "rng"]

EPS = float(np.finfo(np.float32).eps)

Comparison = tuple[str, Any, Any, Any]
"""What was computed, its value, the right value, and the largest error allowed."""


def rng() -> np.random.Generator:
    """Returns the same generator at every call."""
    return np.random.default_rng(20261123)


def normal(*shape: int) -> np.ndarray:
    """Draws normal numbers `float32[*shape]`, the same at every call."""
    return rng().normal(size=shape).astype(np.float32)


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function whose products are not rounded on accelerators."""

    def exact(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(*arguments)

    return jax.jit(exact)


def product_bound(a: np.ndarray, b: np.ndarray, eps: float = EPS) -> np.ndarray:
    """Bounds the error of `a @ b`: each of n products and sums is off by eps / 2."""
    a, b = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    return eps * (a.shape[-1] + 1) * (a @ b)
