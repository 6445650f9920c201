"""Real processes: killed at random moments, signalled, locked out, without a disk."""

import ctypes
import functools
import glob
import os
import random
import resource
import signal
import struct
import subprocess
import time

import pytest

from tests.lanes import wide
from tests.trust import counts, inputs
from tests.trust.processes import ARGUMENTS, ONE, assert_same, newest

LOG = ("--log", "tensorboard")
KINDS = {  # command, its arguments, those that are given again with --resume
    "groups": ("sweep", ARGUMENTS, ()),
    "streamed": ("run", (*ONE, "--streamed"), ()),
    "saved models": ("sweep", (*ARGUMENTS, "--save-models", "last"), ()),
    "logs": ("sweep", (*ARGUMENTS, *LOG), LOG),
}


def half_written(folder):
    """Checkpoints under their temporary names; `Path.glob` stops where one goes."""
    return glob.glob("checkpoints/*/.new-*", root_dir=folder)


def models(folder):
    """Saved models, by name of the file."""
    return inputs.contents(folder / "models") if (folder / "models").exists() else {}


def kill_until_done(folder, run, kind, name, rng, most):
    """Kills the training again and again; how often it was, and what that hit."""
    command_name, arguments, again = KINDS[kind]
    run = functools.partial(run, name=command_name)
    command, kills, writing = run(*arguments, "--quiet", "--out", name), 0, 0
    out = folder / name
    while kills < most:
        if rng.random() < 0.5:  # at any moment, from the first line on
            command.process.join(rng.uniform(0.05, 2.0))
        else:  # while a checkpoint is being written
            before = newest(out)
            end = time.monotonic() + 60
            while time.monotonic() < end and command.process.is_alive():
                if half_written(out) or newest(out) != before:
                    break
            time.sleep(rng.uniform(0, 0.1))
        if not command.process.is_alive():
            break
        os.kill(command.process.pid, signal.SIGKILL)
        command.wait()
        kills += 1
        writing += bool(half_written(out))
        if not out.exists():
            command = run(*arguments, "--quiet", "--out", name)
        else:
            command = run("--resume", name, "--quiet", *again)
    assert command.wait() == 0, command.text()
    return kills, writing


def _kind(name):
    """One kind is enough every time."""
    return pytest.param(name, marks=[pytest.mark.wide] * (name != "groups"))


@pytest.mark.parametrize("kind", [_kind(name) for name in KINDS])
def test_killed_at_random_moments_it_is_bit_identical(place, request, kind):
    folder, run = place
    command_name, arguments, _ = KINDS[kind]
    if kind == "logs":
        pytest.importorskip("tensorboardX")
    whole = "whole"
    if kind != "groups":
        whole = f"whole-{kind}".replace(" ", "-")
        command = run(*arguments, "--quiet", "--out", whole, name=command_name)
        assert command.wait() == 0, command.text()
    rng = random.Random(kind)
    kills = writing = attempts = 0
    wanted = 80 if request.config.getoption("--long") else 1
    while kills < wanted:
        name, most = f"{whole}-killed-{attempts}", min(8, wanted - kills)
        more, hit = kill_until_done(folder, run, kind, name, rng, most)
        assert_same(folder / whole, folder / name)
        assert models(folder / whole) == models(folder / name)
        assert (kind == "saved models") == bool(models(folder / name))
        kills, writing, attempts = kills + more, writing + hit, attempts + 1
    details = f"survived in {attempts} runs, {writing} during the write of a checkpoint"
    counts.add("kills", kind, kills, details)


