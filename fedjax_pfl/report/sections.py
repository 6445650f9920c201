"""Figures of a report, with captions."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedjax_pfl import figures, results
from fedjax_pfl.figures import (
    attacks,
    contents,
    curves,
    learned,
    lines,
    partitions,
)
from fedjax_pfl.results import selection

__all__ = ["WIDER", "Section", "all_of"]

WIDER = {"others": "own + others' test", "everybody": "everybody's test"}
"""Kinds of test data other than clients' own, by prefix of a name."""
_BEST = (
    " Each method has its best setting on validation data in the last round, or all"
    " settings if fewer than half of the clients have validation data."
)
_BY_PANEL = " The table of methods names the setting of each panel."
_BEST_EACH = (
    " Each method has its best setting on validation data, chosen per fraction."
)


@dataclasses.dataclass(frozen=True)
class Section:
    """One figure."""

    name: str  # stem of its files, and its anchor in the page
    title: str
    caption: str  # model, population, data, round and seeds
    content: Any
    draw: Callable[[Any], Figure]

    @functools.cached_property
    def figure(self) -> Figure:
        """Figure of the files, and the first of the page."""
        return self.draw(self.content)

    def views(self) -> Iterator[tuple[str, Figure]]:
        """Yields the figures of the page by the name of their y-axis."""
        if not isinstance(self.content, contents.Lines):
            yield "", self.figure
            return
        default, *variants = curves.views(self.content).items()
        yield default[0], self.figure
        for name, content in variants:
            yield name, self.draw(content)


def all_of(result: results.Result) -> list[Section]:
    """Returns all figures with content, in the order of a page."""
    sections = []
    catalog = figures.catalog()
    for name, (title, figure, describe) in _SECTIONS.items():
        select, draw = catalog[figure]
        # Other data of the same figure, which only a report shows.
        if name.startswith("learning_curves_"):
            data = WIDER[name.removeprefix("learning_curves_")]
            chart = lines.learning_curves(result, data)
        else:
            chart = select(result)
        caption = None if chart is None else describe(result, chart)
        if caption is not None:
            sections.append(Section(name, title, caption, chart, draw))
    return sections


def _of_lines(result: results.Result, chart: contents.Lines) -> str:
    """Describes lines against rounds."""
    note = _BEST if chart.zooms and selection.tuned(result) else ""
    if note and len(chart.panels) > 1:
        note += _BY_PANEL
    ending = ""
    if any(status != "ok" for status in result.status):
        ending = " Seeds that diverged or ended early leave the mean at that round."
    return (
        f"Each line is a model's {chart.ylabel} by round: {chart.populations} clients,"
        f" {chart.data} data, {chart.spread or 'one seed'}.{note}"
        f"{_limited(chart)}{ending}"
    )


def _of_differences(_: results.Result, chart: contents.Chart) -> str:
    """Describes differences to the reference."""
    return (
        f"The ranking: {chart.xlabel}, on {chart.data} data in the last round. A"
        " difference is clear if its interval excludes zero. The numbers on the right"
        f" are means.{_limited(chart)}"
    )


def _of_costs(result: results.Result, chart: contents.Lines) -> str:
    """Describes learning curves against costs."""
    return (
        f"The learning curves against {chart.xlabel} in place of rounds. Both axes are"
        f" means over seeds.{_limited(chart)}"
    )


def _of_series(_: results.Result, chart: contents.Lines) -> str:
    """Describes values of portfolios."""
    return (
        f"Named models, honest clients, own test data, last round: {chart.ylabel};"
        f" {chart.spread}, of the first method.{_limited(chart)}"
    )


def _of_learned(_: results.Result, chart: learned.Paths) -> str:
    """Describes the paths of learned fields."""
    return (
        f"The first panel is the learning objective, {chart.objective}, over honest"
        " clients; the others are the values of the fields. Each line is one start, a"
        " mean over seeds. If trainings restart, each point is the end of one training"
        " and the count of rounds continues."
    )


def _of_clients(_: results.Result, chart: contents.Chart) -> str:
    """Describes distributions over clients."""
    return (
        f"{_sentence(chart.xlabel)}. Settings are the same as in the learning curves."
        " Each point is one client with one seed. The box spans the quartiles, with the"
        f" median as a line and the mean as a triangle.{_limited(chart)}"
    )


def _of_fairness(_: results.Result, chart: contents.Chart) -> str | None:
    """Describes points of settings; None for a single setting."""
    if len(chart.marks) < 2:
        return None
    spots = pd.concat([mark.points for mark in chart.marks])
    has_bars = spots[["x_std", "y_std"]].any(axis=None)
    bars = "bars are standard deviations over seeds" if has_bars else "one seed"
    note = ""
    if not spots["is_best"].all():
        note = (
            " Colors mark each method's best setting on validation data; other settings"
            " are gray."
        )
    return (
        f"Each point is a setting of a model: {chart.populations} clients, {chart.data}"
        f" data, last round, {bars}. Up and to the left is better."
        f"{note}{_limited(chart)}"
    )


