"""`--save-models`: where the models are, also after an interruption, and how large."""

import functools
import pathlib

import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as fp
from experiments import plan, sweep
from fedjax_pfl.command import presets
from tests.command.commands import call, refused
from tests.command.test_batch import tiny


@pytest.fixture(autouse=True)
def tiny_preset(elsewhere, no_figures, monkeypatch):
    found = {"tiny": functools.partial(tiny, "tiny", num_rounds=4)}
    monkeypatch.setattr(presets, "PRESETS", found)


def test_models_are_in_the_directory_of_the_run():
    line = "--preset tiny --save-models last --checkpoint-seconds 0 --out o"
    call(sweep.app, f"{line} --max-minutes 1e-9", status=3)
    assert not pathlib.Path("o/models").exists()
    # What a process leaves that is killed while it writes, or before the result.
    for left in ("models", ".models.123"):
        pathlib.Path("o", left).mkdir()
        pathlib.Path("o", left, "half").write_text("")
    done = call(sweep.app, "--resume o")
    assert "Models: o/models" in done.output.splitlines()
    assert not pathlib.Path("o/.models.123").exists()
    found = fp.load_models("o")
    names = {path.name for path in found.directory.iterdir()}
    assert names == {"models.csv", "000-fedavg"}
    assert found.find(model="global").params["theta"].shape == (3,)
    assert "Models: o/models" in call(sweep.app, "--resume o").output


def test_the_plan_says_how_large_they_are():
    done = call(plan.app, "--preset tiny --save-models last")
    assert "Trained models: 24 B." in done.output  # three numbers of eight bytes


def test_a_training_starts_from_the_file_of_another():
    line = "--preset tiny --quiet --save-models last"
    call(sweep.app, f"{line} --out first")
    (file,) = pathlib.Path("first/models").glob("*/*global.safetensors")
    start = fp.load_params(file)
    saved = fp.load_models("first").find(model="global").params
    np.testing.assert_array_equal(start["theta"], saved["theta"])
    call(sweep.app, f"{line} --rounds 1 --init {file} --out second")
    ends = [fp.Result.load(d).groups[0].metrics["loss"] for d in ("first", "second")]
    np.testing.assert_array_equal(ends[1][:, 0], ends[0][:, -1])
    config = fp.Result.load("second").groups[0].config
    assert config["model.initial_params"].startswith("Pretrained(sha256 ")
    call(plan.app, f"--preset tiny --init {file}")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"theta": np.ones(4)}, "with 'theta' as float64[3], got float64[4]"),
        ({"theta": np.ones(3, np.int8)}, "got int8[3]"),
        ({"thetas": np.ones(3)}, "they have no 'theta'"),
        ({"theta": np.ones(3), "bias": np.ones(1)}, "they also have 'bias'"),
        ({"theta": np.full(3, np.nan)}, "finite numbers, but 'theta' has others"),
        ({"clients": np.arange(2), "params/theta": np.ones((2, 3))}, "of 2 clients"),
        ({"params/theta": np.ones(3), "theta": np.ones(3)}, "it has an array 'theta'"),
        (None, "Cannot read 'file.safetensors'"),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(arrays, words):
    path = pathlib.Path("file.safetensors")
    path.write_bytes(b"no" if arrays is None else safetensors.numpy.save(arrays))
    text = refused(sweep.app, f"--preset tiny --init {path} --dry-run")
    assert words in text.replace("\n", " ")
