"""Sentiment140: tweets by account, as ids of words that have GloVe vectors."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import files, leaf, text
from fedjax_pfl.data.sources import base, prepared

__all__ = ["Sent140"]

_TEXT = 4  # of id, date, query, user, text, ... in LEAF's files
_POLARITY = {0: 0, 4: 1}  # of tensorflow-datasets; 2 is neutral and left out

_Tweets = dict[str, list[tuple[str, int]]]  # text and label, by account


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent140(base.FileSource):
    """Sentiment140: is a tweet positive? Clients are the accounts.

    Tweets come from LEAF's JSON files (train and test merged by user) or from
    tensorflow-datasets, word vectors from a GloVe file in `data_dir/glove`, in the
    folder of the data set or in `data_dir`. Id 0, whose vector is zero, stands for
    words without a vector and for padding.

    Attributes:
      verify: compare the known excerpt of GloVe with its checksum. LEAF's JSON files
        have none: their names tell how they were made, not what is in them.
      num_words: words of a tweet; longer ones are cut, shorter ones padded.
      restrict_vocabulary: keep only the vectors of words that occur.
      glove: name of the GloVe file, or a pattern that only one file matches.
    """

    num_words: int = 25
    restrict_vocabulary: bool = True
    glove: str = "glove.*.txt"
    name: ClassVar[str] = "sent140"
    folders: ClassVar[tuple[str, ...]] = ("sent140",)
    layouts: ClassVar[tuple[base.Layout, ...]] = (
        base.Layout("LEAF train/ and test/", (), ("train/*.json", "test/*.json")),
        base.Layout("LEAF", (), ("*.json",)),
    )
    builder: ClassVar[str] = "sentiment140"
    sha256: ClassVar[Mapping[str, str]] = {
        "glove.6B.50d.5k.txt": (
            "f50b07b377a4f6a3d2187d8e1afc2f592cdc36faee5061b93ad8bcd376c2481b"
        )
    }

    def __post_init__(self):
        super().__post_init__()
        checks.positive_int("num_words", self.num_words)
        checks.boolean("restrict_vocabulary", self.restrict_vocabulary)
        if not isinstance(self.glove, str) or not self.glove or "/" in self.glove:
            raise checks.InputError(
                f"Expected glove to be the name of a file, got {self.glove!r}."
            )

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the tweets and, as the last file, the word vectors."""
        located = super().locate(data_dir)
        root = self.root(data_dir)
        for directory in (root / "glove", root / self.folders[0], root):
            found = files.find_files(directory, self.glove.removesuffix(".gz"))
            if len(found) > 1:
                raise checks.InputError(
                    f"Data set {self.name!r} needs one GloVe file, but '{directory}'"
                    f" has {', '.join(path.name for path in found)}: name one"
                    " (glove=...)."
                )
            if found:
                return base.Located(located.layout, (*located.paths, *found))
        raise base.MissingFilesError(
            f"Data set {self.name!r} needs the word vectors {self.glove} (plain or .gz)"
            f" in '{root / 'glove'}' or '{root}', but there is no such file."
        )

    def _wanted(self) -> str:
        """The files that would do, and the word vectors."""
        return f"{super()._wanted()}; and glove/ with {self.glove} (plain or .gz)"

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x int32[S, num_words]` and the constant `embeddings [V + 1, E]`."""
        *paths, vector_path = located.paths
        read = _prepared if located.layout == prepared.LAYOUT else _leaf
        accounts = read(paths)
        tweets = [tweet for tweets in accounts.values() for tweet in tweets]
        if not tweets:
            raise checks.InputError(f"'{paths[0]}' and its like hold no tweets.")
        split = [text.words(tweet)[: self.num_words] for tweet, _ in tweets]
        occurring = {word for tweet in split for word in tweet}
        vectors = text.read_vectors(
            self.content(vector_path),
            vector_path,
            occurring if self.restrict_vocabulary else None,
        )
        zero = np.zeros((1, vectors.values.shape[1]), np.float32)
        sizes = [len(tweets) for tweets in accounts.values()]
        return datasets.Dataset(
            name=self.name,
            x=_ids(split, vectors.words, self.num_words),
            y=np.array([label for _, label in tweets]),
            num_classes=2,
            class_names=("negative", "positive"),
            client=np.repeat(np.arange(len(accounts)), sizes),
            client_names=tuple(accounts),
            constants={"embeddings": np.concatenate([zero, vectors.values])},
        )


def _ids(
    tweets: list[list[str]], vocabulary: tuple[str, ...], num_words: int
) -> np.ndarray:
    """Ids `int32[S, num_words]`; 0 for words without a vector and for padding."""
    number = {word: row for row, word in enumerate(vocabulary, start=1)}
    ids = np.zeros((len(tweets), num_words), np.int32)
    for row, tweet in enumerate(tweets):
        ids[row, : len(tweet)] = [number.get(word, 0) for word in tweet]
    return ids


def _leaf(paths: Sequence[pathlib.Path]) -> _Tweets:
    """Tweets of LEAF's JSON files."""
    accounts: _Tweets = {}
    for user, (x, y) in leaf.read_leaf(paths).items():
        for tweet, label in zip(x, y, strict=True):
            if (
                not isinstance(tweet, list)
                or len(tweet) <= _TEXT
                or not isinstance(tweet[_TEXT], str)
                or type(label) is not int
                or label not in (0, 1)
            ):
                raise checks.InputError(
                    f"Expected x of user {user!r} of sent140 to be lists [id, date,"
                    f" query, user, text, ...] and y to be 0 or 1, got y"
                    f" {repr(label)[:60]} and x {str(tweet)[:60]!r}."
                )
        texts = [tweet[_TEXT] for tweet in x]
        accounts[user] = list(zip(texts, y, strict=True))
    return accounts


def _prepared(paths: Sequence[pathlib.Path]) -> _Tweets:
    """Tweets that tensorflow-datasets prepared, without the neutral ones."""
    accounts: _Tweets = {}
    builder, splits = Sent140.builder, ("train", "test")
    for example in prepared.read_examples(builder, paths, splits):
        label = _POLARITY.get(int(example["polarity"]))
        if label is not None:
            tweets = accounts.setdefault(prepared.as_text(example["user"]), [])
            tweets.append((prepared.as_text(example["text"]), label))
    return accounts
