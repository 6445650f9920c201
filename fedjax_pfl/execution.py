"""How the map over clients is run on this machine, where nobody says."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import clients, types

__all__ = ["choose", "form_chunks", "points_at_once"]

_EVEN, _RAGGED = 1.1, 2.0  # largest client in multiples of the mean


def choose(
    model: Any, federation: types.Federation, cohort_size: int
) -> clients.Execution:
    """Picks how the map over clients is run on this machine.

    Several devices share the cohort. On a CPU a chunk of clients should stay in the L2
    cache (about 1 MB for parameters, gradient, anchor and a batch): chunks pay where a
    cohort holds many of them, or where clients of one chunk would wait for a much
    larger one. Elsewhere everything is vmapped.

    Args:
      model: the model, already given the federation's shapes.
      federation: data.
      cohort_size: K.

    Returns:
      The execution.
    """
    devices = jax.device_count()
    if devices > 1 and cohort_size >= devices:
        chunk = _chunk_size(model, federation, -(-cohort_size // devices))
        return clients.Execution(mode="shard", chunk_size=chunk)
    chunk = _chunk_size(model, federation, cohort_size)
    return clients.Execution(mode="chunk" if chunk else "vmap", chunk_size=chunk)


def _chunk_size(model: Any, federation: types.Federation, count: int) -> int:
    """Clients of a chunk where one device maps `count` of them; 0 for all at once."""
    if jax.default_backend() != "cpu":
        return 0
    params = jax.eval_shape(model.init, jax.random.key(0))
    floats = 4 * clients.size(params) + 32 * math.prod(federation.input_shape)
    fits = max(1, 2**18 // max(floats, 1))
    if count >= max(4 * fits, 32):
        return max(fits, 8)
    is_ragged = _largest(federation) > _RAGGED
    return max(1, count // 8) if is_ragged and count >= 4 else 0


def form_chunks(
    execution: clients.Execution, federations: Sequence[types.Federation]
) -> clients.Execution:
    """Lets chunks be formed of clients with as much work where sizes differ.

    Args:
      execution: how the map over clients is run.
      federations: of all points.

    Returns:
      The execution.
    """
    ragged = any(_largest(federation) > _EVEN for federation in federations)
    is_chunked = execution.mode == "chunk" or execution.chunk_size > 0
    return dataclasses.replace(execution, by_size=ragged and is_chunked)


def points_at_once(
    execution: clients.Execution,
    model: Any,
    federation: types.Federation,
    cohort_size: int,
    batch_size: int,
) -> int:
    """Picks how many points of a grid are vmapped together on this machine.

    On a CPU as many as the caches hold models and batches of, at most 4; elsewhere 64.

    Args:
      execution: how the map over clients is run.
      model: the model, already given the federation's shapes.
      federation: data.
      cohort_size: K.
      batch_size: examples of a step of one client.

    Returns:
      The number.
    """
    if jax.default_backend() != "cpu":
        return 64
    params = jax.eval_shape(model.init, jax.random.key(0))
    floats = 4 * clients.size(params) + batch_size * math.prod(federation.input_shape)
    at_once = min(execution.chunk_size or cohort_size, cohort_size)
    return min(max(2**20 // max(floats * at_once, 1), 1), 4)


def _largest(federation: types.Federation) -> float:
    """Examples of the largest client, in multiples of the mean; 1 if not known."""
    counts = federation.train.num_examples
    if isinstance(counts, jax.ShapeDtypeStruct):
        return 1.0
    counts = np.asarray(counts)
    return float(counts.max() / max(counts.mean(), 1e-9))
