"""Pictures of kept runs, for the pages of cards in the documentation."""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.cards import kept
from fedjax_pfl import figures

__all__ = ["draw"]


def draw(path: Path, folder: Path) -> list[Path]:
    """Draws a kept run, its curves and its sweep; returns the written files."""
    run = kept.read(path)
    # The first picture that fits the run: attacks, their table, or a sweep of a number.
    swept = (
        figures.draw("attacks", run)
        or figures.draw("attacks_table", run)
        or _sweep(run)
    )
    drawings = {"swept": swept}
    if run.rounds is not None:
        drawings["curves"] = figures.draw("learning_curves", run)
        drawings["loss"] = figures.draw("training_loss", run)
    files = []
    for name, figure in drawings.items():
        if figure is not None:
            files.append(folder / f"{path.stem}-{name}.png")
            figure.savefig(files[-1], dpi=150)
    return files


def _sweep(run: kept.Kept) -> Figure | None:
    """Draws the metric against a number with three or more values for a method."""
    numbers = run.rows.select_dtypes("number").columns.intersection(run.fields)
    counts = run.rows.groupby("algorithm")[list(numbers)].nunique()
    return figures.draw("sweep", run) if (counts > 2).any(axis=None) else None
