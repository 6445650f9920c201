"""Trainings of several processes, of which one is killed at random moments.

The processes are forked, so that they start fast; who watches them is tested elsewhere.
All traffic is on the loopback interface.
"""

import functools
import os
import random
import signal
import time

import pytest

from tests.engine.test_distributed import free_port
from tests.trust import counts
from tests.trust.processes import newest, start
from tests.trust.test_processes import half_written
from tests.trust.test_shared import files

# A cohort, so that rows and examples travel.
TRAINED = ("--preset", "quadratic", "--set", "algorithm=flame", "--clients", "16")
TRAINED = (*TRAINED, "--set", "participation=uniform", "--set", "participation.size=4")
TRAINED = (*TRAINED, "--rounds", "12", "--eval-every", "1", "--checkpoint-seconds", "0")
BOUND = 300  # seconds, on a busy machine
FAILED = {2, 4, -signal.SIGABRT}  # not connected; lost another one; JAX's own end


def unwatched():
    """Lets a process notice the others' end early, and without a parent of its own."""
    from fedjax_pfl.command import distributed, watched

    watched.start = lambda: None
    distributed._SILENCE = 10


def begin(folder, count, *arguments):
    """Starts all processes of a training."""
    address = ("--coordinator", f"127.0.0.1:{free_port()}", "--quiet")
    address = (*address, "--num-processes", str(count), "--connect-seconds", "60")
    make = functools.partial(start, folder, *arguments, *address, name="run")
    more = {"cache": folder / "cache", "limits": (unwatched,)}
    return [make("--process-id", str(number), **more) for number in range(count)]


def new(folder, count, name, *more):
    """Starts the processes of a new training."""
    own = ("--distributed", "--devices", "1", "--out", name)
    return begin(folder, count, *TRAINED, *more, *own)


def ended(commands):
    """Statuses and texts of commands."""
    statuses = [command.wait(BOUND) for command in commands]
    texts = [command.text() for command in commands]
    if any("UNIMPLEMENTED" in t or "Permission denied" in t for t in texts):
        pytest.skip(f"no collectives between processes here: {texts}")
    return statuses, texts


def wait_for_a_moment(out, commands, rng):
    """Waits for any moment, or for one while a checkpoint is being written."""
    before, at_any, wait = newest(out), rng.random() < 0.5, rng.uniform(0, 6)
    end = time.monotonic() + (wait if at_any else 60)
    while time.monotonic() < end and all(c.process.is_alive() for c in commands):
        if not at_any and (half_written(out) or newest(out) != before):
            time.sleep(rng.uniform(0, 0.1))
            return
        time.sleep(0.002)


def kill_until_done(folder, count, name, more, rng, most):
    """Kills a process again and again; how often, and how often in a checkpoint."""
    out, kills, writing = folder / name, 0, 0
    commands = new(folder, count, name, *more)
    while kills < most:
        wait_for_a_moment(out, commands, rng)
        victim = rng.randrange(count)
        if not commands[victim].process.is_alive():
            break
        os.kill(commands[victim].process.pid, signal.SIGKILL)
        statuses, texts = ended(commands)
        if statuses[victim] != -signal.SIGKILL:  # it had just ended
            break
        kills, writing = kills + 1, writing + bool(half_written(out))
        others = {status for k, status in enumerate(statuses) if k != victim}
        assert others <= FAILED | {0}, texts
        is_begun = out.exists()
        again = begin(folder, count, "--resume", name) if is_begun else None
        commands = again or new(folder, count, name, *more)
    statuses, texts = ended(commands)
    assert statuses == [0] * count, texts
    return kills, writing


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "count", "more"),
    [("distributed", 2, ()), ("distributed", 4, ()), ("streamed", 2, ("--streamed",))],
)
def test_killed_at_random_moments_the_files_are_the_same(
    place, request, kind, count, more
):
    """As those of as many processes, none of which was killed."""
    folder, _ = place
    whole = f"{kind}-{count}"
    statuses, texts = ended(new(folder, count, whole, *more))
    assert statuses == [0] * count, texts
    expected = files(folder / whole)
    rng, kills, writing, attempts = random.Random(count), 0, 0, 0
    wanted = 35 if request.config.getoption("--long") else 2
    while kills < wanted:
        name, most = f"{whole}-killed-{attempts}", min(8, wanted - kills)
        done, hit = kill_until_done(folder, count, name, more, rng, most)
        assert files(folder / name) == expected
        kills, writing, attempts = kills + done, writing + hit, attempts + 1
    details = f"survived in {attempts} trainings, {writing} with a half checkpoint"
    counts.add("kills", f"{kind} over {count}", kills, details)
