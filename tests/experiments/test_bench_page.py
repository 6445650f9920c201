"""The page of what the bench measured."""

import copy
import json
import pathlib

import pytest
from typer.testing import CliRunner

from experiments.bench import page

DOCS = pathlib.Path(__file__).parents[2] / "docs"
NAME = "one-core"


def run_of(name):
    return json.loads((DOCS / f"speed-{name}.json").read_text("utf-8"))


def test_the_committed_page_is_that_of_its_files():
    names = (*page.RUNS, *page.ON_A_GPU)
    runs = {name: run_of(name) for name in names}
    text = page.render(runs, run_of(page.HOSTS))
    assert text == (DOCS / "speed_results.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("target", "ours", "theirs", "is_met"),
    [
        (page.Target("torch", 6), 1.0, 6.0, True),
        (page.Target("torch", 6), 1.0, 5.9, False),
        (page.Target("plain", 2), 2.0, 1.0, True),
        (page.Target("plain", 2), 2.1, 1.0, False),
    ],
)
def test_peers_are_to_be_beaten_and_our_own_to_be_kept_up_with(
    target, ours, theirs, is_met
):
    assert target.is_met(ours, theirs) is is_met


def test_a_slower_run_misses_what_it_met():
    run = run_of(NAME)
    timed = copy.deepcopy(run)
    for workload in timed["workloads"]:
        workload["contenders"]["ours"]["seconds_per_round"]["wall"] *= 1e3
    text = page.render({NAME: timed})
    timed = {w["name"] for w in run["workloads"]}
    wanted = [
        f"{name} (`{target.peer}`)"
        for name, targets in page.TARGETS[NAME].items()
        for target in targets
        if name in timed
    ]
    (line,) = [part for part in text.splitlines() if part.startswith("Missed: ")]
    found = line.removeprefix("Missed: ").rstrip(".").split(", ")
    assert sorted(found) == sorted(wanted)
    assert ": met |" not in text


def test_a_missing_file_is_named(tmp_path):
    done = CliRunner().invoke(page.app, ["--folder", str(tmp_path)])
    assert done.exit_code and "speed-one-core.json" in done.output
    assert not list(tmp_path.iterdir())
