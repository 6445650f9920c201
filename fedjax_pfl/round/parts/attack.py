"""State of the attack."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from fedjax_pfl import core
from fedjax_pfl.round.part import First, Part

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["Attack"]


@dataclasses.dataclass(frozen=True)
class Attack(Part):
    """Keeps the state of an attack in memory `attack`; `Exchange` applies it."""

    attack: core.Attack
    name = "attack"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns the initial state of the attack."""
        message = jax.tree.map(lambda leaf: leaf[0], rows.get("messages"))
        return {"attack": self.attack.init(message)}

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns `bool[K]` malicious members."""
        return exchange.take(exchange.federation.malicious), None
