"""The chart of ratios of timed runs."""

import json
import pathlib

import pytest
from typer.testing import CliRunner

from experiments.bench import chart
from fedjax_pfl.core import checks

FILE = pathlib.Path(__file__).parents[2] / "docs/speed-one-core.json"


def test_bars_are_from_equal_times_to_the_ratio():
    run = json.loads(FILE.read_text("utf-8"))
    (axes,) = chart.draw([run]).axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert all(bar.get_x() == 1 for bar in axes.patches)
    assert ends == pytest.approx(list(chart.ratios(run).values()))
    first = run["workloads"][0]["contenders"]
    ours, theirs = (first[n]["seconds_per_round"]["wall"] for n in ("ours", "torch"))
    assert ends[0] == pytest.approx(theirs / ours)


def test_runs_of_two_machines_and_runs_without_a_peer_are_refused():
    run = json.loads(FILE.read_text("utf-8"))
    other = {**run, "machine": {**run["machine"], "processor": "another"}}
    message = "one machine with one JAX, got .*another"
    with pytest.raises(checks.InputError, match=message):
        chart.draw([run, other])
    with pytest.raises(checks.InputError, match="with the peer 'torch'"):
        chart.draw([{**run, "workloads": []}])


def test_the_command_writes_svg_only(tmp_path):
    out = tmp_path / "speed.svg"
    done = CliRunner().invoke(chart.app, [str(out), str(FILE)])
    assert done.exit_code == 0 and out.read_text("utf-8").startswith("<?xml")
    done = CliRunner().invoke(chart.app, [str(tmp_path / "speed.png"), str(FILE)])
    assert done.exit_code and not (tmp_path / "speed.png").exists()
