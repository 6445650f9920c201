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
    if jax.device_count() > 1 and cohort_size >= jax.device_count():
        return clients.Execution(mode="shard")
    if jax.default_backend() != "cpu":
        return clients.Execution()
    params = jax.eval_shape(model.init, jax.random.key(0))
    floats = 4 * clients.size(params) + 32 * math.prod(federation.input_shape)
    fits = max(1, 2**18 // max(floats, 1))
    is_ragged = _largest(federation) > _RAGGED
    if cohort_size < 4 * fits or cohort_size < 32:
        if not is_ragged or cohort_size < 4:
            return clients.Execution()
        return clients.Execution(mode="chunk", chunk_size=max(1, cohort_size // 8))
    return clients.Execution(mode="chunk", chunk_size=max(fits, 8))


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
