"""Presets of the papers; importing this adds them to those of the command line."""

from experiments.presets import (
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
    **fedacs.PRESETS,
    **fedpg.PRESETS,
    **fedplus.PRESETS,
    **flame.PRESETS,
    **flame_attacks.PRESETS,
    **portfolio.PRESETS,
}

presets.add(PAPERS)
