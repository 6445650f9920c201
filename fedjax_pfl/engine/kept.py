"""State of a model that clients and server keep beside what a method moves.

Carries of series, personal parameters, and running statistics of normalization layers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, statistics
from fedjax_pfl.engine import cohort_link

__all__ = [
    "after_round",
    "first_carry",
    "started",
    "with_first_personal",
    "with_first_statistics",
    "with_kept",
]


def started(model: Any, train: core.ClientData) -> Any:
    """Returns the model, with the pretrained parameters that come with the data."""
    return model if train.start is None else model.starting_at(train.start)


def with_first_personal(
    key: core.Key, model: core.Model, train: core.ClientData
) -> core.ClientData:
    """Returns data with the parameters that stay with clients before the first round.

    Args:
      key: `[]` key of the run.
      model: the model.
      train: examples of K clients.

    Returns:
      The data of the same clients; as they are where the model keeps nothing.
    """
    if not isinstance(model, core.RoleModel):
        return train
    init_key = core.stream_key(key, core.Stream.INIT, 0)
    personal = started(model, train).first_personal(init_key)
    (count,) = train.num_examples.shape
    return train.with_personal(client_rows.broadcast(personal, count))


def with_first_statistics(
    model: core.Model, train: core.ClientData, *, is_local: bool
) -> core.ClientData:
    """Returns data with running statistics before the first round.

    Args:
      model: the model.
      train: examples of K clients.
      is_local: whether they stay with the clients.

    Returns:
      The data of the same clients; as they are where the model has none.
    """
    first = statistics.first(started(model, train))
    if first is None:
        return train
    if not is_local:
        return train.with_statistics(shared=first)
    (count,) = train.num_examples.shape
    return train.with_statistics(client_rows.broadcast(first, count))


def with_kept(
    state: core.State, model: core.Model, federation: core.Federation
) -> core.Federation:
    """Returns a federation with what is kept of the model now.

    Args:
      state: the state.
      model: the model.
      federation: data of the clients whose rows the state has.

    Returns:
      Data with personal parameters and running statistics, where there are some.
    """
    train = federation.train
    if "carry" in state.rows and isinstance(model, core.RoleModel):
        train = train.with_personal(state.rows["carry"])
    shared, own = state.memory.get("statistics"), state.rows.get("statistics")
    if shared is not None or own is not None:
        train = train.with_statistics(own, shared=shared)
    return dataclasses.replace(federation, train=train)


def first_carry(model: core.Model, train: core.ClientData) -> Any:
    """Returns what the clients' solvers start the first round with, or None.

    Args:
      model: the model.
      train: examples of K clients, with what these have of the model at first.
    """
    if not isinstance(model, core.SequenceModel):
        return train.personal
    pool, first = train.pool(), model.first_carry
    return jax.vmap(lambda rows: first(pool.with_rows(rows)))(train.rows())


def after_round(
    link: cohort_link.CohortLink, state: core.State, info: core.RoundInfo, method: str
) -> tuple[core.State, core.RoundInfo]:
    """Moves what clients keep from their reports into the state, and counts steps.

    Args:
      link: of the round.
      state: after it.
      info: whose `client` may be a `core.Report`.
      method: its name.

    Returns:
      State and info, whose `client` is a dict.

    Raises:
      InputError: if the model keeps something that the method does not report.
    """
    report = info.client
    if not isinstance(report, core.Report):
        report = core.Report(values=report)
    counted = {} if report.steps is None else {"client_steps": report.steps}
    info = dataclasses.replace(info, client=report.values | counted)
    state = _with_steps(link, state, report.steps)
    if (old := state.rows.get("carry")) is not None:
        what = "a model of series such as a portfolio policy"
        if isinstance(link.model, core.RoleModel):
            what = "personal parameters of the model"
        _check_kept(report.carry, what, method)
        carry = _finite(link, report.carry, link.take(old))
        state = state.with_rows(carry=link.put(old, carry))
    return _with_statistics(link, state, info, report.statistics, method)


def _check_kept(new: Any, what: str, method: str) -> None:
    """Refuses a method that does not report what its clients keep."""
    if new is None:
        raise checks.InputError(
            "Expected a method whose clients train through a local solver, SGD or"
            f" Optax, with {what}, got {method} with minibatches of its own."
        )


def _finite(link: cohort_link.CohortLink, new: Any, old: Any) -> Any:
    """Returns new rows `[K, ...]`; old ones in place of what is not finite."""
    return client_rows.select_rows(link.finite(new), new, old)


def _with_steps(
    link: cohort_link.CohortLink, state: core.State, steps: jax.Array | None
) -> core.State:
    """Counts the cohort's steps, where a schedule asks for them."""
    if "steps" not in state.memory:
        return state
    if steps is None:
        raise checks.InputError(
            "Expected a method whose clients train through a local solver with a"
            " schedule of steps, got one with minibatches of its own; add"
            " per_round=True."
        )
    steps = state.memory["steps"].at[link.ctx.cohort].add(steps)
    return state.with_memory(steps=steps)


def _with_statistics(
    link: cohort_link.CohortLink,
    state: core.State,
    info: core.RoundInfo,
    new: Any,
    method: str,
) -> tuple[core.State, core.RoundInfo]:
    """Keeps running statistics `[K, *S]` with clients, or their mean at the server.

    The mean is over those whose messages have arrived, weighted as these are. Attacks
    and transforms do not see it; its bytes count.
    """
    own, shared = state.rows.get("statistics"), state.memory.get("statistics")
    if own is None and shared is None:
        return state, info
    _check_kept(new, "running statistics of the model", method)
    if own is not None:
        rows = _finite(link, new, link.take(own))
        return state.with_rows(statistics=link.put(own, rows)), info
    if link.noise is not None:
        raise checks.InputError(
            "Expected running statistics that stay with the clients under"
            " GaussianNoise, ParameterRoles(model, local_statistics=True): a mean of"
            " them would be sent without noise."
        )
    count = jax.tree.leaves(new)[0].shape[0]
    weights = link.arrived[-1] if link.arrived else jnp.ones(count)
    weights = jnp.where(client_rows.finite_rows(new, count), weights, 0)
    mean = client_rows.weighted_mean(new, weights)
    mean = optax.tree.where(weights.sum() > 0, mean, shared)
    if link.arrived:
        info = link.with_bytes(info, client_rows.num_bytes(shared))
    return state.with_memory(statistics=mean), info
