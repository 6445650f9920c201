"""Figures inside a page: SVG with the page's colors and series that can be hidden."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from fedjax_pfl.figures import drawing
from fedjax_pfl.results import plain_files

__all__ = ["inline", "page_color", "write", "write_all"]

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_COLORS = {  # color that is unreadable on a dark page -> a property of the page
    "#000000": "var(--ink)",
    "#0072b2": "var(--blue)",
    "#882255": "var(--wine)",
}
_COLOR = re.compile("|".join(_COLORS), re.IGNORECASE)


def write(figure: Figure, path: Path, name: str) -> None:
    """Writes a figure as a file next to a page, with reproducible bytes."""
    with (
        plain_files.created(path) as file,
        matplotlib.rc_context({"svg.hashsalt": name}),
    ):
        figure.savefig(file, metadata={"Date": None})


def write_all(figures: Mapping[str, Figure], folder: Path) -> None:
    """Writes figures as `<name>.svg` into a folder, which is made if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        write(figure, folder / f"{name}.svg", name)


def inline(figure: Figure, name: str, title: str) -> str:
    """Returns a figure as an element of a page."""
    file = io.BytesIO()
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": "none"}
    with matplotlib.rc_context(settings), drawing.with_ids(figure):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)  # rules would apply to the entire page
    # Series (`drawing.Series`) get `data-key` and `data-method`, entries of the legend
    # `data-name`, boxes their number as `data-box`; points have their texts as titles.
    for element in root.iter():
        _adapt(element, name)
    # The page sets the size; the viewBox keeps the shape.
    for size in ("width", "height"):
        del root.attrib[size]
    root.set("role", "group")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, name: str) -> None:
    """Sets names and colors of an element for the page."""
    gid = element.attrib.pop("id", "")
    kind, _, entry = gid.partition(":")
    if kind == "legend":
        label, method, *_ = json.loads(entry.partition(":")[2])
        element.attrib |= {"data-name": label, "data-method": method}
        element.attrib |= {"role": "button", "tabindex": "0", "aria-pressed": "true"}
    elif kind == "series":
        label, method, texts, number = json.loads(entry)
        element.attrib |= {"data-key": label, "data-method": method}
        if number is not None:
            element.set("data-box", str(number))
        points = [*element.iter(f"{{{_SVG}}}use")]
        if points and len({point.get("style") for point in points}) == 1:
            element.set("style", points[0].get("style", ""))  # once, not per point
            for point in points:
                point.attrib.pop("style", None)
        if len(points) != len(texts):  # one shape
            points = [element]
        for point, text in zip(points, texts, strict=False):
            ElementTree.SubElement(point, f"{{{_SVG}}}title").text = text
    elif gid and element.tag != f"{{{_SVG}}}g":
        element.set("id", f"{name}-{gid}")
    # Ids of matplotlib repeat between figures, and a page has one space of ids.
    for key, value in element.attrib.items():
        if key == f"{{{_LINK}}}href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif key in ("style", "clip-path", "fill", "stroke"):
            value = value.replace("url(#", f"url(#{name}-")
            element.set(key, page_color(value))


def page_color(text: str) -> str:
    """Replaces colors that are unreadable on a dark page by properties of the page."""
    return _COLOR.sub(lambda match: _COLORS[match[0].lower()], text)
