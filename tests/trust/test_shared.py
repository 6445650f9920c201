"""A sweep that processes share: killed, stopped and signalled ones, and refusals."""

import functools
import json
import os
import random
import shutil
import signal
import time

import jax
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments import sweep
from fedjax_pfl.engine import grids
from fedjax_pfl.results import documents, leases, provenance
from tests.lanes import wide
from tests.trust import counts, inputs
from tests.trust.processes import ARGUMENTS, assert_same, newest
from tests.trust.test_processes import _small_files

RUNNER = typer.testing.CliRunner()
UNITS = (*ARGUMENTS, "--points-per-unit", "1")  # four in place of two
JOIN = ("--join", "--lease-seconds", "1", "--out")


def files(folder):
    """Files of a result by name, without times, dates and how it was begun."""
    kept = inputs.contents(folder)
    for name in (".lock", "experiment.json"):
        kept.pop(name, None)
    config = json.loads(kept.pop("config.json"))
    del config["digest"], config["provenance"]["started"]
    for group in config["groups"]:
        del group["compile_seconds"], group["run_seconds"]
    return kept | {"config.json": config}


@pytest.fixture(scope="module")
def team(place):
    """A directory, a start of one of several processes, and the files of a single."""
    folder, run = place

    def join(name, *more, **how):
        return run(*ARGUMENTS, *JOIN, name, *more, **how)

    return folder, join, files(folder / "whole")


def has_begun(out, number):
    """Tells whether so many units have a checkpoint."""
    return functools.partial(lambda: len(newest(out)) >= number)


def test_two_processes_write_the_files_of_one(team):
    folder, join, expected = team
    commands = [join("two") for _ in range(2)]
    for command in commands:
        assert command.wait() == 0, command.text()
    assert files(folder / "two") == expected
    assert_same(folder / "whole", folder / "two")
    texts = [command.text() for command in commands]
    trained = [sum(f"Training {n}/2" in text for text in texts) for n in (1, 2)]
    assert trained == [1, 1]
    written = sorted("Another process has written the result." in t for t in texts)
    assert written == [False, True]
    late = join("two")
    assert late.wait() == 0 and "The run in 'two' is finished." in late.text()


def test_who_stood_still_is_replaced_from_its_checkpoint_and_notices(team):
    folder, join, expected = team
    first = join("still")
    first.wait_for(has_begun(folder / "still", 1))
    os.kill(first.process.pid, signal.SIGSTOP)
    second = join("still")
    try:
        assert second.wait() == 0, second.text()
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    assert first.wait() == 0, first.text()
    assert f"taken over from process {first.process.pid} on " in second.text()
    assert "Another process has written the result." in first.text()
    assert files(folder / "still") == expected
    assert not (folder / "still/checkpoints").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, wide(signal.SIGKILL)])
def test_a_process_leaves_and_another_goes_on(team, number):
    """SIGTERM gives its unit back at once; after SIGKILL it is taken over in time."""
    folder, join, expected = team
    name = f"left-{number}"
    first = join(name, "--quiet")
    first.wait_for(has_begun(folder / name, 1))
    os.kill(first.process.pid, number)
    status = first.wait()
    assert status == (143 if number == signal.SIGTERM else -9), first.text()
    if number == signal.SIGTERM:
        assert first.text().endswith(f"--resume {name}\n")
    second = join(name)
    assert second.wait() == 0, second.text()
    assert ("taken over" in second.text()) == (number == signal.SIGKILL)
    assert files(folder / name) == expected


