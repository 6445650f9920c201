"""The plays of Shakespeare: the next character, by speaker."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import text
from fedjax_pfl.data.sources import base, grouped, prepared

__all__ = ["Shakespeare"]

_FILE = "tiny_shakespeare.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shakespeare(base.FileSource):
    """Tiny Shakespeare: prediction of the next character; clients are the speakers.

    The speeches of a speaker are joined in their order, and so are the examples. Only
    speakers with more than `context` characters are clients.

    Attributes:
      verify: compare the text with its checksum.
      context: characters of an input.
      stride: characters between the ends of two examples.
    """

    context: int = 80
    stride: int = 10
    name: ClassVar[str] = "shakespeare"
    layouts: ClassVar[tuple[base.Layout, ...]] = (base.Layout("text", (_FILE,)),)
    builder: ClassVar[str] = "tiny_shakespeare"
    sha256: ClassVar[Mapping[str, str]] = {
        _FILE: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    }

    def __post_init__(self):
        super().__post_init__()
        checks.positive_int("context", self.context)
        checks.positive_int("stride", self.stride)

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x int32[S, context]`, ids of characters, one-hot `embeddings`."""
        path = located.paths[0]
        if located.layout == prepared.LAYOUT:
            content = _prepared(located.paths)
            self.verify_content(content, path, _FILE)
        else:
            content = self.content(path)
        speeches = text.read_speeches(content, path)
        characters = sorted(set("".join(speeches.values())))
        number = {character: row for row, character in enumerate(characters)}
        ids = {
            speaker: np.array([number[character] for character in speech], np.int32)
            for speaker, speech in speeches.items()
        }
        windows, client, names = grouped.windows(ids, self.context, self.stride)
        if not names:
            raise checks.InputError(
                f"No speaker in '{path}' has more than {self.context} characters."
            )
        return datasets.Dataset(
            name=self.name,
            x=windows[:, :-1],
            y=windows[:, -1],
            class_names=tuple(characters),
            client=client,
            client_names=names,
            ordered=True,
            constants={"embeddings": np.eye(len(characters), dtype=np.float32)},
        )


def _prepared(paths: tuple[pathlib.Path, ...]) -> bytes:
    """Joins the three parts into which tensorflow-datasets cuts the text."""
    splits = ("train", "validation", "test")
    examples = prepared.read_examples(Shakespeare.builder, paths, splits)
    return "".join(prepared.as_text(example["text"]) for example in examples).encode()
