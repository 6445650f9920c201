"""Presets of the papers; importing this adds them to those of the command line."""

from experiments.presets import (
    atlas,
    fedacs,
    fedpg,
    fedplus,
    flame,
    flame_attacks,
    portfolio,
)
from fedjax_pfl.command import presets

__all__ = ["PAPERS"]

PAPERS = {
    name: make
    for module in (atlas, fedacs, fedpg, fedplus, flame, flame_attacks, portfolio)
    for name, make in module.PRESETS.items()
}

presets.add(PAPERS)
