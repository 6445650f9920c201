"""Sentiment140, Shakespeare and stocks from small files."""

import functools
import json
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.core import checks
from fedjax_pfl.data import sources
from tests.data import samples
from tests.data.samples import write

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner)
    ),
    max_leaves=12,
)


refusal = functools.partial(samples.refusal, sources.load_dataset)


GLOVE = ", 1 0\nhappy 0.5 2\nunused 3 3\nday -1 4\n! 9 9\n"
TWEETS = {
    "ann": (["Happy day!", "day, day, DAY"], [1, 0]),
    "bob": (["@eve: what??", "Happy"], [0, 1]),
}


def tweets(users):
    """Returns tweets in LEAF's format from texts and labels by user."""
    rows = {
        user: ([["1", "Sat", "NO_QUERY", user, t, "training"] for t in x], y)
        for user, (x, y) in users.items()
    }
    return samples.leaf(**rows)


@pytest.mark.parametrize("compress", ["", ".gz"])
def test_tweets_become_ids_of_words(tmp_path, compress):
    write(tmp_path / "sent140" / f"all.json{compress}", tweets(TWEETS))
    write(tmp_path / "glove" / f"glove.6B.2d.txt{compress}", GLOVE)
    dataset = sources.load_dataset("sent140", tmp_path, num_words=4)
    # Words that occur are numbered from 1 in the order of the GloVe file.
    comma, happy, day, mark = 1, 2, 3, 4
    expected = [
        [happy, day, mark, 0],
        [day, comma, day, comma],  # cut
        [0, 0, 0, 0],  # neither "eve" nor "what" nor "?" has a vector
        [happy, 0, 0, 0],
    ]
    assert dataset.x.tolist() == expected and dataset.x.dtype == np.int32
    assert dataset.y.tolist() == [1, 0, 0, 1] and dataset.num_classes == 2
    assert dataset.client.tolist() == [0, 0, 1, 1]
    assert dataset.client_names == ("ann", "bob") and not dataset.ordered
    vectors = dataset.constants["embeddings"]
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[0, 0], [1, 0], [0.5, 2], [-1, 4], [9, 9]]
    everything = sources.load_dataset("sent140", tmp_path, restrict_vocabulary=False)
    assert everything.x.shape == (4, 25)
    assert everything.constants["embeddings"].shape == (6, 2)
    np.testing.assert_array_equal(  # the same words, numbered otherwise
        everything.constants["embeddings"][everything.x[:, :4]], vectors[dataset.x]
    )


def test_train_and_test_tweets_are_merged(tmp_path):
    train = {"ann": TWEETS["ann"], "none": ([], [])}
    test = {"bob": TWEETS["bob"], "ann": (["day"], [1])}
    write(tmp_path / "sent140" / "train" / "a.json", tweets(train))
    write(tmp_path / "sent140" / "test" / "a.json", tweets(test))
    write(tmp_path / "glove.txt", GLOVE)
    dataset = sources.load_dataset("sent140", tmp_path, glove="glove.txt")
    assert dataset.client_names == ("ann", "bob")
    assert dataset.client.tolist() == [0, 0, 0, 1, 1]
    assert dataset.y.tolist() == [1, 0, 1, 0, 1]


