"""Leases: who has a unit, when it is free again, and that no clock is compared."""

import concurrent.futures
import json
import multiprocessing
import os
import threading

import pytest

from fedjax_pfl.core import checks
from fedjax_pfl.results import leases


class Clock:
    """A monotonic clock of one process, which shows what it is set to."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def two(tmp_path):
    """Two processes whose clocks differ by an hour, with their clocks."""
    clocks = Clock(), Clock(3600.0)
    crews = [leases.Leases(tmp_path / "leases", 60, clock=clock) for clock in clocks]
    return *crews, clocks[1]


def test_one_process_has_a_unit_until_it_releases_it(two):
    mine, theirs, _ = two
    assert mine.holder("a") is None
    lease = mine.claim("a")
    assert theirs.claim("a") is None and mine.claim("a") is None
    assert theirs.holder("a").startswith(f"process {os.getpid()} on ")
    assert theirs.claim("b") is not None
    with lease:
        lease.check()
        assert theirs.claim("a") is None
    assert theirs.holder("a") is None
    assert theirs.claim("a").number == 2


def test_a_lease_is_lost_after_a_period_without_a_sign_of_life(two):
    mine, theirs, clock = two
    lease = mine.claim("a")
    assert theirs.claim("a") is None  # seen for the first time
    clock.now += 59
    assert theirs.claim("a") is None
    lease.beat()
    clock.now += 59
    assert theirs.claim("a") is None  # the count has changed meanwhile
    lease.check()
    clock.now += 59.9
    assert theirs.claim("a") is None
    clock.now += 0.2
    assert theirs.claim("a").number == 2
    with pytest.raises(leases.LostError):
        lease.check()
    lease.beat()  # too late: it is in another file
    assert theirs.claim("a") is None and mine.claim("a") is None


def test_who_stood_still_releases_nothing_of_others(two):
    mine, theirs, clock = two
    with mine.claim("a"):
        theirs.claim("a")
        clock.now += 61
        taken = theirs.claim("a")
    assert mine.claim("a") is None
    taken.check()


def test_times_of_files_do_not_matter(two, tmp_path):
    mine, theirs, clock = two
    mine.claim("a")
    (path,) = (tmp_path / "leases").iterdir()
    for time in (0, 4e9):
        os.utime(path, (time, time))
        assert theirs.claim("a") is None
        clock.now += 50
    assert theirs.claim("a") is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff" * 600])
def test_a_lease_that_says_nothing_is_lost_in_time(two, tmp_path, content):
    """Its process was killed before it wrote, or someone else did."""
    mine, _, _ = two
    (tmp_path / "leases/a.1").write_bytes(content)
    assert mine.claim("a") is None
    assert mine.holder("a") == "a process that has just started"
    mine._clock.now += 60
    assert mine.claim("a").number == 2


def test_it_gives_signs_of_life_by_itself(tmp_path):
    mine, theirs = (leases.Leases(tmp_path, 0.2) for _ in range(2))
    with mine.claim("a") as lease:
        end = threading.Event()
        for _ in range(20):  # four periods
            assert theirs.claim("a") is None
            end.wait(0.04)
        lease.check()
        counts = json.loads((tmp_path / "a.1").read_text())["count"]
    assert counts > 5


@pytest.mark.parametrize("earlier", [0, 1, 12])
def test_of_many_threads_exactly_one_gets_a_unit(tmp_path, earlier):
    for _ in range(earlier):
        with leases.Leases(tmp_path, 60).claim("a"):
            pass
    crews = [leases.Leases(tmp_path, 60) for _ in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        claimed = list(pool.map(lambda crew: crew.claim("a"), crews))
    assert [lease.number for lease in claimed if lease] == [earlier + 1]


def _claim_all(folder, barrier, names, queue):
    """What a process gets of many units that several processes want at once."""
    crew = leases.Leases(folder, 60)
    barrier.wait()
    queue.put([name for name in names if crew.claim(name) is not None])


def test_of_several_processes_exactly_one_gets_each_unit(tmp_path):
    context = multiprocessing.get_context("forkserver")
    barrier, queue = context.Barrier(3), context.Queue()
    names = [f"unit-{number}" for number in range(40)]
    given = (tmp_path / "leases", barrier, names, queue)
    processes = [context.Process(target=_claim_all, args=given) for _ in range(3)]
    for process in processes:
        process.start()
    claimed = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert sorted(sum(claimed, [])) == sorted(names)


def test_a_folder_that_is_gone_is_one_sentence(two, tmp_path):
    mine, theirs, _ = two
    lease = mine.claim("a")
    for path in (tmp_path / "leases").iterdir():
        path.unlink()
    (tmp_path / "leases").rmdir()
    for call in (lease.check, lambda: theirs.claim("a"), lambda: theirs.holder("a")):
        with pytest.raises(checks.InputError, match="Cannot write the directory"):
            call()
    with lease:  # signs of life and the release do not make it again
        pass
    assert not (tmp_path / "leases").exists()


def test_links_are_neither_read_nor_written(two, tmp_path):
    mine, theirs, _ = two
    outside = tmp_path / "outside"
    outside.write_text("mine")
    lease = mine.claim("a")
    (tmp_path / "leases/a.1").unlink()
    (tmp_path / "leases/a.1").symlink_to(outside)
    with pytest.raises(OSError):
        lease.beat()
    with pytest.raises(checks.InputError, match="a link"):
        theirs.claim("a")
    (tmp_path / "leases/b.1").symlink_to(tmp_path / "nothing")
    with pytest.raises(checks.InputError, match="a link"):
        theirs.claim("b")
    assert outside.read_text() == "mine" and not (tmp_path / "nothing").exists()
