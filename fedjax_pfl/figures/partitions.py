"""A figure of the clients' data: bubbles if there is room, else a heat map."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import MaxNLocator

from fedjax_pfl import results
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import history, selection

__all__ = ["MAX_DRAWN", "Holdings", "draw", "holdings"]

MAX_DRAWN = 6
"""Federations of a figure."""
_HELD = ("federation.dataset", "federation.partition")
_COLOR = "#0072B2"
_MAX_BARS = 60
"""Distinguishable clients."""
_MAX_LETTERS = 60  # of names that fit next to each other
_MAX_TICKS = 26  # classes with room for all names and for bubbles
_WIDTH, _SIZES, _HISTOGRAM = 6.0, 1.1, 1.6  # inches
_WIDE = 30  # ratio of the largest to the smallest size that needs a logarithmic axis


@dataclasses.dataclass(frozen=True, eq=False)
class Holdings:
    """The examples of every client of one federation."""

    title: str
    label_counts: np.ndarray | None  # `int[N, C]`
    sizes: np.ndarray  # `int[N]` examples
    class_names: Sequence[str] | None = None  # C names, or None for numbers
    client_names: Sequence[str] | None = None  # N; up to 26 are written
    leak: float = 0.0  # share of test examples that another client trains on

    @property
    def names(self) -> Sequence[str]:
        """Names of clients, or else their numbers as texts."""
        return self.client_names or [str(k) for k in range(len(self.sizes))]


def holdings(result: results.Result) -> list[Holdings]:
    """Returns the clients' training data in the first training of every environment."""
    points = [(g, point) for g in result.groups for point in range(len(g.points))]
    rows = result.points()
    names = [
        name
        for name in selection.environments(result)
        if name in selection.DESCRIPTION or name.startswith("federation.")
    ]
    # Environments with the same data, for example under different attacks, count once.
    different: dict[tuple[object, ...], int] = {}
    for part in selection.groups(rows, names):
        number = int(part.index[0])
        group, point = points[number]
        counts = group.num_train if group.label_counts is None else group.label_counts
        held = (*map(str, map(group.config.get, _HELD)), counts[point].tobytes())
        different.setdefault(held, number)
    firsts = list(different.values())
    environments = []
    for title, part in selection.by_environment(rows.loc[firsts], names):
        group, point = points[int(part.index[0])]
        counts = None if group.label_counts is None else group.label_counts[point]
        names = group.client_names
        holding = Holdings(
            title=title if len(firsts) > 1 else _only_title(group),
            label_counts=counts,
            sizes=group.num_train[point],
            class_names=group.class_names,
            client_names=None if names is None else tuple(names[point]),
            leak=float(group.leak[point]),
        )
        environments.append(holding)
    return environments


def _only_title(group: history.History) -> str:
    """Returns the data, partition and seed of a group's first federation."""
    config = group.config | group.points[0]
    names = [*map(config.get, _HELD)]
    if "seed" in config:
        names.append(f"seed {config['seed']}")
    return ", ".join(str(name) for name in names if name is not None)


def draw(several: Sequence[Holdings]) -> Figure:
    """Draws the clients' examples in the first federations, in up to two columns."""
    several = several[:MAX_DRAWN]
    columns = min(len(several), 2)
    rows = [several[i : i + columns] for i in range(0, len(several), columns)]
    heights = [max(sum(_heights(holding)) + 0.9 for holding in row) for row in rows]
    figure = Figure(layout="constrained", figsize=(columns * _WIDTH, sum(heights)))
    parts = figure.subfigures(len(rows), columns, height_ratios=heights, squeeze=False)
    for part, holding in zip(parts.flat, several, strict=False):
        _draw_in(part, holding)
    return figure


def _heights(holdings: Holdings) -> list[float]:
    """Returns the inches of the panels of one federation, from above."""
    counts = holdings.label_counts
    # Few clients: bars with bubbles of classes below. Many: a heat map of the shares of
    # classes, clients in the given order, and a histogram of sizes.
    is_small = len(holdings.sizes) <= _MAX_BARS
    sizes = _SIZES if is_small else _HISTOGRAM
    if counts is None:
        return [sizes]
    classes = _height_of_classes(counts.shape[1])
    return [sizes, classes] if is_small else [classes, sizes]