def test_the_vectors_must_be_one_file(tmp_path):
    write(tmp_path / "all.json", tweets(TWEETS))
    assert "glove/ with glove.*.txt" in refusal("sent140")
    sentence = refusal("sent140", tmp_path)
    assert "word vectors glove.*.txt" in sentence
    write(tmp_path / "glove" / "glove.2.txt", GLOVE)
    write(tmp_path / "glove" / "glove.3.txt.gz", "day 1 2 3")
    sentence = refusal("sent140", tmp_path)
    assert "glove.2.txt, glove.3.txt.gz" in sentence and "glove=" in sentence
    for name in ("glove.3.txt", "glove.3.txt.gz"):
        dataset = sources.load_dataset("sent140", tmp_path, glove=name)
        assert dataset.constants["embeddings"].shape == (2, 3)
    write(tmp_path / "glove" / "glove.3.txt.gz", "day 1 2 3\nhappy 1 2\n")
    assert "Line 2 of" in refusal("sent140", tmp_path, glove="glove.3.*")
    assert "name of a file" in refusal("sent140", glove="../glove.txt")
    assert "num_words" in refusal("sent140", num_words=0)
    assert "restrict_vocabulary" in refusal("sent140", restrict_vocabulary=1)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (["a text"], [1]),
        ([["1", "Sat", "NO_QUERY", "eve"]], [1]),
        ([["1", "Sat", "NO_QUERY", "eve", 7]], [1]),
        ([["1", "Sat", "NO_QUERY", "eve", "hello"]], [4]),
        ([["1", "Sat", "NO_QUERY", "eve", "hello"]], ["1"]),
        ([["1", "Sat", "NO_QUERY", "eve", "hello"]], [True]),
    ],
)
def test_wrong_tweets(tmp_path, x, y):
    write(tmp_path / "all.json", samples.leaf(eve=(x, y)))
    write(tmp_path / "glove.txt", GLOVE)
    assert "user 'eve'" in refusal("sent140", tmp_path, glove="glove.txt")
    write(tmp_path / "all.json", tweets({"eve": ([], [])}))
    assert "hold no tweets" in refusal("sent140", tmp_path, glove="glove.txt")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(["femnist", "sent140"]),
    st.sampled_from([None, "users", "num_samples", "user_data", "x", "y"]),
    JSON,
)
def test_arbitrary_json_is_one_sentence(name, field, value):
    own = {"x": [["1", "Sat", "NO_QUERY", "eve", "day"]], "y": [1]}
    content = {"users": ["eve"], "num_samples": [1], "user_data": {"eve": own}}
    if field in own:
        own[field] = value
        content["num_samples"] = [len(value) if isinstance(value, list) else 1]
        if isinstance(value, list):
            own["x" if field == "y" else "y"] = [0] * len(value)
    elif field is None:
        content = value
    else:
        content[field] = value
    with tempfile.TemporaryDirectory() as directory:
        write(pathlib.Path(directory) / "train" / "a.json", json.dumps(content))
        write(pathlib.Path(directory) / "glove.a.txt", GLOVE)
        try:
            sources.load_dataset(name, directory)
        except checks.InputError as error:
            assert "\n" not in str(error)


PLAY = "ANN:\nabcd\nef\n\nBOB:\nabc\n\nANN:\nghij\n\nEVE:\n\nCID:\nzyxw\n"


def test_windows_of_characters(tmp_path):
    write(tmp_path / "shakespeare" / "tiny_shakespeare.txt", PLAY)
    options = {"context": 3, "stride": 2, "verify": False}
    dataset = sources.load_dataset("shakespeare", tmp_path, **options)
    names = dataset.class_names
    assert "".join(names) == "".join(sorted("\nabcdefghijwxyz"))
    spoken = {"ANN": "abcd\nef\nghij", "CID": "zyxw"}  # BOB's 3 have no next one
    expected = [
        (speaker, speech[end - 3 : end], speech[end])
        for speaker, speech in spoken.items()
        for end in range(3, len(speech), 2)
    ]
    assert len(expected) == 6
    found = [
        (dataset.client_names[c], "".join(names[i] for i in row), names[k])
        for c, row, k in zip(dataset.client, dataset.x, dataset.y, strict=True)
    ]
    assert found == expected
    assert dataset.ordered and dataset.x.dtype == np.int32
    assert dataset.num_classes == 15
    np.testing.assert_array_equal(dataset.constants["embeddings"], np.eye(15))
    assert dataset.constants["embeddings"].dtype == np.float32


def test_other_plays_are_refused(tmp_path):
    path = write(tmp_path / "tiny_shakespeare.txt.gz", PLAY)
    assert "differs from the official one" in refusal("shakespeare", tmp_path)
    assert "more than 80 characters" in refusal("shakespeare", tmp_path, verify=False)
    write(path, "To be or not to be.")
    assert "Line 1 of" in refusal("shakespeare", tmp_path, verify=False)
    write(path, b"ANN:\n\xff")
    assert "UTF-8" in refusal("shakespeare", tmp_path, verify=False)
    path.write_bytes(path.read_bytes()[:-3])
    assert "complete gzip file" in refusal("shakespeare", tmp_path)
    assert "context" in refusal("shakespeare", context=0)
    assert "stride" in refusal("shakespeare", stride=1.5)
    path.unlink()
    assert "tensorflow-datasets" in refusal("shakespeare", tmp_path)


