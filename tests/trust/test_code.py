"""A folder is data and never code, and a resumed run is one code."""

import json
import pathlib
import shlex
import shutil
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
import typer.testing
import xarray as xr
from safetensors import numpy as safetensors

import fedjax_pfl as fp
from experiments import sweep
from experiments.cards import keep
from fedjax_pfl.command import arguments, job, report_command, run_folder
from fedjax_pfl.core import checks
from fedjax_pfl.report import facts, sources
from fedjax_pfl.results import (
    checkpoint,
    documents,
    model_files,
    plain_files,
    provenance,
)
from tests import histories
from tests.algorithms import test_own_methods
from tests.trust import processes

RUNNER = typer.testing.CliRunner()
TRAP = "import pathlib\npathlib.Path('sprung').touch()\n" + test_own_methods.MODULE
EVIL = "stranger.evil:Half"
TINY = ["--preset", "quadratic", "--rounds", "4", "--eval-every", "2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory for one test, with none of its modules in the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    monkeypatch.setattr(job.figures, "save_all", lambda *_: [])
    before = set(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before:
        if str(tmp_path) in str(sys.modules[name].__spec__):
            del sys.modules[name]


def kept_by_command(folder):
    """Keeps the numbers of a result for the card of FLAME."""
    done = RUNNER.invoke(keep.app, ["flame", str(folder), "--results", "kept"])
    assert done.exit_code == 0, done.output


def stranger(name=EVIL, module="stranger/evil.py", preset="quadratic"):
    """A folder that somebody has made, whose digests fit; imported, it says so."""
    options = arguments.Options(command="sweep", preset=preset, algorithm="local")
    with run_folder.begun(pathlib.Path("stranger"), options):
        pass
    path = pathlib.Path("stranger/experiment.json")
    stored = json.loads(path.read_text())
    del stored["digest"]
    stored["options"]["algorithm"] = name
    path.write_text(json.dumps(stored | {"digest": documents.digest_of(stored)}))
    pathlib.Path(module).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(module).write_text(TRAP, "utf-8")


def refused(*words):
    """The one sentence with which a command refuses."""
    done = RUNNER.invoke(sweep.app, list(words))
    assert done.exit_code == 2, done.output
    assert "\n" not in done.stderr.strip() and "Traceback" not in done.output
    assert not pathlib.Path("sprung").exists()
    return done.stderr.strip()


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "module"),
    [
        (EVIL, "stranger/evil.py"),
        ("stranger.lib.evil:Half", "stranger/lib/evil.py"),
        ("stranger:Half", "stranger/__init__.py"),
        ("installed_by_anybody:Half", "installed_by_anybody.py"),
    ],
)
def test_a_folder_does_not_name_what_is_imported(name, module):
    stranger(name, module)
    said = refused("--resume", "stranger")
    command = f"python -m experiments.sweep --resume stranger --algorithm {name}"
    assert said.endswith(command)
    assert "--algorithm" in refused("--resume", "stranger", "--algorithm", "local")
    assert command in refused("--resume", "stranger", "--algorithm", "other:Half")


def test_a_folder_of_several_runs_is_not_taken_for_a_finished_one(here):
    name = "installed_by_anybody"
    stranger(f"{name}:Half", f"{name}.py", preset="quadrati*")
    (here / "stranger/config.json").write_text('{"format": "fedjax_pfl result 1"}')
    assert "--algorithm" in refused("--resume", "stranger")


@pytest.mark.parametrize(
    "module", ["stranger/evil.py", "stranger/__init__.py", "stranger/evil/__init__.py"]
)
def test_modules_in_a_folder_of_results_are_refused(module):
    stranger(module=module)
    words = ("--algorithm", EVIL)
    for begun in (("--resume", "stranger"), ("--preset", "quadratic")):
        said = refused(*begun, *words)
        assert "lies in the folder of results" in said and "stranger'" in said


