"""Sentiment140: tweets by account, as ids of words that have GloVe vectors."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from fedjax_pfl.core import checks, struct
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
        have none: their names tell how they were made, not their content.
      num_words: words of a tweet; longer ones are cut, shorter ones padded.
      restrict_vocabulary: keep only the vectors of words that occur.
      glove: name of the GloVe file, or a pattern that only one file matches.
    """

    num_words: int = struct.static_field(default=25, at_least=1)
    restrict_vocabulary: bool = True
    glove: str = "glove.*.txt"
    name = "sent140"
    layouts = (
        base.Layout("LEAF train/ and test/", (), ("train/*.json", "test/*.json")),
        base.Layout("LEAF", (), ("*.json",)),
    )
    builder = "sentiment140"
    sha256 = {
        "glove.6B.50d.5k.txt": (
            "f50b07b377a4f6a3d2187d8e1afc2f592cdc36faee5061b93ad8bcd376c2481b"
        )
    }

    def __post_init__(self):
        if not isinstance(self.glove, str) or not self.glove or "/" in self.glove:
            raise checks.InputError(
                f"Expected glove to be the name of a file, got {self.glove!r}."
            )
        super().__post_init__()

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the tweets and, as the last file, the word vectors."""
        located = super().locate(data_dir)
        *folders, root = self.directories(data_dir)
        for directory in (root / "glove", *folders, root):
            vectors = files.find_files(directory, self.glove.removesuffix(".gz"))
            if len(vectors) > 1:
                raise checks.InputError(
                    f"Expected one GloVe file in '{directory}' (glove=...), got"
                    f" {', '.join(path.name for path in vectors)}."
                )
            if vectors:
                return dataclasses.replace(located, paths=(*located.paths, *vectors))
        raise base.MissingFilesError(
            f"Data set {self.name!r} needs the word vectors {self.glove} (plain or .gz)"
            f" in '{root / 'glove'}' or '{root}'."
        )

    def _wanted(self) -> str:
        """Lists the files of every layout, and the word vectors."""
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
        vocabulary, vectors = text.read_vectors(
            self.content(vector_path),
            vector_path,
            occurring if self.restrict_vocabulary else None,
        )
        number = {word: row for row, word in enumerate(vocabulary, start=1)}
        ids = np.zeros((len(tweets), self.num_words), np.int32)
        for row, tweet in enumerate(split):
            ids[row, : len(tweet)] = [number.get(word, 0) for word in tweet]
        return datasets.Dataset(
            name=self.name,
            x=ids,
            y=np.array([label for _, label in tweets]),
            class_names=("negative", "positive"),
            client=datasets.owners(map(len, accounts.values())),
            client_names=tuple(accounts),
            constants={"embeddings": np.pad(vectors, ((1, 0), (0, 0)))},
        )


def _leaf(paths: Sequence[pathlib.Path]) -> _Tweets:
    """Reads tweets of LEAF's JSON files."""
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
                    f"Expected lists [id, date, query, user, text, ...] as x of user"
                    f" {user!r} and 0 or 1 as y, got {tweet!r:.60} and {label!r:.60}."
                )
            accounts.setdefault(user, []).append((tweet[_TEXT], label))
    return accounts


def _prepared(paths: Sequence[pathlib.Path]) -> _Tweets:
    """Reads tweets that tensorflow-datasets prepared, without the neutral ones."""
    accounts: _Tweets = {}
    builder, splits = Sent140.builder, ("train", "test")
    for example in prepared.read_examples(builder, paths, splits):
        label = _POLARITY.get(int(example["polarity"]))
        if label is not None:
            tweets = accounts.setdefault(example["user"], [])
            tweets.append((example["text"], label))
    return accounts
