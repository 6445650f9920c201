"""The bench of rounds over devices and processes: what it makes of its times."""

import itertools
import json
import socket

import pytest
import typer.testing

from experiments.bench import hosts, loopback, machine


def test_a_ratio_is_of_medians_of_the_fastest_calls(monkeypatch, tmp_path):
    """Every form of a workload once in turn, and the same clients for every device."""
    seconds = {(2, 1): itertools.cycle([9.0, 3.0, 6.0]), (1, 2): itertools.repeat(4.0)}
    order = []

    def team(name, form, rounds):
        order.append((name, form))
        least = next(seconds[form])
        row = {"workload": name, "processes": form[0], "devices": form[1]}
        row |= {"received": 1900.0, "expected": 2000.0, "exchanges": 1}
        return row | {"seconds": [least + 1, least], "clients": 10}

    monkeypatch.setattr(hosts, "_team", team)
    monkeypatch.setattr(hosts, "speed", lambda: (1e9, 1e-5))
    out = tmp_path / "hosts.json"
    given = ["--only", "W2", "--forms", "1x2,2x1", "--out", str(out)]
    done = typer.testing.CliRunner().invoke(hosts.app, given)
    assert done.exit_code == 0, done.output
    assert order == [("W2", (1, 2)), ("W2", (2, 1))] * 3
    assert "W2: two processes take 1.50 of the time" in done.output
    assert "at most 1.1 wanted: missed" in done.output
    record = json.loads(out.read_text())
    assert hosts.ratio(record["rows"]) == 6 / 4
    one, two = hosts.cells(record)
    assert one[:2] == ("W2", "1 x 2") and one[3:] == ("", "", "")
    assert two[1] == "2 x 1" and two[4:] == ("1,900", "2,000")
    assert float(two[2].replace(",", "")) == 6000


def test_seconds_of_the_formula_by_hand():
    """Work of a device, twice where two share a core; bytes; and a message each way."""
    one = {"processes": 1, "devices": 1, "seconds": [2.0, 3.0]}
    row = {"processes": 4, "devices": 1, "seconds": [9.0]}
    row |= {"expected": 5e8, "exchanges": 2}
    given = {"bytes_per_second": 1e9, "latency": 0.01}
    seconds = hosts.expected_seconds([one, row], row, given, 2)
    assert seconds == pytest.approx(2 * 2.0 + 0.5 + 2 * 2 * 3 * 0.01)


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (1, [{0, 1, 2, 3}]),
        (2, [{0, 2}, {1, 3}]),
        (4, [{0}, {1}, {2}, {3}]),
        (6, [{0}, {1}, {2}, {3}, {0}, {1}]),
    ],
)
def test_every_process_has_cores_of_its_own(monkeypatch, count, shares):
    """As many for each as there are; where there are too few, some are shared."""
    given = []
    monkeypatch.setattr(machine, "cpus", lambda: (0, 1, 2, 3))

    def restricted(pid, own):
        given.append(set(own))

    monkeypatch.setattr(machine.os, "sched_setaffinity", restricted, raising=False)
    for process in range(count):
        machine.restrict(process, count)
    assert given == shares


def test_bytes_that_a_process_receives_are_counted():
    try:
        before = loopback.received()
    except (OSError, AttributeError):
        pytest.skip("the kernel does not count")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as sender:
            receiver, _ = server.accept()
            with receiver:
                sender.sendall(bytes(12345))
                left = 12345
                while left:
                    left -= len(receiver.recv(left))
                assert loopback.received() - before == 12345
    bandwidth, latency = loopback.speed()
    assert bandwidth > 0 and latency > 0
