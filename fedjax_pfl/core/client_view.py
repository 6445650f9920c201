"""A client as its local work sees it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct

__all__ = ["ClientView"]


@struct.pytree_dataclass
class ClientView:
    """ONE client at one moment, as its local work sees it.

    Attributes:
      key: `[]` key of this client, round and exchange.
      round: `int32[]` round number, for schedules; None counts as 0.
      data: training examples of this client.
      work: budget of this client; without caps outside of rounds.
      carry: what the client's solver kept from its last round, or None; personal
        parameters and running statistics come with the data.
      steps: `int32[]` local steps that the client took in earlier rounds, where a
        schedule asks for them; None counts as 0.
    """

    key: core.Key
    round: jax.Array
    data: core.ClientData
    work: core.Budget = dataclasses.field(default_factory=core.Budget.unlimited)
    carry: Any = None
    steps: jax.Array | None = None

    def upload(self, message: Any, aux: Any = None) -> core.Upload:
        """Returns the upload of a message, weighted by the client's examples.

        Args:
          message: what an attack may replace; its dtype is that of the weight.
          aux: side information, never attacked.

        Returns:
          The upload of ONE client.
        """
        dtype = jnp.result_type(float, *jax.tree.leaves(message))
        weight = self.data.num_examples.astype(dtype)
        return core.Upload(message=message, weight=weight, aux=aux)
