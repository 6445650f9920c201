"""Several presets with one command: `--preset 'flame_fair_mnist_*'`."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl import data
from fedjax_pfl.command import (
    arguments,
    errors,
    invocation,
    job,
    outputs,
    presets,
    run_folder,
    signals,
)
from fedjax_pfl.core import checks
from fedjax_pfl.engine.options import time_left
from fedjax_pfl.results import directories, plain_files

__all__ = ["do", "opened"]


def do(options: arguments.Options) -> None:
    """Does the job of one preset, or of all that match, each in a folder of `out`."""
    names = presets.matching(options.preset_name)
    if not presets.is_pattern(options.preset_name):
        job.do(options)
        return
    if options.command == "run":
        raise checks.InputError(
            f"Expected one preset for the command run, got {options.preset_name!r} with"
            f" {len(names)}; use {invocation.of('sweep')}."
        )
    if options.command == "plan" or options.dry_run:
        for name in names:
            outputs.say(f"{name}:")
            _run(dataclasses.replace(options, preset=name))
        return
    if options.join:
        raise checks.InputError(
            f"Expected one preset with --join, got {options.preset_name!r} with"
            f" {len(names)}; give each a folder of its own."
        )
    # Finished runs are not repeated, and an interrupted run continues.
    with opened(options) as (out, hint):
        _run_all(names, options, out, hint)


@contextlib.contextmanager
def opened(options: arguments.Options) -> Iterator[tuple[Path, str]]:
    """Opens the folder of several presets; also yields the hint to continue."""
    if options.max_minutes is not None:
        checks.number("max_minutes", options.max_minutes, above=0)
    out = options.out or job.default_directory(options.preset_name.strip("*?_"))
    if options.resume is None:
        directories.check_new(out)
    hint = job.continuation(options, out)
    with run_folder.opened(out, options), signals.resumable(hint):
        yield out, hint


def _run_all(
    names: list[str], options: arguments.Options, out: Path, hint: str
) -> None:
    """Runs the unfinished presets one after the other."""
    time, skipped = time_left(options.max_minutes), []
    for number, name in enumerate(names, start=1):
        folder = out / name
        if run_folder.is_finished(folder):
            outputs.say(f"{number}/{len(names)} {name} is finished: {folder}")
            continue
        outputs.say(f"{number}/{len(names)} {name}")
        plain_files.check(folder, is_directory=True)
        # A folder without a result is an interrupted run, which continues.
        begun = folder if folder.exists() else None
        changes = {"preset": name, "out": folder, "resume": begun}
        try:
            if not _run(dataclasses.replace(options, **changes, max_minutes=time())):
                skipped.append(name)
        except errors.StoppedError as stopped:
            # A signal or the time limit ends all presets, so the hint is for all of
            # them.
            raise errors.StoppedError(
                f"Stopped in {name}, {number} of {len(names)}; {hint}", stopped.status
            ) from None
    finished = len(names) - len(skipped)
    text = f"Finished {finished} of {len(names)} presets"
    outputs.say(f"{text}; skipped {', '.join(skipped)}." if skipped else f"{text}.")
    outputs.say(f"Results: {out}")
    outputs.say(f"Report: {invocation.of('report', out)}")


def _run(options: arguments.Options) -> bool:
    """Does one job; False, after a sentence, if its data are missing."""
    try:
        job.do(options)
    except data.MissingFilesError as error:
        outputs.say(f"Skipped {options.preset_name}: {error}")
        return False
    return True
