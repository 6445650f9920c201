"""Keeps what a card needs of a result: `python -m experiments.keep`."""

import shlex
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments import cards, cli

__all__ = ["app"]

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.command(help="Copies a result's rows that a card uses to the method's runs.")
def main(
    result: Annotated[Path, typer.Argument(help="Directory of a saved result.")],
    method: Annotated[str, typer.Argument(help="Method that has a card.")],
    command: Annotated[str, typer.Option(help="The line that made the result.")],
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = cards.FOLDER / "results",
) -> None:
    """Writes `<results>/<method>/<name of the result>/`."""
    cli.answer(lambda: _keep(result, method, command, results))


def _keep(result: Path, method: str, command: str, results: Path) -> None:
    """Filters the table and writes it beside the command."""
    from fedjax_pfl import checks, folders

    table = result / "summary.csv"
    if not table.is_file():
        raise checks.InputError(f"Expected a result with a summary.csv in '{result}'.")
    if not shlex.split(command) or "\n" in command:
        raise checks.InputError(f"Expected one command line, got {command!r}.")
    rows = pd.read_csv(table, low_memory=False)  # columns of one type each
    wanted = (rows["when"] == "last") & (rows["metric"] == "accuracy")
    wanted &= (rows["stat"] == "mean") & rows["data"].isin(cards.DATA)
    with folders.new(results / method / result.resolve().name) as folder:
        rows[wanted].round({"value": 6}).to_csv(folder / "summary.csv", index=False)
        (folder / "command.txt").write_text(f"{command}\n", "utf-8")


if __name__ == "__main__":
    app()
