"""One training of several processes, from the command line: the same files, and faults.

All traffic is on the loopback interface.
"""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
import typer.testing

import fedjax_pfl as fp
from experiments import run
from fedjax_pfl.command import distributed
from fedjax_pfl.core import checks, processes
from tests.engine.test_distributed import free_port
from tests.lanes import wide
from tests.trust.processes import newest, start_python
from tests.trust.test_shared import files

RUN = ("-m", "experiments.run")
SMALL = ("--preset", "quadratic", "--set", "algorithm=flame", "--clients", "4")
SMALL = (*SMALL, "--rounds", "12", "--eval-every", "1", "--checkpoint-seconds", "0")
LOST = "Another process of this training has ended, never came or cannot be reached;"
BOUND = 600  # seconds, on a busy machine


def start(folder, *arguments, **more):
    """Starts `python -m experiments.run` in a folder, with its output in one stream."""
    more = {"stderr": subprocess.STDOUT} | more
    return start_python(folder, *RUN, *arguments, cache=str(folder / "cache"), **more)


def team(folder, *arguments, count=2):
    """Starts the processes of one training, each with a device."""
    address = ("--coordinator", f"127.0.0.1:{free_port()}", "--quiet")
    address = (*address, "--num-processes", str(count), "--connect-seconds", "120")
    return [
        start(folder, *arguments, *address, "--process-id", str(k))
        for k in range(count)
    ]


def ended(commands):
    """Statuses and texts of commands; all are ended, whatever happens."""
    try:
        texts = [command.communicate(timeout=BOUND)[0] for command in commands]
    finally:
        for command in commands:
            command.kill()
    if any("UNIMPLEMENTED" in t or "Permission denied" in t for t in texts):
        pytest.skip(f"no collectives between processes here: {texts}")
    return [command.returncode for command in commands], texts


