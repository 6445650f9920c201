"""Theory against simulation: `python -m experiments.theory`."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments import commands

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["app"]

_SEEDS, _QUICK_SEEDS = 20, 3

# Pages by method.
Page = enum.StrEnum("Page", ["flame", "fedacs", "fedplus", "fedpg", "portfolio", "all"])


@commands.application(
    "Compares closed forms and theorems with simulations and writes a directory with"
    " theory.csv and figures."
)
def app(
    page: Annotated[Page, typer.Argument(help="Which method's theory.")] = Page.all,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="New directory; required.")
    ] = ...,  # pyright: ignore
    seeds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Repetitions of every simulation, by default {_SEEDS}, with --quick"
            f" {_QUICK_SEEDS}; 200 draws each of what takes one round.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer settings and shorter runs.")
    ] = False,
) -> None:
    """Runs the pages, then writes and prints their rows and figures."""
    from fedjax_pfl.results import directories

    directories.check_new(out)
    count = (_QUICK_SEEDS if quick else _SEEDS) if seeds is None else seeds
    table, figures = _findings(page, {"seeds": count, "quick": quick})
    with directories.new(out) as folder:
        table.to_csv(folder / "theory.csv", index=False)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=200)
    _print(table)
    for name in figures:
        print(f"Figure: {out / name}.png")
    print(f"Table: {out / 'theory.csv'}")


def _findings(page: Page, options: dict[str, Any]) -> tuple["pd.DataFrame", dict]:
    """Returns all rows and figures, with a progress bar on standard error."""
    import jax
    from rich.console import Console
    from rich.progress import Progress

    jax.config.update("jax_enable_x64", True)  # closed forms hold beyond float32
    from experiments.theory import pages, rows

    names = list(pages.PAGES) if page is Page.all else [page.value]
    parts = [(name, part) for name in names for part in pages.PAGES[name]]
    pairs, figures = [], {}
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(parts))
        for name, part in parts:
            bar.update(task, description=f"{name}: {part.__name__.replace('_', ' ')}")
            findings = part(rows.Options(**options))
            pairs += [(name, row) for row in findings.rows]
            figures |= findings.figures
            bar.advance(task)
    return rows.table(pairs), figures


def _print(table: "pd.DataFrame") -> None:
    """Prints a table per page and quantity, and the number of true statements."""
    from experiments.theory import rows
    from fedjax_pfl.command import printing

    console = printing.console()
    measured = list(rows.MEASURED)
    titles = ["theory", "", "simulation", "standard error", "z", "holds"]
    for (page, quantity), cell in table.groupby(["page", "quantity"], sort=False):
        settings = cell.drop(columns=["page", "quantity", *measured])
        settings = settings.loc[:, (settings != "").any()].astype(str)
        texts = settings.join(cell[measured].map(_text))
        printing.table(
            console,
            [*settings, *titles],
            texts.to_numpy().tolist(),
            title=f"{page}: {quantity}",
            numbers=titles,
        )
    claims = table[table["holds"] != ""]
    count = (claims["holds"] == "yes").sum()
    if len(claims):
        console.print(f"{count} of {len(claims)} statements hold.")


def _text(value: str | float) -> str:
    """Formats a number with four digits and NaN as empty; keeps texts."""
    if isinstance(value, str):
        return value
    return "" if value != value else f"{value:.4g}"


if __name__ == "__main__":
    app()
