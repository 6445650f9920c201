"""Tables with other marks, encodings, comments and blanks."""

import io

import numpy as np
import pandas as pd
import pytest

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import tables
from fedjax_pfl.data.sources import user
from tests.data import samples

FRAME = pd.DataFrame(
    {
        "größe": [1234567.5, -0.25, 12.0, 1e3],
        "ort": ["Köln", "Löbau", "Köln", "Köln"],
        "y": [0, 1, 0, 1],
    }
)


def load(path, label="y", **options):
    return samples.load(user.Csv(path=path, label=label, scaling="none", **options))


def written(decimal, thousands, separator):
    """The table with grouped numbers, as a spreadsheet of another country saves it."""

    def number(value):
        text = f"{value:,.2f}" if thousands else f"{value:.2f}"
        return text.translate({ord(","): thousands, ord("."): decimal})

    frame = FRAME.assign(größe=FRAME["größe"].map(number))
    return frame.to_csv(index=False, sep=separator)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize(
    ("decimal", "thousands"),
    [(".", None), (",", None), (",", "."), (".", ","), (",", " "), (".", "'")],
)
def test_numbers_of_other_marks(tmp_path, decimal, thousands, separator):
    path = samples.write(tmp_path / "a.csv", written(decimal, thousands, separator))
    options = {} if separator in ",;\t" else {"separator": separator}
    dataset = load(path, decimal=decimal, thousands=thousands, **options)
    np.testing.assert_array_equal(dataset.x[:, 0], FRAME["größe"].astype(np.float32))
    assert dataset.y.tolist() == [0, 1, 0, 1] and dataset.x.shape == (4, 3)


def test_pandas_reads_the_same(tmp_path):
    text = "# made by hand\na;b;y\n1.234,5; x ;0\n\n# more\n-7;#z;1\n"
    options = {"decimal": ",", "thousands": ".", "comment": "#", "separator": ";"}
    dataset = load(samples.write(tmp_path / "a.csv", text), **options)
    frame = pd.read_csv(
        io.StringIO(text.replace("#z", "z")),
        decimal=",",
        thousands=".",
        comment="#",
        sep=";",
    )
    assert dataset.x[:, 0].tolist() == frame["a"].tolist() == [1234.5, -7]
    assert dataset.x[:, 1:].tolist() == [[0, 1], [1, 0]]  # "#z" is no comment


@pytest.mark.parametrize(
    "text", ["1.5", "1.23,5", "12.34.567", "1234.567", "1,5,5", ""]
)
def test_marks_in_wrong_places_make_no_number(text):
    german = tables.Dialect(decimal=",", thousands=".")
    assert german.plain(text) == "" and tables.parse_numbers([text], german) is None


@pytest.mark.parametrize(
    "encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"]
)
def test_encodings(tmp_path, encoding):
    content = written(".", None, ",").encode(encoding)
    path = samples.write(tmp_path / "a.csv", content)
    dataset = load(path, client="ort", encoding=encoding)
    assert dataset.client_names == ("Köln", "Löbau")
    if encoding != "utf-8-sig":
        sentence = samples.refusal(load, path, client="ort")
        assert "encoding='latin-1'" in sentence


def test_comments_are_no_lines_of_data(tmp_path):
    text = '#a;b;c\n  # "\nx,t,y\n1,"p\n# q",0\n#\n\n2,r,1\n# end'
    path = samples.write(tmp_path / "a.csv", text)
    dataset = load(path, client="t", comment="#")
    assert dataset.client_names == ("p\n# q", "r")
    assert "has 1 fields, expected 3" in samples.refusal(load, path)
    worse = samples.write(tmp_path / "b.csv", text.replace("2,r", "?,r"))
    assert "data row 2 (line 8)" in samples.refusal(load, worse, comment="#")
    empty = samples.write(tmp_path / "c.csv", "#" * 9)
    assert "one mark" in samples.refusal(load, empty, comment="#")
    many = samples.write(tmp_path / "d.csv", "#\n" * 400_000 + "x,y\n1,0\n2,1\n")
    assert load(many, comment="#").num_samples == 2


def test_blanks_around_names_and_values_do_not_count(tmp_path):
    path = samples.write(tmp_path / "a.csv", ' x ,\ty , who\n 1 , 0, "a b"\n2\t,1 ,c\n')
    dataset = load(path, client="who")
    assert dataset.x.tolist() == [[1], [2]] and dataset.client_names == ("a b", "c")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"encoding": "latin-99"}, "'utf-8' or 'latin-1', got 'latin-99'"),
        ({"encoding": "base64"}, "'utf-8' or 'latin-1', got 'base64'"),
        ({"encoding": "a\0b"}, "'utf-8' or 'latin-1'"),
        ({"encoding": "ascii"}, "not text in ASCII: line 1 holds the byte 0xc3"),
        ({"decimal": ""}, "decimal to be one mark"),
        ({"decimal": ",,"}, "decimal to be one mark"),
        ({"decimal": "1"}, "decimal to be one mark"),
        ({"thousands": "-"}, "thousands to be one mark"),
        ({"separator": '"'}, "separator to be one mark"),
        ({"thousands": "."}, "different marks as decimal and thousands, got '.'"),
        ({"comment": " "}, "what lines begin with"),
        ({"comment": 3}, "comment to be text"),
        ({"separator": "|"}, "Unknown column"),
    ],
)
def test_wrong_options(tmp_path, options, part):
    path = samples.write(tmp_path / "a.csv", written(".", None, ","))
    assert part in samples.refusal(load, path, **options)


@pytest.mark.parametrize(
    "values", [["1,5", "2,25"], ["1.234,5", "2"], ["1,234.5", "7"]]
)
def test_numbers_with_commas_point_to_the_settings(tmp_path, values):
    rows = [f"{value};{k}" for k, value in enumerate(values)]
    path = samples.write(tmp_path / "a.csv", "\n".join(["a;y", *rows]))
    sentence = samples.refusal(load, path)
    assert "decimal=',' or thousands=','" in sentence and repr(values[0]) in sentence
    with checks.as_command():
        sentence = samples.refusal(load, path)
    assert "--set federation.dataset.decimal=, or" in sentence
