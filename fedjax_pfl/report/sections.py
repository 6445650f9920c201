"""Figures of a report, and what each shows in words."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from matplotlib.figure import Figure

from fedjax_pfl import results
from fedjax_pfl.figures import (
    attacks,
    clients,
    collaboration,
    contents,
    curves,
    heat_maps,
    lines,
    series,
)
from fedjax_pfl.results import selection

__all__ = ["WIDER", "Section", "all_of"]

WIDER = {"others": "own + others' test", "everybody": "everybody's test"}
"""Kinds of test data beside clients' own, by the start of a name."""
_BEST = (
    " Of an algorithm's own settings the one that is best on validation data in the"
    " last round is shown, the first where nothing was validated."
)
_BY_PANEL = " Where panels differ in it, the table of methods names it."
_BEST_EACH = (
    " An algorithm's own settings are those that are best on validation data, fraction"
    " by fraction."
)


@dataclasses.dataclass(frozen=True)
class Section:
    """One figure.

    Attributes:
      name: of its files and its place in the page.
      title: heading.
      caption: what it shows: model, population, data, round and seeds.
      content: what is drawn.
      draw: draws it.
    """

    name: str
    title: str
    caption: str
    content: Any
    draw: Callable[[Any], Figure]

    @functools.cached_property
    def figure(self) -> Figure:
        """Figure of the page and of the files."""
        return self.draw(self.content)


def all_of(result: results.Result) -> list[Section]:
    """Returns everything that a result has to show, in the order of a page."""
    return [
        *_learning_curves(result),
        *_series(result),
        *_clients(result),
        *_robustness(result),
        *_grids(result),
        *_mixing(result),
        _partition(result),
    ]


def _learning_curves(result: results.Result) -> Iterator[Section]:
    """Yields curves on every kind of test data, and losses on training data."""
    best = _BEST if selection.tuned(result) else ""
    drawn = {"learning_curves": lines.learning_curves(result)}
    for name, data in WIDER.items():
        drawn[f"learning_curves_{name}"] = lines.learning_curves(result, data)
    for name, shown in drawn.items():
        if shown is not None:
            title = f"Learning curves on {shown.data} data"
            yield _of_lines(result, name, title, shown, best)
    loss = lines.training_loss(result)
    if loss is not None:
        yield _of_lines(result, "training_loss", "Training loss", loss, "")


def _of_lines(
    result: results.Result, name: str, title: str, shown: contents.Lines, more: str
) -> Section:
    """Describes lines against rounds."""
    if more and len(shown.panels) > 1:
        more += _BY_PANEL
    caption = (
        f"Each line is a model's {shown.ylabel}, {shown.populations} clients,"
        f" {shown.data} data, in every evaluated round;"
        f" {shown.spread or 'one seed'}."
        f"{more}{_limited(shown)}{_ended(result)}"
    )
    return Section(name, title, caption, shown, curves.draw)


def _series(result: results.Result) -> Iterator[Section]:
    """Yields values of portfolios."""
    shown = series.over_days(result)
    if shown is not None:
        caption = (
            f"Named models, honest clients, own test data, last round:"
            f" {shown.ylabel}; {shown.spread}, of the first method.{_limited(shown)}"
        )
        yield Section("values", "Values of portfolios", caption, shown, curves.draw)


def _clients(result: results.Result) -> Iterator[Section]:
    """Yields distributions over clients, and fairness."""
    boxes = clients.values_of_clients(result)
    if boxes is not None:
        caption = (
            f"{_sentence(boxes.xlabel)}. Settings are those of the learning curves."
            " A point is a client with one seed. The box spans the quartiles, with the"
            f" median as a line and the mean as a triangle.{_limited(boxes)}"
        )
        yield Section(
            "clients", "Clients one by one", caption, boxes, clients.draw_boxes
        )
    spots = clients.accuracy_and_spread(result)
    if spots is not None and len(spots.spots) > 1:
        has_bars = any(spot.x_std or spot.y_std for spot in spots.spots)
        bars = "bars are standard deviations over seeds" if has_bars else "one seed"
        caption = (
            f"Models, {spots.population} clients, {spots.data} data, last round;"
            f" every setting is a point, {bars}. Up and to the left is better."
            f"{_limited(spots)}"
        )
        yield Section("fairness", "Fairness", caption, spots, clients.draw_spots)


