"""Readers of text: LEAF's JSON, word vectors, plays, prices."""

import pathlib
import re

import numpy as np
import pytest

from fedjax_pfl.data.readers import leaf, prices, text
from tests.data import samples
from tests.data.samples import write

PATH = pathlib.Path("a_file")


def refusal(function, *args):
    """Returns the sentence with which a reader refuses, which names the file."""
    sentence = samples.refusal(function, *args)
    assert str(PATH) in sentence
    return sentence


def users(**examples):
    """Returns a LEAF object of lists `x`, whose `y` are their lengths."""
    return samples.leaf(**{u: (x, [len(x)] * len(x)) for u, x in examples.items()})


def test_users_of_several_files_are_merged(tmp_path):
    train = write(tmp_path / "a.json", users(ann=[1, 2], bob=[], cid=[3]))
    test = write(tmp_path / "b.json.gz", users(dan=[4], bob=[5], ann=[6]))
    assert leaf.read_leaf([train, test]) == {
        "ann": ([1, 2, 6], [2, 2, 1]),
        "cid": ([3], [1]),
        "dan": ([4], [1]),
        "bob": ([5], [1]),
    }
    assert leaf.read_leaf([write(tmp_path / "c.json", users(bob=[]))]) == {}


def changed(**fields):
    return {**users(ann=[1, 2], bob=[3]), **fields}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON"),
        (b'{"users": ["ann"', "not valid JSON"),
        (b'{"users": ["\xff"]}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "not valid JSON"),  # Python's limit of digits
        ([1, 2], "does not hold an object"),
        ({}, "users must be a list"),
        (changed(users="ann"), "users must be a list"),
        (changed(users=["ann", 7]), "users must be a list"),
        (changed(num_samples=[2.0, 1]), "one of counts"),
        (changed(num_samples=[2, True]), "one of counts"),
        (changed(num_samples=[2]), "2 users repeat or have 1 num_samples"),
        (changed(users=["ann", "ann"]), "2 users repeat or have 2 num_samples"),
        (changed(num_samples=[2, 2]), "'bob' has 1 x and 1 y, but .* promises 2"),
        (changed(user_data=[]), "user_data must be an object"),
        (changed(users=["ann", "eve"]), "no lists x and y of user 'eve'"),
        (changed(user_data={"ann": 1, "bob": 2}), "no lists x and y of user 'ann'"),
        (changed(user_data={"ann": {"x": [1, 2], "y": [1]}}), "'ann' has 2 x and 1 y"),
    ],
)
def test_files_that_are_not_leaf(tmp_path, content, sentence):
    path = write(tmp_path / "a_file.json", content)
    assert re.search(sentence, refusal(leaf.read_leaf, [path]))


@pytest.mark.parametrize(
    ("tweet", "expected"),
    [
        ("I'm SO happy!!", ["i'm", "so", "happy", "!", "!"]),
        ("@me: a,b... 'quoted' #tag", "me a , b . . . quoted tag".split()),
        ("caf\u00e9 2day?", ["caf\u00e9", "2day", "?"]),
        (" :-) ", []),
        ("", []),
    ],
)
def test_words(tweet, expected):
    assert text.words(tweet) == expected


GLOVE = b"the 0.5 -1e-3 2\n, 1 2 3\n. . . 4 5 6\nthe 7 8 9\ncaf\xc3\xa9 1 1 1\n"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_vectors(ending):
    words, values = text.read_vectors(GLOVE.replace(b"\n", ending), PATH)
    assert words == ("the", ",", ". . .", "caf\u00e9")  # the first "the"
    expected = [[0.5, -1e-3, 2], [1, 2, 3], [4, 5, 6], [1, 1, 1]]
    np.testing.assert_array_equal(values, np.array(expected, np.float32))
    assert values.dtype == np.float32
    words, values = text.read_vectors(GLOVE, PATH, {",", "absent"})
    assert words == (",",) and values.tolist() == [[1, 2, 3]]
    assert text.read_vectors(GLOVE, PATH, set())[1].shape == (0, 3)


PLAY = b"ANN:\nOne\ntwo.\n\nBOB:\n\nANN:\nThree:\n\n\nTHE CAT:\nMiau!\n"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_speeches(ending):
    spoken = text.read_speeches(PLAY.replace(b"\n", ending), PATH)
    assert spoken == {"ANN": "One\ntwo.\nThree:", "BOB": "", "THE CAT": "Miau!"}
    assert list(spoken) == ["ANN", "BOB", "THE CAT"]
    assert text.read_speeches(b"\n\n", PATH) == {}