@pytest.mark.wide
def test_killed_at_random_moments_the_files_are_the_same(place, request):
    folder, run = place
    assert run(*UNITS, "--quiet", "--out", "units").wait() == 0
    expected, join = files(folder / "units"), functools.partial(run, *UNITS, *JOIN)
    rng, kills, attempts = random.Random("shared"), 0, 0
    wanted = 60 if request.config.getoption("--long") else 6
    while kills < wanted:
        name = f"shared-killed-{attempts}"
        crew = [join(name, "--quiet") for _ in range(rng.choice((2, 2, 3)))]
        for _ in range(4):
            victim = rng.randrange(len(crew))
            crew[victim].process.join(rng.uniform(0.05, 3.0))
            if crew[victim].process.is_alive():
                os.kill(crew[victim].process.pid, signal.SIGKILL)
                crew[victim].wait()
                kills += 1
                crew[victim] = join(name, "--quiet")
        for command in crew:
            assert command.wait() == 0, command.text()
        assert files(folder / name) == expected
        shutil.rmtree(folder / name)
        attempts += 1
    counts.add("kills", "shared", kills, f"survived in {attempts} sweeps")


@pytest.mark.wide
def test_a_full_folder_is_a_sentence_and_another_process_goes_on(team):
    folder, join, expected = team
    first = join("full-shared", "--quiet", limits=(_small_files,))
    assert first.wait() == 2
    (line,) = first.text().splitlines()
    assert line.startswith("Cannot write the ")
    second = join("full-shared")
    assert second.wait() == 0, second.text()
    assert "taken over" not in second.text()
    assert files(folder / "full-shared") == expected


def test_a_folder_that_vanishes_is_a_sentence(team):
    folder, join, _ = team
    commands = [join("gone", "--rounds", "5000", "--quiet") for _ in range(2)]
    commands[0].wait_for(has_begun(folder / "gone", 2))
    (folder / "gone").rename(folder / "moved")
    for command in commands:
        assert command.wait() == 2
        (line,) = command.text().splitlines()
        assert line.startswith("Cannot write the ") and "'gone/checkpoints/" in line


@pytest.mark.wide
@pytest.mark.parametrize("more", [("--save-models", "last"), ("--log", "tensorboard")])
def test_models_and_logs_are_written_once(place, more):
    if "--log" in more:
        pytest.importorskip("tensorboardX")
    folder, run = place
    names = [f"{more[0].strip('-')}-{k}" for k in (1, 2)]
    assert run(*UNITS, *more, "--quiet", "--out", names[0]).wait() == 0
    commands = [run(*UNITS, *more, *JOIN, names[1]) for _ in range(2)]
    for command in commands:
        assert command.wait() == 0, command.text()
    one, two = (files(folder / name) for name in names)
    logs = [[one.pop(n) for n in [*one] if n.startswith("tensorboard/")]]
    logs += [[two.pop(n) for n in [*two] if n.startswith("tensorboard/")]]
    assert len(logs[0]) == len(logs[1])
    written = logs[0] or [n for n in one if n.startswith("models/")]
    assert written and one == two


@pytest.mark.wide
def test_digits_are_shared_by_two_processes(place):
    folder, run = place
    digits = ("--clients", "4", "--rounds", "6", "--seeds", "2")
    digits = ("--algorithm", "flame,fedavg,local", *digits)
    assert run(*digits, "--quiet", "--out", "digits-1").wait() == 0
    commands = [run(*digits, "--quiet", *JOIN, "digits-2") for _ in range(2)]
    time.sleep(random.Random("digits").uniform(0, 5))
    if commands[0].process.is_alive():
        os.kill(commands[0].process.pid, signal.SIGKILL)
    assert commands[1].wait() == 0, commands[1].text()
    assert files(folder / "digits-1") == files(folder / "digits-2")


# Refusals, in this process.


SMALL = ("--preset", "quadratic", "--rounds", "2", "--set", "algorithm=fedavg,flame")