def _robustness(result: results.Result) -> Iterator[Section]:
    """Yields the metric under attacks."""
    shown = attacks.with_attackers(result)
    if shown is not None:
        caption = (
            f"Models, honest clients, {shown.data} data, last round, against the"
            f" share of clients that are malicious; {shown.spread or 'one seed'}."
            f"{_BEST_EACH if shown.is_best else ''}{_limited(shown)}"
        )
        yield Section(
            "robustness", "Robustness to attacks", caption, shown, curves.draw
        )
    table = attacks.under_attacks(result)
    if table is not None:
        caption = f"{_sentence(table.value)}, mean over seeds; a row per model."
        yield Section("attacks", "Attacks", caption, table, heat_maps.draw)


def _grids(result: results.Result) -> Iterator[Section]:
    """Yields the metric over swept fields."""
    heats = heat_maps.over_two_fields(result)
    if heats is not None:
        more = ""
        if heats.total > len(heats.panels):
            more = f" The first {len(heats.panels)} of {heats.total} tables."
        caption = (
            f"{_sentence(heats.value)}, over {heats.xlabel} and {heats.ylabel}; mean"
            f" over seeds, empty where all diverged."
            f"{more}"
        )
        yield Section("grid", "Grid of two fields", caption, heats, heat_maps.draw)
    shown = lines.swept(result)
    is_robustness = shown is not None and shown.xlabel == attacks.FRACTION
    if shown is not None and not is_robustness:
        caption = (
            f"{_sentence(shown.ylabel)}, of {shown.populations} clients on"
            f" {shown.data} data, against {shown.xlabel};"
            f" {shown.spread or 'one seed'}. Dashed levels do not have this field."
            f"{_BEST if shown.is_best else ''}{_limited(shown)}"
        )
        yield Section("sweep", "A swept field", caption, shown, curves.draw)


def _mixing(result: results.Result) -> Iterator[Section]:
    """Draws who learns from whom."""
    heats = collaboration.between_clients(result)
    if heats is not None:
        caption = (
            "Weight with which a client (row) would get another's message (column)"
            " after the last round, but for its own; first grid point of each method."
        )
        yield Section(
            "collaboration", "Who learns from whom", caption, heats, heat_maps.draw
        )
    shown = collaboration.shares(result)
    if shown is not None:
        caption = f"{_sentence(shown.ylabel)}: {shown.spread}.{_limited(shown)}"
        yield Section(
            "own_cluster", "Learning from one's own", caption, shown, curves.draw
        )


def _partition(result: results.Result) -> Section:
    """Draws who holds which training data, in every environment."""
    found = clients.holdings(result)
    shown = found[: clients.MAX_HOLDINGS]
    caption = "Training examples, in every environment those of its first training."
    if len(found) == 1:
        caption = f"{_sentence(shown[0][0].title)}: training examples."
    if sum(len(g.points) for g in result.groups) > len(found):
        caption += " Every seed has clients of its own."
    if len(found) > len(shown):
        caption += f" Shown are the first {len(shown)} of {len(found)} environments."
    for holdings, leak in shown:
        if leak > 0:
            where = f" of {holdings.title}" if len(found) > 1 else ""
            caption += (
                f" {leak:.1%} of the test examples{where} are examples that another"
                " client trains on."
            )
    return Section(
        "partition",
        "Who holds which data",
        caption,
        found,
        clients.draw_holdings,
    )


def _limited(shown: contents.Lines | contents.Boxes | contents.Spots) -> str:
    """Returns a sentence where more lines or panels would be shown."""
    return f" Shown are {shown.left_out}." if shown.left_out else ""


def _ended(result: results.Result) -> str:
    """Returns a sentence where some trainings are not in every mean."""
    if all(status == "ok" for status in result.status):
        return ""
    return " Seeds that diverged or ended early leave the mean from then on."


def _sentence(text: Any) -> str:
    """Returns text with a capital."""
    return f"{str(text)[:1].upper()}{str(text)[1:]}"
