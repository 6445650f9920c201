"""Notebooks: stored without outputs, started alike, executed at a reduced size."""

import ast
import contextlib
import io
import json
import os
import pathlib
import re

import matplotlib.pyplot as plt
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = {
    path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.ipynb")
}
PAGE = (ROOT / "docs/notebooks.md").read_text("utf-8")
# What replaces the parameters of a notebook, so that it ends soon.
REDUCED = {
    "quickstart": "NUM_ROUNDS = 2",
    "methods": "NUM_CLIENTS, NUM_SEEDS, NUM_ROUNDS = 6, 2, 2",
    "grids": "LAMS, KAPPAS, NUM_SEEDS = [0.1, 1.0], [1.0, 2.0], 1\n"
    "NUM_ROUNDS, LOOPED, CHUNKS = 2, 1, [1, 4]",
    "theory": "NUM_ROUNDS, NUM_STARTS, QUICK_RATES = 5, 1, True",
    "attacks": "NUM_SEEDS, NUM_ROUNDS, FRACTIONS = 1, 2, [0.0, 0.2]",
    "own_method": "NUM_CLIENTS, NUM_SEEDS, NUM_ROUNDS = 6, 1, 2",
}
WHERE = re.compile(
    r"Run from top to bottom on (\d{4}-\d{2}-\d{2}) on (.*?), JAX ([\d.]+):"
    r" (\d+) s of CPU time\. Not run on a GPU, on a TPU or on Colab\."
)

every_notebook = pytest.mark.parametrize("name", sorted(NOTEBOOKS))


def sources(name, kind):
    """Texts of a notebook's cells of one kind."""
    cells = NOTEBOOKS[name]["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def is_parameters(cell):
    """Whether it is the cell whose values may be replaced."""
    return cell["metadata"].get("tags") == ["parameters"]


def names_assigned(code):
    """Names that a cell assigns."""
    found = ast.walk(ast.parse(code))
    return {
        n.id for n in found if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def test_every_notebook_is_tested_and_in_the_documentation():
    assert set(NOTEBOOKS) == set(REDUCED)
    assert set(NOTEBOOKS) == set(re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", PAGE))


@every_notebook
def test_it_is_stored_without_outputs(name):
    notebook = NOTEBOOKS[name]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in code)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9-]{1,64}", cell_id) for cell_id in ids)


def test_all_start_in_the_same_way():
    firsts = {sources(name, "code")[0] for name in NOTEBOOKS}
    assert len(firsts) == 1
    assert '%pip install -q "{REPOSITORY}[experiments]"' in firsts.pop()


@every_notebook
def test_its_parameters_are_in_one_cell(name):
    (cell,) = filter(is_parameters, NOTEBOOKS[name]["cells"])
    assert names_assigned(REDUCED[name]) <= names_assigned("".join(cell["source"]))


@every_notebook
def test_it_says_where_it_was_run(name):
    first = " ".join(sources(name, "markdown")[0].split())
    date, device, jax, seconds = WHERE.search(first).groups()
    assert "CPU" in device
    (row,) = re.findall(rf"^\|.*\(\.\./notebooks/{name}\.ipynb\).*$", PAGE, re.M)
    assert row.endswith(f"| {seconds} |")
    assert all(text in PAGE for text in (date, device, jax))


@every_notebook
def test_its_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", "".join(sources(name, "markdown"))):
        if not target.startswith("https:"):
            assert (FOLDER / target.partition("#")[0]).exists(), target


def test_the_quickstart_runs():
    _, parameters, *programs = sources("quickstart", "code")
    plt.switch_backend("Agg")
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for code in (parameters, REDUCED["quickstart"], *programs):
            exec(compile(code, "quickstart", "exec"), names)
    assert "jax" in printed.getvalue()
    lines = names["axes"].lines
    assert len(lines) == 3 and all(line.get_xdata().size == 3 for line in lines)
    plt.close(names["figure"])


@pytest.mark.wide  # up to a minute each
@every_notebook
def test_it_runs_from_top_to_bottom(name, monkeypatch):
    import nbclient
    import nbformat

    # A kernel compiles much and runs little, like the tests: see conftest.py.
    monkeypatch.setenv("XLA_FLAGS", os.environ["FEDJAX_PFL_TESTS_XLA_FLAGS"])
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    (at,) = [k for k, cell in enumerate(notebook.cells) if is_parameters(cell)]
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(REDUCED[name]))
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    said = "".join(o.text for o in outputs if o.get("name") == "stderr")
    assert "Warning" not in said
