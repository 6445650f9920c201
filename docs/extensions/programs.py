"""Programs that run while the pages are built, with what they print and draw."""

import ast
import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_NAMES = "names of programs"
_FOLDER = "folder of programs"


class Executed(SphinxDirective):
    """`{executed}`: Python that is shown, run, and followed by its output.

    Programs of a page share their names. The figure is that of the last expression: a
    figure, or axes of one, which needs the option `alt`. A `hidden` program only runs.
    """

    has_content = True
    option_spec = {"alt": directives.unchanged_required, "hidden": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Runs the program where the directive stands."""
        names = self.env.temp_data.setdefault(_NAMES, {"__name__": "__main__"})
        if _FOLDER not in self.env.temp_data:  # what they write is not kept
            self.env.temp_data[_FOLDER] = tempfile.TemporaryDirectory()
        folder = self.env.temp_data[_FOLDER].name
        code = "\n".join(self.content)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(folder):
            value = _run(code, names)
        if "hidden" in self.options:
            return []
        found = [_block(code, "python")]
        if printed.getvalue():
            found.append(_block(printed.getvalue().rstrip(), "text"))
        if "alt" in self.options:
            found.append(self._picture(value))
        return found

    def _picture(self, value: Any) -> nodes.image:
        """Draws a figure, or that of axes, outside of what is committed."""
        folder = Path(self.env.doctreedir) / "programs"
        folder.mkdir(parents=True, exist_ok=True)
        number = self.env.new_serialno("program")
        file = folder / f"{self.env.docname.replace('/', '-')}-{number}.png"
        axes = value[0] if isinstance(value, list) else value
        axes.figure.savefig(file, dpi=150)
        page = Path(self.env.doc2path(self.env.docname)).parent
        address = Path(os.path.relpath(file, page)).as_posix()
        return nodes.image(uri=address, alt=self.options["alt"], width="100%")


def _run(code: str, names: dict[str, Any]) -> Any:
    """Runs a program; returns the value of the expression that it ends in, if any."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "program", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "program", "eval"), names)


def _block(text: str, language: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language)


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive. Programs compile much and run little."""
    jax.config.update("jax_disable_most_optimizations", True)
    app.add_directive("executed", Executed)
    return {"parallel_read_safe": True}
