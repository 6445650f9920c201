"""Titles that name the kind of a page, for search results and tabs of browsers."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_KINDS = {"api/": "API reference", "cards/": "Card"}


def _name(app: Sphinx, env: BuildEnvironment) -> None:
    """Puts the kind in front of long titles; the tables of contents keep short ones."""
    for page, title in env.longtitles.items():
        for folder, kind in _KINDS.items():
            name = title.astext()
            if page.startswith(folder) and not name.startswith((kind, f"{kind}s")):
                env.longtitles[page] = nodes.title("", f"{kind}: {name}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects it to the end of reading."""
    app.connect("env-updated", _name)
    return {"parallel_read_safe": True}
