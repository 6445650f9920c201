"""Figures of a result; they read results only."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.results import plain_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["catalog", "draw", "plot", "save_all"]

_SAVED = {"dpi": 200, "pil_kwargs": {"compress_level": 1}}  # sooner than smaller
_FIGURES = {"curves": ("learning_curves",), "grid": ("grid", "sweep")}
"""Figures by kind, if these have other names; the first with content is drawn."""
_KINDS = {  # of `plot` -> the reason if there is nothing to draw
    "curves": "nothing was evaluated on clients' own test data",
    "differences": "it has one method and model",
    "virtual_time": "no training is in virtual time; participation=fp.Buffered() is",
    "megabytes": "all trainings send the same in a round",
    "clients": "no training has a finite value in the last round",
    "fairness": "there is no finite accuracy with a loss",
    "grid": "no numeric field was swept; fp.grid sweeps some",
}


def plot(result: results.Result, kind: str = "curves") -> "list[Axes]":
    """Draws a result, for a notebook or a program.

    Args:
      result: a result of `simulate` or `grid`, or several merged ones.
      kind: `curves`, the metric against rounds; `differences`, the ranking as
        differences to its reference with intervals; `virtual_time` and `megabytes`, the
        curves against the time of clients' devices and the traffic; `clients`, the
        metric's distribution over clients in the last round; `fairness`, mean accuracy
        against the variance of clients' losses; `grid`, the metric over the two numeric
        fields with most values, or against the only one.

    Returns:
      One axes per panel. The figure, `axes[0].figure`, is registered with pyplot: a
      notebook shows it below its cell, a program with `matplotlib.pyplot.show()`.

    Raises:
      InputError: if the kind is unknown, if the result has no content for it, or if
        matplotlib is not installed.

    Example:
      >>> import jax
      >>> import fedjax_pfl as fp
      >>> process = fp.FederatedProcess(algorithm=fp.FedAvg())
      >>> federation = fp.load_federation("digits", num_clients=4)
      >>> model = fp.LogisticRegression()
      >>> result = fp.simulate(
      ...     jax.random.key(0), process, model, federation, num_rounds=2
      ... )
      >>> (axes,) = fp.plot(result)
      >>> axes.get_xlabel(), axes.get_ylabel()
      ('round', 'mean accuracy over clients')
    """
    checks.known(kind, list(_KINDS), "kind of plot")
    if not isinstance(result, results.Result):
        raise checks.InputError(
            f"Expected a Result to plot, got {type(result).__name__}."
        )
    result = result.contenders()
    drawn = (draw(name, result) for name in _FIGURES.get(kind, (kind,)))
    figure = next((figure for figure in drawn if figure is not None), None)
    if figure is None:
        raise checks.InputError(f"Cannot plot kind={kind!r}: {_KINDS[kind]}.")
    from matplotlib import pyplot

    pyplot.figure(FigureClass=lambda *_, **__: figure)  # pyright: ignore  # pyplot shows it from now on
    panels = [axes for axes in figure.axes if axes.get_visible()]
    return [axes for axes in panels if axes.get_label() != "<colorbar>"]


def draw(name: str, result: results.Result) -> "Figure | None":
    """Draws one figure.

    Args:
      name: name of its file, for example `learning_curves`.
      result: the result to draw.
    """
    select, drawing = catalog()[name]
    content = select(result)
    return None if content is None else drawing(content)


def save_all(result: results.Result, directory: Path) -> list[Path]:
    """Draws all figures with content into `directory/figures`."""
    folder, result = directory / "figures", result.contenders()
    folder.mkdir()
    files = []
    for name in catalog():
        figure = draw(name, result)
        if figure is not None:
            files.append(folder / f"{name}.png")
            with plain_files.created(files[-1]) as file:
                figure.savefig(file, **_SAVED)
    return files


def catalog() -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], "Figure"]]]:
    """Returns the functions that select and draw every figure, by its name.

    Returns:
      Two functions: the first maps a result to the content, or None without any; the
      second maps the content to a figure.
    """
    try:
        # Late: the package is imported without matplotlib.
        from fedjax_pfl.figures import (
            attacks,
            clients,
            collaboration,
            curves,
            differences,
            heat_maps,
            learned,
            lines,
            partitions,
        )
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise checks.InputError(
            "Figures need matplotlib, which is not installed: pip install"
            ' "fedjax_pfl[experiments]".'
        ) from error

    return {
        "differences": (differences.to_reference, differences.draw),
        "learning_curves": (lines.learning_curves, curves.draw),
        "virtual_time": (lines.over_virtual_time, curves.draw),
        "megabytes": (lines.over_megabytes, curves.draw),
        "training_loss": (lines.training_loss, curves.draw),
        "sweep": (lines.swept, curves.draw),
        "grid": (heat_maps.over_two_fields, heat_maps.draw),
        "attacks": (attacks.with_attackers, curves.draw),
        "attacks_table": (attacks.under_attacks, heat_maps.draw),
        "clients": (clients.values_of_clients, clients.draw_boxes),
        "fairness": (clients.accuracy_and_spread, clients.draw_spots),
        "partition": (partitions.holdings, partitions.draw),
        "collaboration": (collaboration.between_clients, heat_maps.draw),
        "own_cluster": (collaboration.shares, curves.draw),
        "values": (lines.over_days, curves.draw),
        "learned": (learned.paths, learned.draw),
    }
