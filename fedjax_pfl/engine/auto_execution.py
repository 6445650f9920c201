"""Automatic choice of the execution mode on this machine.

Rules for CPUs are measured; those for accelerators on one GPU (docs/speed_results.md).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding, struct
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "alike_at_once",
    "bytes_of_a_step",
    "choose",
    "devices_of_points",
    "evaluated_at_once",
    "form_chunks",
    "points_at_once",
]

_EVEN, _RAGGED = 1.1, 2.0  # largest client in multiples of the mean
_BUSY = 2**16  # numbers that one client's step works on
_LARGE = 2**15  # parameters of which a product is as fast alone as beside others
_SHARED = 2**18  # numbers that the clients of a device work on, for sharing to pay
_ROWS = 512  # of a product with a frozen kernel, beyond which more are no faster
_PASS = 2**17  # numbers that a pass of an evaluation reads, for the L2 cache
_FULL = 0.75  # share of the devices that grid points keep busy

# Of an accelerator.
_ROOM = 0.25  # share of its memory for all clients that train at once
_UNKNOWN = 2**33  # bytes of its memory where it does not say
_LAUNCH = 2**24  # numbers that are worked on in the time of launching a step's kernels
_COPIES = 8  # a client's parameters: states, old and new, gradient and message


def devices_of_points(execution: sharding.Execution, num_points: int) -> int:
    """Picks how many devices share the points of a grid."""
    if execution.mode in ("shard", "loop"):
        return 1
    most = min(num_points, jax.device_count())
    return max(k for k in range(1, most + 1) if num_points % k == 0)


def choose(
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    num_points: int = 1,
) -> sharding.Execution:
    """Picks how the map over clients is run, next to `num_points` grid points."""
    # Devices that grid points keep busy do not share clients.
    devices, is_cpu = jax.device_count(), jax.default_backend() == "cpu"
    if devices_of_points(sharding.Execution(), num_points) >= _FULL * devices:
        devices = 1
    count = process.participation.cohort_size(federation.num_clients)
    parts = _params_and_examples(model, federation, _batch_size(process))
    floats = _floats_of_a_step(*parts)
    if count < 2:
        devices = 1
    elif is_cpu:
        # Clients go one by one if a step of one keeps a core busy: plain products and
        # convolutions are faster than batched ones. Devices share clients if two keep a
        # core busy, and if there is enough work for each device.
        each = floats * count / min(devices, count)
        devices = 1 if floats < _BUSY // 2 or each < _SHARED else devices
    each = -(-count // devices)
    chunk = 0
    if is_cpu and each > 1 and _is_mostly_frozen(model):
        # Products with the frozen kernels, one for the whole chunk, need many rows.
        rows = _batch_size(process) * struct.innermost(model).rows_per_example
        together = -(-_ROWS // rows)
        chunk = together if together < each else 0
    elif is_cpu and each > 1:
        # Smaller steps are vmapped, in chunks that stay in the L2 cache if a cohort is
        # large, or if clients would wait for a much larger one.
        chunk = _chunk_size(floats, each, _largest(federation) > _RAGGED)
    elif not is_cpu:
        # Accelerators do a step of many small products in about the time of one:
        # clients go in chunks only if they do not fit, or if most would wait for few
        # larger ones.
        fits = _clients_that_fit(process, model, federation)
        together = min(_alike_in_size(federation, each, floats), fits)
        chunk = together if together < each else 0
    if devices == 1:
        return sharding.Execution(mode="chunk" if chunk else "vmap", chunk_size=chunk)
    used = -(-count // each)  # as many as needed, so that none idles
    return sharding.Execution(
        mode="shard", chunk_size=chunk, num_devices=used if used < devices else 0
    )


def _chunk_size(floats: int, count: int, is_ragged: bool) -> int:
    """Clients of a chunk where one device maps `count` of them; 0 for all at once."""
    if floats >= (_BUSY // 2 if is_ragged else _BUSY):
        return 1
    fits = max(2**18 // floats, 8)
    if count >= max(4 * fits, 32):
        return fits
    return max(1, count // 8) if is_ragged and count >= 4 else 0


def _is_mostly_frozen(model: core.Model) -> bool:
    """Returns whether a model has more frozen parameters than others."""
    init = model.init
    if not isinstance(model, core.RoleModel):
        return False
    shared = jax.eval_shape(init, jax.random.key(0))
    frozen = jax.eval_shape(model.frozen_params)
    return client_rows.size(frozen) > client_rows.size(shared)


def _alike_in_size(federation: core.Federation, count: int, floats: int) -> int:
    """Picks the clients of a chunk of an accelerator by the time of a round."""
    if _largest(federation) <= _RAGGED:
        return count
    sizes = np.sort(np.asarray(federation.train.num_examples))[::-1]
    places = (np.arange(count) + 0.5) * len(sizes) / count  # of a typical cohort
    steps, launch = sizes[places.astype(int)], _LAUNCH / floats
    sizes_of_chunks = [-(-count // 2**k) for k in range(count.bit_length())]
    # A step takes its launch and its numbers; a chunk, the steps of its largest client.
    return min(sizes_of_chunks, key=lambda k: (launch + k) * steps[::k].sum())


def _clients_that_fit(process: Any, model: Any, federation: core.Federation) -> int:
    """Counts the clients that may train at once on an accelerator; at least 1."""
    stats = jax.local_devices()[0].memory_stats() or {}
    # Not what is free now: a training that is resumed has to have the same chunks.
    room = _ROOM * stats.get("bytes_limit", _UNKNOWN)
    return max(int(room // bytes_of_a_step(process, model, federation)), 1)


def bytes_of_a_step(process: Any, model: Any, federation: core.Federation) -> int:
    """Counts the bytes of one client's copies of the model and of its gradient."""
    batch_size = min(_batch_size(process), federation.train.index.shape[-1])

    def kept(params: core.Params, pool: core.ClientData) -> tuple[jax.Array, Any]:
        nobody = jnp.zeros(batch_size, jnp.int32)
        client = pool.with_rows(dict.fromkeys(pool.rows()) | {"index": nobody})
        running = model.first_statistics()
        if isinstance(model, core.RoleModel):
            client = client.with_personal(model.first_personal(core.seed_key(0)))
        if running is not None:
            client = client.with_statistics(running)
        batch = client.gather(nobody, jnp.ones(batch_size))
        x, constants = batch.x, batch.constants
        return x, jax.vjp(lambda p: model.apply(p, x, constants=constants), params)

    params = jax.eval_shape(model.init, jax.random.key(0))
    tree = jax.eval_shape(kept, params, federation.train.pool())
    return _COPIES * client_rows.num_bytes(params) + client_rows.num_bytes(tree)


