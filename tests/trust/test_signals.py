"""Signals from the first line of a command to its end, and output that nobody reads."""

import functools
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import time

import pytest

from tests.lanes import wide
from tests.trust import counts, processes
from tests.trust.processes import ARGUMENTS, assert_same, newest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SWEEPS = (("-m", "experiments.sweep"), ("-m", "fedjax_pfl.command", "sweep"))
CLOSED = ("sh", "-c", 'exec "$@" >&-', "sh")
# Sends a process a signal at its first audit event that a pattern matches.
SITE = """
import os, re, signal, sys

def send(event, arguments):
    global pattern
    if pattern and re.fullmatch(pattern, f"{event} {(*arguments, None)[0]}"):
        pattern = ""
        os.kill(os.getpid(), int(os.environ["SENT"]))

pattern = os.environ["MOMENT"]
sys.addaudithook(send)
if "FEDJAX_PFL_ALLOCATOR" in os.environ:
    sys.audit("restart")

class Last:
    def __del__(self, send=os.kill, words=(os.getpid(), int(os.environ["SENT"]))):
        send(*words)

if pattern == "teardown":
    last = Last()
"""
# Prints what each thread blocks where the command would start again, and ends.
THREADS = """
import glob, os, re, sys

def show(event, arguments):
    if event == "os.exec":
        for task in glob.glob("/proc/self/task/*/status"):
            os.write(1, re.search(r"SigBlk:(.*\\n)", open(task).read())[1].encode())
        os._exit(0)

sys.addaudithook(show)
"""
CONSOLE = ("-c", "from fedjax_pfl.command import main; main()")  # as the script does
BOUND = 120
"""Seconds; machines may be busy. On a quiet one it is three, outside of compilation."""


@pytest.fixture(scope="module")
def start(place):
    """Starts Python in the directory of all runs."""
    folder, _ = place
    cache = str(folder / "cache")
    return functools.partial(processes.start_python, folder, cache=cache)


