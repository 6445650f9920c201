"""Writes the beginning of all notebooks: `python -m experiments.notebooks`."""

import json
import pathlib
import re

__all__ = ["FOLDER", "REPOSITORY", "begun", "main"]

REPOSITORY = ""
"""`owner/name` on GitHub; empty as long as there is no public one."""
FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"
_COLAB = "https://colab.research.google.com"
_BADGE = f"[![Open In Colab]({_COLAB}/assets/colab-badge.svg)]"
_UPLOAD = (
    " The badge opens Colab's dialog for uploads: choose this file there, and upload\n"
    'the wheel of `fedjax_pfl` in the panel "Files".'
)
_WHEEL = "fedjax_pfl-*.whl"
_SECONDS = re.compile(r"JAX [\d.]+:\s(\d+) s of CPU time")
_SETUP = """\
# SOURCE names a wheel, which is looked for beside this notebook (on Colab: upload it in
# the panel "Files"), or an address for pip, such as that of the repository.
# Installed packages that fit stay as they are, such as Colab's JAX.
SOURCE = "{source}"
"""


def begun(name: str, notebook: dict, repository: str) -> dict:
    """Returns a notebook's JSON with the common beginning."""
    title, setup, *cells = notebook["cells"]
    text = "".join(title["source"])
    seconds = _SECONDS.search(text)
    if seconds is None:
        raise ValueError(f"The first cell of {name} does not say how long it takes.")
    heading, *paragraphs = text.split("\n\n")
    # An earlier badge is replaced.
    body = [p for p in paragraphs if "Open In Colab" not in p]
    path = f"github/{repository}/blob/main/notebooks/{name}.ipynb"
    target = f"{_COLAB}/{path}" if repository else f"{_COLAB}/#upload=true"
    hint = "" if repository else _UPLOAD
    line = f"{_BADGE}({target}) Takes {seconds[1]} s on one core of a CPU, and what the"
    line += f" first cell needs to\ninstall the package.{hint}"
    source = f"git+https://github.com/{repository}" if repository else _WHEEL
    code = "".join(setup["source"]).partition("\n\n")[2]
    text = f"{_SETUP.format(source=source)}\n{code}"
    title = {**title, "source": _lines("\n\n".join([heading, line, *body]))}
    return {**notebook, "cells": [title, {**setup, "source": _lines(text)}, *cells]}


def _lines(text: str) -> list[str]:
    """Returns the lines of a cell."""
    return text.splitlines(keepends=True)


def main() -> None:
    """Writes the beginning of every notebook."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        notebook = begun(file.stem, json.loads(file.read_text("utf-8")), REPOSITORY)
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        file.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
