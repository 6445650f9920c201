"""Keeps what a card needs of a result: `python -m experiments.keep`."""

import shutil
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments.cards import __main__, runs
from fedjax_pfl.command import cli, run_folder

__all__ = ["app"]

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.command(help="Copies what a card uses of a result to the method's runs.")
def main(
    result: Annotated[Path, typer.Argument(help="Directory of a saved result.")],
    method: Annotated[str, typer.Argument(help="Method that has a card.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(
            help="Which of the result's figures the card shows, learning_curves if not"
            " given. Repeatable."
        ),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = __main__.FOLDER / "results",
) -> None:
    """Writes `<results>/<method>/<name of the result>/`."""
    names = figure or ["learning_curves"]
    cli.answer(lambda: _keep(result, method, names, results))


def _keep(result: Path, method: str, names: list[str], results: Path) -> None:
    """Filters the tables and writes them beside the command and figures."""
    from fedjax_pfl.core import checks
    from fedjax_pfl.results import directories

    table = result / "summary.csv"
    drawings = [result / "figures" / Path(f"{name}.png").name for name in names]
    for file in (table, result / "reports.csv", *drawings):
        if not file.is_file():
            raise checks.InputError(
                f"Expected a result with a {file.name} in '{file.parent}'."
            )
    command = run_folder.command(run_folder.read(result))
    rows = pd.read_csv(table, low_memory=False)  # columns of one type each
    reports = pd.read_csv(result / "reports.csv", low_memory=False)
    reports = reports[reports["name"].isin(runs.REPORTS)]
    wanted = runs.is_headline(rows)
    for name in runs.LOSSES:
        wanted |= runs.is_loss(rows, name)
    for name in runs.BESIDE:
        wanted |= runs.is_beside(rows, name)
    if rows["data"].isin(runs.WIDER).any():  # whose tables print them
        for stat in runs.SPREADS.values():
            wanted |= runs.is_spread(rows, stat)
    with directories.new(results / method / result.resolve().name) as folder:
        for name, table in (("summary", rows[wanted]), ("reports", reports)):
            table.round({"value": 6}).to_csv(folder / f"{name}.csv", index=False)
        for drawing in drawings:
            shutil.copyfile(drawing, folder / drawing.name)
        (folder / "command.txt").write_text(f"{command}\n", "utf-8")


if __name__ == "__main__":
    app()