@pytest.mark.parametrize(
    ("number", "status"), [wide(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_saves_and_ends(place, number, status):
    folder, run = place
    name = f"signal-{status}"
    command = run(*ARGUMENTS, "--quiet", "--out", name)
    command.wait_for(lambda: newest(folder / name))
    os.kill(command.process.pid, number)
    assert command.wait() == status, command.text()
    first, last = command.text().splitlines()
    assert first.startswith("Ending after the current rounds")
    assert last.startswith(f"Interrupted by {number.name} at round ")
    assert last.endswith(f"--resume {name}")
    assert not (folder / name / "config.json").exists()
    again = run("--resume", name, "--quiet")
    assert (again.wait(), again.text()) == (0, f"{name}\n")
    assert_same(folder / "whole", folder / name)


@pytest.mark.wide
def test_a_second_process_is_locked_out_and_told_by_whom(place):
    folder, run = place
    command = run(*ARGUMENTS, "--quiet", "--out", "locked")
    command.wait_for(lambda: newest(folder / "locked"))
    os.kill(command.process.pid, signal.SIGSTOP)
    try:
        other = run("--resume", "locked", "--quiet")
        assert other.wait() == 2
        (line,) = other.text().splitlines()
        expected = "Another process is writing in 'locked': process"
        assert line.startswith(f"{expected} {command.process.pid} on ")
    finally:
        os.kill(command.process.pid, signal.SIGCONT)
    assert command.wait() == 0, command.text()
    assert_same(folder / "whole", folder / "locked")


def _small_files():
    """No file may grow beyond 3 kB: what a full disk looks like to a process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


@pytest.mark.wide
def test_a_full_disk_is_a_sentence_and_nothing_is_lost(place):
    folder, run = place
    command = run(*ARGUMENTS, "--quiet", "--out", "full")
    command.wait_for(lambda: newest(folder / "full"))
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    before = newest(folder / "full")
    command = run("--resume", "full", "--quiet", limits=(_small_files,))
    assert command.wait() == 2
    (line,) = command.text().splitlines()
    assert line.startswith("Cannot write the checkpoint 'full/checkpoints/0")
    assert newest(folder / "full") == before
    again = run("--resume", "full", "--quiet")
    assert again.wait() == 0, again.text()
    assert_same(folder / "whole", folder / "full")


@pytest.mark.wide
def test_a_disk_that_is_really_full(place, request):
    if not request.config.getoption("--long"):
        pytest.skip("a file system of its own: only with --long")
    folder, run = place
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        command = run(*ARGUMENTS, "--quiet", "--out", "disk/out")
        assert command.wait() == 2
        assert command.text().count("\n") == 1
        assert "No space left on device" in command.text()
        more = [*mount[:4], "remount,size=20m", *mount[5:]]
        subprocess.run(more, check=True)
        assert run("--resume", "disk/out", "--quiet").wait() == 0
        assert_same(folder / "whole", disk / "out")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_output_that_cannot_be_written_is_refused_at_once(place):
    _, run = place
    command = run(*ARGUMENTS, "--out", "/proc/result")
    assert command.wait() == 2
    (line,) = command.text().splitlines()
    assert line.startswith("Cannot write the directory '/proc/result'")


@pytest.mark.wide
def test_a_directory_that_becomes_read_only(place):
    """The lock, the checkpoints and the results cannot be written: one sentence."""
    folder, run = place
    command = run(*ARGUMENTS, "--quiet", "--out", "only")
    command.wait_for(lambda: newest(folder / "only"))
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    for path in [folder / "only", *(folder / "only").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    command = run("--resume", "only", "--quiet", limits=(_no_privileges,))
    assert command.wait() == 2
    (line,) = command.text().splitlines()
    assert line == "Cannot write the directory 'only': Permission denied."
    for path in [folder / "only", *(folder / "only").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert run("--resume", "only", "--quiet").wait() == 0
    assert_same(folder / "whole", folder / "only")


def _no_privileges():
    """Permissions do not hold for root: its capabilities are given up."""
    version_3 = struct.pack("II", 0x20080522, 0)
    assert ctypes.CDLL(None).capset(version_3, bytes(24)) == 0


@pytest.mark.wide
def test_several_devices_are_continued_with_as_many(place):
    folder, run = place
    arguments = (*ARGUMENTS, "--devices", "2", "--execution", "shard")
    assert run(*arguments, "--quiet", "--out", "sharded").wait() == 0
    command = run(*arguments, "--quiet", "--out", "sharded-2")
    command.wait_for(lambda: newest(folder / "sharded-2"))
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    command = run("--resume", "sharded-2", "--quiet")
    assert command.wait() == 0, command.text()
    assert_same(folder / "sharded", folder / "sharded-2")
