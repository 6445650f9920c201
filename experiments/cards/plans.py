"""Times that runs would take, by `plan`: `python -m experiments.cards.plans`.

Every preset that the cards name and that was not run at its paper's scale is planned,
on the machine at hand; a few real rounds are run for it, and nothing is trained.
"""

import datetime
import fnmatch
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.cards import __main__, pages, reproduction
from fedjax_pfl.command import cli

__all__ = ["FILE", "app", "minutes_of"]

FILE = __main__.FOLDER / "results" / "plans.csv"
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
) -> None:
    """Writes a row as soon as it is known, so that the command can be repeated."""
    cli.answer(lambda: _plan(pattern, data_dir, again))


def _plan(pattern: str, data_dir: str | None, again: bool) -> None:
    """Plans one preset after the other, each in a process of its own."""
    table = __main__.plans_in(FILE.parent)
    known = set() if again else set(table["preset"])
    for card in __main__.CARDS.values():
        runs = pages.read(card, __main__.FOLDER / "results")
        for name in reproduction.lacking(card, runs):
            if name in known or not fnmatch.fnmatch(name, pattern):
                continue
            command = [sys.executable, "-m", "experiments.plan", "--preset", name]
            command += ["--devices", "1", "--memory-limit", "none"]
            command += [] if data_dir is None else ["--data-dir", data_dir]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            minutes = minutes_of(done.stdout)
            print(f"{name}: {minutes} minutes" if minutes else f"{name}: {done.stderr}")
            if minutes is None:
                continue
            row = (name, minutes, _machine(), datetime.date.today().isoformat())
            table = table[table["preset"] != name]
            table.loc[len(table)] = row
            table = table.sort_values("preset", ignore_index=True)
            table.to_csv(FILE, index=False)


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