def is_caught(pid):
    """Whether a process has a handler for SIGTERM: before, Python is just starting."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text("ascii")
    mask = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(mask >> (signal.SIGTERM - 1) & 1)


def until(there, process):
    """Waits until a function says so, while the process lives."""
    end = time.monotonic() + BOUND
    while process.poll() is None and not there():
        assert time.monotonic() < end
        time.sleep(0.002)


def check_whole(place, name):
    """There is nothing, or a run that goes on to the same result; what it was."""
    folder, run = place
    assert not list(folder.glob(f".{name}.*"))
    if not (folder / name).exists():
        return "nothing there"
    is_finished = (folder / name / "config.json").exists()
    command = run("--resume", name, "--quiet")
    assert command.wait() == 0, command.text()
    assert_same(folder / "whole", folder / name)
    return "finished" if is_finished else "resumed"


def check_ended(process, number, sent):
    """It ended by a signal or was done, without a traceback; seconds since then."""
    _, error = process.communicate(timeout=BOUND)
    seconds = time.monotonic() - sent
    for word in ("Traceback", "Exception ignored", "Error"):
        assert word not in error, error
    # Python gives handlers back in its last moments, when all work is done; for a shell
    # the status is the same.
    statuses = (128 + number, 0, -number)
    assert process.returncode in statuses, (process.returncode, error)
    if process.returncode > 0:
        assert "Interrupted" in error.splitlines()[-1]
    return seconds


def summary(seconds):
    """Distribution of the seconds from a signal to the end of the process."""
    middle, most = statistics.median(seconds), max(seconds)
    return f"ended after {middle:.2f} s, at most {most:.2f} s"


def test_signals_at_random_moments_of_whole_commands(place, start, request):
    """From the first line to the last one, of both ways to start a command."""
    begun = time.monotonic()
    first = start(*SWEEPS[0], *ARGUMENTS, "--quiet", "--out", "timed")
    _, error = first.communicate(timeout=BOUND)
    assert first.returncode == 0, error
    lasts = time.monotonic() - begun
    rng, seconds, states = random.Random(0), [], []
    for count in range(60 if request.config.getoption("--long") else 6):
        name, number = f"random-{count}", SIGNALS[count % 3]
        words = (*SWEEPS[count % 2], *ARGUMENTS, "--quiet", "--out", name)
        process = start(*words)
        until(lambda pid=process.pid: is_caught(pid), process)
        moment = time.monotonic() + rng.uniform(0, lasts)
        until(lambda moment=moment: time.monotonic() > moment, process)
        process.send_signal(number)
        seconds.append(check_ended(process, number, time.monotonic()))
        states.append(check_whole(place, name))
        assert process.returncode > 0 or states[-1] == "finished"
    outcomes = {state: states.count(state) for state in states}
    details = f"{summary(seconds)}; {outcomes}, of {lasts:.0f} s each"
    counts.add("signals", "to whole commands", len(seconds), details)
    print(details)


@pytest.fixture
def ended_at(tmp_path):
    """Runs a command that gets a signal at a moment; its status and last words."""

    def run(moment, number, *words):
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site/sitecustomize.py").write_text(SITE)
        path = os.pathsep.join([str(tmp_path / "site"), os.getcwd()])
        sent = {"MOMENT": moment, "SENT": str(int(number)), "PYTHONPATH": path}
        process = processes.start_python(
            tmp_path, *words, cache=str(tmp_path / "cache"), variables=sent
        )
        _, error = process.communicate(timeout=BOUND)
        return process.returncode, error

    return run


@pytest.mark.parametrize(
    ("words", "moment", "number"),
    [
        (CONSOLE, "import fedjax_pfl.command.outputs", signal.SIGINT),
        (SWEEPS[0], "import fedjax_pfl.command.signals", signal.SIGTERM),
        wide(SWEEPS[1], "import typer", signal.SIGINT),
        (SWEEPS[0], "os.exec .*", signal.SIGTERM),
        (SWEEPS[0], "restart None", signal.SIGINT),
        wide(SWEEPS[0], "import jax", signal.SIGINT),
    ],
)
def test_a_signal_while_a_command_starts_is_one_sentence(
    ended_at, words, moment, number
):
    status = 128 + number
    assert ended_at(moment, number, *words) == (status, "Interrupted.\n")


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
@pytest.mark.parametrize("words", SWEEPS)
def test_no_thread_takes_a_signal_of_the_program_that_follows(tmp_path, words):
    """A thread that ends with the program could have taken it just before."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(THREADS)
    path = os.pathsep.join([str(tmp_path / "site"), os.getcwd()])
    cache, variables = str(tmp_path / "cache"), {"PYTHONPATH": path}
    process = processes.start_python(tmp_path, *words, cache=cache, variables=variables)
    masks, _ = process.communicate(timeout=BOUND)
    wanted = sum(1 << (number - 1) for number in SIGNALS)
    assert len(masks.split()) >= 2  # the main one, that of signals
    assert all(int(mask, 16) & wanted == wanted for mask in masks.split())


def test_a_signal_when_all_is_done_changes_nothing(ended_at):
    words = ("-m", "fedjax_pfl.command", "methods")
    assert ended_at("teardown", signal.SIGTERM, *words) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, wide(signal.SIGKILL)])
def test_a_report_that_is_ended_leaves_nothing_or_the_next_removes_it(
    place, ended_at, tmp_path, number
):
    folder, _ = place
    shutil.copytree(folder / "whole", tmp_path / "whole")
    before = {path.name for path in (tmp_path / "whole").iterdir()}
    words = (*CONSOLE, "report", "whole")
    status, error = ended_at(r"open .*/\.filling-.*\.png", number, *words)
    left = {path.name for path in (tmp_path / "whole").iterdir()} - before - {".lock"}
    if number == signal.SIGTERM:
        assert (status, error, left) == (143, "Interrupted.\n", set())
        return
    assert status == -number and len(left) == 2
    assert ended_at("", 0, *words) == (0, "")
    left = {path.name for path in (tmp_path / "whole").iterdir()} - before
    assert left - {".lock"} == {"report.html", "report_files"}