TABLE = (
    b"date,ticker,open,close,adj_close\n"
    b"2020-01-03,B,1,20.5,10\n2020-01-01,B,1,19,9.5\n2020-01-03,A,1,3,2.5\n"
)


def test_prices_stand_on_one_calendar():
    table = prices.parse_prices(TABLE, PATH)
    assert table.dates.astype(str).tolist() == ["2020-01-01", "2020-01-03"]
    assert table.tickers == ("B", "A")
    np.testing.assert_array_equal(table.values[..., 0], [[9.5, np.nan], [10, 2.5]])
    plain = TABLE.replace(b",adj_close", b",volume").replace(b"\n", b"\r\n")
    closes = prices.parse_prices(plain, PATH).values[..., 0]
    np.testing.assert_array_equal(closes, [[19, np.nan], [20.5, 3]])


VECTORS = [
    (b"", "does not begin with a line"),
    (b"\n", "does not begin with a line"),
    (b"the\n", "does not begin with a line"),
    (b"a 1 2 3\nb 1 2\n", "Line 2 of 'a_file' has 2 values, .* 3 values"),
    (b"a 1 2 3\nb 1 2 3 4\n", "Line 2 of 'a_file' has 4 values, .* 3 values"),
    (b"a 1 2 3\n\nb 1 2 3\n", "Line 2 of 'a_file' has 0 values"),
    (b"a 1 2 3\nb 1 two 3\n", "Line 2 of 'a_file' holds 'two'"),
    (b"a 1 2 3\nb 1 nan 3\n", "Line 2 of 'a_file' holds 'nan'"),
    (b"a 1 2 3\nb 1 2 1e39\n", "Line 2 of 'a_file' holds '1e39'"),
    (b"a 1 2 3\nb 1 2 \xff\n", "Line 2 of 'a_file' holds"),
    (b"400000 50\na 1 2 3\n", "Line 2 of 'a_file' has 3 values"),
]
PLAYS = [
    (PLAY + b"\nno colon\nhello", "Line 14 of"),
    (b"\n\n:\nhello", "Line 3 of"),
    (b"one line", "Line 1 of"),
]
PRICES = [
    (b"", "is empty"),
    (b"date,ticker,close\n", "has a header, but no row"),
    *(
        (TABLE.replace(old, new), sentence)
        for old, new, sentence in (
            (b"date", b"day", "has the columns day, ticker, open, close, adj_close"),
            (b"close", b"price", "expected date, ticker and adj_close or close"),
            (b",2.5\n", b"\n", "Line 4 of 'a_file' has 4 fields, expected 5"),
            (b",2.5\n", b",2.5,7\n", "Line 4 of 'a_file' has 6 fields, expected 5"),
            (b"B,1,19", b"\nB,1,19", "Line 3 of 'a_file' has 2 fields"),
            (b"2.5", b"", "Line 4 of 'a_file' has the price '', expected a positive"),
            (b"2.5", b"two", "Line 4 of 'a_file' has the price 'two'"),
            (b"9.5", b"0", "Line 3 of 'a_file' has the price '0'"),
            (b"9.5", b"-1", "Line 3 of 'a_file' has the price '-1'"),
            (b"9.5", b"nan", "Line 3 of 'a_file' has the price 'nan'"),
            (b"9.5", b"inf", "Line 3 of 'a_file' has the price 'inf'"),
            (b"2020-01-01", b"01/01/2020", "Line 3 .* has the date '01/01/2020'"),
            (b"2020-01-01", b"2020-02-30", "Line 3 .* has the date '2020-02-30'"),
            (b"2020-01-01", b"NaT", "Line 3 of 'a_file' has the date 'NaT'"),
            (b"2020-01-01", b"2020-01-03", "Line 3 .* repeats date 2020-01-03"),
            (b"B,1,19", b'"B,1,19', "begins on line 3 of .a_file. is broken"),
            (b"A", b"\xff", "not text in UTF-8: line 4"),
            (b"ticker", b"ti\0cker", "holds the byte 0"),
        )
    ),
]
DAMAGE = {text.read_vectors: VECTORS, text.read_speeches: PLAYS}
DAMAGE |= {prices.parse_prices: PRICES}


@pytest.mark.parametrize(
    ("read", "content", "sentence"),
    [(read, *case) for read, cases in DAMAGE.items() for case in cases],
)
def test_damaged_texts(read, content, sentence):
    assert re.search(sentence, refusal(read, content, PATH))
