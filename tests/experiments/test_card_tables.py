"""Printed numbers beside runs, tables by a field, and claims about losses."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.cards import claims, pages, scale, tables, verdicts
from experiments.cards.runs import Run
from tests.experiments import test_cards

A, B = test_cards.A, test_cards.B
SWEEP = "python -m experiments.sweep --preset digits"
COLUMNS = (tables.Column("alpha", A), tables.Column("beta", B))


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """A paper that says 90 ± 1 for Alpha and 80 ± 1 for Beta in both rows."""
    lines = ["row,algorithm,model,mean,std"]
    for row, (name, mean) in itertools.product("xy", (("Alpha", 0.9), ("Beta", 0.8))):
        lines.append(f"{row},{name},personal,{mean},0.01")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    return tables.Printed("Table", "t.csv", "run_{row}", COLUMNS, ((0, 1),), 5)


def loss(algorithm, seed, value, **changes):
    """A row of a loss, as `keep` leaves it."""
    first, *_ = test_cards.cells(algorithm, seed, value, metric="loss", **changes)
    return first


def card(**fields):
    return pages.Card(method="toy", title="Toy", text="Words.", reference=B, **fields)


@pytest.mark.parametrize(
    ("shift", "near", "verdict"),
    [
        ((0.0, 0.0), (True, True), "holds"),
        ((0.1, 0.0), (False, True), "holds"),
        ((-0.2, 0.0), (False, True), "does not hold"),
        ((-0.1, 0.0), (False, True), "equal"),
    ],
)
def test_rows_are_judged_by_numbers_and_by_order(
    tmp_path, printed, shift, near, verdict
):
    noise = np.array([0.001, -0.001, 0.0, 0.002, -0.002])
    alpha, beta = 0.9 + shift[0] + noise, 0.8 + shift[1] + noise[::-1]
    test_cards.save(tmp_path, "run_x", test_cards.pairs(alpha, beta), SWEEP)
    rule = verdicts.Rule(delta=0.5)
    text = test_cards.render(
        card(printed=[printed], reasons={"run_y": "a reason"}, rule=rule), tmp_path
    )
    line = test_cards.line_with(text, "| x | 90")
    for printed_mean, values, is_near in ((90, alpha, near[0]), (80, beta, near[1])):
        std = 100 * values.std(ddof=1)
        shown = f"{printed_mean}.00 ± 1.00 → {100 * values.mean():.2f} ± {std:.2f}"
        assert (f"{shown} ≈ |" if is_near else f"{shown} |") in line
    assert f": {verdict} | paper |" in line
    line = test_cards.line_with(text, "| y | 90")
    assert "| 90.00 ± 1.00 | 80.00 ± 1.00 |" in line
    assert line.endswith("| not run: a reason |")


def test_numbers_are_near_by_welchs_interval(printed):
    """The paper's mean of five seeds against ours of four, by SciPy."""
    theirs = np.array([-1.0, 1.0, 0.0, np.sqrt(1.5), -np.sqrt(1.5)])
    assert theirs.std(ddof=1) == pytest.approx(np.sqrt(1.25))
    for shift in np.linspace(-3, 3, 25):
        ours = pd.Series([shift, shift + 1, shift - 0.5, shift + 0.2])
        test = stats.ttest_ind(theirs, ours, equal_var=False)
        near = tables._agree(0.0, theirs.std(ddof=1), 5, ours)
        assert near == (test.pvalue > 0.05)


def test_pairs_that_the_paper_has_turned_are_claimed_as_it_has_them(tmp_path, printed):
    text = (
        (tmp_path / "t.csv")
        .read_text()
        .replace("x,Beta,personal,0.8,", "x,Beta,personal,0.95,")
    )
    (tmp_path / "t.csv").write_text(text)
    noise = np.arange(5) / 1000
    rows = test_cards.pairs(0.9 + noise, 0.8 - noise)
    test_cards.save(tmp_path, "run_x", rows, SWEEP)
    line = test_cards.line_with(
        test_cards.render(card(printed=[printed]), tmp_path), "| x | 90"
    )
    assert "turned -10.40" in line and ": does not hold |" in line


def test_a_card_sums_its_table_up(tmp_path, printed):
    noise = np.arange(5) / 1000
    rows = test_cards.pairs(0.9 + noise, 0.8 - noise)
    test_cards.save(tmp_path, "run_x", rows, SWEEP)
    table = card(printed=[printed])
    runs = pages.read(table, tmp_path)
    front = pages.render(table, runs)["toy"]
    line = test_cards.line_with(front, "| x |")
    assert "| paper 1 | +0.2 (1 of 1 ≈) | -0.2 (1 of 1 ≈) | holds 1 |" in line
    levels = [cell.level for cell in printed.cells(runs)]
    assert levels == ["paper", "paper", "not run", "not run"]


def test_scales_follow_from_commands(tmp_path):
    rows = test_cards.pairs([0.9] * 5, [0.8] * 5)

    def level(options, rows=rows):
        path = test_cards.save(tmp_path, "run", rows, SWEEP + options)
        scale_of = scale.of(Run.read(path))
        path.unlink()
        return scale_of.level

    assert level("") == "paper" and level(" --rounds 100") == "paper"
    assert level(" --rounds 7") == level(" --set algorithm.lam=3") == "reduced"
    assert level("", test_cards.pairs([0.9] * 3, [0.8] * 3)) == "near"
    assert scale.of(None).level == "not run"
    assert scale.rounds_of(SWEEP) == 100
    assert scale.rounds_of(f"{SWEEP} --rounds 7") == 7


