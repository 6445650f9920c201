"""LEAF's JSON files: examples by user.

A file holds one object: `users` (names), `num_samples` (counts in the same order) and
`user_data[user]` with the equally long lists `x` and `y`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["read_leaf"]

_Users = dict[str, tuple[list[Any], list[Any]]]


def read_leaf(paths: Iterable[Path]) -> _Users:
    """Merges the examples `(x, y)` of each user, in the order of the files."""
    users: _Users = {}
    for path in paths:
        for user, (x, y) in _read_file(path).items():
            if x:
                all_x, all_y = users.setdefault(user, ([], []))
                all_x += x
                all_y += y
    return users


def _read_file(path: Path) -> _Users:
    """Reads and checks one file."""
    content = files.read_content(path)
    try:
        content = json.loads(content)
    except RecursionError as error:
        raise _wrong(path, "its lists are nested too deeply") from error
    except ValueError as error:  # not JSON, not UTF-8, or a number of too many digits
        raise _wrong(path, f"it is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise _wrong(path, "it does not hold an object")
    users: Any = content.get("users")
    counts: Any = content.get("num_samples")
    data = content.get("user_data")
    if not _all_of(users, str) or not _all_of(counts, int):
        raise _wrong(path, "users must be a list of names, num_samples one of counts")
    if len(users) != len(counts) or len(set(users)) != len(users):
        reason = f"its {len(users)} users repeat or have {len(counts)} num_samples"
        raise _wrong(path, reason)
    if not isinstance(data, dict):
        raise _wrong(path, "user_data must be an object")
    examples = {}
    for user, count in zip(users, counts, strict=True):
        raw = data.get(user)
        x, y = (raw.get("x"), raw.get("y")) if isinstance(raw, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list):
            raise _wrong(path, f"user_data has no lists x and y of user {user!r}")
        if not len(x) == len(y) == count:
            reason = f"user {user!r} has {len(x)} x and {len(y)} y"
            raise _wrong(path, f"{reason}, but num_samples promises {count}")
        examples[user] = x, y
    return examples


def _all_of(values: object, kind: type) -> bool:
    """Returns whether a value is a list of one kind."""
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _wrong(path: Path, reason: str) -> checks.InputError:
    """Returns the error of a file that is not in the format."""
    return checks.InputError(f"The file '{path}' is not a LEAF file: {reason}.")
