"""Method cards from kept runs: `python -m experiments.cards`.

Also writes `docs/reproduction.md`, and the pages of the benchmark and of the studies.
"""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments import commands
from experiments.atlas import page as atlas
from experiments.cards import (
    fedacs,
    fedpg,
    fedplus,
    flame,
    pages,
    portfolio,
    reproduction,
)
from experiments.finetune import page as finetune
from experiments.learned import page as learned
from fedjax_pfl import benchmark
from fedjax_pfl.core import checks
from fedjax_pfl.report import svg
from fedjax_pfl.results import plain_files

__all__ = ["CARDS", "FOLDER", "app", "plans_in"]

FOLDER = Path(__file__).parents[1]
CARDS = {
    module.CARD.method: module.CARD
    for module in (flame, fedacs, fedpg, fedplus, portfolio)
}


@commands.application("Writes the cards of all methods, or of one, from kept runs.")
def app(
    method: Annotated[
        str | None,
        typer.Argument(help="Only this method, without the page of what reproduces."),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = FOLDER / "results",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the cards.")
    ] = FOLDER / "cards",
    page: Annotated[
        Path, typer.Option(metavar="FILE", help="The page of what reproduces.")
    ] = FOLDER.parent / "docs" / "reproduction.md",
) -> None:
    """Writes `<out>/<page>.md` for every page of the cards."""
    if method is not None:
        checks.known(method, CARDS, "method with a card")
    if not results.is_dir():
        raise checks.InputError(
            f"Expected --results to be a directory of runs, got '{results}'."
        )
    cards = CARDS if method is None else {method: CARDS[method]}
    runs = {name: pages.read(card, results) for name, card in cards.items()}
    # A damaged run or a wrong text then leaves all cards unchanged.
    texts: dict[Path, str] = {}
    for name, card in cards.items():
        card_pages = pages.render(card, runs[name])
        texts |= {out / f"{n}.md": text for n, text in card_pages.items()}
    if method is None:
        texts[page] = reproduction.render(cards, runs, plans_in(results))
    out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        file.write_text(text, "utf-8", newline="\n")
        print(f"Card: {file}")
    if method is None and (tables := results / "benchmark").is_dir():
        benchmark_tables = benchmark.Tables.load(tables)
        print(f"Page: {benchmark.write(benchmark_tables, page.parent, html=False)}")
    studies = {"learned": learned, "atlas": atlas, "finetune": finetune}
    for name, study in studies.items() if method is None else ():
        if (tables := results / name).is_dir():
            text, figures = study.render(tables)
            svg.write_all(figures, page.parent / f"{name}_files")
            plain_files.write_text(page.parent / f"{name}.md", text)
            print(f"Page: {page.parent / name}.md")


def plans_in(results: Path) -> pd.DataFrame:
    """Returns the planned times of runs, an empty table without a file."""
    file = results / "plans.csv"
    if file.exists():
        return pd.read_csv(file, keep_default_na=False)
    return pd.DataFrame(columns=["preset", "minutes", "machine", "date", "like"])


if __name__ == "__main__":
    app()
