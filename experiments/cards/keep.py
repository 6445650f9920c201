"""Keeps the measured numbers of a result: `python -m experiments.cards.keep`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from experiments import commands
from experiments.cards import __main__, runs, scale
from fedjax_pfl.command import run_folder
from fedjax_pfl.core import checks

__all__ = ["app", "joined"]


@commands.application(
    "Writes the numbers of a result into one file of the method's runs."
)
def app(
    method: Annotated[str, typer.Argument(help="Method that has a card.")],
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="Directory of a saved result, or several that differ in their seeds"
            " or methods.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run, in place of the directory's or preset's."),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = __main__.FOLDER / "results",
) -> None:
    """Writes `<results>/<method>/<name>.nc`, named after the result or the preset."""
    import fedjax_pfl as fp
    from experiments.cards import kept
    from fedjax_pfl.results import directories, plain_files

    result = fp.Result.merge(fp.Result.load(folder) for folder in folders)
    command = joined(
        [run_folder.command(run_folder.read(folder)) for folder in folders]
    )
    if name is None:
        several = len(folders) > 1
        name = scale.preset_of(command).name if several else folders[0].resolve().name
    table, reports = result.table(), result.reports()
    is_wider = table["data"].isin(runs.WIDER).any()  # only such cards print spreads
    measures = [n for n in runs.MEASURES if is_wider or n not in runs.SPREADS]
    table = table[sum(runs.is_measure(table, name) for name in measures) > 0]
    reports = reports[reports["name"].isin(runs.REPORTS)]
    path = results / method / f"{name}.nc"
    directories.check_new(path)
    groups, record = kept.record_of(result)
    record["preset_digest"] = scale.digest_of(command)
    with directories.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        rounded = (rows.round({"value": 6}) for rows in (table, reports))
        # An interrupted run leaves no half of a file.
        with plain_files.created(path) as temporary:
            kept.write(temporary, command, *rounded, groups, **record)


def joined(commands: list[str]) -> str:
    """Returns one command for runs that differ in seeds or methods only."""
    if len(commands) == 1:
        return commands[0]
    usual = [str(seed) for seed in scale.preset_of(commands[0]).seeds]
    lines, seeds = [], {}
    for command in commands:
        words = shlex.split(command)
        method, part = (_option(words, name) for name in ("--algorithm", "--seed-list"))
        seeds.setdefault(method, []).extend(part.split(",") if part else usual)
        lines.append(words)
    # Cards pair methods by seed, so that all methods need the same ones.
    seed_list, *other_lists = seeds.values()
    is_whole = all(sorted(part) == sorted(seed_list) for part in other_lists)
    is_whole = is_whole and len(set(seed_list)) == len(seed_list)
    if any(line != lines[0] for line in lines) or not is_whole:
        raise checks.InputError(
            "Expected runs that differ in their seeds or methods only, each seed once"
            f" and the same for all methods, got {'; '.join(commands)}."
        )
    words = lines[0]
    if methods := [name for name in seeds if name]:
        words += ["--algorithm", ",".join(methods)]
    if sorted(seed_list) != sorted(usual):
        words += ["--seed-list", ",".join(seed_list)]
    return shlex.join(words)


def _option(words: list[str], name: str) -> str:
    """Removes an option with its value from words; returns the value, if any."""
    if name not in words:
        return ""
    place = words.index(name)
    value = words[place + 1]
    del words[place : place + 2]
    return value


if __name__ == "__main__":
    app()
