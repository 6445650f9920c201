"""Tables of a paper with a row per method, beside ours."""

import dataclasses

import pytest

from experiments.cards import claims, methods, pages, scale, tables, verdicts
from experiments.cards.runs import WIDER, Run, Side
from tests.experiments import test_cards

SWEEP = "python -m experiments.sweep --preset digits --rounds 7"
EVERYBODY = WIDER[1]
MEASURES = (
    methods.Measure("L-acc", "L", "personal", "own test"),
    methods.Measure("GM", "GM", "global", EVERYBODY),
)
METHODS = (
    methods.Method("A+", "Alpha", {"algorithm.lam": 0.5}, "theirs is odd"),
    methods.Method("B", "Beta"),
    methods.Method("C", "Gamma"),
)


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A card whose table has two parts, of which one was run."""
    lines = ["table,run,method,metric,mean,std", "Table 9,other,B,L,0.4,0.2"]
    lines += [f"Table 9,ours,{m},L,0.9,0.1" for m in ("A+", "B", "C")]
    lines += ["Table 9,ours,A+,GM,0.8,", "Table 8,ours,B,L,0.1,0.1"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    runs = {"ours": "one", "other": "two"}
    table = methods.Methods("Table 9", runs, "t.csv", MEASURES, METHODS)
    reasons = {"other": "GPU wanted"}
    return dataclasses.replace(test_cards.CARD, printed=[table], reasons=reasons)


def rows():
    """Two seeds of Alpha with two lams, one of Beta that diverged, none of Gamma."""
    found = []
    for lam, more in ((0.5, 0.0), (2.0, 0.1)):
        for seed in (0, 1):
            given = {"algorithm.lam": lam}
            value, wide = 0.6 + more + 0.02 * seed, {"data": EVERYBODY}
            found += test_cards.cells("Alpha", seed, value, **given)
            found += test_cards.cells(
                "Alpha", seed, value - 0.1, model="global", **given, **wide
            )
            spread = {"stat": "std", **given}
            first, *_ = test_cards.cells("Alpha", seed, 0.25, **spread)
            found = [r for r in found if not (r["stat"] == "std" and r["value"] == 77)]
            found.append(first)
    first, *_ = test_cards.cells("Beta", 0, float("nan"), status="diverged at round 3")
    return [*found, first]


def test_a_row_has_the_papers_numbers_and_ours(tmp_path, card):
    test_cards.save(tmp_path, "ours", rows(), SWEEP)
    text = test_cards.render(card, tmp_path)
    assert f"* `{SWEEP}`" in text
    line = test_cards.line_with(text, "| A+ |")
    assert "| 90.0 (10.0) → 61.0 (25.0) | 80.0 → 51.0 | 7 | 2 | theirs is odd |" in line
    line = test_cards.line_with(text, "| B | 90.0")
    assert "→ diverged in 1 | – → – | 7 | 1 |" in line
    assert "| 90.0 (10.0) → – | – → – | 7 | 0 |" in test_cards.line_with(text, "| C |")
    assert "10.0 (10.0)" not in text  # of another table


def test_a_method_has_the_run_nearest_to_the_papers_scale(tmp_path, card):
    test_cards.save(tmp_path, "ours", rows(), SWEEP)
    whole = SWEEP.replace(" --rounds 7", " --algorithm beta")
    beta = [cell for seed in range(9) for cell in test_cards.cells("Beta", seed, 0.5)]
    test_cards.save(tmp_path, "ours-whole", beta, whole)
    runs = pages.read(card, tmp_path)
    (table,) = card.printed
    levels = [cell.level for cell in table.cells(runs) if cell.run == "ours"]
    # L-acc and GM of Alpha, L-acc of Beta; Gamma is in no run.
    assert levels == ["reduced", "reduced", "paper", "not run"]
    text = "\n".join(table.part("ours", runs))
    assert f"* `{SWEEP}`\n* `{whole}`" in text
    line = test_cards.line_with(text, "| B | 90.0 (10.0) → 50.0")
    assert f"| {scale.rounds_of(whole)} | 9 |" in line
    sides = [
        Side("Alpha", "personal", {"algorithm.lam": 0.5}),
        Side("Beta", "personal"),
    ]
    assert scale.best(runs, "ours", sides[1:]).name == "ours-whole"
    assert scale.best(runs, "ours", sides).name == "ours"


def test_a_part_that_was_not_run_says_why_and_how(tmp_path, card):
    (tmp_path / "toy").mkdir()
    text = test_cards.render(card, tmp_path)
    assert "Not run: GPU wanted. Command: `python -m experiments.sweep --preset" in text
    assert "| B | 40.0 (20.0) | – |  |  |  |" in text


def test_sides_may_be_judged_on_everybodys_data(tmp_path):
    wide = Side("Alpha", "global", {"algorithm.lam": 2.0}, EVERYBODY)
    own = Side("Alpha", "personal", {"algorithm.lam": 2.0})
    assert str(wide) == "Alpha global lam = 2.0 on everybody's test"
    claim = claims.Claim("own is better", "ours", own, wide)
    folder = test_cards.save(tmp_path, "ours", rows(), SWEEP)
    runs = {"ours": Run.read(folder)}
    ((found,),) = claims.decide([claim], runs, verdicts.Rule())
    assert found.difference.startswith("+10.00")
    spread = runs["ours"].values(own, "client spread")
    assert list(spread) == [0.25, 0.25]
