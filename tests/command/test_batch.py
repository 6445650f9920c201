"""Several presets with one command: skipped, finished and interrupted ones."""

import functools
import shutil

import pytest

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl import data
from fedjax_pfl.command import presets, run_folder
from fedjax_pfl.command.presets import experiment
from tests.command.commands import call, refused


def tiny(name, source="quadratic", num_rounds=2):
    """An experiment of milliseconds."""
    model = fp.models.Quadratic() if source == "quadratic" else fp.LogisticRegression()
    partition = "by_client" if source == "quadratic" else "iid"
    spec = fp.FederationSpec(source, partition, num_clients=3)
    algorithm = fp.FedAvg(local=fp.SGD(batch_size=64))
    grid = experiment.Grid(fp.FederatedProcess(algorithm=algorithm), model, spec)
    return experiment.Experiment(
        name=name, grids=(grid,), num_rounds=num_rounds, eval_every=1
    )


@pytest.fixture(autouse=True)
def three_presets(elsewhere, monkeypatch):
    sources = {"tiny_a": "quadratic", "tiny_absent": data.Mnist()}
    sources |= {"tiny_b": "quadratic"}
    found = {
        name: functools.partial(tiny, name, source) for name, source in sources.items()
    }
    monkeypatch.setattr(presets, "PRESETS", found)
    return found


def test_presets_that_match_are_run_skipped_and_gone_on_with(tmp_path):
    done = call(sweep.app, "--preset tiny_* --out all")
    assert "Skipped tiny_absent: Data set 'mnist' is read from files" in done.output
    assert "Finished 2 of 3 presets; skipped tiny_absent." in done.output
    folders = [tmp_path / "all" / name for name in ("tiny_a", "tiny_b")]
    tables = [(folder / "summary.csv").read_bytes() for folder in folders]
    assert not (tmp_path / "all" / "tiny_absent").exists()
    shutil.rmtree(folders[1])
    again = call(sweep.app, "--resume all")
    assert "1/3 tiny_a is finished" in again.output
    assert [(folder / "summary.csv").read_bytes() for folder in folders] == tables


def test_one_that_was_interrupted_goes_on(three_presets):
    three_presets["tiny_b"] = functools.partial(tiny, "tiny_b", num_rounds=9)
    line = "--preset tiny_[ab] --out all --max-minutes 1e-9 --checkpoint-seconds 0"
    stopped = call(sweep.app, line, status=3)
    assert "Stopped in tiny_a, 1 of 2; continue with" in stopped.output
    assert "--resume all" in stopped.output
    done = call(sweep.app, "--resume all")
    assert "Finished 2 of 2 presets." in done.output
    assert run_folder.is_finished(run_folder.Path("all/tiny_b"))


def test_refusals_are_one_sentence_and_leave_nothing():
    assert "Unknown preset 'giant_*'" in refused(sweep.app, "--preset giant_*")
    wrong = "--preset tiny_* --set algorithm.lamm=1"
    assert "Unknown field" in refused(sweep.app, wrong)
    call(sweep.app, "--preset tiny_a --out one")
    assert "one" in refused(sweep.app, "--preset tiny_* --out one")


def test_a_plan_of_several_runs_nothing(tmp_path):
    done = call(sweep.app, "--preset tiny_* --dry-run")
    assert "tiny_a:" in done.output and "tiny_b:" in done.output
    assert not list(tmp_path.iterdir())
