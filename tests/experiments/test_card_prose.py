"""Texts of cards: no number in them is typed; and the page of what reproduces."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from experiments.cards import (
    __main__,
    claims,
    headlines,
    pages,
    plans,
    prose,
    reproduction,
    verdicts,
)
from fedjax_pfl.command.presets import experiment
from fedjax_pfl.core import checks
from tests.experiments import test_cards

A, B = test_cards.A, test_cards.B
SIDES = {"alpha": A, "beta": B}

# Names and formulas, which are no measurements.
_NAMES = r"""
    CIFAR-100? | Sent140 | (LeNet|ResNet)-\d+ | Table\s[\dI]+ | Figures?\s\d+
    | \(?A[12]\)? | (kappa|lam|gamma|eta)\s=\s[01](\s/\slam)? | 1\s/\slam
    | v_{t\+1}
"""


@pytest.mark.parametrize("method", __main__.CARDS)
def test_no_number_in_a_text_is_typed(method):
    text = re.sub(r"\{\{.*?\}\}", "", pages.text_of(method), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(_NAMES, "", text, flags=re.VERBOSE)
    assert re.findall(r".{0,30}\d.{0,30}", text) == []


@pytest.fixture
def runs(tmp_path):
    """Two runs, in which alpha is ten and twenty points ahead."""
    noise = np.arange(5) / 1000
    for name, lead in (("run_a", 0.1), ("run_b", 0.2)):
        rows = test_cards.pairs(0.5 + lead + noise, 0.5 - noise)
        test_cards.save(tmp_path, name, rows)
    return pages.read(test_cards.CARD, tmp_path)


def test_numbers_are_those_of_the_runs(runs):
    def fill(text):
        return prose.fill(text, runs, SIDES)

    assert fill('{{ gap("alpha", "beta", runs="run_a") }}') == "+10.4"
    assert fill('{{ gap("alpha", "beta", runs="run_*") }}') == "+10.4 to +20.4"
    assert fill('{{ gap("beta", "alpha", runs="run_*").size }}') == "20.4"
    assert fill('{{ value("alpha", runs="run_*").mean }}') == "65.2"
    assert fill('{{ rounds("run_a") }} {{ seeds("run_a") }}') == "100 5"
    where = '{"federation.partition.concentration": 0.5}'
    assert fill(f'{{{{ value("beta", runs="run_a", where={where}) }}}}') == "49.8"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{{ value("gamma", runs="run_a") }}', "gamma"),
        ('{{ value("alpha", runs="none") }}', "'none'"),
        ('{{ value("alpha", runs="run_a", where={"attack": 1}) }}', "attack"),
    ],
)
def test_texts_that_ask_for_what_is_not_there_are_refused(runs, text, message):
    with pytest.raises(checks.InputError, match=message):
        prose.fill(text, runs, SIDES)


def outcome(runs, better, worse, rule=verdicts.Rule(), **fields):  # noqa: B008
    own = [claims.Claim(name, name, better, worse) for name in runs]
    headline = headlines.Headline("x", "+1", own, "why", **fields)
    return headlines.judge(headline, runs, rule)


def test_headlines_of_a_mean_average_over_runs_by_seed(runs):
    found = outcome(runs, A, B, of="mean")
    assert found.verdict == "reproduces" and found.ours.startswith("+15.40 [")
    assert outcome(runs, B, A, of="mean").verdict == "does not"
    equal = outcome(runs, A, A, verdicts.Rule(delta=1), of="mean")
    assert equal.verdict == "does not (equal)"


def test_headlines_want_every_claim(runs, tmp_path):
    found = outcome(runs, A, B)
    assert (found.verdict, found.ours) == ("reproduces", "+15.4 (+10.4 to +20.4)")
    assert outcome(runs, B, A).verdict == "does not"
    rule = verdicts.Rule(delta=1)
    assert outcome(runs, A, A, rule).verdict == "does not (equal)"
    assert outcome(runs, A, A, rule, of="equal").verdict == "reproduces"
    assert outcome(runs, A, A).verdict == "open"
    short = f"{runs['run_a'].command} --rounds 3"
    small = {n: dataclasses.replace(run, command=short) for n, run in runs.items()}
    found = outcome(small, A, B)
    assert found.verdict == "open" and found.ours.endswith("at reduced scale")
    assert outcome({}, A, B).ours == "–"


def evidence(better, worse, run="run_a", name="x", measure="accuracy"):
    """What a claim finds whose sides have these values by seed."""
    claim = claims.Claim(name, run, A, B, measure=measure)
    return claims.Evidence(claim, "here", pd.Series(better), pd.Series(worse), True)


@pytest.mark.parametrize(
    ("shift", "printed", "verdict"),
    [
        (-0.3, 14.2, "does not"),  # below zero, and the printed number is outside
        (-0.3, 0.4, "open"),  # which may be the truth
        (0.3, 14.2, "open"),  # above zero, not clearly so
        (3.0, 14.2, "reproduces"),
    ],
)
def test_a_mean_below_zero_contradicts_a_number_far_from_it(
    monkeypatch, shift, printed, verdict
):
    noise = np.array([-0.6, 0.8, 0.1, -0.9, 0.6])
    found = evidence(shift + noise, 0 * noise)
    monkeypatch.setattr(claims, "gaps", lambda claim, runs: [found])
    monkeypatch.setattr(claims, "decide", lambda *args: [])
    headline = headlines.Headline("x", "", [found.claim], "y", "mean", printed)
    assert headlines.judge(headline, {}, verdicts.Rule()).verdict == verdict


def test_a_side_is_compared_with_the_mean_and_with_the_best_of_the_others():
    ours = np.array([10.0, 12.0, 11.0, 10.0, 12.0])
    parts = [evidence(ours, ours - 4), evidence(ours, ours + 2, name="other")]
    assert headlines._gap(parts, "mean").mean == pytest.approx(1.0)
    assert headlines._gap(parts, "best").mean == pytest.approx(-2.0)
    lower = [evidence(ours, 2 * ours, measure="loss variance")]
    assert headlines._gap(lower, "relative").mean == pytest.approx(50.0)


def test_a_trend_is_the_slope_by_least_squares():
    values = np.random.default_rng(0).normal(size=(5, 5))  # seeds, places
    rises = [evidence(values[:, k + 1], values[:, k], run=f"run_{k}") for k in range(4)]
    (slope,) = headlines._slopes(rises, 4)
    fitted = np.polyfit(np.arange(5), values.T, 1)[0]
    assert slope.mean == pytest.approx(fitted.mean())
    assert slope.standard_error == pytest.approx(fitted.std(ddof=1) / 5**0.5)


def test_the_page_counts_and_lists_what_is_missing(runs):
    claim = claims.Claim("x", "run_a", A, B)
    lost = claims.Claim("y", "flame_fair_mnist_dir", A, B)
    headline = headlines.Headline("alpha is better", "+9", [claim, lost], "the reason")
    card = dataclasses.replace(test_cards.CARD, headlines=[headline], claims=())
    table = pd.DataFrame(
        [["flame_fair_mnist_dir", 12.0, "one core", "2026-01-01", ""]],
        columns=["preset", "minutes", "machine", "date", "like"],
    )
    text = reproduction.render({"toy": card}, {"toy": runs}, table)
    line = test_cards.line_with(text, "alpha is better")
    assert line.endswith("| **open** | +9 | +10.4 | the reason |")
    assert "| flame_fair_mnist_dir | not run | 12 |  |" in text
    assert reproduction.lacking(card, runs) == ["flame_fair_mnist_dir"]


def test_a_cell_whose_seeds_all_diverged_was_run(runs):
    table, run = __main__.CARDS["fedpg"].printed[0], runs["run_a"]
    lost = pd.Series([np.nan, np.nan])
    assert table.cell("x", run, lost).level == "diverged"
    assert table.cell("x", run, None).level == table.cell("x", None, None).level
    assert table.cell("x", run, lost.fillna(1)).level == "paper"


def test_every_printed_number_is_counted():
    """Table III, the three of FedPG, FedACS's two, and that of portfolios."""
    none = {name: {} for name in __main__.CARDS}
    cells = list(reproduction.cells(__main__.CARDS.values(), none))
    assert len(cells) == 37 * 7 + 516 + 20 + 14
    assert {cell.level for _, cell in cells} == {"not run"}


