"""Batches of examples, and what a model reads beside them."""

import dataclasses
from typing import Any

import jax

from fedjax_pfl.core import struct

__all__ = ["Batch", "Constants", "with_personal_of"]


@struct.pytree_dataclass
class Batch:
    """Examples of one client; rows of weight 0 are padding and contribute exactly zero.

    Attributes:
      x: `[B, ...]` scaled inputs, of a model of series a tree; padded rows are zeros.
      y: `[B]` or `[B, ...]` targets.
      weight: `[B]` 1 for examples, 0 for padding.
      constants: what the model reads besides (embeddings, tables), `Constants` of a
        `RoleModel` or `StatisticsModel`, or None.
    """

    x: Any
    y: jax.Array
    weight: jax.Array
    constants: Any = None

    def __post_init__(self):
        struct.check_arrays("x", self.x)

    def with_personal(self, personal: Any) -> "Batch":
        """Returns the batch for a model with other parameters of the client's own."""
        constants = with_personal_of(self.constants, personal)
        return dataclasses.replace(self, constants=constants)

    def with_statistics(self, statistics: Any) -> "Batch":
        """Returns the batch for a model with other running statistics, if any."""
        if statistics is None:
            return self
        constants = Constants.of(self.constants)
        constants = dataclasses.replace(constants, statistics=statistics)
        return dataclasses.replace(self, constants=constants)


@struct.pytree_dataclass
class Constants:
    """Arrays that a model reads beside the parameters that a method moves.

    Attributes:
      given: the federation's own constants, or None.
      frozen: parameters by name that nobody trains; the same for all clients.
      personal: parameters that stay with the client, leading axis N, or of ONE client;
        None before there are any.
      fixed: what else the model knows of the client, leading axis N, or of ONE client,
        such as the rank of its adapters; or None.
      statistics: running statistics that stay with the client, like `personal`; those
        of a batch wherever training has moved them.
      shared_statistics: running statistics that all clients have, without their axis.
      weight: `[B]` of the batch that the model is called with, for a `StatisticsModel`:
        rows of weight 0 are none of its examples.
    """

    given: Any = None
    frozen: Any = None
    personal: Any = None
    fixed: Any = None
    statistics: Any = None
    shared_statistics: Any = None
    weight: jax.Array | None = None

    @property
    def running(self) -> Any:
        """Running statistics of ONE client's model, or None."""
        own = self.statistics
        return self.shared_statistics if own is None else own

    @classmethod
    def of(cls, constants: Any) -> "Constants":
        """Returns constants in this form, those of a federation as `given`."""
        return constants if isinstance(constants, cls) else cls(given=constants)


def with_personal_of(constants: Any, personal: Any) -> Any:
    """Returns constants with other personal parameters; those of old models as is."""
    if personal is None and Constants.of(constants).personal is None:
        return constants
    return dataclasses.replace(Constants.of(constants), personal=personal)
