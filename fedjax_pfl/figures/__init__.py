"""Figures of a result; they read results only."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_pfl import results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "save_all"]

_SAVED = {"dpi": 200, "pil_kwargs": {"compress_level": 1}}  # sooner than smaller


def draw(name: str, result: results.Result) -> "Figure | None":
    """Draws one figure.

    Args:
      name: of its file, for example `learning_curves`.
      result: what to draw.

    Returns:
      The figure; None where the result has nothing to show in it.
    """
    select, drawing = _figures()[name]
    shown = select(result)
    return None if shown is None else drawing(shown)


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
    for name in _figures():
        figure = draw(name, result)
        if figure is not None:
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], **_SAVED)
    return files


def _figures() -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], "Figure"]]]:
    """Returns how to select and draw contents, by figure; imports matplotlib."""
    from fedjax_pfl.figures import (
        attacks,
        clients,
        collaboration,
        curves,
        heat_maps,
        lines,
        series,
    )

    return {
        "learning_curves": (lines.learning_curves, curves.draw),
        "training_loss": (lines.training_loss, curves.draw),
        "sweep": (lines.swept, curves.draw),
        "grid": (heat_maps.over_two_fields, heat_maps.draw),
        "attacks": (attacks.with_attackers, curves.draw),
        "attacks_table": (attacks.under_attacks, heat_maps.draw),
        "clients": (clients.values_of_clients, clients.draw_boxes),
        "fairness": (clients.accuracy_and_spread, clients.draw_spots),
        "partition": (clients.holdings, clients.draw_holdings),
        "collaboration": (collaboration.between_clients, heat_maps.draw),
        "own_cluster": (collaboration.shares, curves.draw),
        "values": (series.over_days, curves.draw),
    }
