"""Notebooks: stored without outputs, started alike, executed alone at a small size."""

import ast
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest
from IPython.core import inputtransformer2

import fedjax_pfl as fp
from experiments import notebooks
from fedjax_pfl.command import presets
from tests.project import test_packages

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = {
    path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.ipynb")
}
PAGE = (ROOT / "docs/notebooks.md").read_text("utf-8")
# What replaces the parameters of a notebook, so that it ends soon.
REDUCED = {
    "quickstart": "NUM_SEEDS, NUM_ROUNDS = 2, 2",
    "methods": "NUM_CLIENTS, NUM_SEEDS, NUM_ROUNDS = 6, 2, 2",
    "grids": "LAMS, KAPPAS, NUM_SEEDS = [0.1, 1.0], [1.0, 2.0], 1\n"
    "NUM_ROUNDS, LOOPED, CHUNKS = 2, 1, [1, 4]",
    "theory": "NUM_ROUNDS, NUM_STARTS = 5, 1\nKAPPAS, RATIOS = [1.0, 2.0], [1.0]",
    "attacks": "NUM_SEEDS, NUM_ROUNDS, FRACTIONS = 1, 2, [0.0, 0.2]",
    "own_method": "NUM_CLIENTS, NUM_SEEDS, NUM_ROUNDS = 6, 1, 2",
    "own_network": "NUM_CLIENTS, NUM_ROUNDS = 4, 2",
    "learning": "NUM_CLIENTS, NUM_SEEDS, NUM_ROUNDS, POINTS = 4, 1, 4, 2",
}
# The oldest and the newest supported Python (by minor version), with what is installed
# before the first cell and has to stay: as on Colab a JAX, not the newest; or nothing.
PYTHONS = {11: ("jax==0.10.0", "jaxlib==0.10.0"), 13: ()}
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
    assert len({sources(name, "code")[0] for name in NOTEBOOKS}) == 1


@every_notebook
def test_its_beginning_is_made_of_one_address(name):
    notebook = NOTEBOOKS[name]
    assert notebooks.begun(name, notebook, notebooks.REPOSITORY) == notebook
    public = notebooks.begun(name, notebook, "someone/fedjax_pfl")
    title, setup = ("".join(cell["source"]) for cell in public["cells"][:2])
    colab = "https://colab.research.google.com/github/someone/fedjax_pfl/blob/main"
    assert title.count(f"({colab}/notebooks/{name}.ipynb)") == 1
    assert 'SOURCE = "git+https://github.com/someone/fedjax_pfl"' in setup
    assert "upload" not in title
    assert notebooks.begun(name, public, notebooks.REPOSITORY) == notebook


def start(monkeypatch, source=None):
    """Executes the first cell where the package is missing; what pip was told."""
    cell = sources("quickstart", "code")[0]
    if source is not None:
        cell = re.sub(r"^SOURCE = .*", f"SOURCE = {source!r}", cell, flags=re.M)
    told = []
    shell = types.SimpleNamespace(run_line_magic=lambda *words: told.append(words))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names = {"get_ipython": lambda: shell}
    exec(inputtransformer2.TransformerManager().transform_cell(cell), names)
    return told[0][1].format(**names)


def test_the_first_cell_installs_the_wheel_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"No fedjax_pfl-\*\.whl in .*: put a"):
        start(monkeypatch)
    wheel = tmp_path / "fedjax_pfl-1.0-py3-none-any.whl"
    wheel.touch()
    told = start(monkeypatch)
    assert told == f'install -q "fedjax_pfl[experiments] @ {wheel.as_uri()}"'
    assert f"was installed from {wheel.as_uri()} and is in" in capsys.readouterr().out


def test_the_first_cell_installs_from_an_address(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = start(monkeypatch, "https://example.org/fedjax_pfl-1.0-py3-none-any.whl")
    assert "@ https://example.org/fedjax_pfl-1.0-py3-none-any.whl" in told
    assert "was installed from https://example.org/" in capsys.readouterr().out


@every_notebook
def test_it_needs_no_clone(name):
    text = "\n".join(sources(name, "code"))
    assert not re.search(r"^\s*(import|from) (experiments|tests)\b", text, re.M)
    links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(sources(name, "markdown")))
    assert all(x.startswith("https:") or x.endswith(".ipynb") for x in links), links


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


