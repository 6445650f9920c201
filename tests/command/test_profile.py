"""Profiles: of which rounds, in which files, and that they change nothing."""

import contextlib
import gzip
import json
import pathlib

import jax
import numpy as np
import pytest

from experiments import run, sweep
from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import profiling, simulation
from tests.command.commands import call, refused

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")
SHORT = "--preset quadratic --rounds 6 --eval-every 2"


def traces():
    return list(pathlib.Path("profile").rglob("*.trace.json.gz"))


def test_a_profile_is_written_and_changes_nothing():
    line = f"{SHORT} --set algorithm.lam=1,2"
    call(sweep.app, f"{line} --out plain")
    done = call(sweep.app, f"{line} --out o --profile profile")
    (file,) = traces()
    assert f"Profile: open {file} at https://ui.perfetto.dev" in done.stdout
    assert list(file.parent.glob("*.xplane.pb"))
    assert json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    (one,), (other,) = (results.Result.load(out).groups for out in ("plain", "o"))
    for name, values in one.metrics.items():
        np.testing.assert_array_equal(values, other.metrics[name])
    for name, values in one.per_round.items():
        np.testing.assert_array_equal(values, other.per_round[name])


def test_only_the_second_segment_is_profiled(monkeypatch, tmp_path):
    running, during = [], []

    @contextlib.contextmanager
    def trace(directory, **_):
        running.append(directory)
        yield
        running.clear()

    monkeypatch.setattr(jax.profiler, "trace", trace)
    profile = profiling.Profile(tmp_path)
    for segment in (0, 1, 2, 0, 1):  # two groups
        with profile.around(segment):
            during.append(bool(running))
    assert during == [False, True, False, False, False]


def test_a_training_that_ends_at_once_has_no_profile():
    line = f"{SHORT} --target 1e9 --stop-on ::loss --out o --profile profile"
    done = call(run.app, line)
    assert "Nothing was profiled" in done.stdout
    assert traces() == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"{SHORT} --profile file", "Cannot write the directory 'file'"),
        (f"{SHORT} --profile file/a/b", "Cannot write the directory 'file/a/b'"),
        (f"{SHORT} --profile p --eval-every 6", "got 6 and 6 rounds"),
        ("--resume r --profile p", "not --profile"),
    ],
)
def test_what_cannot_be_profiled_is_refused(monkeypatch, line, sentence):
    monkeypatch.setattr(
        simulation, "run_groups", lambda *a, **k: pytest.fail("trained")
    )
    pathlib.Path("file").write_text("")
    assert sentence in refused(run.app, line)


def test_a_directory_with_other_profiles_is_taken(tmp_path):
    (tmp_path / "plugins").mkdir()
    assert profiling.Profile(tmp_path).newest() is None
    with pytest.raises(checks.InputError, match="Cannot write the directory"):
        (tmp_path / "file").write_text("")
        profiling.Profile(tmp_path / "file")
