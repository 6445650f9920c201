"""Batches of examples, and constant inputs of models."""

import dataclasses

import jax

from fedjax_pfl.core import struct
from fedjax_pfl.core.aliases import Tree

__all__ = ["Batch", "Constants", "with_personal_of"]


@struct.pytree_dataclass
class Batch:
    """Examples of one client; rows of weight 0 are padding and contribute exactly zero.

    Attributes:
      x: `[B, ...]` scaled inputs, a tree for models of series; padded rows are zeros.
      y: `[B]` or `[B, ...]` targets.
      weight: `[B]` 1 for examples, 0 for padding.
      constants: further inputs of the model (embeddings, tables), `Constants` for a
        `RoleModel` or `StatisticsModel`, or None.
    """

    x: Tree
    y: jax.Array
    weight: jax.Array
    constants: Tree = None

    def __post_init__(self):
        struct.check_arrays("x", self.x)

    def with_personal(self, personal: Tree) -> "Batch":
        """Returns the batch with other personal parameters of the client."""
        constants = with_personal_of(self.constants, personal)
        return dataclasses.replace(self, constants=constants)

    def with_statistics(self, statistics: Tree) -> "Batch":
        """Returns the batch with other running statistics; unchanged for None."""
        if statistics is None:
            return self
        constants = Constants.of(self.constants)
        constants = dataclasses.replace(constants, statistics=statistics)
        return dataclasses.replace(self, constants=constants)


@struct.pytree_dataclass
class Constants:
    """Arrays that a model reads in addition to the parameters that a method trains.

    Attributes:
      given: constants of the federation, or None.
      frozen: untrained parameters by name; the same for all clients.
      personal: parameters that stay with the client, leading axis N, or of ONE client;
        None before the first round.
      fixed: further properties of the client, leading axis N, or of ONE client, such as
        the rank of its adapters; or None.
      statistics: running statistics that stay with the client, like `personal`; in a
        batch also shared ones that training has updated.
      shared_statistics: running statistics of all clients, without a client axis.
      weight: `[B]` weights of the present batch, for a `StatisticsModel`: rows of
        weight 0 are padding.
    """

    given: Tree = None
    frozen: Tree = None
    personal: Tree = None
    fixed: Tree = None
    statistics: Tree = None
    shared_statistics: Tree = None
    weight: jax.Array | None = None

    @property
    def running(self) -> Tree:
        """Running statistics of ONE client's model, or None."""
        local = self.statistics
        return self.shared_statistics if local is None else local

    @classmethod
    def of(cls, constants: Tree) -> "Constants":
        """Returns constants in this form; a federation's constants become `given`."""
        return constants if isinstance(constants, cls) else cls(given=constants)


def with_personal_of(constants: Tree, personal: Tree) -> Tree:
    """Returns constants with other personal parameters; unchanged without any."""
    if personal is None and Constants.of(constants).personal is None:
        return constants
    return dataclasses.replace(Constants.of(constants), personal=personal)
