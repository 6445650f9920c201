"""The page of learned fields beside a grid."""

import shutil
import types
from pathlib import Path

import pandas as pd
import pytest
from typer import testing

from experiments.learned import __main__ as study
from experiments.learned import page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.smoke
def test_the_page_is_what_the_kept_tables_make():
    text, drawn = page.render(study.FOLDER)
    assert (DOCS / "learned.md").read_text("utf-8") == text
    files = {path.stem for path in (DOCS / "learned_files").iterdir()}
    assert files == {*drawn}


def test_stars_lie_on_the_paths_of_their_color(tmp_path):
    """Whatever the order in which the best trainings were written."""
    points = pd.read_csv(study.FOLDER / "digits-points.csv")
    shutil.copy(study.FOLDER / "digits-paths.csv", tmp_path)
    points.iloc[::-1].to_csv(tmp_path / "digits-points.csv", index=False)
    _, drawn = page.render(tmp_path)
    lines = drawn["digits"].axes[0].lines
    paths = {line.get_color(): line for line in lines if line.get_marker() == "o"}
    stars = {line.get_color(): line for line in lines if line.get_marker() == "*"}
    assert len(stars) == len(paths) == 4
    for color, star in stars.items():
        assert star.get_xydata()[0].tolist() in paths[color].get_xydata().tolist()


@pytest.mark.smoke
def test_a_start_that_diverged_is_far_from_the_best():
    """What is NaN in one seed counts as not reached, and says so."""
    points = pd.read_csv(study.FOLDER / "digits-points.csv")
    paths = pd.read_csv(study.FOLDER / "digits-paths.csv")
    lost = (points["kind"] == "learned") & (points["seed"] == 0)
    points.loc[lost, "test_accuracy"] = float("nan")
    rows = [page._best_of_grid(points), *page._start_rows(points, paths)]
    assert page._verdict(rows, points, 9).startswith("0 of 4 starts")
    assert "\n".join(page._table(rows, points, 9)).count("diverged") == 4


def test_a_training_goes_on_with_the_values_that_the_last_one_ended_with(monkeypatch):
    """Values double in every training; the second is the best, the third is lost."""
    begun, lam, rate = [], "algorithm.lam", "algorithm.local.learning_rate"

    def learn(*base, seeds, starts, **options):
        begun.append(starts)
        rows = [
            {f"start {n}": v for n, v in start.items()}
            | {"round": round}
            | {n: v * factor for n, v in start.items()}
            for start in starts
            for round, factor in ((2, 1.5), (4, 2.0))
        ]
        number = len(begun) - 1
        reached = [0.1, 0.3, float("nan")][number]
        scores = [
            {"lam": start[lam], "rate": start[rate], "seed": seed}
            | {"validation_accuracy": reached, "test_accuracy": number + seed}
            for start in starts
            for seed in seeds
        ]
        path = pd.DataFrame(rows)
        return types.SimpleNamespace(path=path, result=pd.DataFrame(scores))

    monkeypatch.setattr(study.fp, "learn", learn)
    monkeypatch.setattr(study, "_scores", lambda result: result)
    points, paths = study._learn((), 4, 3)
    first, second, third = begun
    assert second == [{n: 2 * v for n, v in start.items()} for start in first]
    assert third == [{n: 4 * v for n, v in start.items()} for start in first]
    for start in first:
        own = paths[
            (paths[f"start {lam}"] == start[lam])
            & (paths[f"start {rate}"] == start[rate])
        ]
        assert own["training"].tolist() == [0, 0, 1, 1, 2, 2]
        factors = (own[lam] / start[lam]).tolist()
        assert factors == pytest.approx([1.5, 2, 3, 4, 6, 8])
        best = points[(points["lam"] == start[lam]) & (points["rate"] == start[rate])]
        assert best["training"].tolist() == [1, 1, 1]
        assert best["test_accuracy"].tolist() == [1, 2, 3]


def test_other_data_are_refused():
    done = testing.CliRunner().invoke(study.app, ["mnist"])
    assert done.exit_code != 0 and "mnist" in done.output
