"""Data sets of LEAF: characters by writer, and tweets by account."""

import dataclasses
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import files, leaf, text, tokens
from fedjax_pfl.data.sources import base, prepared

__all__ = ["Femnist", "Sent140"]

_SPLIT = base.Layout("LEAF train/ and test/", (), ("train/*.json", "test/*.json"))
_FILE = "leaf_femnist_105_writers.npz"
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_LABELS = {  # the labels of each option, relabelled from 0
    "all": range(len(_CLASSES)),
    "digits": range(10),
    "letters": range(_CLASSES.index("a"), _CLASSES.index("j") + 1),
}

# Images, labels, writers and the writers' names.
_Examples = tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]
_TEXT = 4  # of id, date, query, user, text, ... in LEAF's files
_POLARITY = {0: 0, 4: 1}  # of tensorflow-datasets; 2 is neutral and left out

_Tweets = dict[str, list[tuple[str, int]]]  # text and label, by account


@dataclasses.dataclass(frozen=True, kw_only=True)
class Femnist(base.FileSource):
    """FEMNIST of LEAF: 62 classes of characters; clients are the writers.

    Images are kept as LEAF has them: the background is white (255) and the ink dark,
    the reverse of MNIST. They are shown as `byte / 255`, LEAF's own values; networks
    without convolutions train better on light ink.

    Attributes:
      verify: compare the file of 105 writers with its checksum. LEAF's JSON files have
        none: their names tell how they were made, not their content.
      classes: "all"; "digits", which drops the letters; or "letters", the lower-case
        a to j alone, as classes 0 to 9.
      light_ink: shows `1 - byte / 255`, so that the background is 0 as in MNIST.
    """

    classes: Literal["all", "digits", "letters"] = "all"
    light_ink: bool = False
    name = "femnist"
    layouts = (
        base.Layout("npz", (_FILE,)),
        _SPLIT,
        base.Layout(
            "LEAF leaf_json/",
            (),
            tuple(f"leaf_json/{p}.json" for p in ("*", "**/train/*", "**/test/*")),
        ),
    )
    sha256 = {_FILE: "f6938dd9a2d671300b975f1338e522dc21c792f6c9aa2b337894344622d6b3f8"}

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 28, 28]`, the writers' examples one after the other."""
        if located.layout == "npz":
            x, y, client, names = self._read_npz(located.paths[0])
        else:
            x, y, client, names = _read_writers(located.paths)
        labels = _LABELS[self.classes]
        rows = np.flatnonzero((labels.start <= y) & (y < labels.stop))
        rows = rows[np.argsort(client[rows], kind="stable")]
        writers, client = np.unique(client[rows], return_inverse=True)
        return datasets.Dataset(
            name=self.name,
            x=x[rows],
            y=y[rows].astype(np.int64) - labels.start,
            class_names=_CLASSES[labels.start : labels.stop],
            client=client,
            client_names=tuple(names[writer] for writer in writers),
            scale=-1 / 255 if self.light_ink else 1 / 255,
            shift=1.0 if self.light_ink else 0.0,
        )

    def _read_npz(self, path: Path) -> _Examples:
        """Reads the `.npz` file."""
        kinds = {"images": base.IMAGES, "labels": base.INTEGERS}
        kinds |= {"writer": base.INTEGERS, "writer_names": base.TEXTS}
        images, labels, writer, names = self.arrays(path, kinds)
        if (
            not len(images) == len(labels) == len(writer)
            or not _all_below(writer, len(names))
            or not _all_below(labels, len(_CLASSES))
        ):
            raise checks.InputError(
                f"Expected {len(images)} labels below {len(_CLASSES)} and writers below"
                f" {len(names)} in '{path}'."
            )
        return images, labels, writer, names.tolist()


def _all_below(values: np.ndarray, limit: int) -> bool:
    """Returns whether all values are indices below a limit."""
    return 0 <= values.min(initial=0) <= values.max(initial=0) < limit


def _read_writers(paths: tuple[Path, ...]) -> _Examples:
    """Reads LEAF's JSON files."""
    users = leaf.read_leaf(paths)
    if not users:
        raise checks.InputError(f"The file '{paths[0]}' and its like hold no examples.")
    x = [_characters(user, pixels) for user, (pixels, _) in users.items()]
    y = [_labels(user, labels) for user, (_, labels) in users.items()]
    return (
        np.concatenate(x),
        np.concatenate(y),
        datasets.owners(map(len, y)),
        list(users),
    )


def _characters(user: str, pixels: list[Any]) -> np.ndarray:
    """Returns images `uint8[S, 28, 28]` of lists of 784 numbers in [0, 1]."""
    values = datasets.as_array(pixels)
    if (
        values.dtype.kind not in "fiu"
        or values.shape != (len(pixels), 784)
        or not (values.min() >= 0 and values.max() <= 1)  # also where one is NaN
    ):
        raise checks.InputError(
            f"Expected x of user {user!r} to be lists of 784 numbers from 0 to 1."
        )
    return np.round(values * 255).astype(np.uint8).reshape(-1, 28, 28)


def _labels(user: str, labels: list[Any]) -> np.ndarray:
    """Returns the labels of one user, checked."""
    for label in labels:
        if type(label) is not int or not 0 <= label < len(_CLASSES):
            raise checks.InputError(
                f"Expected y of user {user!r} of femnist to be whole numbers from 0 to"
                f" {len(_CLASSES) - 1}, got {repr(label)[:60]}."
            )
    return np.array(labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent140(base.FileSource):
    """Sentiment140: is a tweet positive? Clients are the accounts.

    Tweets come from LEAF's JSON files (train and test merged by user) or from
    tensorflow-datasets, word vectors from a GloVe file in `data_dir/glove`, in the
    folder of the data set or in `data_dir`. Id 0, with a zero vector, stands for
    words without a vector and for padding. With a `tokenizer` ids are its own, and
    there are no word vectors.

    Attributes:
      verify: compare the known excerpt of GloVe with its checksum. LEAF's JSON files
        have none: their names tell how they were made, not their content.
      num_words: words or tokens of a tweet; longer ones are cut, shorter ones padded.
      restrict_vocabulary: keep only the vectors of words that occur.
      glove: name of the GloVe file, or a pattern that only one file matches.
      tokenizer: path of a `tokenizer.json`, `"minilm"` for that of `minilm`, or None
        for whole words.
    """

    num_words: int = struct.static_field(default=25, at_least=1)
    restrict_vocabulary: bool = True
    glove: str = "glove.*.txt"
    tokenizer: str | None = struct.static_field(default=None)
    name = "sent140"
    layouts = (_SPLIT, base.Layout("LEAF", (), ("*.json",)))
    builder = "sentiment140"
    sha256 = {
        "glove.6B.50d.5k.txt": (
            "f50b07b377a4f6a3d2187d8e1afc2f592cdc36faee5061b93ad8bcd376c2481b"
        )
    }

    def __post_init__(self):
        if not isinstance(self.glove, str) or not self.glove or "/" in self.glove:
            raise checks.InputError(
                f"Expected glove to be the name of a file, got"
                f" {checks.shown(self.glove)}."
            )
        super().__post_init__()

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the tweets and, as the last file, the word vectors or the tokenizer."""
        located = super().locate(data_dir)
        if self.tokenizer is not None:
            return located.followed_by(tokens.find_tokenizer(self.tokenizer))
        *folders, root = self.directories(data_dir)
        for directory in (root / "glove", *folders, root):
            vectors = files.find_files(directory, self.glove.removesuffix(".gz"))
            if len(vectors) > 1:
                raise checks.InputError(
                    f"Expected one GloVe file in '{directory}' (glove=...), got"
                    f" {', '.join(path.name for path in vectors)}."
                )
            if vectors:
                return located.followed_by(vectors[0])
        raise base.MissingFilesError(
            f"Data set {self.name!r} needs the word vectors {self.glove} (plain or .gz)"
            f" in '{root / 'glove'}' or '{root}'."
        )

    def _files(self) -> str:
        """Lists the files of every layout, and the word vectors."""
        if self.tokenizer is not None:
            return super()._files()
        return f"{super()._files()}; and glove/ with {self.glove} (plain or .gz)"

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x int32[S, num_words]` and the constant `embeddings [V + 1, E]`."""
        *paths, last = located.paths
        read = _prepared_tweets if located.layout == prepared.LAYOUT else _read_tweets
        accounts = read(paths)
        tweets = [tweet for tweets in accounts.values() for tweet in tweets]
        if not tweets:
            raise checks.InputError(f"'{paths[0]}' and its like hold no tweets.")
        texts, constants = [tweet for tweet, _ in tweets], None
        if self.tokenizer is not None:
            ids = tokens.token_ids(texts, last, self.num_words)
        else:
            ids, vectors = self._word_ids(texts, last)
            constants = {"embeddings": np.pad(vectors, ((1, 0), (0, 0)))}
        return datasets.Dataset(
            name=self.name,
            x=ids,
            y=np.array([label for _, label in tweets]),
            class_names=("negative", "positive"),
            client=datasets.owners(map(len, accounts.values())),
            client_names=tuple(accounts),
            constants=constants,
        )

    def _word_ids(
        self, texts: Sequence[str], path: Path
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids `int32[S, num_words]` of words and vectors `[V, E]` of GloVe."""
        split = [text.words(tweet)[: self.num_words] for tweet in texts]
        occurring = {word for tweet in split for word in tweet}
        vocabulary, vectors = text.read_vectors(
            self.content(path), path, occurring if self.restrict_vocabulary else None
        )
        number = {word: row for row, word in enumerate(vocabulary, start=1)}
        ids = np.zeros((len(texts), self.num_words), np.int32)
        for row, tweet in enumerate(split):
            ids[row, : len(tweet)] = [number.get(word, 0) for word in tweet]
        return ids, vectors


def _read_tweets(paths: Sequence[Path]) -> _Tweets:
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


def _prepared_tweets(paths: Sequence[Path]) -> _Tweets:
    """Reads tweets that tensorflow-datasets prepared, without the neutral ones."""
    accounts: _Tweets = {}
    builder, splits = Sent140.builder, ("train", "test")
    for example in prepared.read_examples(builder, paths, splits):
        label = _POLARITY.get(int(example["polarity"]))
        if label is not None:
            tweets = accounts.setdefault(example["user"], [])
            tweets.append((example["text"], label))
    return accounts
