"""Text: words of a message, word vectors, the speeches of a play."""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["read_speeches", "read_vectors", "words"]

_LARGEST = float(np.finfo(np.float32).max)
_WORD = re.compile(r"\w+(?:'\w+)*|[.,!?]")


def words(text: str) -> list[str]:
    """Splits a text into lower-case words and the marks `. , ! ?`."""
    return _WORD.findall(text.lower())


def read_vectors(
    content: bytes, path: Path, vocabulary: Collection[str] | None = None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Parses GloVe's `word v1 ... vE`: distinct words and `float32[V, E]`."""
    lines = content.splitlines()
    width = len(lines[0].split()) - 1 if lines else 0
    if width < 1:
        raise checks.InputError(
            f"The file '{path}' does not begin with a line 'word v1 ... vE' of GloVe."
        )
    rows: dict[str, list[float]] = {}
    for number, line in enumerate(lines, start=1):
        word, *fields = line.rstrip().rsplit(b" ", width)
        # Some words of GloVe hold spaces, as in ". . .", but none ends in a number.
        ending = word.rpartition(b" ")
        if len(fields) != width or not word or (ending[1] and _is_number(ending[2])):
            raise checks.InputError(
                f"Line {number} of '{path}' has {max(len(line.split()) - 1, 0)} values,"
                f" expected a word and {width} values as in line 1."
            )
        name = word.decode("utf-8", errors="replace")
        # Of a repeated word the first vector counts.
        if name in rows or (vocabulary is not None and name not in vocabulary):
            continue
        for field in fields:
            if not _is_number(field):
                raise checks.InputError(
                    f"Line {number} of '{path}' holds"
                    f" {field.decode(errors='replace')!r}, expected a finite number."
                )
        rows[name] = [float(field) for field in fields]
    values = np.array(list(rows.values()), np.float32).reshape(len(rows), width)
    return tuple(rows), values


def _is_number(field: bytes) -> bool:
    """Returns whether a field is a finite number of 32 bits."""
    try:
        return abs(float(field)) <= _LARGEST
    except ValueError:
        return False


def read_speeches(content: bytes, path: Path) -> dict[str, str]:
    """Parses a play, blocks of `SPEAKER:` and a speech; returns it by speaker."""
    spoken: dict[str, list[str]] = {}
    line = 1
    for block in re.split(r"(\n{2,})", files.read_text(content, path)):
        start = line + len(block) - len(block.lstrip("\n"))
        line += block.count("\n")
        if not block.strip("\n"):
            continue
        title, _, speech = block.strip("\n").partition("\n")
        if len(title) < 2 or not title.endswith(":"):
            raise checks.InputError(
                f"Line {start} of '{path}' begins a block with {title[:40]!r}, expected"
                " the name of a speaker and a colon."
            )
        # Speakers without a word are kept, too, in the order of their first block.
        speeches = spoken.setdefault(title.removesuffix(":"), [])
        if speech:
            speeches.append(speech)
    return {speaker: "\n".join(speeches) for speaker, speeches in spoken.items()}