@pytest.mark.parametrize("content", ['{"a": 1}', "[", '"format"', "[" * 100_000])
def test_other_folders_of_settings_hold_no_results(here, content):
    (here / "config.json").write_text(content)
    (here / "mine.py").write_text(TRAP)
    done = RUNNER.invoke(sweep.app, [*TINY, "--algorithm", "mine:Half", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert (here / "sprung").exists()  # the user has named it


def test_links_lead_no_module_out_of_a_folder_of_results(here, monkeypatch):
    stranger()
    (here / "mine.py").symlink_to("stranger/evil.py")
    assert "'mine.py'" not in refused(*TINY, "--algorithm", "mine:Half")
    monkeypatch.chdir("stranger")
    said = refused(*TINY, "--algorithm", "evil:Half")
    assert "No module named 'evil'" in said  # the folder is no place of modules


SHADOWS = ("typing", "psutil", "pandas", "xarray", "filelock", "PIL", "matplotlib")


@pytest.mark.smoke
def test_files_beside_a_method_run_in_place_of_no_library(here):
    """In a process of its own, whose imports come as late as a user's."""
    (here / "mine").mkdir()
    (here / "mine/sub.py").write_text(test_own_methods.MODULE)
    (here / "helper.py").write_text("")
    (here / "mine/__init__.py").write_text("import helper\n")
    for name in SHADOWS:
        (here / f"{name}.py").write_text(TRAP)
    # As the console script does, which has its own directory first on the path.
    console = ("-P", "-c", "from fedjax_pfl.command import main; main()", "run")
    asked = ("--set", "algorithm=mine.sub:Half", "--preset", "quadratic")
    short = ("--rounds", "1", "--quiet", "--out", "run")
    process = processes.start_python(
        here, *console, *asked, *short, cache=str(here / "cache")
    )
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert not (here / "sprung").exists()
    assert set(fp.Result.load(here / "run").provenance["own_sources"]) >= {"mine.sub"}


@pytest.mark.parametrize("name", ["calendar", "psutil"])
def test_a_method_in_a_file_that_hides_a_library_is_refused(here, name):
    (here / f"{name}.py").write_text(TRAP)
    said = refused(*TINY, "--algorithm", f"{name}:Half")
    assert "Expected another name for the module" in said and f"{name}.py'" in said


@pytest.mark.parametrize("name", ["../x:Y", "..x:Y", ":Y", "x:", "x:Y:Z", "x y:Z"])
def test_names_of_other_forms_are_refused(name):
    assert "as module:Class" in refused(*TINY, "--algorithm", name)


def test_no_reader_imports_what_a_folder_names(here, monkeypatch):
    """Results, reports, cards, saved models and checkpoints."""
    stranger()
    folder = here / "stranger"
    record = histories.make_history(algorithm=EVIL, rounds=(0, 1), num_clients=3)
    result = histories.make_result(record)
    result.write(folder)
    assert fp.Result.load(folder) == result

    loaded = sources.read([folder], run_folder)
    assert EVIL in loaded.sources[0].command
    monkeypatch.setattr("fedjax_pfl.report.writing._write_figures", lambda *_: None)
    report_command.main([folder], here / "page", None)
    assert (here / "page/report.html").is_file()

    kept_by_command(folder)
    assert EVIL in xr.open_datatree(here / "kept/flame/stranger.nc").attrs["command"]

    group = folder / "models" / "000-evil"
    group.mkdir(parents=True)
    about = {"model": "personal", "status": "ok", "settings": {"algorithm": EVIL}}
    header = {model_files.HEADER: json.dumps({"format": model_files.FORMAT} | about)}
    path = group / "000-personal.safetensors"
    safetensors.save_file({"params/w": np.ones(2)}, path, header)
    row = {"model": "personal", "clients": None, "numbers": 2, "status": "ok"}
    row |= {"algorithm": EVIL, "file": "000-evil/000-personal.safetensors"}
    row["sha256"] = plain_files.digest(path)
    pd.DataFrame([row]).to_csv(folder / "models" / model_files.TABLE, index=False)
    model = fp.load_models(folder).find()
    assert model.about["settings"]["algorithm"] == EVIL

    store = checkpoint.Checkpoints(folder / "checkpoints").store(0, EVIL)
    states, identity = {"w": jax.numpy.ones(2)}, {"algorithm": EVIL}
    progress = checkpoint.Progress(1, states, {}, (0.0, 0.0), ended=True)
    store.save(identity, progress)
    assert store.latest(identity, states).done == 1

    shown = RUNNER.invoke(sweep.app, ["--resume", "stranger"])  # it is finished
    assert shown.exit_code == 0, shown.output
    assert not (here / "sprung").exists() and "stranger.evil" not in sys.modules


def stopped(*words):
    """Begins a run that is interrupted, with a checkpoint."""
    done = RUNNER.invoke(sweep.app, [*TINY, *words, "--max-minutes", "1e-9"])
    assert done.exit_code == 3, done.output
    return done.stderr.strip()


def test_own_methods_are_named_again_and_have_the_same_source(here):
    (here / "helper.py").write_text("SHARE = 0.5\n")
    module = test_own_methods.MODULE.replace("share: Any = 0.5", "share: Any = SHARE")
    module = module.replace("import jax\n", "import jax\nimport helper\n", 1)
    module = module.replace("nothing = 3", "nothing = helper.SHARE")
    module = module.replace("SHARE\n", "helper.SHARE\n", 1)
    (here / "mine.py").write_text(module)
    said = stopped("--algorithm", "local,mine:Half", "--out", "own")
    command = said.partition("continue with: ")[2]
    assert command.endswith("--resume own --algorithm mine:Half")
    assert refused("--resume", "own").endswith(command)
    words = shlex.split(command)[3:]
    (here / "helper.py").write_text("SHARE = -0.5\n")
    said = refused(*words)
    assert "the source of mine was " in said and "sources of fedjax_pfl" not in said
    (here / "helper.py").write_text("SHARE = 0.5\n")
    done = RUNNER.invoke(sweep.app, words)
    assert done.exit_code == 0, done.output
    origin = fp.Result.load("own").provenance
    assert set(origin["own_sources"]) == {"mine"} and origin["sources"]
    assert origin["continued_with_other_code"] == []


def flip_a_sign(monkeypatch):
    """Makes this process one of other sources, which nothing else would tell."""
    package = dict(provenance.package()) | {"sources": "ab" * 32, "clean": False}
    monkeypatch.setattr(provenance, "package", lambda: package)


@pytest.mark.filterwarnings("default")
def test_a_run_of_other_sources_is_refused_or_marked(here, monkeypatch):
    stopped("--out", "run")
    before = provenance.package()["sources"]
    flip_a_sign(monkeypatch)
    said = refused("--resume", "run")
    assert f"the sources of fedjax_pfl were {before[:12]} (commit " in said
    assert "are abababababab" in said and "--resume-anyway" in said
    assert not run_folder.is_finished(here / "run")
    assert "needs --resume" in RUNNER.invoke(sweep.app, ["--resume-anyway"]).output

    done = RUNNER.invoke(sweep.app, ["--resume", "run", "--resume-anyway"])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("Resuming with other code, as the result notes") == 1
    stored = json.loads((here / "run/config.json").read_text())
    (mark,) = stored["provenance"]["continued_with_other_code"]
    assert f"were {before[:12]} (commit " in mark and "are abababababab" in mark
    result = fp.Result.load("run")
    other = histories.make_result(histories.make_history())
    merged = fp.Result.merge([other, result]).provenance
    assert merged == other.provenance | {"continued_with_other_code": [mark]}

    loaded = sources.read([here / "run"], run_folder)
    for shown in (facts.overview(loaded), facts.provenance(loaded.sources[0])):
        assert dict(shown)["continued with other code"] == mark
    monkeypatch.setattr("fedjax_pfl.report.writing._write_figures", lambda *_: None)
    report_command.main([here / "run"], None, None)
    page = (here / "run/report.html").read_text("utf-8")
    assert "continued with other code" in page and before[:12] in page

    kept_by_command(here / "run")
    kept = xr.open_datatree(here / "kept/flame/run.nc").attrs["provenance"]
    assert json.loads(kept) == result.provenance


def test_a_run_without_checkpoints_is_refused_too(here, monkeypatch):
    options = arguments.Options(command="sweep", preset="quadratic")
    with run_folder.begun(here / "run", options):
        pass
    flip_a_sign(monkeypatch)
    assert "abababababab" in refused("--resume", "run")


def test_python_users_are_refused_or_marked_too(here, monkeypatch):
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    federation = fp.FederationSpec("quadratic", "by_client", num_clients=4).build()

    def train(**options):
        places = fp.Checkpoints(here / "run", min_seconds=0, **options)
        return fp.simulate(
            *(jax.random.key(0), process, fp.models.Quadratic(), federation, 4),
            checkpoints=places,
            max_minutes=None if (here / "run").exists() else 1e-9,
            progress=False,
        )

    with pytest.raises(fp.Interrupted):
        train()
    flip_a_sign(monkeypatch)
    with pytest.raises(checks.InputError, match=r"are abababababab.*resume_anyway of"):
        train()
    with pytest.warns(UserWarning, match="Resuming with other code"):
        result = train(resume_anyway=True)
    (mark,) = result.provenance["continued_with_other_code"]
    assert "are abababababab" in mark


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


def test_the_digest_is_that_of_the_sources_with_or_without_git(here, monkeypatch):
    original = provenance.package()["sources"]
    installed = here / "lib" / "fedjax_pfl"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(pathlib.Path(fp.__file__).parent, installed, ignore=ignore)
    copied = str(installed / "results/provenance.py")
    monkeypatch.setattr(provenance, "__file__", copied)
    read = provenance.package.__wrapped__
    without = {"sources": original, "commit": "not recorded", "clean": None}
    assert read() == without
    # A user's repository around an installed package is not the package's.
    git(here, "init", "-q")
    (here / "mine.txt").write_text("")
    git(here, "add", "mine.txt")
    git(here, "commit", "-qm", "mine")
    assert read() == without
    git(here, "add", ".")
    git(here, "commit", "-qm", "package")
    assert read()["clean"] is True and len(read()["commit"]) == 40
    solver = installed / "local" / "solvers.py"
    text = solver.read_text()
    assert " - " in text
    solver.write_text(text.replace(" - ", " + ", 1))
    changed = read()
    assert changed["clean"] is False and changed["sources"] != original


def test_a_folder_that_is_not_installed_has_a_provenance(monkeypatch):
    versions = provenance.metadata.version

    def of_others(name):
        if name == "fedjax_pfl":
            raise provenance.metadata.PackageNotFoundError(name)
        return versions(name)

    monkeypatch.setattr(provenance.metadata, "version", of_others)
    code = provenance._versions.__wrapped__()
    assert code["fedjax_pfl"] == "not recorded" and code["jax"] == jax.__version__
