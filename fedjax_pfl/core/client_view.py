"""The view of a client in its local work."""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.core.aliases import Message, Tree

__all__ = ["ClientView"]


@struct.pytree_dataclass
class ClientView:
    """The view of ONE client in the local work of a round.

    Attributes:
      key: `[]` key of this client, round and exchange.
      round: `int32[]` round number, for schedules; None counts as 0.
      data: training examples of this client.
      work: budget of this client; without caps outside of rounds.
      carry: state of the client's solver after its last round, or None; personal
        parameters and running statistics are in the data.
      steps: `int32[]` local steps of the client in earlier rounds, if a schedule needs
        them; None counts as 0.
    """

    key: core.Key
    round: jax.Array
    data: core.ClientData
    work: core.Budget = dataclasses.field(default_factory=core.Budget.unlimited)
    carry: Tree = None
    steps: jax.Array | None = None

    def upload(self, message: Message, aux: Tree = None) -> core.Upload:
        """Returns the upload of a message, weighted by the client's examples.

        Args:
          message: pytree that an attack may replace; the weight has its dtype.
          aux: side information, never attacked.

        Returns:
          The upload of ONE client.
        """
        dtype = jnp.result_type(float, *jax.tree.leaves(message))
        weight = self.data.num_examples.astype(dtype)
        return core.Upload(message=message, weight=weight, aux=aux)