@pytest.mark.wide
def test_a_pretraining_that_is_ended_leaves_nothing(ended_at, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    rows = [f"{k},{k % 2},u{k % 9}" for k in range(90)]
    (tmp_path / "own.csv").write_text("\n".join(["x,kind,user", *rows]))
    words = ("pretrain", "--data", "own.csv", "--label", "kind", "--client", "user")
    out = ("--quiet", "--out", "start.safetensors")
    moment = "open .*safetensors"  # of the models, before the file
    status, error = ended_at(moment, signal.SIGTERM, *CONSOLE, *words, *out)
    assert (status, error) == (143, "Interrupted.\n")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.wide
def test_signals_at_random_moments_of_trainings(place, request):
    """Sent to processes that have imported everything; each is resumed by the next."""
    folder, run = place
    begun = time.monotonic()
    first = run(*ARGUMENTS, "--quiet", "--out", "timed-training")
    assert first.wait(BOUND) == 0, first.text()
    lasts = time.monotonic() - begun
    rng, seconds = random.Random(1), []
    wanted, runs = (240 if request.config.getoption("--long") else 3), 0
    while len(seconds) < wanted:
        name, runs = f"trained-{runs}", runs + 1
        while not (folder / name / "config.json").exists():
            again = ["--resume", name] if (folder / name).exists() else None
            command = run(*(again or [*ARGUMENTS, "--out", name]), "--quiet")
            until(lambda c=command: is_caught(c.process.pid), Polled(command))
            command.process.join(rng.uniform(0, lasts))
            if not command.process.is_alive():
                assert command.wait() == 0, command.text()
                break
            number, sent = rng.choice(SIGNALS), time.monotonic()
            os.kill(command.process.pid, number)
            status = command.wait(BOUND)
            seconds.append(time.monotonic() - sent)
            assert status in (128 + number, 0, -number), command.text()
            if status <= 0:
                assert (folder / name / "config.json").exists()
            for word in ("Traceback", "Exception ignored"):
                assert word not in command.text()
        check_whole(place, name)
    details = f"{summary(seconds)}; in {runs} runs, each as if uninterrupted"
    counts.add("signals", "to trainings", len(seconds), details)
    print(details)


class Polled:
    """A command of `processes.start` as `until` asks it."""

    def __init__(self, command):
        self._process = command.process

    def poll(self):
        return self._process.exitcode


@pytest.mark.wide
def test_a_second_signal_ends_at_once_in_the_middle_of_compiled_rounds(place):
    folder, run = place
    long = ("--rounds", "1000000", "--eval-every", "50000", "--quiet")
    command = run(*ARGUMENTS, *long, "--out", "twice")
    command.wait_for(lambda: newest(folder / "twice"))
    os.kill(command.process.pid, signal.SIGINT)
    command.wait_for(lambda: "a second signal ends at once" in command.text())
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.wait() == 143, command.text()
    assert command.text().count("\n") == 1


@pytest.mark.parametrize("reader", ["closed", wide("gone")])
def test_a_training_goes_on_where_nobody_reads(place, start, reader):
    folder, _ = place
    name = f"reader-{reader}"
    words = [*SWEEPS[0], *ARGUMENTS, "--out", name]
    if reader == "closed":
        with start(*words, before=CLOSED) as process:
            _, error = process.communicate(timeout=BOUND)
        assert "2/2 FedAvg" in error.splitlines()[-1]
    else:  # `2>&1 | head -1`
        with start(*words, stderr=subprocess.STDOUT) as process:
            assert process.stdout.readline().startswith("4 grid points")
    assert process.returncode == 0
    assert_same(folder / "whole", folder / name)


def test_what_only_prints_ends_as_a_pipe_does(start):
    words = ("-m", "fedjax_pfl.command", "methods")
    with start(*words) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == -signal.SIGPIPE
    with start(*words, before=CLOSED) as process:
        assert process.communicate(timeout=BOUND) == ("", "")
    assert process.returncode == 0
