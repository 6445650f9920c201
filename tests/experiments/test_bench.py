"""The command `python -m experiments.bench`: comparisons, tables, files."""

import dataclasses
import json
import math
import os

import jax
import numpy as np
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments.bench import (
    backward,
    catalog,
    cold,
    command,
    contenders,
    delays,
    machine,
    populations,
    quadratic_programs,
    report,
    rules,
    timing,
    worker,
    workloads,
)

RUNNER = typer.testing.CliRunner()
SHAPE = (4, 4)
TINY = workloads.softmax(
    "tiny", "a tiny one", (6, 6, 6), 4, peers=("torch", "vmap"), shape=SHAPE
)
FRESH = workloads.softmax(
    "fresh", "compiled in one test only", (5, 5), 5, peers=("vmap",), shape=SHAPE
)
TINY_GRID = dataclasses.replace(
    TINY,
    name="grid",
    peers=("loop-jit", "torch"),
    axes={"algorithm.lam": (0.5, 1.0), "algorithm.kappa": (2.0,)},
)
TINY_RULE = dataclasses.replace(
    rules.RULES["A2"], name="rule", num_rows=20, num_columns=30
)


def run(*arguments):
    return RUNNER.invoke(command.app, [str(argument) for argument in arguments])


@pytest.fixture
def tiny(monkeypatch):
    """Tiny workloads, measured in this process, in samples of one call."""
    timed = {one.name: one for one in (TINY, FRESH, TINY_GRID, TINY_RULE)}
    monkeypatch.setattr(catalog, "TIMED", timed)
    monkeypatch.setattr(timing, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(timing, "MORE_SECONDS", 0.0)
    monkeypatch.setattr(machine, "_SIZE", 64)
    monkeypatch.setattr(machine, "_COPIED", 4096)
    monkeypatch.setattr(machine, "pin", lambda threads: None)

    def here(arguments, settings, advance):
        name, repeat, *peers = arguments
        return json.loads(json.dumps(worker.measure(name, peers, int(repeat), advance)))

    monkeypatch.setattr(command, "launch", here)


# Contenders compute the same.


def test_a_loop_over_single_trainings_agrees_with_the_grid():
    found = TINY_GRID.differences(["loop-jit"])
    assert found["loop-jit"] < 1e-12


@pytest.mark.parametrize("name", ["torch", "torch.channels_last", "torch.func"])
@pytest.mark.parametrize("method", ["flame", "fedavg", "grid"])
def test_pytorch_agrees(name, method):
    pytest.importorskip("torch")
    if method == "fedavg":
        model = workloads.BenchCNN(filters=(2, 3), hidden=4)
        workload = workloads.cnn((3, 3), model=model, shape=(16, 16, 1))
    else:
        workload = TINY if method == "flame" else TINY_GRID
    with jax.enable_x64(False):
        found = workload.differences([name])
    # A few hundred float32 operations on the largest parameter.
    assert found[name] < 500 * np.finfo(np.float32).eps


def test_scipy_agrees():
    program = quadratic_programs.Program("tiny", "a tiny one", ("scipy",), 5, 2)
    made = {name: program.contender(name) for name in ("ours", "scipy")}
    for contender in made.values():
        contender.run()
    results = {name: contender.result() for name, contender in made.items()}
    found = program.agreement(results)
    # Squared lengths agree to 1e-6 of the rows'.
    assert found["scipy"]["difference"] < 1e-3 / found["ours"]["loss"]
    assert found["scipy"]["loss"] == pytest.approx(found["ours"]["loss"], rel=1e-4)


def test_a_peer_that_computes_something_else_is_seen(monkeypatch):
    other = dataclasses.replace(
        TINY, process=fp.FederatedProcess(algorithm=fp.Flame(lam=2.0))
    ).without_order()

    def make(work, name):
        group = (work if name == "ours" else other).group()
        return contenders.Ours(group, work.rounds)

    monkeypatch.setattr(workloads.Workload, "contender", make)
    assert TINY.differences(["other"])["other"] > 1e-3


def test_a_training_can_go_on_for_ever(monkeypatch):
    monkeypatch.setattr(contenders, "_CALLS", 2)
    ours = TINY.contender("ours")
    results = []
    for _ in range(3):
        ours.run()
        results.append(ours.result()["head"]["kernel"])
    np.testing.assert_array_equal(results[0], results[2])  # started anew
    assert np.abs(results[0] - results[1]).max() > 1e-3


def test_a_cold_start_trains_the_same():
    warm = workloads.cohorts((6, 5, 7), 2, rounds=3)
    process = cold.Cold(warm, "ours")
    folder = process._path
    task = json.loads((folder / "task.json").read_text("utf-8"))
    np.savez(folder / "model.npz", **cold._train_ours(folder, task))
    ours = warm.contender("ours")
    ours.run()
    np.testing.assert_array_equal(
        process.result()["head"]["kernel"], ours.result()["head"]["kernel"]
    )


def test_a_cold_start_in_pytorch_trains_the_same():
    pytest.importorskip("torch")
    warm = workloads.cohorts((6, 6), 2, rounds=3)  # one batch of all: no order
    process = cold.Cold(warm, "torch")
    task = json.loads((process._path / "task.json").read_text("utf-8"))
    theirs = cold._train_torch(process._path, task)
    ours = warm.contender("ours")
    ours.run()
    np.testing.assert_allclose(
        theirs["kernel"], ours.result()["head"]["kernel"], rtol=1e-4, atol=1e-6
    )


def test_a_process_that_fails_is_a_peer_that_cannot_run():
    training = workloads.cohorts((6, 6), 2, rounds=3)
    process = cold.Cold(training, "nobody")
    with pytest.raises(machine.UnavailableError, match="nobody"):
        process.run()


def test_accuracy_and_loss_of_known_models():
    zero = {"head": {"kernel": np.zeros((1, 10, 16)), "bias": np.zeros((1, 10))}}
    accuracy, loss = TINY.quality({"zero": zero})["zero"].values()
    labels = np.asarray(TINY.spec.build().train.y)
    assert loss == pytest.approx(math.log(10))
    assert accuracy == pytest.approx((labels == 0).mean())
    sure = {"head": zero["head"] | {"bias": 50.0 * np.eye(10)[labels[:1]]}}
    accuracy, loss = TINY.quality({"sure": sure})["sure"].values()
    share = (labels == labels[0]).mean()
    assert accuracy == pytest.approx(share)
    assert loss == pytest.approx(50 * (1 - share))


# The command.


@pytest.mark.smoke
def test_the_command_times_prints_and_writes(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # in which no heading is broken
    file = tmp_path / "found.json"
    options = ("--only", "fresh,rule", "--against", "vmap,loop-jit", "--repeat", 3)
    done = run(*options, "--json", file)
    assert done.exit_code == 0, done.output
    for words in ("GFLOP/s", "of peak", "wall ratio", "compile s", "peak MB"):
        assert words in done.stdout
    found = json.loads(file.read_text("utf-8"))
    assert os.listdir(tmp_path) == ["found.json"]
    assert found["machine"]["versions"]["jax"] == jax.__version__
    assert {"load_at_start", "device", "threads", "cpus"} <= set(found["machine"])
    names = [workload["name"] for workload in found["workloads"]]
    assert names == ["fresh", "rule"]
    training = found["workloads"][0]
    assert set(training["contenders"]) == {"ours", "vmap"}
    for contender in training["contenders"].values():
        times = contender["seconds_per_round"]
        assert 0 < times["least"] <= times["low"] <= times["wall"] <= times["high"]
        assert len(contender["samples"]) == times["total"] >= 3
    peer = training["contenders"]["vmap"]["agreement"]
    assert peer["difference"] < 1e-12
    assert peer["loss"] == pytest.approx(
        training["contenders"]["ours"]["agreement"]["loss"]
    )
    assert training["peak_bytes"] > 10**7
    assert training["compile_seconds"] > 0


@pytest.mark.parametrize(("tolerance", "status"), [(math.inf, 0), (-1.0, 1)])
def test_a_run_is_checked_against_an_earlier_one(
    tiny, tmp_path, monkeypatch, tolerance, status
):
    monkeypatch.setattr(report, "TOLERANCE", tolerance)
    file = tmp_path / "earlier.json"
    report.write(file, found(rule=1.0))
    done = run("--only", "rule", "--repeat", 3, "--check", file)
    assert done.exit_code == status, done.output
    assert "Change from the earlier run" in done.stdout
    assert ("More than 10 % apart: rule." in done.stderr) == bool(status)


def test_a_peer_that_cannot_run_is_reported(tiny, monkeypatch, tmp_path):
    def fail(module):
        raise machine.UnavailableError(f"{module} is not installed")

    monkeypatch.setattr(contenders, "library", fail)
    done = run("--only", "tiny", "--against", "torch", "--repeat", 3)
    assert done.exit_code == 0, done.output
    assert "tiny: torch cannot run: " in done.stdout
    assert "is not installed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "W9"), "Unknown workload 'W9'"),
        (("--against", "troch"), "Unknown peer 'troch' (did you mean 'torch'?)"),
        (("--threads", "100000"), "expected --threads of at most"),
        (("--repeat", "0"), "Invalid value for '--repeat'"),
        (("--check", "nothing.json"), "nothing.json"),
        (("--update",), "expected --update with --json"),
        (("--json", "no/such/folder/x.json"), "Cannot read or write"),
    ],
)
def test_wrong_arguments_are_one_sentence(tiny, arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_names_everything():
    done = run("--list")
    assert done.exit_code == 0
    for name in (*catalog.TIMED, *rules.RULES, *quadratic_programs.PROGRAMS, "W6cold"):
        assert f"{name}: " in done.stdout


def test_a_file_keeps_what_was_not_measured_again(tiny, tmp_path):
    file = tmp_path / "found.json"
    again = ("--only", "rule", "--repeat", 3, "--json", file, "--update")
    done = run("--only", "rule,tiny", "--repeat", 3, "--json", file)
    assert done.exit_code == 0, done.output
    first = report.read(file)
    done = run(*again)
    assert done.exit_code == 0, done.output
    tiny_first, rule_first = first["workloads"]
    tiny_now, rule_now = report.read(file)["workloads"]
    assert tiny_now == tiny_first
    assert rule_now["name"] == "rule" and rule_now != rule_first
    first["machine"]["processor"] = "another"
    report.write(file, first)
    done = run(*again)
    assert done.exit_code == 2
    assert "to keep its other workloads, got another" in done.stderr
    assert report.read(file) == first


def test_a_workload_that_fails_is_named_and_others_are_kept(
    tiny, monkeypatch, tmp_path
):
    launch = command.launch

    def launched(arguments, settings, advance):
        if arguments[0] == "grid":
            machine.output("no_memory")
        return launch(arguments, settings, advance)

    monkeypatch.setattr(command, "launch", launched)
    file = tmp_path / "found.json"
    done = run("--only", "grid,rule", "--repeat", 3, "--json", file)
    assert done.exit_code == 1
    assert [one["name"] for one in report.read(file)["workloads"]] == ["rule"]
    assert "grid failed: " in done.stderr and "bench.no_memory" in done.stderr
    assert " rule " in done.stdout


# Files and their comparison.


def found(**walls):
    """A run in which our rounds took so many seconds."""
    return {
        "format": report.FORMAT,
        "workloads": [
            {
                "name": name,
                "contenders": {"ours": {"seconds_per_round": {"wall": wall, "cpu": 1}}},
            }
            for name, wall in walls.items()
        ],
    }


def test_runs_are_compared(tmp_path, capsys):
    from rich.console import Console

    earlier, later = found(W1=1.0, W2=1.0, W3=1.0), found(W1=1.05, W2=1.2, W5=3.0)
    assert report.differing(earlier, later) == [
        ("W1", pytest.approx(0.05), 0),
        ("W2", pytest.approx(0.2), 0),
    ]
    assert report.changes(Console(), earlier, later) == ["W2"]
    assert "+20.0 %" in capsys.readouterr().out


def test_a_run_is_written_at_once(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    report.write(file, found(W1=1.0))
    assert report.read(file) == found(W1=1.0)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        report.write(file, found(W1=2.0))
    assert report.read(file) == found(W1=1.0)
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', "[1"])
def test_files_that_are_no_runs_are_refused(tmp_path, text):
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(fp.InputError, match="Expected '.*run.json' to be a file that"):
        report.read(file)


def test_a_process_of_its_own_gets_its_threads(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_some_flag=1")
    settings = {"threads": 2, "devices": 3, "huge_pages": False}
    given = machine.environment(settings)
    assert given["XLA_FLAGS"].split() == [
        "--xla_some_flag=1",
        "--xla_force_host_platform_device_count=3",
    ]
    assert given["OMP_NUM_THREADS"] == "2"
    given = machine.environment(settings | {"devices": 1})
    assert given["XLA_FLAGS"] == "--xla_some_flag=1"


def test_a_streamed_population_trains_the_cohorts_of_a_small_one(tiny, monkeypatch):
    """As many steps, from rows that the file has, and from clients that are new."""
    monkeypatch.setattr(populations, "_POOL", 200)
    small = dataclasses.replace(
        populations.POPULATIONS["S1"],
        name="tiny",
        rounds=2,
        sizes={"ours": 500, "thousand": 6},
        cohort_size=5,
        shape=SHAPE,
    )
    monkeypatch.setitem(catalog.TIMED, "tiny", small)
    numbers = worker.measure("tiny", ["thousand"], 3, lambda: None)
    assert numbers["contenders"].keys() == {"ours", "thousand"}, numbers
    assert numbers["steps_per_round"] == 5 * 60 / 10
    clients = populations.federation(500, SHAPE)
    assert clients.train.index.max() < 200 and clients.train.index.shape == (500, 60)


def test_buffers_are_timed_beside_synchronous_rounds(tiny, monkeypatch):
    small = dataclasses.replace(
        delays.DELAYS["V1"],
        name="tiny",
        rounds=2,
        per_member=1,
        base=workloads.cohorts((6,) * 9, 2, shape=SHAPE),
    )
    ours, peer = (small.contender(name) for name in ("ours", "synchronous"))
    for timed in (ours, peer):
        timed.run()
    monkeypatch.setitem(catalog.TIMED, "tiny", small)
    numbers = worker.measure("tiny", ["synchronous"], 3, lambda: None)
    assert numbers["contenders"].keys() == {"ours", "synchronous"}, numbers
    assert numbers["steps_per_round"] == 2


def test_going_back_is_timed_beside_the_training(tiny, monkeypatch):
    """Both reach the same objective."""
    small = dataclasses.replace(
        backward.BACKWARD["G1"],
        name="tiny",
        rounds=2,
        base=workloads.softmax("tiny", "", (6,) * 3, 2, peers=(), shape=SHAPE),
    )
    monkeypatch.setitem(catalog.TIMED, "tiny", small)
    numbers = worker.measure("tiny", ["training"], 3, lambda: None)
    ours, training = (
        numbers["contenders"][name]["agreement"]["loss"]
        for name in ("ours", "training")
    )
    np.testing.assert_allclose(ours, training, rtol=1e-5)
