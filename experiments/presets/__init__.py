"""Presets of the papers; importing this adds them to those of the command line."""

from experiments.presets import (
    atlas,
    fedacs,
    fedpg,
    fedplus,
    finetune,
    flame,
    flame_attacks,
    portfolio,
)
from fedjax_pfl.command import presets

__all__ = ["PAPERS"]

_MODULES = (atlas, fedacs, fedpg, fedplus, finetune, flame, flame_attacks, portfolio)

PAPERS = {name: make for module in _MODULES for name, make in module.PRESETS.items()}

presets.add(PAPERS)
