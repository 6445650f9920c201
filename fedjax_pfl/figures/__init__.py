"""Figures of a result; they read results only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_pfl import results

__all__ = ["save_all"]

_SAVED = {"dpi": 200, "pil_kwargs": {"compress_level": 1}}  # sooner than smaller


def save_all(result: results.Result, directory: Path) -> list[Path]:
    """Draws everything that the result has, into `directory/figures`.

    Args:
      result: what to draw.
      directory: a result directory.

    Returns:
      The written files.
    """
    folder = directory / "figures"
    folder.mkdir()
    files = []
    for name, draw in _drawings().items():
        figure = draw(result)
        if figure is not None:
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], **_SAVED)
    return files


def _drawings() -> dict[str, Callable[[results.Result], Any]]:
    """Returns the drawing functions by the names of files; imports matplotlib."""
    from fedjax_pfl.figures import (
        attacks,
        clients,
        collaboration,
        curves,
        heat_maps,
        series,
    )

    return {
        "learning_curves": curves.learning_curves,
        "training_loss": curves.training_loss,
        "sweep": curves.sweep,
        "grid": heat_maps.grid,
        "attacks": attacks.by_fraction,
        "attacks_table": attacks.table,
        "clients": clients.distribution,
        "fairness": clients.fairness,
        "partition": clients.partition,
        "collaboration": collaboration.weights,
        "own_cluster": collaboration.own_cluster,
        "values": series.values,
    }
