"""Absent clients, represented by their last gradients."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import checks

__all__ = ["History", "absent"]

History = Literal["window", "last_round", "none"]


def absent(
    last_round: jax.Array,
    cohort: jax.Array,
    round: jax.Array,
    *,
    history: History = "window",
    cap: int,
) -> tuple[jax.Array, jax.Array]:
    """Chooses the absent clients with last gradients as rows (FedLF, Section 3.3).

    A client's gradient is used as long as the client can be expected back: of K members
    per round and `seen` clients so far, that takes `tau = floor(seen / K)` rounds.

    Args:
      last_round: `int32[N]` round in which each client was last heard, -1 for never.
      cohort: `int32[K]` this round's members, distinct.
      round: `int32[]` this round.
      history: `window` (heard within the last tau rounds), `last_round` (heard in the
        round before) or `none`.
      cap: most rows H; more are dropped, those longest ago first.

    Returns:
      `int32[H]` clients with `H = min(N - K, cap)`, 0 for `none`, and `bool[H]` which
      of them count.

    Example:
      >>> last = jnp.array([3, 1, 3, -1], jnp.int32)
      >>> rows, used = absent(last, jnp.array([0]), jnp.array(4), cap=9)
      >>> sorted(rows[used].tolist())  # tau = 3
      [1, 2]
    """
    checks.known(history, get_args(History), "history")
    members, num_clients = cohort.shape[0], last_round.shape[0]
    size = 0 if history == "none" else min(num_clients - members, cap)
    if size <= 0:
        return jnp.zeros((0,), jnp.int32), jnp.zeros((0,), bool)
    away = jnp.ones((num_clients,), bool).at[cohort].set(False)
    seen = (last_round >= 0).sum()
    # tau = floor(seen / K) rounds, in which a client can be expected back.
    window = jnp.where(seen > members, seen // members, 0)
    if history == "last_round":
        window = jnp.ones_like(window)
    used = away & (last_round >= 0) & (round - last_round <= window)
    # Rows of rounds that count come first, so that the cap drops the oldest.
    recent, rows = lax.top_k(jnp.where(used, last_round, -1), size)
    return rows, recent >= 0
