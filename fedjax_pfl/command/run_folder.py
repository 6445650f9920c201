"""The directory of a run: its options first, its checkpoints, in the end its result.

    experiment.json  the options of the command, with which --resume goes on
    checkpoints/     see `results.checkpoint`; removed when the result is complete
    models/          with --save-models, see `fedjax_pfl.results.trained_models`
    config.json      written last: with it the result is complete

Options are read before JAX is imported.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fedjax_pfl.command import arguments, invocation, signals
from fedjax_pfl.command.presets import json_fields

__all__ = [
    "CHECKPOINTS",
    "MODELS",
    "begun",
    "command",
    "completed",
    "is_begun",
    "is_finished",
    "models_place",
    "opened",
    "read",
    "repeated_by",
    "resumed_by",
]

CHECKPOINTS, MODELS = "checkpoints", "models"
_FILE = "experiment.json"
_FORMAT = "fedjax_pfl run 3"


@contextlib.contextmanager
def begun(directory: Path, options: arguments.Options) -> Iterator[None]:
    """Makes the directory, and keeps other processes out of it.

    Nothing is left if the block refuses its input before the first checkpoint, or,
    where it holds several runs, before the first of them.

    Args:
      directory: path that does not exist.
      options: of the command.

    Raises:
      InputError: if it exists, cannot be written or is in use.
    """
    from fedjax_pfl.core import checks
    from fedjax_pfl.results import directories
    from fedjax_pfl.results.checkpoint import files

    stored = {"format": _FORMAT, "options": _to_json(options)}
    stored["digest"] = files.digest_of(stored)
    missing = [path for path in directory.absolute().parents if not path.exists()]
    with signals.held(), directories.new(directory) as folder:
        (folder / _FILE).write_text(json.dumps(stored, indent=1), "utf-8")
    try:
        with directories.locked(directory):
            yield
    except checks.InputError:
        left = (f"{CHECKPOINTS}/*/*", f"*/{_FILE}")
        if not any(any(directory.glob(pattern)) for pattern in left):
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                for path in missing:
                    path.rmdir()
        raise


def opened(
    directory: Path, options: arguments.Options
) -> contextlib.AbstractContextManager[None]:
    """Opens the directory of a run that begins or, as the options say, goes on.

    Raises:
      InputError: if it cannot be written or is in use.
    """
    from fedjax_pfl.results import directories

    if options.resume is None:
        return begun(directory, options)
    return directories.locked(directory)


@contextlib.contextmanager
def completed(directory: Path) -> Iterator[Path]:
    """Adds the result to the directory of a run, and then removes its checkpoints.

    They are what is large of a run, many gigabytes of a long sweep, and nothing reads
    them once the result is there.

    Args:
      directory: of the run.

    Yields:
      An empty directory for the files of the result, `config.json` among them.

    Raises:
      InputError: if the directory cannot be written; the checkpoints are still there.
    """
    from fedjax_pfl.results import directories

    with directories.filled(directory, last="config.json") as folder:
        yield folder
    shutil.rmtree(directory / CHECKPOINTS, ignore_errors=True)


def models_place(directory: Path) -> Path:
    """Returns the place of an unfinished run's models, free of what was left there.

    A process may have been killed after they were written, or while they were.

    Args:
      directory: of the run, to which no other process writes.
    """
    for path in (*directory.glob(f".{MODELS}.*"), directory / MODELS):
        shutil.rmtree(path, ignore_errors=True)
    return directory / MODELS


def is_begun(directory: Path) -> bool:
    """Returns whether a command made the directory."""
    return (directory / _FILE).is_file()


def repeated_by(directory: Path) -> str:
    """Returns the command line that makes the result of a run again."""
    return command(read(directory))


def resumed_by(directory: Path) -> str:
    """Returns the command line that continues a run."""
    return invocation.of(read(directory).command, "--resume", directory)


def is_finished(directory: Path) -> bool:
    """Returns whether the result is there."""
    return (directory / "config.json").is_file()


def read(directory: Path) -> arguments.Options:
    """Reads the options with which a run was begun.

    Args:
      directory: of the run.

    Returns:
      The options, to be continued.

    Raises:
      InputError: if it is not the directory of a run, in one sentence.
    """
    from fedjax_pfl.core import checks
    from fedjax_pfl.results.checkpoint import files

    try:
        text = (directory / _FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise checks.InputError(
            f"Expected a directory that {invocation.of('sweep')} or run made, with"
            f" an {_FILE}, got '{directory}'."
        ) from error
    except OSError as error:
        raise checks.InputError(
            f"Cannot read '{directory / _FILE}': {error.strerror or error}."
        ) from error
    try:
        stored = json.loads(text)
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        if stored.pop("digest", None) != files.digest_of(stored):
            raise ValueError("not what was written")
        return _from_json(stored["options"], directory)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise checks.InputError(
            f"Cannot read '{directory / _FILE}': it is damaged or of another version."
        ) from error


def command(options: arguments.Options) -> str:
    """Returns the command line that repeats a run; DIR stands for places of data."""
    words = [*invocation.of(options.command).split(), "--preset", options.preset_name]
    shown = {"data": "DIR", "data_dir": "DIR"}
    for field in _stored():
        value = getattr(options, field.name)
        if field.name in _NOT_REPEATED or value == field.default:
            continue
        flag = arguments.flag(field.name)
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            words += [w for v in values for w in (flag, shown.get(field.name, str(v)))]
    return shlex.join(words)


_NOT_REPEATED = ("command", "preset", "problem", "checkpoint_seconds")


def _stored() -> list[dataclasses.Field[Any]]:
    """Returns the fields of options that are kept with a run."""
    fields = dataclasses.fields(arguments.Options)
    return [field for field in fields if field.metadata.get("is_stored", True)]


def _to_json(options: arguments.Options) -> dict[str, Any]:
    """Returns options as JSON knows them; files by absolute paths."""
    stored = {field.name: getattr(options, field.name) for field in _stored()}
    for name in ("data", "data_dir"):
        if stored[name] is not None:
            stored[name] = os.path.abspath(os.path.expanduser(stored[name]))
    return stored


def _from_json(stored: dict[str, Any], directory: Path) -> arguments.Options:
    """Inverts `_to_json`; values are checked again where they are used."""
    hints, fields = typing.get_type_hints(arguments.Options), _stored()
    if stored.keys() != {field.name for field in fields}:
        raise ValueError("other fields")
    for field in fields:
        if not json_fields.fits(stored[field.name], hints[field.name]):
            raise TypeError(field.name)
    options = arguments.Options(**stored, out=directory, resume=directory)
    try:
        options.check()
    except typer.BadParameter as error:
        raise ValueError(str(error)) from error
    return options
