"""Keeps the measured numbers of a result: `python -m experiments.cards.keep`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from experiments.cards import __main__, runs, scale
from fedjax_pfl.command import cli, run_folder
from fedjax_pfl.core import checks

__all__ = ["app", "joined"]

app = cli.application()


@app.command(help="Writes the numbers of a result into one file of the method's runs.")
def main(
    method: Annotated[str, typer.Argument(help="Method that has a card.")],
    directories: Annotated[
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
    cli.answer(lambda: _keep(directories, method, results, name))


def _keep(folders: list[Path], method: str, results: Path, name: str | None) -> None:
    """Chooses rows and writes them with the command, configuration and provenance."""
    import fedjax_pfl as fp
    from experiments.cards import kept
    from fedjax_pfl.results import directories

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
        temporary = path.with_name(f".{path.name}.part")
        rounded = (rows.round({"value": 6}) for rows in (table, reports))
        kept.write(temporary, command, *rounded, groups, **record)
        temporary.replace(path)


def joined(commands: list[str]) -> str:
    """Returns the command of runs that differ in seeds or methods, with all of them.

    Args:
      commands: one per run, at least one.

    Raises:
      InputError: if they differ in more, if two have a seed of one method in common, or
        if not all methods have the same seeds.
    """
    if len(commands) == 1:
        return commands[0]
    usual = [str(seed) for seed in scale.preset_of(commands[0]).seeds]
    others, seeds = [], {}
    for command in commands:
        words = shlex.split(command)
        method, own = (_taken(words, name) for name in ("--algorithm", "--seed-list"))
        seeds.setdefault(method, []).extend(own.split(",") if own else usual)
        others.append(words)
    first, *rest = seeds.values()
    is_whole = all(sorted(own) == sorted(first) for own in rest)
    is_whole = is_whole and len(set(first)) == len(first)
    if any(other != others[0] for other in others) or not is_whole:
        raise checks.InputError(
            "Expected runs that differ in their seeds or methods only, each seed once"
            f" and the same for all methods, got {'; '.join(commands)}."
        )
    words = others[0]
    if methods := [name for name in seeds if name]:
        words += ["--algorithm", ",".join(methods)]
    if sorted(first) != sorted(usual):
        words += ["--seed-list", ",".join(first)]
    return shlex.join(words)


def _taken(words: list[str], name: str) -> str:
    """Takes an option with its value out of words; returns the value, or nothing."""
    if name not in words:
        return ""
    place = words.index(name)
    value = words[place + 1]
    del words[place : place + 2]
    return value


if __name__ == "__main__":
    app()
