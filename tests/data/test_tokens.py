"""Tokenizers in files, columns of text, and the archive of a pretrained encoder."""

import dataclasses
import functools
import hashlib
import pathlib
import sys
import zipfile

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.data import published, sources
from fedjax_pfl.data.readers import tokens
from tests.data import samples
from tests.data.samples import write

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "day", "##s", "!")
TWEETS = {"ann": (["Good day!", "bad", "bad bad bad bad"], [1, 0, 0])}


def tokenizer(path, words=WORDS, adds=True):
    """A `tokenizer.json` of a few pieces of words that cuts texts to three of them."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.enable_truncation(3)
    if adds:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    made.save(str(path))
    return path


def test_texts_become_ids_of_pieces(tmp_path):
    path = tokenizer(tmp_path / "tokenizer.json")
    texts = ["Good days!", "", "bad bad bad bad"]
    expected = [[2, 4, 6, 7, 3], [2, 3, 0, 0, 0], [2, 5, 5, 5, 3]]
    found = tokens.token_ids(texts, path, 5)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    longest = tokens.token_ids(texts, path, None)  # whatever the file says
    assert longest.shape == (3, 6)
    np.testing.assert_array_equal(longest[0], [2, 4, 6, 7, 8, 3])


def test_other_tokenizers_get_one_sentence(tmp_path):
    path = tokenizer(tmp_path / "tokenizer.json")
    refused = functools.partial(samples.refusal, tokens.token_ids, ["a"])
    refused(path, 2, match="more than the 2 tokens .* got 2")
    plain = tokenizer(tmp_path / "plain.json", adds=False)
    np.testing.assert_array_equal(tokens.token_ids(["good day"], plain, 1), [[4]])
    without = tokenizer(tmp_path / "without.json", WORDS[1:], adds=False)
    refused(without, 4, match=r"token for padding, \[PAD\] or <pad>")
    for content in ("", "{}", "[" * 100_000, "\0"):
        path.write_text(content)
        refused(path, 4, match="to be a tokenizer.json")


def test_a_missing_library_or_file_gets_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(checks.InputError, match="pip install tokenizers"):
        tokens.token_ids(["a"], tmp_path / "tokenizer.json", 4)
    with pytest.raises(checks.InputError, match="no file '.*nowhere.json'"):
        tokens.find_tokenizer(str(tmp_path / "nowhere.json"))


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Ids that are the numbers of letters, and the path of a tokenizer's file."""

    def count(texts, path, length):
        assert path == tmp_path / "own.json"
        return np.array([[len(text)] * (length or 3) for text in texts], np.int32)

    monkeypatch.setattr(tokens, "token_ids", count)
    (tmp_path / "own.json").write_text("1")
    return str(tmp_path / "own.json")


def test_tweets_go_through_the_tokenizer_and_need_no_word_vectors(tmp_path, counted):
    rows = {
        user: ([["1", "Sat", "NO_QUERY", user, t, "training"] for t in x], y)
        for user, (x, y) in TWEETS.items()
    }
    write(tmp_path / "sent140" / "all.json", samples.leaf(**rows))
    found = sources.load_dataset("sent140", tmp_path, num_words=2, tokenizer=counted)
    np.testing.assert_array_equal(found.x, [[9, 9], [3, 3], [15, 15]])
    np.testing.assert_array_equal(found.y, [1, 0, 0])
    assert found.constants is None
    (tmp_path / "own.json").write_text("22")  # a changed tokenizer is read again
    again = sources.load_dataset("sent140", tmp_path, num_words=2, tokenizer=counted)
    assert again is not found


def test_a_column_of_text_becomes_ids(tmp_path, counted):
    path = tmp_path / "mine.csv"
    path.write_text("stars,review,user\n1,bad,ann\n5,nan,bob\n5,,ann\n1,12,bob\n")
    fields = {"path": str(path), "label": "stars", "client": "user"}
    source = fp.data.Csv(**fields, text="review", tokenizer=counted)
    found = samples.load(source)
    np.testing.assert_array_equal(found.x, [[3] * 3, [3] * 3, [0] * 3, [2] * 3])
    np.testing.assert_array_equal(found.y, [0, 1, 1, 0])
    assert found.client_names == ("ann", "bob")
    shorter = dataclasses.replace(source, num_tokens=2)
    assert samples.load(shorter).x.shape == (4, 2)
    with pytest.raises(checks.InputError, match="'stars' once in label, client, split"):
        dataclasses.replace(source, text="stars")
    for wrong in ({"text": None}, {"tokenizer": None}):  # set one after the other
        half = dataclasses.replace(source, **wrong)
        samples.refusal(samples.load, half, match="both text, a column, and its tok")
    other = dataclasses.replace(source, text="reviews")
    samples.refusal(samples.load, other, match="reviews")


CONTENT = {"config.json": b"{}", "tokenizer.json": b"[1]", "model.safetensors": b"abc"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes an installed package of an archive; returns the folder of its files."""
    known = {n: (len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENT.items()}
    monkeypatch.setattr(published, "_FILES", known)
    monkeypatch.syspath_prepend(tmp_path / "site")

    def install(members, name="all_minilm_l6_v2"):
        place = tmp_path / "site" / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("raise RuntimeError('code was run')")
        with zipfile.ZipFile(place / "model.zip", "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return place

    return install


def unpacked(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def test_official_files_are_unpacked_once(tmp_path, package):
    place = package(CONTENT | {"../outside.txt": b"x", "more.txt": b"y"})
    folder = published.minilm(tmp_path / "cache" / "own")
    assert unpacked(folder) == CONTENT
    assert not list(tmp_path.rglob("outside.txt")) and not list(tmp_path.rglob("more*"))
    (folder / "config.json").write_bytes(b"damaged")
    assert unpacked(published.minilm(folder)) == CONTENT
    (place / "model.zip").unlink()
    assert published.minilm(folder) == folder  # nothing is read from the package


def test_the_cache_is_the_users(tmp_path, package, monkeypatch):
    package(CONTENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert tokens.find_tokenizer("minilm").read_bytes() == CONTENT["tokenizer.json"]
    place = tmp_path / "cache/fedjax_pfl/all-MiniLM-L6-v2"
    assert unpacked(place) == CONTENT


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (CONTENT | {"model.safetensors": b"abd"}, "to be the official file"),
        (CONTENT | {"model.safetensors": b"abc" * 9}, "to be the official file"),
        ({"config.json": b"{}"}, "to be an archive with 'tokenizer.json'"),
    ],
)
def test_other_archives_get_one_sentence(tmp_path, package, members, words):
    package(members)
    samples.refusal(published.minilm, tmp_path / "own", match=words)
    assert unpacked(tmp_path / "own").keys() <= CONTENT.keys()


def test_damaged_archives_and_folders_get_one_sentence(tmp_path, package):
    place = package(CONTENT)
    (place / "model.zip").write_bytes(b"PK no archive")
    with pytest.raises(checks.InputError, match="to be an archive with 'config.json'"):
        published.minilm(tmp_path / "own")
    (tmp_path / "file").write_text("")
    with pytest.raises(checks.InputError, match="Cannot keep all-MiniLM-L6-v2 in"):
        published.minilm(tmp_path / "file")


def test_without_the_package_the_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "_MODULE", "no_such_module_at_all")
    samples.refusal(published.minilm, tmp_path, match="pip install --no-deps")
