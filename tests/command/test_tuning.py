"""`sweep --tune`: what is searched, what is dropped, and what is said of it."""

import re

import pytest

import fedjax_pfl as fp
from experiments import run, sweep
from fedjax_pfl.command import application
from tests.command.commands import call, refused

pytestmark = pytest.mark.usefixtures("elsewhere", "no_figures")
SMALL = "--clients 6 --seeds 2 --rounds 9 --set federation.partition=iid"


def test_every_method_is_searched_and_reported(tmp_path):
    line = f"{SMALL} --algorithm ditto,majority --tune 4 --out found"
    done = call(sweep.app, line)
    assert "algorithm.lam in 0.001 to 10" in done.stdout
    assert "Ditto: 6 of 8 trainings were dropped" in done.stdout
    result = fp.Result.load(tmp_path / "found")
    ended = {"dropped at round 1", "dropped at round 3", "ok"}
    assert set(result.status) == ended
    assert len(result.points()) == 8 + 2  # Majority has nothing to search
    (ditto, majority) = result.groups
    lams = {point["algorithm.lam"] for point in ditto.points}
    assert len(lams) == 4 and "algorithm.lam" not in majority.points[0]
    # What was dropped is in the page's own table, and in no other.
    call(application.app, "report found")
    table = (tmp_path / "found/report_files/tables/search.md").read_text("utf-8")
    assert table.count("2 of 2 dropped") == 3
    methods = (tmp_path / "found/report_files/tables/headline.md").read_text("utf-8")
    assert "dropped" not in methods


@pytest.mark.parametrize(
    ("budget", "tried"),
    [
        # Rungs after 1 and 3 of 9 rounds: five of eight settings take one round, two
        # take three and one takes nine, each under two seeds.
        ("--tune-budget 40rounds", 8),
        ("--tune-budget 0.00000001min --tune 3", 3),
    ],
)
def test_a_budget_says_how_much_is_tried(budget, tried, tmp_path):
    line = f"{SMALL} --algorithm ditto,majority {budget} --out found"
    done = call(sweep.app, line)
    ditto, _ = fp.Result.load(tmp_path / "found").groups
    assert len(ditto.points) == 2 * tried
    if "min" in budget:
        assert "Ditto: the time was up for 2 trainings" in done.stdout
    else:
        assert ditto.ends.sum() == 40


def test_a_budget_of_gradients_counts_those_of_the_method():
    tried = {}
    for algorithm in ("ditto", "fedavg"):
        line = f"--algorithm {algorithm} --tune-budget 1e6gradients --dry-run"
        tried[algorithm] = int(call(sweep.app, f"{SMALL} {line}").stdout.split()[0])
    # Ditto also trains a personal model: every client's examples count twice.
    assert 1.8 < tried["fedavg"] / tried["ditto"] < 2.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tune-budget 3", "such as 3000rounds, 2e6gradients or 10min, got '3'"),
        ("--tune-budget 40rounds --tune 4", "got both: 4 and 40rounds"),
        # Two of three settings end after one round, and one takes nine: two seeds.
        ("--tune-budget 20rounds", "of at least 22 rounds, .* got 20"),
        ("--tune-budget 5min --patience 2", "give --tune, or --patience"),
        ("--tune 1", "--tune"),
        ("--tune 4 --patience 2", "give --tune, or --patience"),
        ("--tune 4 --set federation.validation_fraction=0", "validation"),
    ],
)
def test_wrong_searches_are_refused(line, message):
    text = refused(sweep.app, f"{SMALL} {line}")
    assert re.search(message, " ".join(text.replace("│", " ").split()))


def test_one_training_is_no_search():
    refused(run.app, "--tune 4")
