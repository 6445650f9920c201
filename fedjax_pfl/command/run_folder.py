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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedjax_pfl.command import arguments

__all__ = [
    "CHECKPOINTS",
    "MODELS",
    "begun",
    "command",
    "completed",
    "is_finished",
    "models_place",
    "opened",
    "read",
]

CHECKPOINTS, MODELS = "checkpoints", "models"
_FILE = "experiment.json"
_FORMAT = "fedjax_pfl run 2"
_NOT_STORED = (
    "out",
    "resume",
    "quiet",
    "dry_run",
    "profile",
    "log",
    "memory_limit",
    "max_minutes",
    "as_if_clients",
)


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
    with directories.new(directory) as folder:
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


@contextlib.contextmanager
def _resumed(directory: Path) -> Iterator[None]:
    """Keeps other processes out of a directory that a command made earlier.

    Raises:
      InputError: if it cannot be written or is in use.
    """
    from fedjax_pfl.results import directories

    with directories.locked(directory):
        yield


def opened(
    directory: Path, options: arguments.Options
) -> contextlib.AbstractContextManager[None]:
    """The directory of a run that begins or, as the options say, goes on."""
    if options.resume is None:
        return begun(directory, options)
    return _resumed(directory)


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
    """Where the trained models of an unfinished run go, free of what was left there.

    A process may have been killed after they were written, or while they were.

    Args:
      directory: of the run, to which no other process writes.
    """
    for path in (*directory.glob(f".{MODELS}.*"), directory / MODELS):
        shutil.rmtree(path, ignore_errors=True)
    return directory / MODELS


def is_finished(directory: Path) -> bool:
    """Whether the result is there."""
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
            f"Expected a directory that python -m experiments.sweep or .run made, with"
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
    """The command line that does the same again; DIR stands for directories of data."""
    words = ["python", "-m", f"experiments.{options.command}"]
    words += ["--preset", options.preset]
    short = {"num_rounds": "--rounds", "eval_every": "--eval-every"}
    for setting in options.settings:
        name, _, value = setting.partition("=")
        words += [short[name], value] if name in short else ["--set", setting]
    if options.seeds is not None:
        words += ["--seed-list", ",".join(map(str, options.seeds))]
    stop = options.stop
    on = [part or "" for part in (stop.model, stop.data, stop.metric)]
    given = {
        "--execution": None if options.execution == "auto" else options.execution,
        "--devices": options.devices,
        "--points-per-chunk": options.points_per_chunk,
        "--eval-on": _periods(options.evaluate_on),
        "--eval-clients": options.eval_clients,
        "--patience": stop.patience,
        "--target": stop.target,
        "--stop-on": ":".join(on) if any(on) else None,
        "--data": "DIR" if options.data.path else None,
        "--label": options.data.label,
        "--client": options.data.client,
        "--data-dir": "DIR" if options.data.data_dir else None,
    }
    for name, value in given.items():
        words += [] if value is None else [name, str(value)]
    words += ["--diagnostics"] if options.diagnostics else []
    words += ["--save-models"] if options.save_models else []
    return shlex.join([*words, *(["--streamed"] if options.streamed else [])])


def _periods(evaluate_on: tuple[tuple[str, int | None], ...] | None) -> str | None:
    """As on the command line: `test,everybody=50`."""
    if evaluate_on is None:
        return None
    return ",".join(n if r is None else f"{n}={r}" for n, r in evaluate_on)


def _to_json(options: arguments.Options) -> dict[str, Any]:
    """Options as JSON knows them; files by absolute paths."""
    found = dataclasses.asdict(options)
    for name in _NOT_STORED:
        del found[name]
    for name in ("path", "data_dir"):
        if found["data"][name] is not None:
            found["data"][name] = os.path.abspath(
                os.path.expanduser(found["data"][name])
            )
    return found


def _from_json(found: dict[str, Any], directory: Path) -> arguments.Options:
    """Undoes `_to_json`; values are checked again where they are used."""
    kinds: dict[str, Any] = {
        "command": str,
        "preset": str,
        "settings": list,
        "seeds": list | None,
        "execution": str,
        "devices": int | None,
        "points_per_chunk": int | None,
        "streamed": bool,
        "data": dict,
        "evaluate_on": list | None,
        "eval_clients": str | int | None,
        "stop": dict,
        "diagnostics": bool,
        "save_models": bool,
        "checkpoint_seconds": float | int,
    }
    if found.keys() != kinds.keys():
        raise ValueError("other fields")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind):
            raise TypeError(name)
    if not all(isinstance(text, str) for text in found["settings"]):
        raise TypeError("settings")
    if not all(isinstance(seed, int) for seed in found["seeds"] or ()):
        raise TypeError("seeds")
    evaluate_on, seeds = found["evaluate_on"], found["seeds"]
    changed = {
        "settings": tuple(found["settings"]),
        "seeds": None if seeds is None else tuple(seeds),
        "data": arguments.Data(**found["data"]),
        "stop": arguments.Stop(**found["stop"]),
        "evaluate_on": None
        if evaluate_on is None
        else tuple((str(name), rounds) for name, rounds in evaluate_on),
    }
    fixed = {"quiet": False, "dry_run": False, "profile": None, "max_minutes": None}
    fixed |= {"as_if_clients": None, "log": (), "memory_limit": "free"}
    changed |= {"out": directory, "resume": directory}
    return arguments.Options(**(found | changed), **fixed)
