"""Mimic: malicious clients send the message of one honest client once more."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import client_rows, factorizations, struct

__all__ = ["Mimic"]


@struct.pytree_dataclass
class Mimic(base.Colluding):
    """Replaces malicious messages by a copy of one honest message.

    No message is an outlier, but the copied client counts several times, and
    rules that drop messages drop other messages in its place.

    Without a `victim` it is the honest client with the message of the largest absolute
    projection on the top eigenvector of the honest messages' covariance, found again in
    every round. Projections within a relative `sqrt(eps)` of the largest tie, and the
    lowest row wins; with two honest clients that is always so, and if the two
    largest eigenvalues are equal, rounding decides. The rule costs the eigenvectors
    of a `[K, K]` matrix, about a second for K = 1000 on a CPU.

    Only the cohort's finite honest messages count; without any, no message
    changes.

    Attributes:
      victim: static; number of the copied client among the honest clients of the
        cohort, from 0 in the order of clients; the last one if there are fewer. None
        for the rule above.

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 7, 2, 9]), jax.numpy.arange(4) > 2
      >>> Mimic()(None, None, messages, malicious, None)[0].tolist()
      [1.0, 7.0, 2.0, 7.0]

    Reference: Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous
    Datasets via Bucketing". There one victim is chosen in the first rounds and kept.
    """

    victim: int | None = struct.static_field(default=None, at_least=0)
    chooses: ClassVar[str] = "who is copied"

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the victim's message."""
        row = self._row(seen)
        return jax.tree.map(lambda leaf: leaf[row], messages)

    def _row(self, seen: honest.Honest) -> jax.Array:
        """Returns the row `int32[]` of the victim."""
        if self.victim is not None:
            rank = jnp.minimum(self.victim, seen.known.sum() - 1)
            return jnp.argmax(seen.known & (jnp.cumsum(seen.known) - 1 == rank))
        # Projections are the eigenvector of the rows' Gram matrix, up to a factor.
        products = client_rows.gram(client_rows.rescale(seen.rows)[0])
        size = jnp.abs(factorizations.eigh(products)[1][:, -1])
        size = jnp.where(seen.known, size, -1)
        # Of nearly equal projections rounding would choose: the lowest row wins.
        near = 1 - jnp.sqrt(jnp.finfo(size.dtype).eps)
        return jnp.argmax(seen.known & (size >= near * size.max()))
