"""Pictures of kept runs in the pages of cards, drawn while the pages are built."""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

from experiments.cards import pictures

_RESULTS = Path(__file__).parents[2] / "experiments" / "results"
_INCLUDE = re.compile(r"```\{include\} (\S+)\n```\n")
_RUN = re.compile(r"^### (\w+)\n\n```sh\n.*?\n```\n", re.DOTALL | re.MULTILINE)


def _show(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces the included page of a card by its text with pictures."""
    page = Path(app.srcdir, f"{docname}.md")
    included = _INCLUDE.match(source[0])
    if page.parent.name != "cards" or included is None:
        return
    card = page.parent / included[1]
    app.env.note_dependency(card)
    folder = Path(app.doctreedir) / "cards"  # outside of what is committed
    folder.mkdir(parents=True, exist_ok=True)

    def add(run: re.Match[str]) -> str:
        lines = [run[0]]
        for path in _RESULTS.glob(f"*/{run[1]}.nc"):
            for file in pictures.draw(path, folder):
                address = Path(os.path.relpath(file, page.parent)).as_posix()
                lines.append(f"![{file.stem}]({address})\n")
        return "\n".join(lines)

    text = _RUN.sub(add, card.read_text("utf-8"))
    source[0] = text + source[0][included.end() :]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("source-read", _show)
    return {"parallel_read_safe": True}
