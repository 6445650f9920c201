"""The compiled programs of a training with clients' rows on the host."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding, struct
from fedjax_pfl.engine import evaluation, stacking, trained_parameters
from fedjax_pfl.engine.streaming import routes
from fedjax_pfl.round.parts import mailbox
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "Inputs",
    "arrived",
    "cohort",
    "evaluated",
    "everywhere",
    "filled",
    "first",
    "left",
    "message_sum",
    "round",
    "trained",
    "unseen",
]

_SPLIT = PartitionSpec(sharding.AXIS)


@struct.pytree_dataclass
class Inputs:
    """Inputs of a round from the host, except for rows."""

    members: core.Members
    fields: dict[str, Any]  # the federation's rows of the cohort, by part
    malicious: jax.Array  # `bool[K]`
    is_known: jax.Array  # `bool[K]`, clients with rows; others start now


def federation_of(
    pool: core.Federation, fields: dict[str, Any], malicious: jax.Array | np.ndarray
) -> core.Federation:
    """Returns the federation of some clients, from the pool and their rows by part."""
    parts = {name: getattr(pool, name).with_rows(rows) for name, rows in fields.items()}
    return dataclasses.replace(pool, malicious=malicious, **parts)


@functools.partial(jax.jit, static_argnames="num_clients")
def cohort(
    process: FederatedProcess, key: core.Key, round: jax.Array, num_clients: int
) -> jax.Array:
    """Returns rows `int32[K]` of the members of a round's cohort."""
    return process.cohort(key, round, num_clients)


@functools.partial(jax.jit, static_argnames="model")
def first(
    process: Any, model: Any, key: core.Key, population: Any, train: core.ClientData
) -> tuple[Any, Any]:
    """Draws the server's first state and the rows of some clients."""
    return process.first_rows(key, model, population, train)


@functools.partial(jax.jit, static_argnames="execution")
def arrived(
    execution: sharding.Execution,
    last_rows: core.Tree,
    rows: core.Tree,
    source: jax.Array,
    way: routes.Way | None,
) -> core.Tree:
    """Brings a cohort's rows `[n * C, ...]` from owners to places, `[P, ...]`."""

    def newest(last_rows: core.Tree, rows: core.Tree, source: jax.Array) -> core.Tree:
        # Rows that the last round changed are still on the device, not yet in the
        # files.
        held = client_rows.take(last_rows, jnp.maximum(source, 0))
        return client_rows.select_rows(source >= 0, held, rows)

    if way is None:
        return newest(last_rows, rows, source)

    def part(last_rows: Any, rows: Any, source: jax.Array, way: routes.Way) -> Any:
        count = sharding.num_devices(execution)
        return routes.move(newest(last_rows, rows, source), way, count)

    mapped = sharding.on_devices(part, execution, _SPLIT, _SPLIT)
    return mapped(last_rows, rows, source, way)


@functools.partial(jax.jit, static_argnames="execution")
def left(execution: sharding.Execution, rows: core.Tree, way: routes.Way) -> core.Tree:
    """Brings rows `[P, ...]` from their places to their owners, `[n * C, ...]`."""
    count = sharding.num_devices(execution)
    move = functools.partial(routes.move, count=count)
    return sharding.on_devices(move, execution, _SPLIT, _SPLIT)(rows, way)


def _with_first(
    process: FederatedProcess,
    model: core.Model,
    key: core.Key,
    population: core.Population,
    train: core.ClientData,
    rows: core.Tree,
    is_known: jax.Array,
) -> core.Tree:
    """Returns rows `[K, ...]`; clients that never took part have first rows."""

    def start() -> core.Tree:
        first_rows = process.first_rows(key, model, population, train)[1]
        return client_rows.select_rows(is_known, rows, first_rows)

    # First rows are drawn only if a member has none.
    return lax.cond(is_known.all(), lambda: rows, start)


@functools.partial(
    jax.jit, static_argnames=("model", "execution"), donate_argnames="rows"
)
def filled(
    process: FederatedProcess,
    model: core.Model,
    execution: sharding.Execution,
    key: core.Key,
    population: core.Population,
    train: core.ClientData,
    rows: core.Tree,
    is_known: jax.Array,
) -> core.Tree:
    """Returns rows `[K, ...]` of clients, divided among n devices."""
    rows = _with_first(process, model, key, population, train, rows, is_known)
    return _at_places(rows, len(is_known), execution)


