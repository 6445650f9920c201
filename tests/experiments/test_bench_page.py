"""The page of what the bench measured."""

import copy
import json
import pathlib

from typer.testing import CliRunner

from experiments.bench import page

DOCS = pathlib.Path(__file__).parents[2] / "docs"
NAME = "one-core"


def run_of(name):
    return json.loads((DOCS / f"speed-{name}.json").read_text("utf-8"))


def test_the_committed_page_is_that_of_its_files():
    names = (*page.RUNS, page.OLDER, *page.ON_A_GPU)
    runs = {name: run_of(name) for name in names}
    text = page.render(runs, run_of(page.HOSTS))
    assert text == (DOCS / "speed_results.md").read_text("utf-8")


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


def test_workloads_that_a_release_of_jax_changes_are_named():
    older, newer = run_of(NAME), run_of(NAME)
    changed = older["workloads"][0]
    changed["contenders"]["ours"]["seconds_per_round"]["wall"] *= 2
    older["machine"]["versions"]["jax"] = "0.1.2"
    text = page.render({page.OLDER: older, page.NEWER: newer})
    assert f"More than 10 % apart: {changed['name']} (0.50)." in text
    assert "| JAX 0.1.2, ms |" in text
    text = page.render({page.OLDER: newer, page.NEWER: newer})
    assert "More than 10 % apart: none." in text


def test_a_missing_file_is_named(tmp_path):
    done = CliRunner().invoke(page.app, ["--folder", str(tmp_path)])
    assert done.exit_code and "speed-one-core.json" in done.output
    assert not list(tmp_path.iterdir())