def test_a_field_becomes_columns(tmp_path):
    rows = []
    for fraction, told in ((0.0, 0.0), (0.2, 0.2)):
        more = {"federation.malicious_fraction": fraction, "attack": "X"}
        told = {"algorithm.malicious_fraction": told}
        for seed in (0, 1):
            rows += test_cards.cells("Alpha", seed, 0.5 + fraction, **more)
            rows += test_cards.cells("Beta", seed, 0.25, **more, **told)
    test_cards.save(tmp_path, "attacks_x", rows)
    by_field = {"attacks": ("federation.malicious_fraction",)}
    text = test_cards.render(card(by_field=by_field), tmp_path)
    header = "| algorithm | model | malicious_fraction = 0 | malicious_fraction = 0.2 |"
    assert header in text and "attack = X" in text
    assert "| Alpha | personal | 50.00 ± 0.00 | 70.00 ± 0.00 |" in text
    assert "| Beta | personal | 25.00 ± 0.00 | 25.00 ± 0.00 |" in text


def test_kinds_of_attacks_become_columns(tmp_path):
    rows = []
    for kind, value in ((None, 0.9), ("SignFlip", 0.5), (None, 0.7)):
        poisoning = "UniformLabels" if value == 0.7 else None
        more = {"attack": kind, "federation.label_poisoning": poisoning}
        rows += test_cards.cells("Beta", 0, value, **more)
    test_cards.save(tmp_path, "beyond_x", rows)
    fields = ("attack", "federation.label_poisoning")
    text = test_cards.render(card(by_field={"beyond": fields}), tmp_path)
    assert "| algorithm | model | none | SignFlip | UniformLabels |" in text
    assert "| Beta | personal | 90.00 | 50.00 | 70.00 |" in text


def test_less_loss_is_better_and_environments_can_be_chosen(tmp_path):
    rows = test_cards.pairs([0.5] * 5, [0.5] * 5)
    for seed in range(5):
        for name, value in (("Alpha", 0.2 + seed / 100), ("Beta", 0.5)):
            rows.append(loss(name, seed, value, stat="variance"))
    test_cards.save(tmp_path, "first", rows)
    claim = claims.Claim("fair", "first", A, B, measure="loss variance")
    runs = {"first": Run.read(tmp_path / "toy/first.nc")}
    ((found,),) = claims.decide([claim], runs, verdicts.Rule(delta=9, tolerance=9))
    assert found.verdict == "holds" and found.difference.startswith("+0.28")
    text = test_cards.render(card(claims=(claim,)), tmp_path)
    assert "| loss variance |" in text
    assert test_cards.line_with(text, "Alpha", "personal").endswith("| 0.22 |")
    only = {"federation.partition.concentration": 7.0}
    nowhere = claims.Claim("x", "first", A, B, only=only)
    assert claims.decide([nowhere], runs, verdicts.Rule()) == [[]]


def test_sides_may_be_of_different_runs(tmp_path):
    test_cards.save(tmp_path, "few", test_cards.pairs([0.5, 0.6], [0.1, 0.1]))
    test_cards.save(tmp_path, "many", test_cards.pairs([0.7, 0.9], [0.1, 0.1]))
    paths = (tmp_path / "toy").iterdir()
    runs = {path.stem: Run.read(path) for path in paths}
    claim = claims.Claim("rises", "many", A, A, worse_run="few")
    ((found,),) = claims.decide([claim], runs, verdicts.Rule())
    assert found.difference.startswith("+25.00") and found.verdict == "undecided"
    missing = claims.Claim("rises", "many", A, A, worse_run="none")
    ((found,),) = claims.decide([missing], runs, verdicts.Rule())
    assert (found.where, found.verdict) == ("run `none`", "not run")


def test_figures_count_what_holds(tmp_path):
    noise = np.arange(5) / 100
    test_cards.save(tmp_path, "first", test_cards.pairs(0.9 + noise, 0.1 - noise))
    both = (claims.Claim("a", "first", A, B), claims.Claim("b", "first", B, A))
    figures = (
        claims.Drawing("3", "curves", "first", both),
        claims.Drawing("4", "more", "second", both),
    )
    text = test_cards.render(card(figures=figures, reasons={"second": "why"}), tmp_path)
    assert "| holds 1, does not hold 1 |" in test_cards.line_with(text, "| 3 |")
    assert "| not run: why |" in test_cards.line_with(text, "| 4 |")


def test_every_number_of_flames_table_is_there():
    """A copying error would show in the averages that the paper's text states."""
    table = pd.read_csv(tables.FOLDER / "flame_table3.csv")
    assert len(table) == 37 * 7
    wide = table.pivot_table(index="row", columns=["algorithm", "model"], values="mean")
    personal = wide[[("PFedMe", "personal"), ("Ditto", "personal")]].mean(axis=1)
    shared = wide[[("PFedMe", "global"), ("Ditto", "global")]].mean(axis=1)
    gains = (
        wide[("Flame", "personal")] - personal,
        wide[("Flame", "global")] - shared,
        wide[("Flame", "hybrid")]
        - wide[[("Flame", "personal"), ("Flame", "global")]].mean(axis=1),
    )
    assert gains[0].mean() == pytest.approx(0.0394, abs=5e-5)
    assert gains[1].mean() == pytest.approx(0.1436, abs=5e-5)
    hybrid = gains[2].filter(like="hybrid")
    assert len(hybrid) == 4 and hybrid.mean() == pytest.approx(0.0422, abs=5e-5)