def _floats_of_a_step(params: int, batch: int) -> int:
    """Numbers that a step of one client works on: models and a batch."""
    return 4 * params + batch


def _params_and_examples(
    model: core.Model, federation: core.Federation, num_examples: int
) -> tuple[int, int]:
    """Returns numbers of a model's parameters, and of so many of its examples."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    network, inputs = struct.innermost(model), math.prod(federation.input_shape)
    # A model that makes much more of an example declares it.
    example = network.floats_per_example or inputs
    return client_rows.size(params), num_examples * example


def _batch_size(process: FederatedProcess) -> int:
    """Examples of a step, as far as the method's solver has a fixed number."""
    solver = process.algorithm.local
    return (None if solver is None else solver.batch_size) or 32


def form_chunks(
    execution: sharding.Execution, federations: Sequence[core.Federation]
) -> sharding.Execution:
    """Forms chunks of clients with equal work where sizes differ."""
    ragged = any(_largest(federation) > _EVEN for federation in federations)
    is_chunked = execution.mode == "chunk" or execution.chunk_size > 0
    return dataclasses.replace(execution, by_size=ragged and is_chunked)


def points_at_once(
    execution: sharding.Execution,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    *,
    alike: bool = False,
) -> int:
    """Picks how many points of a grid are vmapped together, at most."""
    cohort_size = process.participation.cohort_size(federation.num_clients)
    at_once = min(execution.chunk_size or cohort_size, cohort_size)
    if jax.default_backend() != "cpu":
        return max(_clients_that_fit(process, model, federation) // at_once, 1)
    params, batch = _params_and_examples(model, federation, _batch_size(process))
    # On a CPU large models do not gain, unless batches are larger and shared, and with
    # one client at a time clients would wait for another point's much larger one.
    is_ragged = execution.chunk_size == 1 and _largest(federation) > _RAGGED
    gains = params < _LARGE or (alike and batch >= params)
    if not gains or (is_ragged and not alike):
        return 1
    # The caches hold models and batches of up to 4 points, or 8 that share batches.
    fits = 2**20 // (_floats_of_a_step(params, batch) * at_once)
    return min(max(fits, 1), 8 if alike else 4)


def evaluated_at_once(
    model: core.Model, federation: core.Federation, num_examples: int, most: int
) -> int:
    """Picks how many clients an evaluation vmaps together."""
    if jax.default_backend() != "cpu":
        return most
    # On a CPU as many as stay in the L2 cache: beyond it the outputs of every layer
    # would be written to memory and read again.
    floats = sum(_params_and_examples(model, federation, num_examples))
    return min(max(_PASS // floats, 1), most)


def alike_at_once(size: int, most: int) -> int:
    """Returns the largest divisor of `size` up to `most`: points vmapped together."""
    return max(k for k in range(1, min(size, most) + 1) if size % k == 0)


def _largest(federation: core.Federation) -> float:
    """Examples of the largest client, in multiples of the mean; 1 if not known."""
    counts = federation.train.num_examples
    if isinstance(counts, jax.ShapeDtypeStruct):
        return 1.0
    counts = np.asarray(counts)
    return float(counts.max() / max(counts.mean(), 1e-9))
