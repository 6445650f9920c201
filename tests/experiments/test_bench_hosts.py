"""The bench of rounds over devices and processes: what it makes of its times."""

import itertools
import json

import typer.testing

from experiments.bench import hosts


def test_a_ratio_is_of_medians_of_the_fastest_calls(monkeypatch, tmp_path):
    """Every form of a workload once in turn, and the same clients for every device."""
    seconds = {(2, 1): itertools.cycle([9.0, 3.0, 6.0]), (1, 2): itertools.repeat(4.0)}
    order = []

    def team(name, form, rounds):
        order.append((name, form))
        least = next(seconds[form])
        row = {"workload": name, "processes": form[0], "devices": form[1]}
        return row | {"seconds": [least + 1, least], "clients": 10}

    monkeypatch.setattr(hosts, "_team", team)
    out = tmp_path / "hosts.json"
    given = ["--only", "W2", "--forms", "1x2,2x1", "--out", str(out)]
    done = typer.testing.CliRunner().invoke(hosts.app, given)
    assert done.exit_code == 0, done.output
    assert order == [("W2", (1, 2)), ("W2", (2, 1))] * 3
    assert "W2 two processes over two devices of one: 1.50" in done.output
    assert hosts.ratio(json.loads(out.read_text())["rows"]) == 6 / 4
