"""The plays of Shakespeare: the next character, by speaker."""

import dataclasses
import pathlib

import numpy as np

from fedjax_pfl.core import checks, struct
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

    context: int = struct.static_field(default=80, at_least=1)
    stride: int = struct.static_field(default=10, at_least=1)
    name = "shakespeare"
    layouts = (base.Layout("text", (_FILE,)),)
    builder = "tiny_shakespeare"
    sha256 = {_FILE: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}

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
    return "".join(example["text"] for example in examples).encode()
