"""A communication round (`run`), its parts, and the process."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange
    from fedjax_pfl.round.part import First, Part, Turn
    from fedjax_pfl.round.process import FederatedProcess
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["Exchange", "FederatedProcess", "First", "Part", "Turn"]
