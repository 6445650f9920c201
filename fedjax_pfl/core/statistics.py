"""Running statistics of normalization layers.

They are state. In files, in initial parameters and in saved models they are among the
parameters, under one name; everywhere else they are in the constants.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.batch import Batch, Constants
from fedjax_pfl.core.randomness import Key

__all__ = [
    "NAME",
    "forward",
    "joined",
    "settled",
    "split",
    "taken",
]

NAME = "batch_stats"
"""Their name among parameters, that of the collection in flax."""


def split(params: Any) -> tuple[Any, Any]:
    """Splits a tree into parameters and running statistics, or None without any.

    Example:
      >>> split({"head": 1, "batch_stats": {"mean": 2}})
      ({'head': 1}, {'mean': 2})
    """
    if not isinstance(params, dict) or NAME not in params:
        return params, None
    return {n: leaf for n, leaf in params.items() if n != NAME}, params[NAME]


def joined(params: Any, statistics: Any) -> Any:
    """Inverts `split`; parameters are unchanged without statistics."""
    return params if statistics is None else params | {NAME: statistics}


def taken(params: Any, constants: Any) -> tuple[Any, Constants]:
    """Returns parameters without statistics, and constants with statistics.

    Statistics among the parameters, as in saved models, have precedence.
    """
    params, saved = split(params)
    constants = Constants.of(constants)
    if saved is not None:
        constants = dataclasses.replace(constants, statistics=saved)
    return params, constants


def forward(
    model: Any, params: Any, batch: Batch, key: Key | None
) -> tuple[jax.Array, Any]:
    """Applies a model to a batch, and updates its running statistics, if any.

    Args:
      model: the model.
      params: `[*P]` its parameters.
      batch: examples; their constants have the current statistics.
      key: `[]` key of the model's randomness, or None in evaluation mode.

    Returns:
      Outputs `[B, ...]`, and statistics after the batch or None.
    """
    constants = batch.constants
    if Constants.of(constants).running is None:
        return model.apply(params, batch.x, key=key, constants=constants), None
    return model.apply_with_statistics(params, batch.x, key=key, constants=constants)


def settled(new: Any, old: Any, weight: jax.Array | None) -> Any:
    """Casts new statistics to the old types; returns old ones for an empty batch.

    Args:
      new: `[*S]` after a batch.
      old: `[*S]` before it.
      weight: `[B]` weights of the batch, or None for ones.
    """
    some = jnp.ones((), bool) if weight is None else (weight > 0).any()
    return jax.tree.map(lambda a, b: jnp.where(some, a.astype(b.dtype), b), new, old)
