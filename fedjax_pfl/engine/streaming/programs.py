"""The compiled programs of a training whose clients' rows are on the host."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding, struct
from fedjax_pfl.engine import cohort_link, evaluation, trained_parameters

__all__ = ["Inputs", "cohort", "evaluated", "first", "message_sum", "round", "trained"]


@struct.pytree_dataclass
class Inputs:
    """Inputs of a round from the host.

    Attributes:
      members: who takes part.
      fields: the federation's rows of the cohort, by part.
      malicious: `bool[K]`.
      rows: stored rows of the cohort `(client, message)`, `[K, ...]`.
      is_stored: `bool[K]` whether they were ever written; others start now.
      source: `int32[K]` position in the cohort of the round before, whose rows are not
        stored yet, or -1.
    """

    members: core.Members
    fields: dict[str, Any]
    malicious: jax.Array
    rows: Any
    is_stored: jax.Array
    source: jax.Array


def federation_of(
    pool: core.Federation, fields: dict[str, Any], malicious: Any
) -> core.Federation:
    """Returns the federation of some clients, from the pool and their rows by part."""
    parts = {name: getattr(pool, name).with_rows(rows) for name, rows in fields.items()}
    return dataclasses.replace(pool, malicious=malicious, **parts)


@functools.partial(jax.jit, static_argnames="num_clients")
def cohort(
    process: Any, key: core.Key, round: jax.Array, num_clients: int
) -> jax.Array:
    """Rows `int32[K]` of the members of a round's cohort."""
    return process.cohort(key, round, num_clients)


@functools.partial(jax.jit, static_argnames="model")
def first(
    process: Any, model: Any, key: core.Key, population: Any, train: core.ClientData
) -> tuple[Any, Any]:
    """Draws the server's first state and rows `(client, message)` of some clients."""
    train = process.with_first_kept(key, model, train)
    server, rows, messages = process.first_rows(key, model, population, train)
    return server, (rows, messages)


@functools.partial(jax.jit, static_argnames=("model", "execution"))
def round(
    process: Any,
    model: Any,
    execution: sharding.Execution,
    state: core.State,
    before: Any,
    inputs: Inputs,
    pool: core.Federation,
) -> tuple[core.State, Any, core.RoundInfo]:
    """Runs one round of the cohort.

    Args:
      process: the process, as arrays.
      model: the model.
      execution: how the map over clients is run.
      state: state without rows of clients.
      before: rows of the cohort of the round before, `(client, message)`.
      inputs: what the host has prepared.
      pool: the federation without rows of clients.

    Returns:
      State without rows, rows of the cohort, and the round's report.
    """
    members, train = inputs.members, inputs.fields["train"]
    federation = federation_of(pool, inputs.fields, inputs.malicious)

    def start() -> Any:
        data = process.with_first_kept(state.key, model, pool.train.with_rows(train))
        return process.first_rows(state.key, model, members.population, data)[1:]

    held = inputs.source >= 0
    rows = client_rows.select_rows(
        held, client_rows.take(before, jnp.maximum(inputs.source, 0)), inputs.rows
    )
    is_known = inputs.is_stored | held
    rows = lax.cond(
        is_known.all(),
        lambda: rows,
        lambda: client_rows.select_rows(is_known, rows, start()),
    )
    whole = dataclasses.replace(state, clients=rows[0], messages=rows[1])
    after, info = process.round(whole, model, federation, execution, members)
    rows = (after.clients, after.messages)
    return dataclasses.replace(after, clients=None, messages=None), rows, info


@jax.jit
def message_sum(
    process: Any,
    rows: Any,
    counts: jax.Array,
    is_real: jax.Array,
    population: core.Population,
) -> Any:
    """Sums messages of real clients, weighted as in the mean over all, from rows."""
    shares = cohort_link.shares(process.used_aggregator(), counts, population)
    messages = process.messages_of(*rows)
    return client_rows.weighted_sum(messages, jnp.where(is_real, shares, 0))


@functools.partial(jax.jit, static_argnames=("model", "data"))
def evaluated(
    process: Any,
    model: Any,
    data: tuple[str, ...],
    state: core.State,
    rows: Any,
    federation: core.Federation,
) -> Any:
    """Metrics `[predictors, data, K]` of K clients with rows `(client, message)`."""
    whole = dataclasses.replace(state, clients=rows[0], messages=rows[1])
    return evaluation.evaluate(process, whole, model, federation, data=data)[0]


@functools.partial(jax.jit, static_argnames=("model", "names"))
def trained(
    process: Any,
    model: Any,
    names: tuple[str, ...],
    state: core.State,
    rows: Any,
    federation: core.Federation,
) -> dict[str, Any]:
    """Returns parameters `[K, *P]` of predictors of K clients with these rows."""
    whole = dataclasses.replace(state, clients=rows[0], messages=rows[1])
    every = jnp.arange(federation.num_clients, dtype=jnp.int32)
    return trained_parameters.networks(process, whole, model, federation, every, names)
