"""Data sets and partitions on the command line: `fedjax-pfl data`.

Arguments are parsed before JAX is imported, so that `--help` answers at once.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_pfl.command import arguments, cli, invocation

__all__ = ["app"]

_WIDTH = 160  # of files and pipes, where rich would assume 80
_FORMATS = (".png", ".pdf", ".svg")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Lists data sets, shows how they are distributed, and checks data files.",
)


@app.command("list", help="Lists the named data sets with their options.")
def list_() -> None:
    """Prints one row per data set."""
    cli.answer(_list)


@app.command(help="Distributes a data set and shows who holds what; trains nothing.")
def show(
    dataset: arguments.DatasetName = None,
    data: arguments.DataPath = None,
    label: arguments.LabelColumn = None,
    client: arguments.ClientColumn = None,
    data_dir: arguments.DataDirectory = None,
    partition: Annotated[
        str | None, typer.Option(help="Short for --set federation.partition=NAME.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of clients; --set federation.num_clients=null takes all"
            " natural ones.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is drawn.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A field of the federation by its dotted name, as in"
            " federation.partition.concentration=0.1. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw the partition into a file."),
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Clients in the table.")] = 20,
) -> None:
    """Prints the statistics of one federation."""
    own = arguments.Data.parse(dataset, data, label, client, data_dir)
    short = {"dataset": dataset, "partition": partition, "num_clients": clients}
    settings = [f"federation.{n}={v}" for n, v in short.items() if v is not None]
    settings += [*own.settings(), *(set_ or [])]
    cli.answer(lambda: _show(own, settings, seed, out, rows))


@app.command(help="Reads every data set that a directory holds and says what is wrong.")
def check(data_dir: arguments.DataDirectory = None) -> None:
    """Prints one row per data set that is read from files."""
    cli.answer(lambda: _check(data_dir))


def _list() -> None:
    """Prints the table of data sets."""
    import fedjax_pfl as fp

    rows = [
        (name, _origin(kind), _options(kind), (kind.__doc__ or "").splitlines()[0])
        for name, kind in fp.data.DATASETS.items()
    ]
    _print_table(("name", "kind", "options", "description"), rows)


def _origin(kind: type) -> str:
    """Returns the origin of the examples of a data set."""
    from fedjax_pfl.data import generated
    from fedjax_pfl.data.sources import base, embedded

    origins = {
        base.FileSource: "files",
        generated.Generated: "generated",
        embedded.Digits: "embedded",
    }
    return next(
        (o for parent, o in origins.items() if issubclass(kind, parent)), "yours"
    )


def _options(kind: Any) -> str:
    """Lists the fields of a source with their defaults."""
    fields = [
        field.name
        if field.default is dataclasses.MISSING
        else f"{field.name}={json.dumps(field.default)}"
        for field in dataclasses.fields(kind)
    ]
    return "\n".join(fields)


def _show(
    data: arguments.Data, settings: list[str], seed: int, out: Path | None, rows: int
) -> None:
    """Prints table and summary of a federation, and draws its figure."""
    from fedjax_pfl.data import statistics
    from fedjax_pfl.figures import partitions

    if out is not None:
        _check_figure(out)
    spec = dataclasses.replace(_spec(data, settings), seed=seed)
    described = statistics.describe(spec.build())
    print(described.table(max_rows=rows))
    print(described.summary())
    if out is not None:
        holdings = partitions.Holdings(
            f"{described.name}, {type(spec.partition).name}, seed {seed}: training",
            described.label_counts,
            described.num_train,
            described.class_names,
        )
        partitions.draw([holdings]).savefig(out, dpi=200)
        print(f"Figure: {out}")


def _spec(data: arguments.Data, settings: list[str]) -> Any:
    """Returns the federation of the preset `digits` with the settings applied."""
    from fedjax_pfl.command import own_data, presets
    from fedjax_pfl.command.presets.experiment import apply_settings
    from fedjax_pfl.core import checks

    experiment = presets.get("own_data").single()
    if data.path is not None:
        experiment = own_data.with_data(experiment, data)
    for setting in settings:
        name = setting.partition("=")[0]
        if not name.startswith("federation.") or name == "federation.seed":
            raise checks.InputError(
                "Expected --set with a field of the federation other than its seed, for"
                f" example federation.test_fraction=0.1, got {setting!r}."
            )
    experiment = apply_settings(experiment, settings)
    grid, *others = experiment.grids
    swept = {name for each in experiment.grids for name in each.axes}
    if swept or others:
        names = f" of {', '.join(sorted(swept))}" if swept else ""
        raise checks.InputError(
            f"Expected one federation, got a sweep{names}; see"
            f" {invocation.of('sweep')}."
        )
    return grid.spec


def _check_figure(path: Path) -> None:
    """Checks the name of a figure before anything is computed."""
    from fedjax_pfl.core import checks

    if path.suffix.lower() not in _FORMATS or path.is_dir() or not path.parent.is_dir():
        raise checks.InputError(
            f"Expected --out to end in {', '.join(_FORMATS)} and to lie in an existing"
            f" directory, got '{path}'."
        )


def _check(data_dir: str | None) -> None:
    """Prints the table of data sets in a directory."""
    from fedjax_pfl.core import checks
    from fedjax_pfl.data import sources

    inspections = sources.check(data_dir)
    fields = ("name", "status", "layout", "num_samples", "num_classes", "num_clients")
    rows = [
        (*(_cell(getattr(each, field)) for field in fields), f"{each.seconds:.1f}")
        for each in inspections
    ]
    names = ("name", "status", "layout", "examples", "classes", "clients", "seconds")
    _print_table(names, rows)
    if any(each.status == "missing" for each in inspections):
        print(f"{invocation.of('data')} show --dataset NAME lists the files it needs.")
    damaged = [each for each in inspections if each.status == "damaged"]
    for each in damaged:
        print(f"{each.name}: {each.problem}")
    if damaged:
        listed = ", ".join(each.name for each in damaged)
        raise checks.InputError(f"Damaged or unreadable data sets: {listed}.")


def _cell(value: str | int | None) -> str:
    """Formats a name or, with separators, a number."""
    return f"{value:,}" if isinstance(value, int) else value or ""


def _print_table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Prints a table of text with numbers to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_lines=False)
    for name, cells in zip(names, zip(*rows, strict=True), strict=True):
        digits = "".join(cells).replace(",", "").replace(".", "")
        table.add_column(name, justify="right" if digits.isdecimal() else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table, markup=False, highlight=False)


if __name__ == "__main__":
    app()
