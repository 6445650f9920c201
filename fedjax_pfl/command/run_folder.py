"""The directory of a run: its options first, then checkpoints, finally the result.

experiment.json  the options of the command for --resume, the code at its start, and
                 the units of work of a shared sweep
checkpoints/     see `results.checkpoint`; removed when the result is complete
models/          with --save-models, see `fedjax_pfl.results.model_files`
config.json      written last: it completes the result
"""

import contextlib
import dataclasses
import os
import shlex
import shutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedjax_pfl.command import arguments, invocation, signals
from fedjax_pfl.command.presets import experiment
from fedjax_pfl.core import checks, temporaries
from fedjax_pfl.data.readers import tokens
from fedjax_pfl.results import directories, documents, plain_files, provenance

__all__ = [
    "CHECKPOINTS",
    "MODELS",
    "begun",
    "check_same",
    "check_own_algorithms",
    "command",
    "completed",
    "identity",
    "is_begun",
    "is_finished",
    "joined",
    "models_place",
    "opened",
    "read",
    "repeated_by",
    "resumed_by",
    "resuming",
    "tidy",
]

CHECKPOINTS, MODELS = "checkpoints", "models"
_RESULT = "config.json"
_PLACES = ("data", "data_dir", "init", "tokenizer")  # differ between hosts


@contextlib.contextmanager
def begun(directory: Path, options: arguments.Options) -> Iterator[None]:
    """Makes the directory, and locks it for this process."""
    parents = [path for path in directory.absolute().parents if not path.exists()]
    _make(directory, options, units=[])
    try:
        with directories.locked(directory):
            yield
    except checks.InputError:
        # Refused before the first checkpoint or, for several runs, before the first
        # run: the directory is removed again.
        patterns = (f"{CHECKPOINTS}/*/*", f"*/{_RUN.name}")
        if not any(any(directory.glob(pattern)) for pattern in patterns):
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                for path in parents:
                    path.rmdir()
        raise


def _make(
    directory: Path, options: arguments.Options, units: list[dict[str, Any]]
) -> None:
    """Makes the directory and its file."""
    stored = {"options": _to_json(options), "code": _code(options), "units": units}
    with signals.held(), directories.new(directory) as folder:
        _RUN.write(folder, **stored)


def joined(
    directory: Path, options: arguments.Options, units: list[dict[str, Any]]
) -> None:
    """Begins or joins the directory of a sweep that several processes share."""
    if options.resume is None:
        try:
            _make(directory, options, units)
        except checks.InputError:
            if not is_begun(directory):  # by a process that was faster
                raise
    _check_folders(directory)
    check_same(directory, options)
    _check_equal(directory, *map(_by_label, (_document(directory).units, units)))


def _check_folders(directory: Path) -> None:
    """Checks that a run will not write through links."""
    for name in (CHECKPOINTS, MODELS, "figures", "tensorboard"):
        plain_files.check(directory / name, is_directory=True)


