"""The page of learned fields beside a grid."""

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


@pytest.mark.smoke
def test_a_start_that_diverged_is_far_from_the_best():
    """What is NaN in one seed counts as not reached, and says so."""
    points = pd.read_csv(study.FOLDER / "digits-points.csv")
    paths = pd.read_csv(study.FOLDER / "digits-paths.csv")
    lost = (points["kind"] == "learned") & (points["seed"] == 0)
    points.loc[lost, "test_accuracy"] = float("nan")
    rows = [page._best_of_grid(points), *page._learned(points, paths)]
    assert page._verdict(rows, points).startswith("0 of 4 starts")
    assert "\n".join(page._table(rows, points)).count("diverged") == 4


def test_other_data_are_refused():
    done = testing.CliRunner().invoke(study.app, ["mnist"])
    assert done.exit_code != 0 and "mnist" in done.output
