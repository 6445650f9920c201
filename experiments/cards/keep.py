"""Keeps the measured numbers of a result: `python -m experiments.cards.keep`."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cards import __main__, runs, scale
from fedjax_pfl.command import cli, run_folder

__all__ = ["app"]

app = cli.application()


@app.command(help="Writes the numbers of a result into one file of the method's runs.")
def main(
    result: Annotated[Path, typer.Argument(help="Directory of a saved result.")],
    method: Annotated[str, typer.Argument(help="Method that has a card.")],
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = __main__.FOLDER / "results",
) -> None:
    """Writes `<results>/<method>/<name of the result>.nc`."""
    cli.answer(lambda: _keep(result, method, results))


def _keep(directory: Path, method: str, folder: Path) -> None:
    """Chooses rows and writes them with the command, configuration and provenance."""
    import fedjax_pfl as fp
    from experiments.cards import kept
    from fedjax_pfl.results import directories

    result = fp.Result.load(directory)
    command = run_folder.command(run_folder.read(directory))
    table, reports = result.table(), result.reports()
    is_wider = table["data"].isin(runs.WIDER).any()  # only such cards print spreads
    measures = [n for n in runs.MEASURES if is_wider or n not in runs.SPREADS]
    table = table[sum(runs.is_measure(table, name) for name in measures) > 0]
    reports = reports[reports["name"].isin(runs.REPORTS)]
    path = folder / method / f"{directory.resolve().name}.nc"
    directories.check_new(path)
    groups, record = kept.record_of(result)
    record["preset_digest"] = scale.digest_of(command)
    with directories.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        rounded = (rows.round({"value": 6}) for rows in (table, reports))
        kept.write(temporary, command, *rounded, groups, **record)
        temporary.replace(path)


if __name__ == "__main__":
    app()