def _at_places(rows: core.Tree, count: int, execution: sharding.Execution) -> core.Tree:
    """Puts rows `[K, ...]` on the devices of their places, `[P, ...]`."""
    num_devices = sharding.num_devices(execution)
    if num_devices == 1:
        return rows
    extra = -count % num_devices
    # Places that fill the last device have no client.
    padded = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, extra), *((0, 0),) * (leaf.ndim - 1))), rows
    )
    return sharding.shard_rows(padded, count + extra, execution)


def everywhere(tree: core.Tree, execution: sharding.Execution) -> core.Tree:
    """Replicates arrays on all devices that share clients, if there are several."""
    if sharding.num_devices(execution) == 1:
        return tree
    return sharding.replicate(tree, execution)


@functools.partial(
    jax.jit, static_argnames=("model", "execution"), donate_argnames="rows"
)
def round(
    process: FederatedProcess,
    model: core.Model,
    execution: sharding.Execution,
    state: core.State,
    rows: core.Tree,
    inputs: Inputs,
    pool: core.Federation,
) -> tuple[core.State, Any, core.RoundInfo]:
    """Runs one round of the cohort; returns the state and rows `[P, ...]` apart."""
    members, train = inputs.members, inputs.fields["train"]
    count = members.cohort.shape[0]
    federation = federation_of(pool, inputs.fields, inputs.malicious)
    rows = _with_first(
        process,
        model,
        state.key,
        members.population,
        pool.train.with_rows(train),
        jax.tree.map(lambda leaf: leaf[:count], rows),
        inputs.is_known,
    )
    after, info = process.round(state.at(rows), model, federation, execution, members)
    rows = _at_places(after.of_clients(), count, execution)
    after, info = everywhere((after.at(None), info), execution)
    return after, rows, info


@functools.partial(jax.jit, static_argnames="execution")
def message_sum(
    process: FederatedProcess,
    execution: sharding.Execution,
    state: core.State,
    mean: core.Message,
    rows: core.Tree,
    counts: jax.Array,
    is_real: jax.Array,
    population: core.Population,
) -> core.Message:
    """Adds messages of real clients, weighted as in the mean over all, from rows."""
    shares = mailbox.shares(process.used_aggregator(), counts, population)
    messages = process.messages_of(state.at(rows))
    with sharding.over(execution):
        increment = client_rows.weighted_sum(messages, jnp.where(is_real, shares, 0))
    return everywhere(jax.tree.map(jnp.add, mean, increment), execution)


@functools.partial(jax.jit, static_argnames=("model", "data", "execution"))
def evaluated(
    process: FederatedProcess,
    model: core.Model,
    data: tuple[str, ...],
    execution: sharding.Execution,
    state: core.State,
    rows: core.Tree,
    federation: core.Federation,
    tested: evaluation.Tested | None,
) -> dict[str, jax.Array]:
    """Returns metrics `[predictors, data, K]` of K clients with these rows."""
    metrics, _ = evaluation.evaluate(
        process,
        state.at(rows),
        model,
        federation,
        data=data,
        execution=execution,
        tested=tested,
    )
    return everywhere(metrics, execution)


@functools.partial(jax.jit, static_argnames=("model", "rule"))
def unseen(
    process: FederatedProcess,
    model: core.Model,
    rule: evaluation.Unseen,
    state: core.State,
    population: core.Population,
    rows: core.Tree,
    pool: core.Federation,
) -> dict[str, jax.Array]:
    """Returns metrics `[models, U]` of U clients that never trained."""
    newcomers = stacking.join(rows, pool)
    return evaluation.unseen(process, state, model, population, newcomers, rule)


@functools.partial(jax.jit, static_argnames=("model", "names", "execution"))
def trained(
    process: FederatedProcess,
    model: core.Model,
    names: tuple[str, ...],
    execution: sharding.Execution,
    state: core.State,
    rows: core.Tree,
    federation: core.Federation,
) -> dict[str, Any]:
    """Returns parameters `[K, *P]` of predictors of K clients with these rows."""
    clients = jnp.arange(federation.num_clients, dtype=jnp.int32)
    networks = trained_parameters.networks(
        process, state.at(rows), model, federation, clients, names
    )
    return everywhere(networks, execution)