def _of_attackers(_: results.Result, chart: contents.Lines) -> str:
    """Describes the metric against the fraction of malicious clients."""
    return (
        f"Models against the fraction of malicious clients: honest clients,"
        f" {chart.data} data, last round, {chart.spread or 'one seed'}."
        f"{_BEST_EACH if chart.is_best else ''}{_limited(chart)}"
    )


def _of_attacks(_: results.Result, chart: contents.Heats) -> str:
    """Describes the table of attacks."""
    return f"{_sentence(chart.value)}, mean over seeds; a row per model."


def _of_grid(_: results.Result, chart: contents.Heats) -> str:
    """Describes the metric over two swept fields."""
    note = ""
    if chart.total > len(chart.panels):
        note = f" The first {len(chart.panels)} of {chart.total} tables."
    return (
        f"{_sentence(chart.value)}, over {chart.xlabel} and {chart.ylabel}; mean over"
        f" seeds, empty if all diverged.{note}"
    )


def _of_sweep(_: results.Result, chart: contents.Lines) -> str | None:
    """Describes the metric against one field, unless robustness shows the same."""
    # The figure of robustness shows the same, with a panel per attack.
    if chart.xlabel == attacks.FRACTION:
        return None
    return (
        f"{_sentence(chart.ylabel)}, of {chart.populations} clients on {chart.data}"
        f" data, against {chart.xlabel}; {chart.spread or 'one seed'}. Dashed lines"
        f" are methods without this field.{_BEST if chart.is_best else ''}"
        f"{_limited(chart)}"
    )


def _of_mixing(_: results.Result, __: contents.Heats) -> str:
    """Describes the collaboration weights."""
    return (
        "Weight of another client's message (column) for a client (row) after the last"
        " round, without its own; first grid point of each method."
    )


def _of_shares(_: results.Result, chart: contents.Lines) -> str:
    """Describes the share of weight in the own cluster."""
    return f"{_sentence(chart.ylabel)}: {chart.spread}.{_limited(chart)}"


def _of_partition(
    result: results.Result, environments: list[partitions.Holdings]
) -> str:
    """Describes the clients' training data in every environment."""
    chosen = environments[: partitions.MAX_DRAWN]
    caption = "Training examples of the first training in each environment."
    if len(environments) == 1:
        caption = f"{_sentence(chosen[0].title)}: training examples."
    if len(result.status) > len(environments):
        caption += " Each seed has different clients."
    if len(environments) > len(chosen):
        caption += (
            f" The first {len(chosen)} of {len(environments)} environments are shown."
        )
    for holdings in chosen:
        if holdings.leak > 0:
            place = f" of {holdings.title}" if len(environments) > 1 else ""
            caption += (
                f" {holdings.leak:.1%} of the test examples{place} are examples that"
                " another client trains on."
            )
    return caption


def _limited(chart: contents.Chart) -> str:
    """Returns a sentence if lines or panels are left out."""
    return f" This figure shows {chart.left_out}." if chart.left_out else ""


def _sentence(text: str) -> str:
    """Returns text with a capital."""
    return f"{text[:1].upper()}{text[1:]}"


_CURVES = "Learning curves on {} data"
_SECTIONS: dict[str, tuple[str, str, Callable[..., str | None]]] = {
    # name -> title, figure, caption, in the order of a page
    "differences": ("Differences to the reference", "differences", _of_differences),
    "learning_curves": (_CURVES.format("own test"), "learning_curves", _of_lines),
    **{
        f"learning_curves_{name}": (_CURVES.format(data), "learning_curves", _of_lines)
        for name, data in WIDER.items()
    },
    "virtual_time": ("Virtual time", "virtual_time", _of_costs),
    "megabytes": ("What is sent", "megabytes", _of_costs),
    "training_loss": ("Training loss", "training_loss", _of_lines),
    "values": ("Values of portfolios", "values", _of_series),
    "clients": ("Clients one by one", "clients", _of_clients),
    "fairness": ("Fairness", "fairness", _of_fairness),
    "robustness": ("Robustness to attacks", "attacks", _of_attackers),
    "attacks": ("Attacks", "attacks_table", _of_attacks),
    "learned": ("Learned fields", "learned", _of_learned),
    "grid": ("Grid of two fields", "grid", _of_grid),
    "sweep": ("A swept field", "sweep", _of_sweep),
    "collaboration": ("Who learns from whom", "collaboration", _of_mixing),
    "own_cluster": ("Learning within the cluster", "own_cluster", _of_shares),
    "partition": ("Who holds which data", "partition", _of_partition),
}
