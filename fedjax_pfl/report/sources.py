"""Result directories of a report, read and merged."""

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.results import csv_files, history, selection, summaries

__all__ = ["Loaded", "Runs", "Source", "merged", "read"]

# Rows of tables, by column, that older files lack.
_LATER = {"stat": "weighted mean", "when": summaries.OF_EACH}
_WATCHED = ("eval_every", "evaluate_on")  # settings that change no training


@dataclasses.dataclass(frozen=True)
class Source:
    """One result directory."""

    name: str  # in the report
    provenance: dict[str, Any]
    command: str | None  # line that repeats it, if a command made it
    groups: tuple[history.History, ...]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Results of a report."""

    result: results.Result  # all groups of all directories
    sources: tuple[Source, ...]  # in the order of the groups
    unfinished: tuple[str, ...]  # names of runs without a result


class Runs(Protocol):
    """Questions to a command line about the directories that it has written."""

    def is_begun(self, directory: Path) -> bool:
        """Returns whether a command made the directory."""
        ...

    def is_finished(self, directory: Path) -> bool:
        """Returns whether the result exists."""
        ...

    def repeated_by(self, directory: Path) -> str:
        """Returns the command line that repeats the result."""
        ...

    def resumed_by(self, directory: Path) -> str:
        """Returns the command line that continues the run."""
        ...


def read(directories: Sequence[Path], runs: Runs) -> Loaded:
    """Reads results and merges them; a directory of presets has its finished runs."""
    # Trainings of a directory that is named twice would count twice.
    resolved = [directory.resolve() for directory in directories]
    for k, directory in enumerate(resolved):
        if directory in resolved[:k]:
            raise checks.InputError(
                f"Expected different directories, got '{directories[k]}' twice."
            )
    folders, unfinished = [], []
    for directory in directories:
        finished, pending = _runs(directory, runs)
        folders += finished
        unfinished += pending
    names = _names(folders)
    parts = [_read(folder) for folder in folders]
    sources = [
        Source(
            name,
            result.provenance,
            runs.repeated_by(directory) if runs.is_begun(directory) else None,
            result.groups,
        )
        for name, directory, result in zip(names, folders, parts, strict=True)
    ]
    result = merged(parts)
    # Without a field `run`, directories are like one run of all their settings and
    # seeds; trainings that several of them hold need it.
    if result.points().drop(columns="status").duplicated().any():
        result = merged([_label(r, name) for r, name in zip(parts, names, strict=True)])
    return Loaded(result, tuple(sources), tuple(unfinished))


def _runs(directory: Path, runs: Runs) -> tuple[list[Path], list[str]]:
    """Returns finished runs of a directory, and names of unfinished ones."""
    if not directory.is_dir():
        raise checks.InputError(f"Expected a result directory, got '{directory}'.")
    if runs.is_finished(directory):
        return [directory], []
    if not runs.is_begun(directory):
        raise checks.InputError(
            f"Expected a result directory with a config.json, got '{directory}'."
        )
    # A directory of several presets has a folder per run.
    inner = [path for path in sorted(directory.glob("*/")) if runs.is_begun(path)]
    finished = [run for run in inner if runs.is_finished(run)]
    if not finished:
        raise checks.InputError(
            f"'{directory}' has no result yet, its run is not finished; continue with:"
            f" {runs.resumed_by(directory)}"
        )
    return finished, [run.name for run in inner if run not in finished]


def _names(directories: Sequence[Path]) -> list[str]:
    """Names directories, with their parents if names would be equal."""
    depth = 1
    while True:
        names = ["/".join(d.resolve().parts[-depth:]) for d in directories]
        if len(set(names)) == len(names):
            return names
        depth += 1


def _read(directory: Path) -> results.Result:
    """Returns the result, if its table agrees with its histories."""
    result = results.Result.load(directory)
    file = directory / "summary.csv"
    try:
        stored = csv_files.read(file, low_memory=False)
    except checks.InputError:
        raise
    except FileNotFoundError:
        raise checks.InputError(f"Expected a summary.csv in '{directory}'.") from None
    except (OSError, ValueError):  # of pandas' parsers, too
        raise checks.InputError(f"Cannot read '{file}' as a table.") from None
    table = result.table()
    # Rows that were added to the table since the file was written.
    for column, value in _LATER.items():
        if value not in set(stored.get(column, ())):
            table = table[table[column] != value]
    # Through a text as well, so that both tables have the types of a file.
    text = io.StringIO(csv_files.text(table))
    if not stored.equals(csv_files.read(text, low_memory=False)):
        raise checks.InputError(
            f"'{file}' does not agree with the histories next to it: it is damaged or"
            " was changed."
        )
    return result


def merged(parts: Sequence[results.Result]) -> results.Result:
    """Returns all groups as one result, ignoring settings of evaluations."""
    result = results.Result.merge(parts)
    groups = []
    for group in result.groups:
        config = {n: v for n, v in group.config.items() if n not in _WATCHED}
        groups.append(dataclasses.replace(group, config=config))
    return dataclasses.replace(result, groups=tuple(groups))


def _label(result: results.Result, name: str) -> results.Result:
    """Returns the result with its name as a setting."""
    groups = [
        dataclasses.replace(group, config=group.config | {selection.RUN: name})
        for group in result.groups
    ]
    return dataclasses.replace(result, groups=tuple(groups))
