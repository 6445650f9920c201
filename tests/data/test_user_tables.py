import csv
import functools
import io
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import preprocessing

from fedjax_pfl.data.readers import tables
from fedjax_pfl.data.sources import user
from tests.data import samples

# As a stranger would write it: text, categories, a quoted separator, true and false.
VISITS = """age,income,city,smoker,hospital,outcome
61,1e3,"Paris, FR",true,b-2,ill
35,-2.5,Rome,False,a-1,well
47, 12 ,Rome,TRUE,b-2,ill
35,.5,"Os""lo",false,c-9,well

47,7,Rome,true,b-2,well
"""
FRAME = pd.DataFrame(
    {
        "age": [61.0, 35, 47, 35, 47],
        "income": [1e3, -2.5, 12, 0.5, 7],
        "city": ["Paris, FR", "Rome", "Rome", 'Os"lo', "Rome"],
        "smoker": [1.0, 0, 1, 0, 1],
    }
)
SCALERS = {
    "standard": preprocessing.StandardScaler(),
    "minmax": preprocessing.MinMaxScaler(),
    "none": preprocessing.FunctionTransformer(),
}


@pytest.fixture
def write(tmp_path):
    return lambda content, name="visits.csv": samples.write(tmp_path / name, content)


def load(path, label="outcome", **options):
    return samples.load(user.Csv(path=path, label=label, **options))


refusal = functools.partial(samples.refusal, load)


def expected_features(scaling):
    """What scikit-learn makes of the same frame, in the order of the columns."""
    numbers = SCALERS[scaling].fit_transform(FRAME[["age", "income", "smoker"]])
    numbers = np.asarray(numbers)
    one_hot = preprocessing.OneHotEncoder(sparse_output=False).fit_transform(
        FRAME[["city"]]
    )
    return np.concatenate([numbers[:, :2], one_hot, numbers[:, 2:]], axis=1)


@pytest.mark.parametrize("scaling", SCALERS)
def test_features_are_those_of_scikit_learn(write, scaling):
    dataset = load(write(VISITS), client="hospital", scaling=scaling)
    # One rounding to float32 of values below 1000 and of order 1.
    np.testing.assert_allclose(dataset.x, expected_features(scaling), rtol=1e-6)
    assert dataset.x.dtype == np.float32 and dataset.name == "visits"
    assert dataset.y.tolist() == [0, 1, 0, 1, 1]
    assert dataset.num_classes == 2 and dataset.class_names == ("ill", "well")
    assert dataset.client.tolist() == [1, 0, 1, 2, 1]
    assert dataset.client_names == ("a-1", "b-2", "c-9")


def rewritten(separator, quoting=csv.QUOTE_MINIMAL, line_end="\n"):
    rows = [row for row in csv.reader(io.StringIO(VISITS)) if row]
    stream = io.StringIO(newline="")
    writer = csv.writer(
        stream, delimiter=separator, quoting=quoting, lineterminator=line_end
    )
    writer.writerows(rows)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (rewritten(";"), "visits.csv"),
        (rewritten("\t"), "visits.tsv"),
        (rewritten(",", csv.QUOTE_ALL, "\r\n"), "visits.csv"),
        (rewritten(";", line_end="\r"), "visits.txt"),
        (b"\xef\xbb\xbf" + VISITS.encode(), "visits.csv"),
        ("\n\n" + VISITS.rstrip("\n"), "visits.csv"),
        (VISITS, "visits.csv.gz"),
    ],
)
def test_dialects_give_the_same_data(write, content, name):
    dataset, plain = load(write(content, name)), load(write(VISITS, "plain.csv"))
    np.testing.assert_array_equal(dataset.x, plain.x)
    np.testing.assert_array_equal(dataset.y, plain.y)
    assert dataset.class_names == plain.class_names and dataset.name == "visits"


def test_columns_can_be_dropped_or_be_codes(write):
    path = write("code,id,y\n10,a,0\n9,b,1\n10,c,1\n")
    dataset = load(path, "y", drop=["id"], categories=["code"])
    assert dataset.x.tolist() == [[1, 0], [0, 1], [1, 0]]  # "10" sorts before "9"
    assert hash(user.Csv(drop=["id"])) == hash(user.Csv(drop=("id",)))