def _by_label(units: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the number of units, and every value by its name in sentences."""
    values: dict[str, Any] = {"units": len(units)}
    for number, unit in enumerate(units, start=1):
        values |= {f"{name} of unit {number}": v for name, v in unit.items()}
    return values


def check_same(directory: Path, options: arguments.Options) -> None:
    """Checks that a directory was begun with the same code and options."""
    stored = _same_code(directory, options)
    theirs = _by_flag(msgspec.structs.asdict(stored.options))
    _check_equal(directory, theirs, _by_flag(_to_json(options)))


def _same_code(directory: Path, options: arguments.Options) -> Any:
    """Reads the file of a run, and refuses or warns of other code."""
    stored, code = _document(directory), _code(options)
    provenance.compare(directory, stored.code, code, anyway=options.resume_anyway)
    return stored


def identity(options: arguments.Options) -> dict[str, dict[str, Any]]:
    """Returns the options of a run, without paths of data, and its code."""
    return {"options": _by_flag(_to_json(options)), "code": _code(options)}


def _by_flag(stored: dict[str, Any]) -> dict[str, Any]:
    """Returns stored options by their names in commands, without paths of data."""
    return {arguments.flag(n): v for n, v in stored.items() if n not in _PLACES}


def _check_equal(directory: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuses to join a sweep with a different value."""
    if difference := documents.difference(theirs, ours):
        name, was, is_now = difference
        raise checks.InputError(
            f"Expected the sweep that was begun in '{directory}', but {name} is {was}"
            f" there and {is_now} here."
        )


def opened(
    directory: Path, options: arguments.Options
) -> contextlib.AbstractContextManager[None]:
    """Opens the directory of a run that begins or, with --resume, continues."""
    if options.resume is None:
        return begun(directory, options)
    _check_folders(directory)
    _same_code(directory, options)
    return directories.locked(directory)


@contextlib.contextmanager
def completed(directory: Path) -> Iterator[Path]:
    """Yields an empty directory for the files of the result, then tidies the run."""
    with directories.filled(directory, last=_RESULT) as folder:
        yield folder
    tidy(directory)


def tidy(directory: Path) -> None:
    """Removes the checkpoints of a finished run, many gigabytes for a long sweep."""
    # A process that was suspended while others finished calls it, too: it may have
    # written a checkpoint after the others removed theirs.
    temporaries.remove(directory / CHECKPOINTS)


def cleaned(directory: Path) -> bool:
    """Removes leftovers of a process that was killed after `completed`."""
    if not directories.litter(directory, CHECKPOINTS):
        return False
    with directories.locked(directory):
        for path in directories.litter(directory, CHECKPOINTS):
            temporaries.remove(path)
    return True


def models_place(directory: Path) -> Path:
    """Returns the folder of an unfinished run's models, after emptying it."""
    # A process may have been killed while it wrote them, or afterwards.
    for path in (*directory.glob(f".{MODELS}.*"), directory / MODELS):
        shutil.rmtree(path, ignore_errors=True)
    return directory / MODELS


def is_begun(directory: Path) -> bool:
    """Returns whether a command made the directory."""
    return _RUN.is_in(directory)


def repeated_by(directory: Path) -> str:
    """Returns the command line that makes the result of a run again."""
    return command(read(directory))


def resumed_by(directory: Path) -> str:
    """Returns the command line that continues a run."""
    return resuming(read(directory), directory)


def resuming(options: arguments.Options, directory: Path) -> str:
    """Returns the command line that continues a run of these options."""
    names = experiment.own_algorithms(options.settings)
    words = ("--algorithm", ",".join(names)) if names else ()
    return invocation.of(options.command, "--resume", directory, *words)


def check_own_algorithms(
    directory: Path, options: arguments.Options, given_names: str | None
) -> None:
    """Checks that the user names all own modules that continuing a run imports."""
    # The folder may come from a stranger: its options are data, and a module in them is
    # imported only if the user also names it.
    names = experiment.own_algorithms(options.settings)
    if given_names is not None and not names:
        raise checks.InputError(
            "Expected no --algorithm with --resume, which names methods of your own"
            f" again: the run in '{directory}' has none."
        )
    if set(names) != {name.strip() for name in (given_names or "").split(",")} - {""}:
        raise checks.InputError(
            f"The run in '{directory}' has methods from outside the package, and a"
            " folder may not choose the code to run: if you trust these modules, name"
            f" them with {resuming(options, directory)}"
        )


def is_finished(directory: Path) -> bool:
    """Returns whether the result exists."""
    return (directory / _RESULT).is_file()


def read(directory: Path) -> arguments.Options:
    """Reads the initial options of a run."""
    stored = msgspec.structs.asdict(_document(directory).options)
    options = arguments.Options(**stored, out=directory, resume=directory)
    try:
        options.check()
    except typer.BadParameter as error:
        raise _unreadable(directory) from error
    return options


def _document(directory: Path) -> Any:
    """Reads the file of a run."""
    try:
        return _RUN.read(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise checks.InputError(
            f"Expected a directory that {invocation.of('sweep')} or run made, with"
            f" an {_RUN.name}, got '{directory}'."
        ) from error
    except OSError as error:
        raise _unreadable(directory, plain_files.reason(error)) from error
    except ValueError as error:
        raise _unreadable(directory) from error


def _unreadable(
    directory: Path, reason: str = "it is damaged or of another version"
) -> checks.InputError:
    """Returns the error for a file of a run that cannot be used."""
    return checks.InputError(f"Cannot read '{directory / _RUN.name}': {reason}.")


def _code(options: arguments.Options) -> dict[str, Any]:
    """Returns the code of a run; imports its own methods, named by the user."""
    from fedjax_pfl.algorithms import own_methods

    names = experiment.own_algorithms(options.settings)
    return provenance.code(*map(own_methods.find, names))


def command(options: arguments.Options) -> str:
    """Returns the command line that repeats a run; DIR and FILE stand for places."""
    words = [*invocation.of(options.command).split(), "--preset", options.preset_name]
    # Paths of this machine do not exist on another one.
    texts = {"data": "DIR", "data_dir": "DIR", "init": "FILE"}
    if options.tokenizer != tokens.MINILM:
        texts["tokenizer"] = "FILE"
    for field in _stored():
        value = getattr(options, field.name)
        if field.name in _NOT_REPEATED or value == field.default:
            continue
        flag = arguments.flag(field.name)
        if value is True:
            words.append(flag)
        else:
            values = value if isinstance(value, list) else [value]
            words += [w for v in values for w in (flag, texts.get(field.name, str(v)))]
    return shlex.join(words)


_NOT_REPEATED = ("command", "preset", "problem", "checkpoint_seconds")
_NOT_REPEATED += ("join", "lease_seconds", "distributed")


def _stored() -> list[dataclasses.Field[Any]]:
    """Returns the fields of options that are stored with a run."""
    fields = dataclasses.fields(arguments.Options)
    return [field for field in fields if field.name not in arguments.NOT_STORED]


def _to_json(options: arguments.Options) -> dict[str, Any]:
    """Returns options as JSON values, with absolute paths of files."""
    stored = {field.name: getattr(options, field.name) for field in _stored()}
    for name in _PLACES:
        if stored[name] not in (None, tokens.MINILM):
            stored[name] = os.path.abspath(os.path.expanduser(stored[name]))
    return stored


def _schema() -> type[Any]:
    """Returns the schema of the file, with the ranges of the command line."""
    # Made of the options, so that a new option is stored without more code.
    hints, fields = typing.get_type_hints(arguments.Options), []
    for field in _stored():
        declared = field.metadata.get("typer", {})
        limits = msgspec.Meta(ge=declared.get("min"), le=declared.get("max"))
        hint = hints[field.name]
        is_union = isinstance(hint, types.UnionType)
        members = typing.get_args(hint) if is_union else (hint,)
        kinds = (Annotated[m, limits] if m in (int, float) else m for m in members)
        fields.append((field.name, typing.Union[tuple(kinds)]))  # noqa: UP007
    options = msgspec.defstruct("Options", fields, bases=(documents.Document,))
    parts = [("options", options), ("code", dict[str, Any])]
    parts.append(("units", list[dict[str, Any]]))
    return msgspec.defstruct("Run", parts, bases=(documents.Document,))


_RUN = documents.Sealed("experiment.json", "fedjax_pfl run 6", _schema())
