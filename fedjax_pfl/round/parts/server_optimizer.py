"""State of the server optimizer."""

import dataclasses
from typing import TYPE_CHECKING, Any

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.round.part import First, Part

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["ServerOptimizer"]


@dataclasses.dataclass(frozen=True)
class ServerOptimizer(Part):
    """Keeps its state in memory `optimizer`; see `Exchange.step`."""

    method: Any
    optimizer: core.ServerOptimizer
    name = "optimizer"

    def check(self, process: "FederatedProcess", num_clients: int) -> None:
        """Raises an `InputError` if the server state is not a model."""
        self._check()

    def _check(self) -> None:
        """Checks the server state, also for plans, which are made before `check`."""
        if not self.method.server_is_model:
            raise checks.InputError(
                f"Expected no server_optimizer with {type(self.method).__name__}, whose"
                " server state is not one model into which the clients' are averaged,"
                f" got {type(self.optimizer).__name__}."
            )

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the optimizer's first state."""
        self._check()
        return {"optimizer": self.optimizer.init(at.server)}
