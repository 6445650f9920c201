"""State of the attack."""

import dataclasses
from typing import Any

from fedjax_pfl import core
from fedjax_pfl.round.part import First, Part

__all__ = ["Attack"]


@dataclasses.dataclass(frozen=True)
class Attack(Part):
    """Keeps the state of an attack in memory `attack`; `Exchange` applies it.

    Attributes:
      attack: the attack.
    """

    attack: core.Attack
    name = "attack"
    divided = ("attack",)

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the initial state of the attack."""
        return {"attack": self.attack.init(rows.get("messages"))}

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns `bool[K]` malicious members."""
        return exchange.take(exchange.federation.malicious), None
