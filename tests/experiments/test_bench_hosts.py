"""The bench of rounds over devices and processes: what it makes of its times."""

import itertools
import json
import os
import socket

import pytest
import typer.testing

from experiments.bench import hosts, loopback


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
    assert "W2 two processes over two devices of one: 1.50" in done.output
    assert (
        "2 x 1: 6000.0 ms a round, 1,900 bytes over the network (2,000)" in done.output
    )
    assert hosts.ratio(json.loads(out.read_text())["rows"]) == 6 / 4


def test_seconds_of_the_formula_by_hand(monkeypatch):
    """Work of a device, twice where two share a core; bytes; and a message each way."""
    one = {"processes": 1, "devices": 1, "seconds": [2.0, 3.0]}
    row = {"processes": 4, "devices": 1, "seconds": [9.0]}
    row |= {"expected": 5e8, "exchanges": 2}
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    given = {"bytes_per_second": 1e9, "latency": 0.01}
    seconds = hosts.expected_seconds([one, row], row, given)
    assert seconds == pytest.approx(2 * 2.0 + 0.5 + 2 * 2 * 3 * 0.01)


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
