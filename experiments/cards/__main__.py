"""Method cards from kept runs: `python -m experiments.cards`.

A run is a file `results/<method>/<run>.nc`, see `kept`. A card is a function of these
files and of the method's texts alone, byte for byte; long ones have several pages.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cards import fedacs, fedpg, fedplus, flame, portfolio
from experiments.cards.pages import render
from fedjax_pfl.command import cli
from fedjax_pfl.core import checks

__all__ = ["CARDS", "FOLDER", "app"]

FOLDER = Path(__file__).parents[1]
CARDS = {
    module.CARD.method: module.CARD
    for module in (flame, fedacs, fedpg, fedplus, portfolio)
}

app = cli.application()


@app.command(help="Writes the cards of all methods, or of one, from kept runs.")
def main(
    method: Annotated[str | None, typer.Argument(help="Only this method.")] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = FOLDER / "results",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the cards.")
    ] = FOLDER / "cards",
) -> None:
    """Writes `<out>/<page>.md` for every page of the cards."""
    cli.answer(lambda: _write(method, results, out))


def _write(method: str | None, results: Path, out: Path) -> None:
    """Renders everything before anything is written."""
    if method is not None:
        checks.known(method, CARDS, "method with a card")
    if not results.is_dir():
        raise checks.InputError(
            f"Expected --results to be a directory of runs, got '{results}'."
        )
    pages: dict[str, str] = {}
    for name in CARDS if method is None else (method,):
        pages |= render(CARDS[name], results)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        file = out / f"{name}.md"
        file.write_text(text, "utf-8", newline="\n")
        print(f"Card: {file}")


if __name__ == "__main__":
    app()