def _draw_in(figure: FigureBase, holdings: Holdings) -> None:
    """Draws one federation."""
    sizes, counts = np.asarray(holdings.sizes), holdings.label_counts
    counts = None if counts is None else np.asarray(counts)
    is_small, heights = len(sizes) <= _MAX_BARS, _heights(holdings)
    panels = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    for axes in panels:
        axes.tick_params(labelsize=8)
    if is_small:
        _bars(panels[0], sizes, holdings.names)
    else:
        _histogram(panels[-1], sizes)
    if counts is not None:
        axes = panels[-1 if is_small else 0]
        has_room = is_small and counts.shape[1] <= _MAX_TICKS
        if has_room:
            _bubbles(axes, counts, holdings.names)
        else:
            _heat_map(figure, axes, counts)
        _name_classes(axes, counts.shape[1], holdings.class_names)
    if is_small:
        # Clients have the same columns in both panels, and names below the lower one.
        for axes in panels:
            axes.set_xlim(-0.6, len(sizes) - 0.4)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.tick_params(labelbottom=axes is panels[-1])
        panels[-1].set_xlabel("client", fontsize=9)
        if holdings.client_names is not None and len(sizes) <= _MAX_TICKS:
            texts = [drawing.text(name) for name in holdings.client_names]
            is_long = sum(map(len, holdings.client_names)) > _MAX_LETTERS
            rotation = 90 if is_long else 0
            panels[-1].set_xticks(range(len(texts)), texts, rotation=rotation)
    figure.suptitle(drawing.text(holdings.title), fontsize=9)


def _height_of_classes(num_classes: int) -> float:
    """Returns the inches of the panel of classes."""
    return float(np.clip(0.2 * num_classes, 0.8, 3.0 if num_classes <= 26 else 4.0))


def _bars(axes: Axes, sizes: np.ndarray, names: Sequence[str]) -> None:
    """Draws one bar per client."""
    bars = axes.bar(np.arange(len(sizes)), sizes, color=_COLOR, width=0.7)
    for client, bar in enumerate(bars):
        drawing.Series(f"client {names[client]}", "").name(
            bar, texts=[f"{sizes[client]:,} examples"]
        )
    axes.set_ylabel("examples", fontsize=9)
    axes.grid(axis="y", alpha=0.3)


def _histogram(axes: Axes, sizes: np.ndarray) -> None:
    """Draws the histogram of examples per client."""
    edges, is_log = _bins(sizes)
    if is_log:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.hist(sizes, bins=edges.tolist(), color=_COLOR)
    axes.set_xlabel("examples of a client", fontsize=9)
    axes.set_ylabel("clients", fontsize=9)
    axes.grid(axis="y", alpha=0.3)


def _bins(sizes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the edges of the bars of a histogram of sizes, and whether they grow."""
    low, high = int(sizes.min()), int(sizes.max()) + 1
    if high > _WIDE * max(1, low) and low > 0:
        return np.geomspace(low, high, 31), True
    width = -(-(high - low) // 30)  # bars around equally many whole numbers
    return np.arange(low, high + width, width) - 0.5, False


def _bubbles(axes: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    """Draws areas by the number of examples; the largest fills its cell of the grid."""
    num_clients, num_classes = counts.shape
    client, label = np.nonzero(counts)
    cell = 72 * min(  # points
        (_WIDTH - 0.8) / num_clients, _height_of_classes(num_classes) / num_classes
    )
    largest = (1.3 * min(cell, 18.0)) ** 2
    held = counts[client, label]
    bubbles = axes.scatter(
        client,
        label,
        s=largest * held / max(1, counts.max()),
        color=_COLOR,
        alpha=0.7,
        lw=0,
    )
    cells = zip(client.tolist(), label, held, strict=True)
    texts = [
        f"client {names[i]}, class {c}: {count:,} examples" for i, c, count in cells
    ]
    drawing.Series("", "").name(bubbles, texts=texts)
    axes.set_title(f"area: examples of a class, at most {counts.max():,}", fontsize=8)
    axes.set_ylabel("class", fontsize=9)
    axes.set_ylim(num_classes - 0.4, -0.6)
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)


def _heat_map(figure: FigureBase, axes: Axes, counts: np.ndarray) -> None:
    """Draws the shares of the classes among the examples of each client."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares.T, aspect="auto", cmap="Blues", vmin=0)
    axes.set_xlabel("client", fontsize=9)
    axes.set_ylabel("class", fontsize=9)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.ax.tick_params(labelsize=8)
    bar.set_label("share of its examples", fontsize=8)


def _name_classes(
    axes: Axes, num_classes: int, class_names: Sequence[str] | None
) -> None:
    """Names, or numbers, as many classes as fit."""
    names = class_names or [str(label) for label in range(num_classes)]
    step = -(-num_classes // _MAX_TICKS)
    ticks = range(0, num_classes, step)
    cut = [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
    axes.set_yticks(ticks, [drawing.text(cut[label]) for label in ticks], fontsize=7)