def refused(*arguments):
    """The sentence of a command that refuses its options."""
    done = RUNNER.invoke(sweep.app, arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A shared sweep in `shared` that has been begun, and no more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(leases.Leases, "claim", lambda *_: None)
    arguments = (*SMALL, "--seeds", "2", "--out", "shared", "--join", "--quiet")
    done = RUNNER.invoke(sweep.app, [*arguments, "--max-minutes", "1e-6"])
    assert done.exit_code == 3, done.output
    assert done.output.startswith("The time of 1e-06 minutes was up; continue with")
    return tmp_path / "shared"


def test_another_sweep_is_refused(begun):
    arguments = (*SMALL, "--out", "shared", "--join")
    text = refused(*arguments, "--seeds", "3")
    expected = "Expected the sweep that was begun in 'shared', but --seeds is 2 there"
    assert f"{expected} and 3 here." in text
    text = refused(*arguments, "--seeds", "2", "--lease-seconds", "7")
    assert "--lease-seconds is 60.0 there and 7.0 here." in text
    text = refused(*SMALL, "--seeds", "2", "--out", "shared")
    assert "Expected an output directory that does not exist yet" in text


def test_other_data_or_another_plan_are_refused(begun):
    document = json.loads((begun / "experiment.json").read_text())
    del document["digest"]
    units = document["units"]
    for change, shown in (
        ({"data": ["0" * 64] * 2}, "data of unit 1 is"),
        ({"execution": "chunk=3"}, 'execution of unit 1 is "chunk=3" there and'),
        ({"backend": "gpu"}, 'backend of unit 1 is "gpu" there and "cpu" here.'),
    ):
        changed = document | {"units": [units[0] | change, *units[1:]]}
        (begun / "experiment.json").write_text(documents.seal(changed))
        for given in (
            (*SMALL, "--seeds", "2", "--out", "shared", "--join"),
            ("--resume", "shared"),
        ):
            assert shown in refused(*given)
    changed = document | {"units": units[:1]}
    (begun / "experiment.json").write_text(documents.seal(changed))
    assert "units is 1 there and 2 here." in refused("--resume", "shared")


@pytest.mark.parametrize("name", ["fedjax_pfl", "jax", "sources"])
def test_other_versions_are_refused_and_named(begun, monkeypatch, name):
    code = provenance.code()
    other = dict(code) | {name: "0" * 64 if name == "sources" else "0.0.1"}
    monkeypatch.setattr(provenance, "code", lambda *_: other)
    for given in (
        (*SMALL, "--seeds", "2", "--out", "shared", "--join"),
        ("--resume", "shared"),
    ):
        text = refused(*given)
        was = "sources of fedjax_pfl were" if name == "sources" else f"{name} was"
        assert "'shared' was made with other code:" in text and was in text
    assert not list((begun / "checkpoints").glob("0*"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--join",), "--join needs --out, the folder that all processes share"),
        (("--join", "--out", "x", "--profile", "p"), "be combined with --profile"),
        (("--lease-seconds", "5"), "--lease-seconds needs --join"),
        (("--points-per-unit", "2", "--tune", "3"), "--points-per-unit cannot be"),
        (("--points-per-unit", "2", "--learn", "algorithm.lam"), "cannot be combined"),
        (("--join", "--out", "x", "--preset", "fedavg_*"), "Unknown preset"),
        (("--join", "--out", "x", "--preset", "flame_*"), "one preset with --join"),
    ],
)
def test_combinations_are_refused(tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    text = refused(*given).replace("│", "")
    assert sentence in " ".join(text.split())
    assert not list(tmp_path.iterdir())


def test_parts_of_a_group_have_its_points_in_order():
    spec = fp.FederationSpec("digits", num_clients=3)
    process = fp.FederatedProcess(algorithm=fp.Flame())
    axes = {"algorithm.lam": [0.1, 1.0], "seed": range(3)}
    (whole,) = grids.groups_of(
        jax.random.key(0), process, fp.LogisticRegression(), spec, axes
    )
    for size, sizes in ((1, [1] * 6), (4, [4, 2]), (6, [6]), (9, [6])):
        parts = whole.parts(size)
        assert [len(part.points) for part in parts] == sizes
        assert [p for part in parts for p in part.points] == whole.points
        assert [f for part in parts for f in part.federations] == whole.federations