def quickstart(names, *ids):
    """Executes cells of the quickstart; what they printed."""
    cells = {
        cell["id"]: "".join(cell["source"]) for cell in NOTEBOOKS["quickstart"]["cells"]
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in ids:
            exec(compile(cells[cell], cell, "exec"), names)
    return printed.getvalue()


def test_the_quickstart_is_the_main_job():
    names = {}
    quickstart(names, "parameters", "imports", "methods")
    job = presets.get("digits")
    assert (range(names["NUM_SEEDS"]), names["NUM_ROUNDS"]) == (
        range(len(job.seeds)),
        job.num_rounds,
    )
    described = [
        (grid.process.algorithm, {k: list(v) for k, v in grid.axes.items()})
        for grid in job.grids
    ]
    said = repr(names["methods"]).replace("kappa=None", "kappa=1.0")  # what it means
    assert said == repr(described)
    assert all(repr(names["spec"]) == repr(grid.spec) for grid in job.grids)
    assert all(grid.model == fp.LogisticRegression() for grid in job.grids)


def test_the_quickstart_runs():
    names = {}
    quickstart(names, "parameters", "imports", "methods")
    names |= {"NUM_SEEDS": 2, "NUM_ROUNDS": 2}
    printed = quickstart(names, "train", "ranking", "figure")
    assert "reference" in printed and "has the best mean accuracy" in printed


@pytest.fixture(scope="module", params=PYTHONS)
def environment(request, tmp_path_factory):
    """A folder with one Python and a kernel, and what else is in it."""
    minor = request.param
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    programs = [shutil.which(f"python3.{minor}")]
    programs += sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
    check = f"import ensurepip, sys; sys.exit(sys.version_info.minor != {minor})"
    for program in filter(None, programs):
        # pyenv has a program for every version, which fails unless it is chosen.
        if not subprocess.run([program, "-c", check], capture_output=True).returncode:
            break
    else:
        pytest.skip(f"no Python 3.{minor}")
    folder = tmp_path_factory.mktemp(f"python3.{minor}")
    subprocess.run([program, "-m", "venv", folder], check=True)
    pip(folder, "install", "ipykernel", *PYTHONS[minor])
    return folder, PYTHONS[minor]


def pip(environment, *words):
    """Runs an environment's pip, without the constraints of the tests."""
    variables = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    line = [environment / "bin/python", "-m", "pip", "-q", *words]
    return subprocess.run(
        line, env=variables, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built as a user would."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = test_packages.copied(folder)
    line = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, tree]
    subprocess.run(line, check=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.mark.wide  # minutes each
@every_notebook
def test_it_runs_alone_with_the_wheel(name, environment, wheel, tmp_path, monkeypatch):
    import nbclient
    import nbformat

    environment, present = environment
    for variable in ("PIP_CONSTRAINT", "PYTHONPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("PIP_NO_COMPILE", "1")  # only what is imported
    monkeypatch.setenv("XLA_FLAGS", "")  # those of the tests are of another XLA
    # A kernel compiles much and runs little, like the tests: see conftest.py.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    kernel = tmp_path / "jupyter/kernels/alone/kernel.json"
    kernel.parent.mkdir(parents=True)
    python = str(environment / "bin/python")
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "alone"}))
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(wheel, folder)
    pip(environment, "uninstall", "-y", "fedjax_pfl")  # what another notebook installed

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    (at,) = [k for k, cell in enumerate(notebook.cells) if is_parameters(cell)]
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(REDUCED[name]))
    nbclient.NotebookClient(
        notebook,
        timeout=900,
        kernel_name="alone",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    said = "".join(o.get("text", "") for o in code[0].outputs)
    assert f"was installed from {(folder / wheel.name).as_uri()} and is in" in said
    assert str(environment) in said.rpartition(" is in ")[2]
    assert set(present) <= set(pip(environment, "freeze").splitlines())
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    warned = "".join(o.text for o in outputs if o.get("name") == "stderr")
    assert "Warning" not in warned
