"""Pictures of kept runs, which the documentation draws into the pages of cards."""

import dataclasses
import types
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.cards import kept
from fedjax_pfl import figures

__all__ = ["draw"]


@dataclasses.dataclass(frozen=True)
class _Means:
    """Kept run with those members of a `Result` that figures of means read."""

    file: kept.Kept
    groups = (types.SimpleNamespace(config={}),)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what varies."""
        return self.file.fields

    def table(self) -> pd.DataFrame:
        """Returns the rows of the last round."""
        return self.file.table.copy()

    def curves(self) -> pd.DataFrame:
        """Returns the curves or, where they were not kept, their last round."""
        if self.file.curves is not None:
            return self.file.curves.copy()
        rows = self.file.table[self.file.table["stat"] == "mean"]
        return rows.drop(columns=["stat", "when", "status"]).assign(round=0)


def draw(path: Path, folder: Path) -> list[Path]:
    """Draws a kept run: its curves if it has them, and what was swept.

    Args:
      path: file of the run.
      folder: directory of the pictures.

    Returns:
      The written files.
    """
    means = _Means(kept.read(path))
    swept = (
        figures.draw("attacks", means)
        or figures.draw("attacks_table", means)
        or _sweep(means)
    )
    drawings = {"swept": swept}
    if means.file.curves is not None:
        drawings["curves"] = figures.draw("learning_curves", means)
        drawings["loss"] = figures.draw("training_loss", means)
    files = []
    for name, figure in drawings.items():
        if figure is not None:
            files.append(folder / f"{path.stem}-{name}.png")
            figure.savefig(files[-1], dpi=150)
    return files


def _sweep(means: _Means) -> Figure | None:
    """Draws the metric against a number of which a method has at least three values."""
    numbers = means.table().select_dtypes("number").columns.intersection(means.fields)
    counts = means.table().groupby("algorithm")[list(numbers)].nunique()
    return figures.draw("sweep", means) if (counts > 2).any(axis=None) else None
