"""Times that runs would take, by `plan`: `python -m experiments.cards.plans`.

Every preset that the cards name and that was not run at its paper's scale is planned,
on the machine at hand; a few real rounds are run for it, and nothing is trained. Or it
gets, with `--like`, the time of a preset of the same methods, model and data set, in
proportion to the gradients of single examples.
"""

import datetime
import fnmatch
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments.cards import __main__, effort, pages, reproduction
from fedjax_pfl.command import cli
from fedjax_pfl.core import checks

__all__ = ["FILE", "app", "minutes_of"]

FILE = __main__.FOLDER / "results" / "plans.csv"
_Row = tuple[float, str, str, str]  # minutes, machine, date, like
_UNITS = {"s": 1 / 60, "min": 1.0, "ms": 1 / 60_000}

app = cli.application()


@app.command(help="Plans the runs that the cards lack, and writes their times.")
def main(
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
) -> None:
    """Writes a row as soon as it is known, so that the command can be repeated."""
    cli.answer(lambda: _plan_all(pattern, data_dir, again, like))


def _plan_all(
    pattern: str, data_dir: str | None, again: bool, like: str | None
) -> None:
    """Finds the time of one preset after the other."""
    table = __main__.plans_in(FILE.parent).set_index("preset")
    known = set() if again else set(table.index)
    find = _plan if like is None else _proportion(table, like, data_dir)
    for card in __main__.CARDS.values():
        runs = pages.read(card, __main__.FOLDER / "results")
        for name in reproduction.lacking(card, runs):
            if name in known or not fnmatch.fnmatch(name, pattern):
                continue
            row = find(name, data_dir)
            if row is None:
                continue
            print(f"{name}: {row[0]} minutes", flush=True)
            table.loc[name] = row
            table.sort_index().to_csv(FILE)


def _plan(name: str, data_dir: str | None) -> _Row | None:
    """Plans a preset in a process of its own; says why if that fails."""
    command = [sys.executable, "-m", "experiments.plan", "--preset", name]
    command += ["--devices", "1", "--memory-limit", "none"]
    command += [] if data_dir is None else ["--data-dir", data_dir]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    minutes = minutes_of(done.stdout)
    if minutes is None:
        print(f"{name}: {done.stderr}", flush=True)
        return None
    return minutes, _machine(), datetime.date.today().isoformat(), ""


def _proportion(
    table: pd.DataFrame, like: str, data_dir: str | None
) -> Callable[[str, str | None], _Row]:
    """Returns what gives a preset the time of another by their gradients.

    Raises:
      InputError: if the other one was not planned.
    """
    if like not in table.index or table["like"][like]:
        raise checks.InputError(f"Expected a preset that was planned, got '{like}'.")
    row = table.loc[like]
    pace = row["minutes"] / effort.gradients(like, data_dir)

    def find(name: str, data_dir: str | None) -> _Row:
        minutes = float(f"{pace * effort.gradients(name, data_dir):.2g}")
        return minutes, row["machine"], row["date"], like

    return find


def minutes_of(text: str) -> float | None:
    """Returns the minutes in what `plan` printed; None where it ended early."""
    found = re.search(r"All together about ([\d.,]+) (ms|s|min)", text)
    if found is None:
        return None
    number, unit = found.groups()
    return round(float(number.replace(",", "")) * _UNITS[unit], 1)


def _machine() -> str:
    """Returns the processor's name, one core of which was planned with."""
    path = Path("/proc/cpuinfo")
    text = path.read_text("utf-8") if path.exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    return f"one core, {found.group(1) if found else platform.processor()}"


if __name__ == "__main__":
    app()
