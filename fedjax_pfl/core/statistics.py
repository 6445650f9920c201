"""Running statistics of normalization layers, which are state.

In files and saved models they are among the parameters, elsewhere in the constants.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.aliases import Params, Tree
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


def split(params: Params) -> tuple[Any, Any]:
    """Splits a tree into parameters and running statistics, or None without any."""
    if not isinstance(params, dict) or NAME not in params:
        return params, None
    return {n: leaf for n, leaf in params.items() if n != NAME}, params[NAME]


def joined(params: Params, statistics: Tree) -> Params:
    """Inverts `split`; parameters are unchanged without statistics."""
    return params if statistics is None else params | {NAME: statistics}


def taken(params: Params, constants: Tree) -> tuple[Any, Constants]:
    """Returns parameters without statistics, and constants with statistics."""
    params, saved = split(params)
    constants = Constants.of(constants)
    # Statistics among the parameters, as in saved models, have precedence.
    if saved is not None:
        constants = dataclasses.replace(constants, statistics=saved)
    return params, constants


def forward(
    model: Any, params: Params, batch: Batch, key: Key | None
) -> tuple[jax.Array, Any]:
    """Returns outputs `[B, ...]` of a model, and statistics after the batch or None."""
    constants = batch.constants
    if Constants.of(constants).running is None:
        return model.apply(params, batch.x, key=key, constants=constants), None
    return model.apply_with_statistics(params, batch.x, key=key, constants=constants)


def settled(new: Tree, old: Tree, weight: jax.Array | None) -> Tree:
    """Casts new statistics to the old types; returns old ones for an empty batch."""
    some = jnp.ones((), bool) if weight is None else (weight > 0).any()
    return jax.tree.map(lambda a, b: jnp.where(some, a.astype(b.dtype), b), new, old)