def begin(folder, name, *more, count=2):
    """Starts a training of several processes."""
    arguments = (*SMALL, *more, "--distributed", "--devices", "1", "--out", name)
    return team(folder, *arguments, count=count)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder, and the files of one process with two devices."""
    folder = tmp_path_factory.mktemp("distributed")
    alone = start(
        folder, *SMALL, "--devices", "2", "--execution", "shard", "--out", "alone"
    )
    (status,), texts = ended([alone])
    assert status == 0, texts
    return folder, files(folder / "alone")


def wait_for_checkpoint(folder, commands):
    """Waits until there is one, while all processes live."""
    end = time.monotonic() + BOUND
    while not newest(folder) and all(command.poll() is None for command in commands):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("victim", [1, wide(0)])
def test_one_is_killed_and_all_go_on_to_the_files_of_one_process(alone, victim):
    folder, expected = alone
    name = f"killed-{victim}"
    commands = begin(folder, name)
    wait_for_checkpoint(folder / name, commands)
    commands[victim].kill()
    statuses, texts = ended(commands)
    if statuses != [0, 0]:  # the training was faster
        assert statuses[victim] == -signal.SIGKILL
        assert statuses[1 - victim] == 4, texts
        assert texts[1 - victim].startswith(LOST)
        assert texts[1 - victim].count("\n") == 1
        statuses, texts = ended(team(folder, "--resume", name))
    assert statuses == [0, 0], texts
    assert texts == [f"{name}\n", ""]
    assert files(folder / name) == expected


def assert_close(one, other):
    """Says that two results are equal, to rounding."""
    expected, found = (
        fp.Result.load(place).groups[0].metrics for place in (one, other)
    )
    for name, values in expected.items():
        np.testing.assert_allclose(
            found[name], values, rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.wide
def test_four_processes_equal_one_of_four_devices_to_rounding(alone):
    """Gloo adds in another order; on as many processes bits are the same again."""
    folder, _ = alone
    more = ("--save-models", "last", "--set", "participation=uniform")
    more = (*more, "--set", "participation.size=4")
    one = (*SMALL, *more, "--devices", "4", "--execution", "shard", "--out", "one-of-4")
    (status,), texts = ended([start(folder, *one)])
    assert status == 0, texts
    statuses, texts = ended(begin(folder, "four", *more, count=4))
    assert statuses == [0] * 4, texts
    assert_close(folder / "one-of-4", folder / "four")
    commands = begin(folder, "four-killed", *more, count=4)
    wait_for_checkpoint(folder / "four-killed", commands)
    commands[2].kill()
    statuses, texts = ended(commands)
    assert statuses[2] == -signal.SIGKILL and statuses.count(4) == 3, texts
    assert all(text.startswith(LOST) for k, text in enumerate(texts) if k != 2)
    statuses, texts = ended(team(folder, "--resume", "four-killed", count=4))
    assert statuses == [0] * 4, texts
    assert files(folder / "four-killed") == files(folder / "four")


@pytest.mark.wide
@pytest.mark.parametrize("count", [1, 4])
def test_another_number_of_processes_goes_on(alone, count):
    """From what two have written, each its rows; to rounding."""
    folder, _ = alone
    name = f"from-2-to-{count}"
    commands = begin(folder, name)
    wait_for_checkpoint(folder / name, commands)
    commands[0].kill()
    ended(commands)
    for group, number in newest(folder / name).items():
        place = folder / name / "checkpoints" / group / number
        assert sorted(path.name for path in place.glob("rows-*")) == [
            "rows-0000000000-0000000002.npz",
            "rows-0000000002-0000000004.npz",
        ]
    statuses, texts = ended(team(folder, "--resume", name, count=count))
    assert statuses == [0] * count, texts
    assert_close(folder / "alone", folder / name)


@pytest.mark.wide
def test_streamed_processes_write_the_files_of_one(alone):
    """Each has a file of rows; others go on from these, on as many to the bit."""
    folder, _ = alone
    more = ("--streamed", "--set", "participation=uniform")
    more = (*more, "--set", "participation.size=3")
    one = (*SMALL, *more, "--devices", "2", "--execution", "shard", "--out", "streamed")
    (status,), texts = ended([start(folder, *one)])
    assert status == 0, texts
    expected = files(folder / "streamed")
    for count in (2, 1, 4):
        name = f"streamed-to-{count}"
        commands = begin(folder, name, *more)
        wait_for_checkpoint(folder / name, commands)
        commands[1].kill()
        ended(commands)
        (place,) = (folder / name / "checkpoints").glob("0*")
        assert sorted(path.name for path in place.glob("rows-*")) == [
            "rows-0000000000-0000000002.bin",
            "rows-0000000002-0000000004.bin",
        ]
        statuses, texts = ended(team(folder, "--resume", name, count=count))
        assert statuses == [0] * count, texts
        if count == 2:
            assert files(folder / name) == expected
        assert_close(folder / "streamed", folder / name)


@pytest.mark.wide
def test_a_signal_to_one_process_saves_and_ends_all(alone):
    folder, expected = alone
    commands = begin(folder, "signalled")
    wait_for_checkpoint(folder / "signalled", commands)
    commands[1].send_signal(signal.SIGTERM)
    statuses, texts = ended(commands)
    assert statuses == [3, 143], texts
    for text in texts:
        assert text.splitlines()[-1].startswith("Interrupted by SIGTERM at round ")
    statuses, texts = ended(team(folder, "--resume", "signalled"))
    assert statuses == [0, 0], texts
    assert files(folder / "signalled") == expected


def test_who_never_comes_is_a_sentence(tmp_path):
    """Neither the first process nor another one is waited for beyond the given time."""
    address = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    address = (*address, "--connect-seconds", "2", "--distributed", "--out", "none")
    second = start(tmp_path, *SMALL, *address, "--process-id", "1")
    (status,), (text,) = ended([second])
    (line,) = text.splitlines()
    assert status == 2 and line.startswith("Expected --process-id 0 at 127.0.0.1:")
    first = start(tmp_path, *SMALL, *address, "--process-id", "0")
    (status,), (text,) = ended([first])
    (line,) = text.splitlines()
    assert status == 4 and line.startswith(LOST)
    assert not (tmp_path / "none").exists()


@pytest.mark.wide
def test_different_options_are_refused_by_all(tmp_path):
    address = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    address = (*SMALL, *address, "--distributed", "--devices", "1", "--out", "other")
    rounds = [("--rounds", "12"), ("--rounds", "13")]
    commands = [
        start(tmp_path, *address, *more, "--process-id", str(k), "--quiet")
        for k, more in enumerate(rounds)
    ]
    statuses, texts = ended(commands)
    assert statuses == [2, 2], texts
    expected = "Expected the same options in all processes, but --rounds is 12 in"
    assert all(t.startswith(f"{expected} process 0 and 13 in process 1") for t in texts)
    assert not (tmp_path / "other").exists()


@pytest.mark.wide
def test_a_child_ends_with_its_parent(alone):
    folder, _ = alone
    commands = begin(folder, "orphans", "--rounds", "100000")
    wait_for_checkpoint(folder / "orphans", commands)
    children = [
        int(pid)
        for command in commands
        for pid in subprocess.run(
            ["pgrep", "-P", str(command.pid)], capture_output=True, text=True
        ).stdout.split()
    ]
    assert len(children) == 2
    for command in commands:
        os.kill(command.pid, signal.SIGKILL)
    ended(commands)
    end = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in children):
        assert time.monotonic() < end
        time.sleep(0.1)


# In this process.


def test_versions_and_data_are_compared(monkeypatch):
    ours = {"code": {"jax": "0.10.1"}, "plan": {"data": ["abc"]}}

    def tell(theirs):
        text = json.dumps(theirs)
        monkeypatch.setattr(processes, "gathered", lambda mine: [mine, mine, text])
        distributed.check_alike(**ours)

    tell(ours)
    expected = 'same code in all processes, but jax is "0.10.1" in process 0 and'
    with pytest.raises(checks.InputError, match=f'{expected} "0.9" in process 2'):
        tell(ours | {"code": {"jax": "0.9"}})
    with pytest.raises(checks.InputError, match="the same plan in all processes, but"):
        tell(ours | {"plan": {"data": ["abd"]}})


def test_a_refusal_of_one_is_one_of_all(monkeypatch):
    with processes.together():
        pass
    assert processes.first("a") == "a" and processes.first(None) is None
    with pytest.raises(checks.InputError, match="mine"), processes.together():
        raise checks.InputError("mine")
    monkeypatch.setattr(processes, "gathered", lambda text: [text, "theirs", "others"])
    with pytest.raises(checks.InputError, match="theirs"), processes.together():
        pass


OF_TWO = "--distributed --num-processes 2 --coordinator"
LIKE = "expected --coordinator like node1:12345, got"
COMBINATIONS = [
    ("--coordinator a:1", "need --distributed"),
    ("--connect-seconds 5", "need --distributed"),
    ("--distributed --learn algorithm.lam", "combined with --learn or --profile"),
    ("--distributed --profile p", "--distributed cannot be combined"),
    ("--distributed --execution chunk=2", "shard, with all devices, got 'chunk=2'"),
    ("--distributed --execution shard=2", "needs --execution shard"),
    ("--distributed --process-id 0", "--num-processes and --process-id together, or"),
    (f"{OF_TWO} a:1 --process-id 2", "--process-id below --num-processes 2, got 2"),
    (f"{OF_TWO} a --process-id 1", f"{LIKE} 'a'"),
    (f"{OF_TWO} a:0 --process-id 1", f"{LIKE} 'a:0'"),
    (f"{OF_TWO} :7 --process-id 1", f"{LIKE} ':7'"),
]


@pytest.mark.parametrize(("given", "sentence"), COMBINATIONS)
def test_combinations_are_refused(tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    done = typer.testing.CliRunner().invoke(run.app, given.split())
    assert done.exit_code == 2, done.output
    assert sentence in " ".join(done.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