def test_work_is_counted_in_gradients_of_examples(monkeypatch):
    """Ditto takes every example twice; an epoch more takes all of them again."""
    spec = fp.FederationSpec("digits", num_clients=5, test_fraction=0.2)
    federation = dataclasses.replace(spec, seed=0).build()
    examples = int(federation.train.num_examples.sum())

    def counted(algorithm, epochs, **participation):
        process = fp.FederatedProcess(algorithm=algorithm, **participation)
        grid = experiment.Grid(
            *(process, fp.MLP(widths=(8,)), spec), {"algorithm.local.epochs": epochs}
        )
        made = experiment.Experiment(
            name="toy", grids=(grid,), seeds=(0, 1), num_rounds=7
        )
        monkeypatch.setattr(plans.presets, "get", lambda name: made)
        return plans.gradients("toy") / (7 * 2 * examples)

    assert counted(fp.FedAvg(), (1, 3)) == 1 + 3
    assert counted(fp.Ditto(), (2,)) == 2 * counted(fp.FedAvg(), (2,))
    cohort = fp.UniformCohort(size=2)
    part = counted(fp.FedAvg(), (1,), participation=cohort)
    assert part == pytest.approx(2 / 5)


def test_times_are_read_from_what_plan_prints():
    assert plans.minutes_of("All together about 563 s.") == 9.4
    assert plans.minutes_of("x\nAll together about 2,714 min.\n") == 2714
    assert plans.minutes_of("Unknown preset") is None
