"""What malicious clients send, and what the attack remembers."""

import dataclasses
from typing import Any

from fedjax_pfl import core
from fedjax_pfl.round.part import First, Part

__all__ = ["Attack"]


@dataclasses.dataclass(frozen=True)
class Attack(Part):
    """Keeps what an attack remembers in memory `attack`; `Exchange` lets it act.

    Attributes:
      attack: what malicious clients do.
    """

    attack: core.Attack
    name = "attack"
    divided = ("attack",)

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the attack's memory before the first round."""
        return {"attack": self.attack.init(rows.get("messages"))}

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns `bool[K]` who is malicious."""
        return exchange.take(exchange.federation.malicious), None