def table(num_days, seed=0, **starts):
    """A price table, days from late to early, and the prices by ticker."""
    rng = np.random.default_rng(seed)
    days = np.datetime64("2020-01-01") + np.arange(num_days)
    closes = {
        ticker: np.round(50 * np.exp(rng.normal(0, 0.1, num_days - start).cumsum()), 3)
        for ticker, start in starts.items()
    }
    rows = [
        f"{day},{ticker},{price}"
        for ticker, own in closes.items()
        for day, price in zip(days[::-1], own[::-1], strict=False)
    ]
    return "\n".join(["date,ticker,close", *rows]) + "\n", closes


def test_windows_of_returns(tmp_path):
    content, closes = table(9, AAA=0, NEW=6, BBB=3)
    write(tmp_path / "stocks" / "mine.csv.gz", content)
    dataset = sources.load_dataset("stocks", tmp_path, window=4)
    returns = {name: np.log(own[1:] / own[:-1]) for name, own in closes.items()}
    deviation = np.concatenate(list(returns.values())).std()
    rows = [
        (ticker, own[day - 4 : day], own[day] > 0)
        for ticker, own in returns.items()
        for day in range(4, len(own))
    ]
    tickers, x, y = zip(*rows, strict=True)
    assert tickers == ("AAA",) * 4 + ("BBB",)  # NEW has two returns only
    assert [dataset.client_names[k] for k in dataset.client] == list(tickers)
    assert dataset.client_names == ("AAA", "BBB") and dataset.ordered
    assert dataset.y.tolist() == list(y) and dataset.num_classes == 2
    shown = dataset.x * dataset.scale + dataset.shift
    np.testing.assert_allclose(shown, np.array(x) / deviation, rtol=1e-5, atol=1e-6)


def test_wrong_price_files(tmp_path):
    content, _ = table(9, AAA=0)
    write(tmp_path / "stocks" / "a.csv", content)
    assert "more than 31 days" in refusal("stocks", tmp_path)
    write(tmp_path / "stocks" / "b.csv", content)
    sentence = refusal("stocks", tmp_path)
    assert "one .csv file" in sentence and "a.csv, b.csv" in sentence
    (tmp_path / "stocks" / "b.csv").unlink()
    flat = "date,ticker,close\n" + "".join(f"2020-01-0{d},A,5\n" for d in range(1, 9))
    write(tmp_path / "stocks" / "a.csv", flat)
    assert "no price that changes" in refusal("stocks", tmp_path, window=2)
    write(tmp_path / "stocks" / "a.csv", flat.replace("5\n", "five\n", 1))
    assert "Line 2 of" in refusal("stocks", tmp_path)
    known = "sp500_50_daily_2006_2019.csv"
    (tmp_path / "stocks" / "a.csv").rename(tmp_path / "stocks" / known)
    assert "differs from the official one" in refusal("stocks", tmp_path)
    assert "window" in refusal("stocks", window=0)
    (tmp_path / "stocks" / known).unlink()
    assert "*.csv" in refusal("stocks", tmp_path)


def test_a_gap_in_prices_is_one_longer_return(tmp_path):
    rows = [("2020-01-01", 1), ("2020-01-02", 2), ("2020-01-06", 8), ("2020-01-07", 4)]
    content = "date,ticker,adj_close\n" + "".join(f"{d},A,{p}\n" for d, p in rows)
    content += "2020-01-03,B,1\n"  # a day without a price of A
    write(tmp_path / "a.csv", content)
    dataset = sources.load_dataset("stocks", tmp_path, window=2)
    np.testing.assert_allclose(dataset.x, np.log([[2, 4]]), rtol=1e-6)
    assert dataset.y.tolist() == [0]
