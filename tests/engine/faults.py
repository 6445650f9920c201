"""Clients who send NaN, Inf or huge values, and a problem that has some."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from tests import problems

NEVER = 99.0
NUM_CLIENTS, NUM_MALICIOUS = 8, 3


@struct.pytree_dataclass
class Sends(core.Attack):
    """Malicious clients send a value in some rounds.

    With `turn = -1` neighbors differ in sign, and all signs change every round. The
    value fades by the factor `fade` a round.
    """

    value: object
    first: object = 0.0
    last: object = NEVER
    turn: object = 1.0
    fade: object = 1.0

    def init(self, message):
        return jnp.zeros((), jnp.int32)

    def __call__(self, key, round, messages, malicious, reference):
        acts = malicious & (round >= self.first) & (round < self.last)
        sign = self.turn ** (round + jnp.arange(malicious.shape[0]))
        sent = jnp.where(acts, sign * self.value * self.fade**round, 0)

        def rows(leaf):
            column = sent.reshape((-1,) + (1,) * (leaf.ndim - 1)).astype(leaf.dtype)
            return jnp.broadcast_to(column, leaf.shape)

        bad = jax.tree.map(rows, messages)
        return client_rows.select_rows(acts, bad, messages), round + 1


@functools.cache
def problem(num_malicious=NUM_MALICIOUS, num_clients=NUM_CLIENTS):
    """Quadratics whose first clients are malicious."""
    found = problems.random_quadratics(num_clients)
    malicious = jnp.arange(num_clients) < num_malicious
    federation = dataclasses.replace(found.federation, malicious=malicious)
    return dataclasses.replace(found, federation=federation)
