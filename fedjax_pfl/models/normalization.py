"""Batch normalization over the examples of a batch, and none of its padding."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.core import checks, statistics

__all__ = ["mask", "masked", "norm", "noted", "run"]

_MOMENTUM = 0.9  # of running statistics; few steps a round, so not flax's 0.99
_EPSILON = 1e-5
_GROUPS = 8  # of a group norm, or the most below it that divide the channels

_WEIGHT: contextvars.ContextVar[jax.Array | None]
_WEIGHT = contextvars.ContextVar("weight", default=None)


def norm(kind: str, x: jax.Array, *, is_training: bool, name: str) -> jax.Array:
    """Normalizes `[B, ..., channels]`, for a kind, inside of a compact linen module."""
    dtype = jnp.zeros(()).dtype
    fields: dict[str, Any] = {"epsilon": _EPSILON, "param_dtype": dtype, "name": name}
    fields["use_fast_variance"] = False  # E x^2 - (E x)^2 loses digits
    # Over the positions and the channels of a group of every example.
    if kind == "group":
        channels = x.shape[-1]
        groups = max(g for g in range(1, _GROUPS + 1) if channels % g == 0)
        return nn.GroupNorm(num_groups=groups, **fields)(x)
    # Over the channels, at every position.
    if kind == "layer":
        return nn.LayerNorm(**fields)(x)
    # Over the batch and all positions.
    running = not is_training
    return nn.BatchNorm(use_running_average=running, momentum=_MOMENTUM, **fields)(x)


def run(
    module: nn.Module,
    variables: dict[str, Any],
    x: jax.Array,
    *,
    key: jax.Array | None,
    weight: jax.Array | None = None,
    mutable: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Applies a linen module; returns outputs and the changed collections."""
    # Streams other than dropout fall back on that of the parameters.
    rngs = {} if key is None else {"dropout": key, "params": key}
    # Training updates running statistics.
    if key is not None and statistics.NAME in variables:
        mutable = (*mutable, statistics.NAME)
    options = options or {}
    if not mutable:
        return module.apply(variables, x, rngs=rngs, **options), {}
    with masked(weight):
        return module.apply(  # pyright: ignore
            variables, x, rngs=rngs, mutable=list(mutable), **options
        )


@contextlib.contextmanager
def masked(weight: jax.Array | None) -> Iterator[None]:
    """Masks padding, of weight 0, in batch normalization that is called inside."""

    def call(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        is_batch_norm = isinstance(context.module, nn.BatchNorm)
        if is_batch_norm and context.method_name == "__call__":
            x = args[0] if args else kwargs["x"]
            kwargs = kwargs | {"mask": mask(x, kwargs.get("mask"))}
        return function(*args, **kwargs)

    token = _WEIGHT.set(weight)
    try:
        with nn.intercept_methods(call):
            yield
    finally:
        _WEIGHT.reset(token)


@contextlib.contextmanager
def noted(owners: list[tuple[str, ...]]) -> Iterator[None]:
    """Notes the paths of all batch normalization of linen that is called inside."""

    def call(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            owners.append(tuple(context.module.path))
        return function(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


def mask(x: jax.Array, module_mask: jax.Array | None) -> jax.Array | None:
    """Returns `bool` that broadcasts to `[B, ...]`, False for padding; None for all."""
    weight = _WEIGHT.get()
    if weight is None:
        return module_mask
    if x.shape[0] != weight.shape[0]:
        raise checks.InputError(
            "Expected batch normalization of values whose first axis is the batch's"
            f" {weight.shape[0]} examples, got shape {[*x.shape]}."
        )
    # All values of an empty batch count, to avoid a division by 0; its statistics are
    # not used.
    is_real = (weight > 0) | ~(weight > 0).any()
    is_real = is_real.reshape(-1, *(1,) * (x.ndim - 1))
    return is_real if module_mask is None else is_real & module_mask.astype(bool)
