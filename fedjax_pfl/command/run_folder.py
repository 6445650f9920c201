"""The directory of a run: its options first, its checkpoints, in the end its result.

    experiment.json  the options of the command, with which --resume goes on, the code
                     that it began with, and of a shared sweep its units of work
    checkpoints/     see `results.checkpoint`; removed when the result is complete
    models/          with --save-models, see `fedjax_pfl.results.trained_models`
    config.json      written last: with it the result is complete

Options are read before JAX is imported. They may be anybody's: they are data, and no
module that they name is imported unless the user names it, too.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedjax_pfl.command import arguments, invocation, signals
from fedjax_pfl.command.presets import experiment
from fedjax_pfl.data.readers import tokens

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
_FILE, _RESULT = "experiment.json", "config.json"
_FORMAT = "fedjax_pfl run 6"
_PLACES = (
    "data",
    "data_dir",
    "init",
    "tokenizer",
)  # which hosts may have in different places


@contextlib.contextmanager
def begun(directory: Path, options: arguments.Options) -> Iterator[None]:
    """Makes the directory, and keeps other processes out of it.

    Nothing is left if the block refuses its input before the first checkpoint, or,
    where it holds several runs, before the first of them.
    """
    from fedjax_pfl.core import checks
    from fedjax_pfl.results import directories

    missing = [path for path in directory.absolute().parents if not path.exists()]
    _make(directory, options, units=[])
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


def _make(
    directory: Path, options: arguments.Options, units: list[dict[str, Any]]
) -> None:
    """Makes the directory, with its file in it."""
    from fedjax_pfl.results import directories, documents, plain_files

    stored = {"format": _FORMAT, "options": _to_json(options), "code": _code(options)}
    with (
        signals.held(),
        directories.new(directory) as folder,
        plain_files.created(folder / _FILE) as file,
    ):
        file.write_text(documents.seal(stored | {"units": units}), "utf-8")


def joined(
    directory: Path, options: arguments.Options, units: list[dict[str, Any]]
) -> None:
    """Begins the directory of a sweep that several processes share, or joins it."""
    from fedjax_pfl.core import checks
    from fedjax_pfl.results import plain_files

    if options.resume is None:
        try:
            _make(directory, options, units)
        except checks.InputError:
            if not is_begun(directory):  # by a process that was faster
                raise
    for name in (CHECKPOINTS, MODELS, "figures", "tensorboard"):
        plain_files.check(directory / name, is_directory=True)
    check_same(directory, options)
    theirs, ours = _document(directory).units, json.loads(json.dumps(units))
    _compare(directory, "units", len(theirs), len(ours))
    for number, (before, now) in enumerate(zip(theirs, ours, strict=True), start=1):
        for name in dict.fromkeys([*before, *now]):
            shown = f"{name} of unit {number}"
            _compare(directory, shown, before.get(name), now.get(name))


def check_same(directory: Path, options: arguments.Options) -> None:
    """Checks that a directory was begun with the same code and options.

    Paths of data may differ, as hosts have them in different places.
    """
    import msgspec

    from fedjax_pfl.results import provenance

    stored = _document(directory)
    code = _code(options)
    provenance.compare(directory, stored.code, code, anyway=options.resume_anyway)
    ours = json.loads(json.dumps(_to_json(options)))
    for name, value in msgspec.structs.asdict(stored.options).items():
        if name not in _PLACES:
            _compare(directory, arguments.flag(name), value, ours[name])


def identity(options: arguments.Options) -> dict[str, dict[str, Any]]:
    """Returns the options, but for paths of data, and the code of a run."""
    stored = _to_json(options).items()
    kept = {arguments.flag(n): v for n, v in stored if n not in _PLACES}
    return {"options": kept, "code": _code(options)}


def _compare(directory: Path, name: str, before: Any, now: Any) -> None:
    """Refuses to join a sweep in which something is different."""
    from fedjax_pfl.core import checks

    if before != now:
        was, is_now = (textwrap.shorten(json.dumps(v), 80) for v in (before, now))
        raise checks.InputError(
            f"Expected the sweep that was begun in '{directory}', but {name} is {was}"
            f" there and {is_now} here."
        )


def opened(
    directory: Path, options: arguments.Options
) -> contextlib.AbstractContextManager[None]:
    """Opens the directory of a run that begins or, as the options say, goes on."""
    from fedjax_pfl.results import directories, plain_files, provenance

    if options.resume is None:
        return begun(directory, options)
    for name in (CHECKPOINTS, MODELS, "figures", "tensorboard"):
        plain_files.check(directory / name, is_directory=True)
    before, now = _document(directory).code, _code(options)
    provenance.compare(directory, before, now, anyway=options.resume_anyway)
    return directories.locked(directory)


@contextlib.contextmanager
def completed(directory: Path) -> Iterator[Path]:
    """Adds the result to the directory of a run, and then removes its checkpoints.

    They are what is large of a run, many gigabytes of a long sweep, and nothing reads
    them once the result is there.

    Yields:
      An empty directory for the files of the result, `config.json` among them.
    """
    from fedjax_pfl.results import directories

    with directories.filled(directory, last=_RESULT) as folder:
        yield folder
    tidy(directory)


def tidy(directory: Path) -> None:
    """Removes the checkpoints of a finished run.

    Also for a process that stood still while others finished: it may have been writing
    one, and have made it when all were gone.
    """
    from fedjax_pfl.core import temporaries

    temporaries.remove(directory / CHECKPOINTS)


def cleaned(directory: Path) -> bool:
    """Removes what a process that was killed after `completed` has left."""
    from fedjax_pfl.core import temporaries
    from fedjax_pfl.results import directories

    if not directories.litter(directory, CHECKPOINTS):
        return False
    with directories.locked(directory):
        for path in directories.litter(directory, CHECKPOINTS):
            temporaries.remove(path)
    return True


def models_place(directory: Path) -> Path:
    """Returns the place of an unfinished run's models, free of what was left there.

    A process may have been killed after they were written, or while they were.
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
    return resuming(read(directory), directory)


