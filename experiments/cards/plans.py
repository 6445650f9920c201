"""Planned times of missing runs: `python -m experiments.cards.plans`.

Plans every preset that the cards name and that was not run at its paper's scale. A plan
measures a few rounds on this machine and trains no models. With `--fewer` the time is
extrapolated from a plan with fewer examples, and with `--like` from a planned preset of
the same methods, model and data set, in proportion to the gradients of single examples.
"""

import dataclasses
import datetime
import fnmatch
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated

import jax
import pandas as pd
import typer

import fedjax_pfl as fp
from experiments import commands
from experiments.cards import __main__, pages, reproduction
from fedjax_pfl.command import presets
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, timetables
from fedjax_pfl.results import provenance

__all__ = ["FILE", "app", "gradients", "minutes_of"]

FILE = __main__.FOLDER / "results" / "plans.csv"
_Row = tuple[float, str, str, str]  # minutes, machine, date, like
_Finder = Callable[[str], _Row | None]
# Counts do not depend on the network, and this one compiles fast.
_SMALL = fp.MLP(widths=(1,))
_UNITS = {"s": 1 / 60, "min": 1.0, "ms": 1 / 60_000}


@commands.application("Plans the runs that the cards lack, and writes their times.")
def app(
    pattern: Annotated[
        str, typer.Argument(help="Names of presets, as 'flame_fair_*'.")
    ] = "*",
    data_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory of data files.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also what has a time already.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET",
            help="Takes the time of a planned preset, in proportion to the work.",
        ),
    ] = None,
    fewer: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Plans with N training examples a client, in proportion to the work.",
        ),
    ] = None,
) -> None:
    """Plans one preset after the other."""
    table = __main__.plans_in(FILE.parent).set_index("preset")
    find: _Finder = functools.partial(_plan, data_dir=data_dir)
    if like is not None:
        find = _of_another(table, like, data_dir)
    elif fewer is not None:
        find = functools.partial(_of_fewer, data_dir=data_dir, count=fewer)
    planned_names = set() if again else set(table.index)
    for card in __main__.CARDS.values():
        runs = pages.read(card, __main__.FOLDER / "results")
        for name in reproduction.lacking(card, runs):
            if name in planned_names or not fnmatch.fnmatch(name, pattern):
                continue
            row = find(name)
            if row is None:
                continue
            print(f"{name}: {row[0]} minutes", flush=True)
            # Each row is written immediately, so that the command can be resumed.
            table.loc[name] = row
            table.sort_index().to_csv(FILE)


def _plan(name: str, data_dir: str | None, *settings: str) -> _Row | None:
    """Plans a preset in a new process; prints the reason if it fails."""
    command = [sys.executable, "-m", "experiments.plan", "--preset", name, *settings]
    command += ["--devices", "1", "--memory-limit", "none"]
    command += [] if data_dir is None else ["--data-dir", data_dir]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    minutes = minutes_of(process.stdout)
    if minutes is None:
        print(f"{name}: {process.stderr}", flush=True)
        return None
    return (
        minutes,
        f"one core, {provenance.processor()}",
        datetime.date.today().isoformat(),
        "",
    )


def _of_fewer(name: str, data_dir: str | None, count: int) -> _Row | None:
    """Extrapolates the time of a preset from a plan with fewer examples."""
    row = _plan(name, data_dir, "--set", f"federation.train_examples={count}")
    if row is None:
        return None
    work = gradients(name, data_dir) / gradients(name, data_dir, count)
    return _two_digits(row[0] * work), *row[1:3], f"itself, {count} examples a client"


def _of_another(table: pd.DataFrame, base: str, data_dir: str | None) -> _Finder:
    """Returns a function that extrapolates times from another preset's plan."""
    if base not in table.index or table["like"][base]:
        raise checks.InputError(f"Expected a preset that was planned, got '{base}'.")
    row = table.loc[base]
    pace = row["minutes"] / gradients(base, data_dir)

    def find(name: str) -> _Row:
        minutes = _two_digits(pace * gradients(name, data_dir))
        return minutes, row["machine"], row["date"], base

    return find


def gradients(
    name: str, data_dir: str | None = None, train_examples: int | None = None
) -> float:
    """Counts gradients of single examples in all trainings of a classifier's preset."""
    experiment = presets.get(name)
    key, total = jax.random.key(0, impl="threefry2x32"), 0.0
    federations = grids.Federations()
    for grid in experiment.grids:
        spec = dataclasses.replace(grid.spec, data_dir=data_dir or grid.spec.data_dir)
        if train_examples is not None:
            spec = dataclasses.replace(spec, train_examples=train_examples)
        parts = (grid.process, grid.model, spec)
        # One seed is enough: others do the same work, but in separate programs.
        axes = {"seed": experiment.seeds[:1], **grid.axes}
        for group in grids.groups_of(key, *parts, axes, federations=federations):
            for process, federation in zip(
                group.processes, group.federations, strict=True
            ):
                model = _SMALL.for_federation(federation)
                charges = timetables.charges(process, model, federation, key)
                size = process.participation.cohort_size(federation.num_clients)
                # Evaluations, the server's work and attacks are not counted.
                total += size * charges.examples.mean()
    return len(experiment.seeds) * experiment.num_rounds * total


def _two_digits(minutes: float) -> float:
    """Returns two digits: an extrapolation has no more."""
    return float(f"{minutes:.2g}")


def minutes_of(text: str) -> float | None:
    """Returns the minutes in the output of `plan`; None if it ended early."""
    match = re.search(r"All together about ([\d.,]+) (ms|s|min)", text)
    if match is None:
        return None
    number, unit = match.groups()
    return round(float(number.replace(",", "")) * _UNITS[unit], 1)


if __name__ == "__main__":
    app()
