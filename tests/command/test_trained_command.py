"""`--save-models`: where the models are, also after an interruption, and how large."""

import functools
import pathlib

import pytest

import fedjax_pfl as fp
from experiments import plan, sweep
from fedjax_pfl.command import job, presets
from tests.command.test_batch import tiny
from tests.command.test_experiments import RUNNER


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job.compilation_cache, "keep", lambda: None)
    found = {"tiny": functools.partial(tiny, "tiny", num_rounds=4)}
    monkeypatch.setattr(presets, "PRESETS", found)


def test_models_are_in_the_directory_of_the_run():
    asked = ["--preset", "tiny", "--save-models", "--checkpoint-seconds", "0"]
    stopped = RUNNER.invoke(sweep.app, [*asked, "--max-minutes", "1e-9", "--out", "o"])
    assert stopped.exit_code == 3, stopped.output
    assert not pathlib.Path("o/models").exists()
    # What a process leaves that is killed while it writes, or before the result.
    for left in ("models", ".models.123"):
        pathlib.Path("o", left).mkdir()
        pathlib.Path("o", left, "half").write_text("")
    done = RUNNER.invoke(sweep.app, ["--resume", "o"])
    assert done.exit_code == 0, done.output
    assert "Models: o/models" in done.output.splitlines()
    assert not pathlib.Path("o/.models.123").exists()
    found = fp.load_models("o")
    assert {path.name for path in found.directory.iterdir()} == {
        "models.csv",
        "000-fedavg",
    }
    assert found.find(model="global").params["theta"].shape == (3,)
    again = RUNNER.invoke(sweep.app, ["--resume", "o"])
    assert again.exit_code == 0 and "Models: o/models" in again.output


def test_the_plan_says_how_large_they_are():
    done = RUNNER.invoke(plan.app, ["--preset", "tiny", "--save-models"])
    assert done.exit_code == 0, done.output
    assert "Trained models: 24 B." in done.output  # three numbers of eight bytes
