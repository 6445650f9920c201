"""Running statistics of normalization layers, beside a model's parameters.

They are state. In files, in parameters to start from and in saved models they stand
below one name among the parameters; everywhere else they come with the constants.
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
"""Where they stand among parameters; flax calls its collection so."""


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
    """Inverts `split`; parameters as they are where there are no statistics."""
    return params if statistics is None else params | {NAME: statistics}


def taken(params: Any, constants: Any) -> tuple[Any, Constants]:
    """Returns parameters alone, and constants with the statistics that are to be used.

    Those among the parameters, as saved models have them, come before others.
    """
    params, own = split(params)
    constants = Constants.of(constants)
    if own is not None:
        constants = dataclasses.replace(constants, statistics=own)
    return params, constants


def forward(
    model: Any, params: Any, batch: Batch, key: Key | None
) -> tuple[jax.Array, Any]:
    """Applies a model to a batch, and moves running statistics where it has some.

    Args:
      model: the model.
      params: `[*P]` its parameters.
      batch: examples, whose constants have the statistics of before.
      key: `[]` key of the model's randomness, or None in evaluation mode.

    Returns:
      Outputs `[B, ...]`, and statistics after the batch or None.
    """
    constants = batch.constants
    if Constants.of(constants).running is None:
        return model.apply(params, batch.x, key=key, constants=constants), None
    return model.moved(params, batch.x, key=key, constants=constants)


def settled(new: Any, old: Any, weight: jax.Array | None) -> Any:
    """Returns new statistics in the old ones' types; the old ones of an empty batch.

    Args:
      new: `[*S]` after a batch.
      old: `[*S]` before it.
      weight: `[B]` of the batch, or None for ones.
    """
    some = jnp.ones((), bool) if weight is None else (weight > 0).any()
    return jax.tree.map(lambda a, b: jnp.where(some, a.astype(b.dtype), b), new, old)
