"""JSON documents of folders: a schema each, and a digest of the content."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from fedjax_pfl.results import plain_files

__all__ = ["Digest", "Document", "Sealed", "decode", "difference", "digest_of", "seal"]

Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""SHA-256 in hexadecimal digits."""
_MAX_DEPTH = 50


class Document(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A document, or a part of one, without fields other than the declared ones."""


_D = TypeVar("_D", bound=Document)


def digest_of(description: Mapping[str, Any]) -> str:
    """Returns SHA-256 of the JSON content, independent of the order of names."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(description: Mapping[str, Any]) -> str:
    """Returns the text of a document with its digest, for `Sealed.read`."""
    # It finds damage; it is no signature, since anyone can compute it again.
    digest = digest_of(description)
    return json.dumps({**description, "digest": digest}, indent=1)


@dataclasses.dataclass(frozen=True)
class Sealed(Generic[_D]):
    """The document of a folder: the name of its file, its format and its schema."""

    name: str
    format: str
    kind: type[_D]

    def is_in(self, folder: Path) -> bool:
        """Returns whether a folder has the document."""
        return (folder / self.name).is_file()

    def text(self, **content: Any) -> str:
        """Returns the content of the file."""
        return seal({"format": self.format, **content})

    def write(self, folder: Path, **content: Any) -> None:
        """Writes the file in one step."""
        plain_files.write_text(folder / self.name, self.text(**content))

    def read(self, folder: Path) -> _D:
        """Reads the file; checks its digest, its format and its schema."""
        content = plain_files.content(folder / self.name)
        try:
            stored = _parsed(content)
            if not isinstance(stored, dict):
                raise ValueError("no object")
            is_whole = stored.pop("digest", None) == digest_of(stored)
            # A right digest proves no origin, so the schema is checked as well.
            if is_whole and stored.pop("format", None) != self.format:
                raise ValueError("another format")
            document = msgspec.convert(stored, self.kind) if is_whole else None
        except ValueError as error:
            raise ValueError(f"its {self.name} is damaged: {error}") from error
        if document is None:
            raise ValueError(f"its {self.name} is not what was written")
        return document


def decode(content: bytes | str, kind: type[_D]) -> _D:
    """Reads a document without a digest."""
    return msgspec.convert(_parsed(content), kind)


def difference(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns the first name with other values, and both as short texts, or []."""
    current = json.loads(json.dumps(current))  # as if stored, with lists for tuples
    for name in dict.fromkeys([*stored, *current]):
        if stored.get(name) != current.get(name):
            texts = [json.dumps(record.get(name)) for record in (stored, current)]
            return [name, *(t if len(t) <= 80 else f"{t[:77]}..." for t in texts)]
    return []


def _parsed(content: bytes | str) -> Any:
    """Parses JSON, including NaN and infinity, which occur in configurations."""
    try:
        stored = json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Before `digest_of` and msgspec, which would recurse into deep values, too.
    _check(stored, _MAX_DEPTH)
    return stored


def _check(value: object, depth: int) -> None:
    """Refuses deep nesting, and text that cannot be printed or written to a file."""
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        value.encode()  # a ValueError for half of a surrogate pair
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check(name, depth - 1)
            _check(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth - 1)
