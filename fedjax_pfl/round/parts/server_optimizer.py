"""The optimizer that takes the change of the server's model for a gradient."""

import dataclasses
from typing import Any

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.round.part import First, Part

__all__ = ["ServerOptimizer"]


@dataclasses.dataclass(frozen=True)
class ServerOptimizer(Part):
    """Keeps the optimizer's state in memory `optimizer`; `Exchange.step` takes steps.

    Attributes:
      optimizer: the optimizer.
    """

    optimizer: core.ServerOptimizer
    name = "optimizer"

    def check(self, process: Any, num_clients: int) -> None:
        """Refuses an optimizer where the server has no model to be optimized."""
        if not process.algorithm.server_is_model:
            raise checks.InputError(
                "Expected no server_optimizer with"
                f" {type(process.algorithm).__name__}, whose server state is not one"
                " model into which the clients' are averaged, got"
                f" {type(self.optimizer).__name__}."
            )

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the optimizer's first state."""
        return {"optimizer": self.optimizer.init(at.server)}
