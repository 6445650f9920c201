"""Evaluation of every predictor on every client's own data, each value kept."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import types

__all__ = ["evaluate", "predictor_names"]

BATCH = 128
"""Examples per pass; bounds memory, not the result."""
CHUNK = 16
"""Clients evaluated at once."""


def _predictors(process, state, client, model, data):
    """Predictors of one client with its evaluation key."""
    key = types.stream_key(state.key, types.Stream.EVALUATION, state.round)
    key = jax.random.fold_in(key, data.client_id)
    return process.predictors(key, state, client, model, data)


def _client_metrics(predictor, model, data, dtype) -> dict[str, jax.Array]:
    """Mean of every metric over one client's examples; NaN where it has none."""
    slots = data.index.shape[0]
    size = min(BATCH, slots)

    def one_batch(number):
        positions = number * size + jnp.arange(size)
        weight = (positions < data.num_examples).astype(dtype)
        batch = data.gather(jnp.minimum(positions, slots - 1), weight)
        values = model.metrics(predictor(batch.x), batch)
        return {
            name: jnp.where(weight > 0, value, 0).sum()
            for name, value in values.items()
        }

    sums = jax.tree.map(
        lambda leaf: leaf.sum(axis=0), lax.map(one_batch, jnp.arange(-(-slots // size)))
    )
    count = data.num_examples.astype(dtype)
    return {
        name: jnp.where(count > 0, value / jnp.maximum(count, 1), jnp.nan)
        for name, value in sums.items()
    }


def predictor_names(
    process: Any, state: types.State, model: types.Model, federation: types.Federation
) -> tuple[str, ...]:
    """Names of the algorithm's predictors, without computing anything.

    Args:
      process: the process.
      state: a state, or its shapes.
      model: the model.
      federation: data of N clients.

    Returns:
      Names in alphabetical order.
    """
    names: list[str] = []

    def trace(state, federation):
        first = jax.tree.map(
            lambda leaf: leaf[0], (state.clients, federation.train.rows())
        )
        data = federation.train.pool().with_rows(first[1])
        names.extend(sorted(_predictors(process, state, first[0], model, data)))
        return jnp.zeros(())

    jax.eval_shape(trace, state, federation)
    return tuple(names)


def evaluate(
    process: Any,
    state: types.State,
    model: types.Model,
    federation: types.Federation,
    *,
    data: tuple[str, ...] = ("test", "validation"),
    diagnostics: bool = False,
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Measures all predictors of all clients on their own examples.

    Args:
      process: the process.
      state: state after a round.
      model: the model.
      federation: data of N clients.
      data: splits to measure on: `train`, `validation`, `test`.
      diagnostics: whether to compute the algorithm's diagnostics.

    Returns:
      Metrics by name, each `[predictors, splits, N]` with predictors in alphabetical
      order, NaN where a client has no examples of a split; and diagnostics by name,
      each `[]`.
    """
    splits = [getattr(federation, name) for name in data]
    pools = [split.pool() for split in splits]
    dtype = jnp.zeros(()).dtype

    def one(row):
        client, train_fields, fields = row
        train = federation.train.pool().with_rows(train_fields)
        predictors = _predictors(process, state, client, model, train)
        found = [
            [
                _client_metrics(predictors[name], model, pool.with_rows(own), dtype)
                for pool, own in zip(pools, fields, strict=True)
            ]
            for name in sorted(predictors)
        ]
        rows = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *row) for row in found]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)

    rows = (state.clients, federation.train.rows(), [split.rows() for split in splits])
    metrics = lax.map(one, rows, batch_size=min(CHUNK, federation.num_clients))
    metrics = {name: jnp.moveaxis(value, 0, -1) for name, value in metrics.items()}
    values = {}
    if diagnostics:
        values = process.algorithm.diagnostics(state, model, federation)
    return metrics, values
