"""Tables as csv files: spreadsheets calculate nothing, readers get what was written."""

import csv
import dataclasses
import io

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies

import fedjax_pfl as fp
from fedjax_pfl.benchmark import tables
from fedjax_pfl.report import sources
from fedjax_pfl.results import csv_files
from tests import histories

FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", '=1,"a"')
TEXTS = strategies.text(
    strategies.sampled_from("'=+-@\t\r\n a,\""), min_size=1, max_size=5
).filter(lambda text: text.strip())  # pandas reads blanks as missing


def cells(text):
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


def test_texts_are_no_formulas_and_numbers_stay_numbers():
    rows = {"=name": [*FORMULAS, "a", None], "value": [-1.5, *range(8)]}
    text = csv_files.text(pd.DataFrame(rows))
    assert [f"'{formula}" for formula in FORMULAS] == cells(text)[2:16:2]
    assert cells(text)[:4:3] == ["'=name", "-1.5"]
    negative = pd.DataFrame({"value": ["-1", "+1e-3", "-inf"]})
    assert cells(csv_files.text(negative)) == ["value", "-1", "+1e-3", "-inf"]
    read = csv_files.read(io.StringIO(text))
    wanted = pd.DataFrame(rows).fillna(np.nan)
    pd.testing.assert_frame_equal(read, wanted, check_dtype=False)


@hypothesis.given(strategies.lists(TEXTS, min_size=1, max_size=3))
def test_what_is_read_is_what_was_written(names):
    text = csv_files.text(pd.DataFrame({"name": names}))
    assert not any(cell[0] in "=@\t\r" for cell in cells(text))
    options = {"dtype": str, "keep_default_na": False}
    assert csv_files.read(io.StringIO(text), **options)["name"].tolist() == names


def test_results_with_such_names_are_read_by_the_report(tmp_path):
    record = histories.make_history(algorithm="=cmd|' /C calc'!A0")
    result = histories.make_result(record)
    result.save(tmp_path / "run")
    found = cells((tmp_path / "run/summary.csv").read_text("utf-8"))
    assert "'=cmd|' /C calc'!A0" in found and "=cmd|' /C calc'!A0" not in found
    assert sources._read(tmp_path / "run") == result


def test_results_of_before_are_read_too(tmp_path):
    result = histories.make_result(histories.make_history(algorithm="=1+1"))
    result.save(tmp_path / "run")
    result.table().to_csv(tmp_path / "run/summary.csv", index=False)
    assert sources._read(tmp_path / "run") == result
    other = dataclasses.replace(result.groups[0], config={"algorithm": "-1+1"})
    other = histories.make_result(other)
    (tmp_path / "run/summary.csv").write_text(csv_files.text(other.table()))
    with pytest.raises(fp.InputError, match="does not agree with the histories"):
        sources._read(tmp_path / "run")


def test_tables_of_a_benchmark_come_back(tmp_path):
    row = dict.fromkeys(tables.SCORES, 0.5)
    texts = {"task": "=a", "method": "@b", "model": "-c", "status": "ok"}
    row |= texts | {"seed": 0, "unseen_model": ""}
    scores = pd.DataFrame([row])
    search = dict.fromkeys(tables.SEARCHES, 0.5)
    search |= {"task": "=a", "method": "@b", "settings": "+x", "command": "=y"}
    searches = pd.DataFrame([search | {"tried": 1}])
    tables.Tables(scores, searches).save(tmp_path)
    read = tables.Tables.load(tmp_path)
    assert read.scores[list(texts)].iloc[0].to_dict() == texts
    assert read.searches["command"].tolist() == ["=y"]
    assert "'@b" in (tmp_path / "scores.csv").read_text("utf-8")