@pytest.mark.parametrize("constant", ["0.1", "1e30", "-3"])
@pytest.mark.parametrize("scaling", ["standard", "minmax"])
def test_constant_columns_become_zero(write, constant, scaling):
    rows = "".join(f"{constant},{i},{i % 2}\n" for i in range(10))
    dataset = load(write(f"a,b,y\n{rows}"), "y", scaling=scaling)
    assert (dataset.x[:, 0] == 0).all() and dataset.x[:, 1].std() > 0.3


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1.0, 1e37])
def test_scaling_holds_for_any_unit(write, unit):
    values = np.random.default_rng(0).random(50)
    rows = "".join(
        f"{float(value * unit)!r},{i % 2}\n" for i, value in enumerate(values)
    )
    x = load(write(f"a,y\n{rows}"), "y").x[:, 0]
    expected = preprocessing.scale(values)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "task", "names", "y"),
    [
        (["10", "9", "-1"], "auto", ("-1", "9", "10"), [2, 1, 0]),
        (["1.0", "0.0", "1.0"], "auto", ("0", "1"), [1, 0, 1]),
        (["b", "a", "b"], "auto", ("a", "b"), [1, 0, 1]),
        (["True", "False", "True"], "auto", ("False", "True"), [1, 0, 1]),
        (["1", "b", "1"], "classification", ("1", "b"), [0, 1, 0]),
        (["0.5", "2", "0.5"], "classification", ("0.5", "2"), [0, 1, 0]),
        (["0.5", "2", "1"], "auto", None, [0.5, 2, 1]),
        (["10", "9", "-1"], "regression", None, [10, 9, -1]),
    ],
)
def test_labels(write, labels, task, names, y):
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    dataset = load(write(f"a,y\n{rows}"), "y", task=task)
    assert dataset.class_names == names and dataset.y.tolist() == y
    assert dataset.num_classes == (None if names is None else len(names))


@pytest.mark.parametrize("distinct", [20, 21])
def test_what_many_whole_numbers_are_is_asked(write, distinct):
    rows = "".join(f"{i % 7},{i % distinct}\n" for i in range(150))
    path = write(f"a,y\n{rows}")
    if distinct > 20:
        message = refusal(path, "y")
        assert "21 different whole numbers" in message
        assert "task='regression'" in message and "task='classification'" in message
    else:
        assert load(path, "y").num_classes == distinct
    assert load(path, "y", task="classification").num_classes == distinct
    assert load(path, "y", task="regression").num_classes is None


def test_clients_are_numbered_in_the_order_of_their_names(write):
    rows = "7,1,0\n007,2,1\n7,3,1\n-1.5,4,0\n"
    dataset = load(write(f"who,a,y\n{rows}"), "y", client="who")
    assert dataset.client.tolist() == [2, 1, 2, 0]
    assert dataset.client_names == ("-1.5", "007", "7")
    assert dataset.x.shape == (4, 1)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("47, 12 ", "47,lots"), ["'income'", "row 3 (line 4)", "'lots'", "a number"]),
        (("47, 12 ", "47,1_000"), ["'income'", "row 3 (line 4)", "'1_000'"]),
        (("47, 12 ", "47,"), ["'income'", "(line 4)", "holds ''", "(1 rows"]),
        (("47,7", "NaN,7"), ["'age'", "row 5 (line 7)", "'NaN'", "missing"]),
        (("61,1e3", "-inf,1e3"), ["'age'", "row 1 (line 2)", "'-inf'", "infinite"]),
        (("61,1e3", "61,1e39"), ["'income'", "1 (line 2)", "holds 1e+39", "32 bits"]),
        (("61,1e3", "61,1e999"), ["'income'", "1 (line 2)", "holds inf", "32 bits"]),
        (("c-9", ""), ["'hospital'", "row 4 (line 5)", "missing"]),
        (("c-9,well", "c-9,NA"), ["'outcome'", "row 4 (line 5)", "'NA'"]),
        (("True", "1"), []),  # the text does not occur: the table is as it was
        (("False", "0"), ["'smoker'", "row 1 (line 2)", "'true'", "a number"]),
        (("c-9,well", "c-9"), ["Line 5", "has 5 fields, expected 6"]),
        (("c-9,well", "c-9,well,,"), ["Line 5", "has 8 fields, expected 6"]),
        (('"Os""lo"', '"Oslo'), ["begins on line 5", "quotation mark"]),
        (('"Os""lo"', '"Os"lo"'), ["begins on line 5", "quotation mark"]),
        (("Rome", "\0"), ["holds the byte 0"]),
        (("age,", "outcome,"), ["column 'outcome' twice"]),
        (("age,", ","), ["Column 1", "no name"]),
        (("age,", '"a\nb",'), ["Column 1", r"the name 'a\nb'"]),
        (
            ("age,income,city,smoker,hospital,outcome", "a b c"),
            ["got 0 commas, 0 semicolons, 0 tabs"],
        ),
        (("city,smoker", "city;;;;smoker"), ["got 4 commas, 4 semicolons, 0 tabs"]),
    ],
)
def test_defects_of_a_table_are_located(write, change, parts):
    assert change[0] in VISITS or not parts
    path = write(VISITS.replace(*change, 1))
    if not parts:
        assert load(path, client="hospital").num_samples == 5
        return
    refusal(path, client="hospital", parts=parts)


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ("1,0\n2,1\nx,0\n", ["data row 3 (line 4)", "'x'", "expected a number"]),
        ("x,0\n2,1\n", ["data row 1 (line 2)", "'x'", "expected a number"]),
        ("1,0\n,1\n2,0\n,1\n", ["data row 2 (line 3)", "holds ''", "(2 rows"]),
    ],
)
def test_columns_are_judged_as_a_whole(write, monkeypatch, rows, parts):
    monkeypatch.setattr(tables, "_BLOCK", 1)  # one row per block
    refusal(write(f"a,y\n{rows}"), "y", parts=parts)
    blocks = load(write(VISITS, "blocks.csv"), client="hospital")
    monkeypatch.undo()
    whole = load(write(VISITS, "whole.csv"), client="hospital")
    np.testing.assert_array_equal(blocks.x, whole.x)
    np.testing.assert_array_equal(blocks.y, whole.y)


