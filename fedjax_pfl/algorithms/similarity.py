"""The server side of FedACS, FedAMP and HeurFedAMP: mixtures of similar models.

Two products of `[K, K]` with `[K, D]`; no loop over pairs, no flattened copy.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import client_rows, columns

__all__ = [
    "Mixing",
    "cosine_range",
    "cosines",
    "median_distance",
    "row_entropy",
    "squared_distances",
]

_SMALLEST_NORM = 1e-12


class Mixing(base.SingleExchange, abc.ABC):
    """A method with a mixture of received models per client; abstract."""

    aggregates = False  # every member gets a mixture of its own

    @abc.abstractmethod
    def cohort_weights(
        self, round: jax.Array, server: core.ServerState, models: core.Message
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Returns weights `[K, K]`, rows of sum 1, of models `[K, *P]`, and reports."""

    def first(self, params: core.Params):
        """Copies one network to all clients; the server remembers it."""
        return params, params, params

    def down(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
        messages: core.Message,
    ):
        """Mixes the cohort's last messages for each member, and reports the entropy."""
        weights, report = self.cohort_weights(ctx.round, server, messages)
        report = report | {"entropy": row_entropy(weights).mean()}
        mixtures = columns.mix(messages, weights)
        return core.Downlink(shared=None, per_client=mixtures, info=report)

    def known(self, server: core.ServerState, down: core.Downlink):
        """Returns the mixture that each member receives."""
        return core.Downlink(shared=None, per_client=down.per_client)

    def server_update(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Keeps the common first model: there is no global one."""
        return server

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the client's own model w_i."""
        return {"personal": client}

    def collaboration(self, state: core.State, federation: core.Federation):
        """Returns the mixing weights if all N clients took part."""
        return self.cohort_weights(state.round, state.server, state.rows["messages"])[0]


def cosines(tree: core.Tree) -> jax.Array:
    """Returns the cosines `[K, K]` of finite rows `[K, *P]`; the diagonal is 1."""
    # The order of nearly equal models lives in the last digits: products at highest
    # precision, and norms from the diagonal of the same matrix.
    products = columns.gram(tree)
    norms = jnp.maximum(jnp.sqrt(jnp.diagonal(products)), _SMALLEST_NORM)
    matrix = products / (norms[:, None] * norms[None, :])
    # Rounding can lead beyond 1. A row of zeros has cosine 0 with all others.
    return jnp.where(_self(matrix), 1, jnp.clip(matrix, -1, 1))


def cosine_range(similarities: jax.Array) -> dict[str, jax.Array]:
    """Reports the `smallest_cosine` and `largest_cosine` of different rows `[K, K]`."""
    # With one client the results are their limits, 1 and -1.
    return {
        "smallest_cosine": similarities.min(),  # the diagonal is an upper bound
        "largest_cosine": jnp.where(_self(similarities), -1, similarities).max(),
    }


def squared_distances(tree: core.Tree) -> jax.Array:
    """Returns squared distances `[K, K]` of finite rows `[K, *P]`, at least 0."""
    count = jax.tree.leaves(tree)[0].shape[0]
    # As a product, the mean costs less than a reduction along the client axis.
    mean = client_rows.mix(tree, jnp.full((1, count), 1 / count))
    # Of centered rows: small distances of large models would cancel.
    products = columns.gram(jax.tree.map(lambda x, m: x - m, tree, mean))
    squares = jnp.diagonal(products)
    matrix = squares[:, None] + squares[None, :] - 2 * products
    return jnp.where(_self(matrix), 0, jnp.maximum(matrix, 0))


def median_distance(distances: jax.Array) -> jax.Array:
    """Returns the median `[]` of `distances [K, K]` of different rows; 0 if none."""
    count = distances.shape[0]
    if count == 1:
        return jnp.zeros((), distances.dtype)
    return jnp.median(distances[np.triu_indices(count, 1)])


def row_entropy(weights: jax.Array) -> jax.Array:
    """Returns the entropy `[K]` of every row's absolute weights, 0 to log K."""
    shares = jnp.abs(weights)
    return jax.scipy.special.entr(shares / shares.sum(axis=1, keepdims=True)).sum(
        axis=1
    )


def _self(matrix: jax.Array) -> jax.Array:
    """Returns the diagonal's mask `bool[K, K]`."""
    return jnp.eye(matrix.shape[0], dtype=bool)
