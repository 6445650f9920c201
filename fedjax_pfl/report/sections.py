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
    for name, (title, figure, caption) in _SECTIONS.items():
        select, draw = catalog[figure]
        # Other data of the same figure, which only a report shows.
        if name.startswith("learning_curves_"):
            data = WIDER[name.removeprefix("learning_curves_")]
            chart = lines.learning_curves(result, data)
        else:
            chart = select(result)
        if chart is None:
            continue
        text = (
            caption.format(chart=chart)
            if isinstance(caption, str)
            else caption(result, chart)
        )
        if text is not None:
            text = f"{text[:1].upper()}{text[1:]}"
            sections.append(Section(name, title, text, chart, draw))
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
        f" {chart.data} data, {chart.seeds}.{note}{chart.limits}{ending}"
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
        f" data, last round, {bars}. Up and to the left is better.{note}{chart.limits}"
    )


def _of_attackers(_: results.Result, chart: contents.Lines) -> str:
    """Describes the metric against the fraction of malicious clients."""
    return (
        f"Models against the fraction of malicious clients: honest clients,"
        f" {chart.data} data, last round, {chart.seeds}."
        f"{_BEST_EACH if chart.is_best else ''}{chart.limits}"
    )


def _of_sweep(_: results.Result, chart: contents.Lines) -> str | None:
    """Describes the metric against one field, unless robustness shows the same."""
    # The figure of robustness shows the same, with a panel per attack.
    if chart.xlabel == attacks.FRACTION:
        return None
    return (
        f"{chart.ylabel}, of {chart.populations} clients on {chart.data} data, against"
        f" {chart.xlabel}; {chart.seeds}. Dashed lines are methods without this"
        f" field.{_BEST if chart.is_best else ''}{chart.limits}"
    )


def _of_partition(
    result: results.Result, environments: list[partitions.Holdings]
) -> str:
    """Describes the clients' training data in every environment."""
    chosen = environments[: partitions.MAX_DRAWN]
    caption = "Training examples of the first training in each environment."
    if len(environments) == 1:
        caption = f"{chosen[0].title}: training examples."
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


_CURVES = "Learning curves on {} data"
_COSTS = (
    "The learning curves against {chart.xlabel} in place of rounds. Both axes are means"
    " over seeds.{chart.limits}"
)
# name -> title, figure, caption, in the order of a page. A caption is a template, or a
# function that may return None, for no section.
_SECTIONS: dict[str, tuple[str, str, str | Callable[..., str | None]]] = {
    "differences": (
        "Differences to the reference",
        "differences",
        "The ranking: {chart.xlabel}, on {chart.data} data in the last round. A"
        " difference is clear if its interval excludes zero. The numbers on the right"
        " are means.{chart.limits}",
    ),
    "learning_curves": (_CURVES.format("own test"), "learning_curves", _of_lines),
    **{
        f"learning_curves_{name}": (_CURVES.format(data), "learning_curves", _of_lines)
        for name, data in WIDER.items()
    },
    "virtual_time": ("Virtual time", "virtual_time", _COSTS),
    "megabytes": ("What is sent", "megabytes", _COSTS),
    "training_loss": ("Training loss", "training_loss", _of_lines),
    "values": (
        "Values of portfolios",
        "values",
        "Named models, honest clients, own test data, last round: {chart.ylabel};"
        " {chart.spread}, of the first method.{chart.limits}",
    ),
    "clients": (
        "Clients one by one",
        "clients",
        "{chart.xlabel}. Settings are the same as in the learning curves. Each point is"
        " one client with one seed. The box spans the quartiles, with the median as a"
        " line and the mean as a triangle.{chart.limits}",
    ),
    "fairness": ("Fairness", "fairness", _of_fairness),
    "robustness": ("Robustness to attacks", "attacks", _of_attackers),
    "attacks": (
        "Attacks",
        "attacks_table",
        "{chart.value}, mean over seeds; a row per model.",
    ),
    "learned": (
        "Learned fields",
        "learned",
        "The first panel is the learning objective, {chart.objective}, over honest"
        " clients; the others are the values of the fields. Each line is one start, a"
        " mean over seeds. If trainings restart, each point is the end of one training"
        " and the count of rounds continues.",
    ),
    "grid": (
        "Grid of two fields",
        "grid",
        "{chart.value}, over {chart.xlabel} and {chart.ylabel}; mean over seeds, empty"
        " if all diverged.{chart.limits}",
    ),
    "sweep": ("A swept field", "sweep", _of_sweep),
    "collaboration": (
        "Who learns from whom",
        "collaboration",
        "Weight of another client's message (column) for a client (row) after the last"
        " round, without its own; first grid point of each method.",
    ),
    "own_cluster": (
        "Learning within the cluster",
        "own_cluster",
        "{chart.ylabel}: {chart.spread}.{chart.limits}",
    ),
    "partition": ("Who holds which data", "partition", _of_partition),
}