def test_lines_are_counted_inside_quotation_marks(write):
    path = write('a,t,y\n1,"x\ny\nz",0\n\n?,"x",1\n')
    assert "data row 2 (line 6) holds '?'" in refusal(path, "y")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,y\n", "no row of data"),
        ("a,y\n\n\n", "no row of data"),
        ("y,who\n1,2\n", "no column left"),
        ("a,y,who\n1,2,3\n2,2,3\n", "at least two classes, got [2]"),
        (VISITS.encode("utf-16"), "holds the byte 0"),
        (b"a,y\n\xe9,1\n", "not text in UTF-8: line 2 holds the byte 0xe9"),
        (b"\x1f\x8b\x08\x08abc", "not text in UTF-8"),
        ('a;y;who\n"1,5";0;1\n2,25;1;1\n', "with a decimal point"),
        ("a,y,who\n1," + "x" * 200_000 + ",1\n", "very long field"),
    ],
)
def test_files_that_are_no_table(write, content, part):
    assert part in refusal(write(content), "y", client="who")


def test_more_than_100_categories_are_refused(write):
    def table(count):
        return "a,y\n" + "".join(f"t{i},{i % 2}\n" for i in range(count))

    assert load(write(table(100)), "y").x.sum(axis=0).tolist() == [1] * 100
    sentence = refusal(write(table(101), "more.csv"), "y")
    assert "101 texts" in sentence and "drop=('a',)" in sentence


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"label": "outcom"}, "did you mean 'outcome'"),
        ({"client": "hopital"}, "did you mean 'hospital'"),
        ({"time": "agge"}, "did you mean 'age'"),
        ({"drop": ("citi",)}, "did you mean 'city'"),
        ({"categories": ("agee",)}, "did you mean 'age'"),
        ({"client": ""}, "Unknown column"),
        ({"label": ""}, "Unknown column"),
        ({"task": "regresion"}, "did you mean 'regression'"),
        ({"task": "regression"}, "Expected numbers as the label"),
        ({"scaling": "max"}, "did you mean 'minmax'"),
        ({"client": "outcome"}, "'outcome' once in label"),
        ({"drop": ("city", "city")}, "'city' once in label"),
        ({"drop": "city"}, "a list such as ('age', 'city')"),
        ({"drop": (1,)}, "a list such as ('age', 'city')"),
        ({"label": None}, "label to be text"),
        ({"client": 3}, "client to be text"),
    ],
)
def test_wrong_options(write, options, part):
    assert part in refusal(write(VISITS), **options)


@pytest.mark.parametrize("task", ["auto", "classification"])
def test_classes_that_floats_do_not_tell_apart(write, task):
    path = write("a,outcome\n1,9007199254740992\n2,9007199254740993\n")
    assert "too large to be exact" in refusal(path, task=task)
    assert load(path, task="regression").num_classes is None


def test_a_mixed_label_points_to_the_task(write):
    path = write("a,y\n1,3\n2,A\n")
    assert "task='classification'" in refusal(path, "y")
    assert load(path, "y", task="classification").class_names == ("3", "A")


def test_relative_paths(write, tmp_path, monkeypatch):
    write(VISITS)
    monkeypatch.chdir(tmp_path)
    here = load("visits.csv")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    source = user.Csv(path="visits.csv", label="outcome")
    assert source.load(data_dir=str(tmp_path), seed=1, num_clients=3) is here
    monkeypatch.setenv("FEDJAX_PFL_DATA", str(tmp_path))
    assert load("visits.csv") is here
    assert load("../visits.csv").num_samples == 5  # of the current directory
    monkeypatch.chdir(tmp_path.parent)
    assert "no file or folder" in refusal("other/../visits.csv")  # not of data_dir
    assert "no file or folder" in refusal(tmp_path / "absent.csv")
    assert "got ''" in refusal("")
    assert "path to be text" in refusal(3)
    assert "at most 255 bytes" in refusal("a" * 5000)
    assert r"b\x00c" in refusal("b\0c")
    assert "holds no file of the kind .csv" in refusal(tmp_path / "other")


TEXTS = st.text(string.ascii_letters + ' ,;"\t\n', max_size=6).map(lambda t: f"x{t}x")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(-1e30, 1e30), TEXTS, st.integers(-5, 5)),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from(",;\t"),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_written_tables_are_read_back(tmp_path_factory, rows, separator, quoting):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, quoting=quoting)
    writer.writerows([("number", "text", "whole"), *rows])
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes(stream.getvalue().encode())
    table = tables.read_table(path)
    numbers, texts, whole = zip(*rows, strict=True)
    assert table.numbers("number", "").tolist() == list(numbers)
    assert table.numbers("whole", "").tolist() == list(whole)
    assert list(table.texts("text")) == list(texts)
    assert table.numbers("text", "") is None