def resuming(options: arguments.Options, directory: Path) -> str:
    """Returns the command line that continues a run of these options."""
    own = experiment.own_algorithms(options.settings)
    words = ("--algorithm", ",".join(own)) if own else ()
    return invocation.of(options.command, "--resume", directory, *words)


def check_own_algorithms(
    directory: Path, options: arguments.Options, named: str | None
) -> None:
    """Checks that the user names the modules that continuing a run would import."""
    from fedjax_pfl.core import checks

    own = experiment.own_algorithms(options.settings)
    if named is not None and not own:
        raise checks.InputError(
            "Expected no --algorithm with --resume, which names methods of your own"
            f" again: the run in '{directory}' has none."
        )
    if set(own) != {name.strip() for name in (named or "").split(",")} - {""}:
        raise checks.InputError(
            f"The run in '{directory}' has methods that are not the package's, and"
            " a folder's word runs no code: if you trust these modules, name them with"
            f" {resuming(options, directory)}"
        )


def is_finished(directory: Path) -> bool:
    """Returns whether the result is there."""
    return (directory / _RESULT).is_file()


def read(directory: Path) -> arguments.Options:
    """Reads the options with which a run was begun."""
    import msgspec

    from fedjax_pfl.core import checks

    stored = msgspec.structs.asdict(_document(directory).options)
    options = arguments.Options(**stored, out=directory, resume=directory)
    try:
        options.check()
    except typer.BadParameter as error:
        raise checks.InputError(_unreadable(directory)) from error
    return options


def _document(directory: Path) -> Any:
    """Reads the file of a run."""
    from fedjax_pfl.core import checks
    from fedjax_pfl.results import documents

    file = directory / _FILE
    try:
        return documents.read(file, _schema())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise checks.InputError(
            f"Expected a directory that {invocation.of('sweep')} or run made, with"
            f" an {_FILE}, got '{directory}'."
        ) from error
    except OSError as error:
        raise checks.InputError(
            f"Cannot read '{file}': {error.strerror or error}."
        ) from error
    except ValueError as error:
        raise checks.InputError(_unreadable(directory)) from error


def _unreadable(directory: Path) -> str:
    """Returns the sentence on a file that is not what a command wrote."""
    return f"Cannot read '{directory / _FILE}': it is damaged or of another version."


def _code(options: arguments.Options) -> dict[str, Any]:
    """Returns the code of a run; imports its own methods, which the user has named."""
    from fedjax_pfl.algorithms import own_methods
    from fedjax_pfl.results import provenance

    own = experiment.own_algorithms(options.settings)
    return provenance.code(*map(own_methods.find, own))


def command(options: arguments.Options) -> str:
    """Returns the command line that repeats a run; DIR and FILE stand for places."""
    words = [*invocation.of(options.command).split(), "--preset", options.preset_name]
    shown = {"data": "DIR", "data_dir": "DIR", "init": "FILE"}
    if options.tokenizer != tokens.MINILM:
        shown["tokenizer"] = "FILE"
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
_NOT_REPEATED += ("join", "lease_seconds", "distributed")


def _stored() -> list[dataclasses.Field[Any]]:
    """Returns the fields of options that are kept with a run."""
    fields = dataclasses.fields(arguments.Options)
    return [field for field in fields if field.metadata.get("is_stored", True)]


def _to_json(options: arguments.Options) -> dict[str, Any]:
    """Returns options as JSON knows them; files by absolute paths."""
    stored = {field.name: getattr(options, field.name) for field in _stored()}
    for name in _PLACES:
        if stored[name] not in (None, tokens.MINILM):
            stored[name] = os.path.abspath(os.path.expanduser(stored[name]))
    return stored


def _schema() -> Any:
    """Returns the schema of the file, with the ranges that the command line has."""
    import msgspec

    from fedjax_pfl.results import documents

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
    parts = [("format", Literal[_FORMAT]), ("options", options)]
    parts += [("code", dict[str, Any]), ("units", list[dict[str, Any]])]
    return msgspec.defstruct("Run", parts, bases=(documents.Document,))
