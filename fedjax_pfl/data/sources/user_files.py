"""What the sources of a user's own data share: options, and where the file is."""

import os
import pathlib
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files
from fedjax_pfl.data.sources import base

__all__ = ["as_path", "as_strings", "check_text", "locate"]


def as_path(value: Any) -> str:
    """The option `path` as text.

    Args:
      value: text or a path object.

    Returns:
      The text.

    Raises:
      InputError: if it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise checks.InputError(f"Expected path to be text, got {value!r}.")
    checks.text("path", str(value))
    return str(value)


def check_text(name: str, value: Any, *, optional: bool = False) -> None:
    """Checks an option that is text.

    Args:
      name: of the option.
      value: given value.
      optional: whether None is allowed.

    Raises:
      InputError: if it is not text.
    """
    if not isinstance(value, str) and not (optional and value is None):
        raise checks.InputError(f"Expected {name} to be text, got {value!r}.")


def as_strings(name: str, value: Any) -> tuple[str, ...]:
    """An option that is a list of names, as a tuple, which can be hashed.

    Args:
      name: of the option.
      value: list or tuple of names.

    Returns:
      The names.

    Raises:
      InputError: if it is not a list of names.
    """
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, str) for item in value
    ):
        raise checks.InputError(
            f"Expected {name} to be a list of names such as ('age', 'city'), got"
            f" {value!r}."
        )
    return tuple(value)


def locate(path: str, data_dir: str | None) -> pathlib.Path:
    """Finds a user's file or folder.

    Args:
      path: absolute, or relative to the current directory or else to the data
        directory.
      data_dir: directory of data files, or None for the environment's.

    Returns:
      The absolute path of what exists.

    Raises:
      InputError: if nothing is given, or nothing is there.
    """
    if not path:
        raise checks.InputError(
            "Expected path to name the file or folder of the data, got ''."
        )
    given = pathlib.Path(os.path.expanduser(path))  # pathlib's refuses a wrong user
    candidates = [given.absolute()]
    directory = data_dir or os.environ.get(base.DATA_DIR_VARIABLE)
    # With ".." the path would lead out of the data directory.
    if directory and not given.is_absolute() and ".." not in given.parts:
        candidates.append(
            pathlib.Path(os.path.expanduser(directory)).absolute() / given
        )
    try:
        found = next((path for path in candidates if path.exists()), None)
    except OSError as error:  # too long, or no permission
        raise checks.InputError(f"The path {path!r} cannot be looked up.") from error
    if found is None:
        looked = " or ".join(repr(str(candidate)) for candidate in candidates)
        raise checks.InputError(f"There is no file or folder {looked}.")
    return found


def as_sizes(name: str, value: Any, example: str) -> tuple[int, ...]:
    """An option that is a list of sizes, as a tuple, which can be hashed.

    Args:
      name: of the option.
      value: list or tuple of whole numbers of at least 1.
      example: shown in the message.

    Returns:
      The sizes.

    Raises:
      InputError: if it is not such a list.
    """
    if not isinstance(value, list | tuple) or not value:
        raise checks.InputError(
            f"Expected {name} to be a list of whole numbers such as {example}, got"
            f" {value!r}."
        )
    for size in value:
        checks.positive_int(f"each number of {name}", size)
    return tuple(int(size) for size in value)


def json_files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """The files `.json` and `.json.gz` in a folder and the folders below it.

    A file that is there twice, plain and compressed, counts once, plain.

    Args:
      folder: an existing folder.

    Returns:
      The paths in the order of their names, those in folders called `test` last.

    Raises:
      InputError: if the folder cannot be read, or a link in it leads out of it.
    """
    try:
        found = [
            path
            for pattern in ("*.json", "*.json.gz")
            for path in folder.rglob(pattern)
            if path.is_file() and not path.name.startswith(".")
        ]
        found = [path for path in found if path.with_suffix("") not in found]
        root = os.path.realpath(folder)
        outside = [p for p in found if not files.is_inside(p, root)]
    except OSError as error:
        raise checks.InputError(
            f"The folder '{folder}' cannot be read: {error.strerror}."
        ) from error
    if outside:
        raise checks.InputError(
            f"The link '{outside[0]}' leads out of the folder of data; links must stay"
            " inside it."
        )
    return tuple(sorted(found, key=lambda path: (path.parent.name == "test", path)))
