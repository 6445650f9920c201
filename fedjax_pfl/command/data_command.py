"""Data sets and partitions on the command line: `python -m experiments.data`.

Arguments are parsed before JAX is imported, so that `--help` answers at once.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_pfl.command import arguments, cli

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


@dataclasses.dataclass(frozen=True)
class _Show:
    """What `show` was asked for; None where a default decides."""

    settings: tuple[str, ...]
    seed: int
    data: arguments.Data
    out: Path | None
    rows: int


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
    options = _Show(
        settings=(*settings, *own.settings(), *(set_ or [])),
        seed=seed,
        data=own,
        out=out,
        rows=rows,
    )
    cli.answer(lambda: _show(options))


@app.command(help="Reads every data set that a directory holds and says what is wrong.")
def check(data_dir: arguments.DataDirectory = None) -> None:
    """Prints one row per data set that is read from files."""
    cli.answer(lambda: _check(data_dir))


def _list() -> None:
    """The table of data sets."""
    import fedjax_pfl as fp

    rows = [
        (name, _kind(kind), _options(kind), (kind.__doc__ or "").splitlines()[0])
        for name, kind in fp.DATASETS.items()
    ]
    _print_table(("name", "kind", "options", "what it is"), rows)


def _kind(kind: type) -> str:
    """Where the examples of a data set come from."""
    from fedjax_pfl.data import generated
    from fedjax_pfl.data.sources import base, embedded

    kinds = {
        base.FileSource: "files",
        generated.Generated: "generated",
        embedded.Digits: "embedded",
    }
    found = [what for parent, what in kinds.items() if issubclass(kind, parent)]
    return found[0] if found else "yours"


def _options(kind: Any) -> str:
    """Fields of a source with their defaults."""
    shown = [
        field.name
        if field.default is dataclasses.MISSING
        else f"{field.name}={json.dumps(field.default)}"
        for field in dataclasses.fields(kind)
    ]
    return "\n".join(shown)


def _show(options: _Show) -> None:
    """Table, summary and figure of one federation."""
    from fedjax_pfl.data import statistics
    from fedjax_pfl.figures import partitions

    if options.out is not None:
        _check_file(options.out)
    spec = _spec(options)
    found = statistics.describe(spec.build())
    print(found.table(max_rows=options.rows))
    print(found.summary())
    if options.out is not None:
        counts, names = found.label_counts, found.class_names
        title = f"{found.name}, {type(spec.partition).name}, seed {spec.seed}"
        shown = partitions.Holdings(
            f"{title}: training", counts, found.num_train, names
        )
        figure = partitions.draw([shown])
        figure.savefig(options.out, dpi=200)
        print(f"Figure: {options.out}")


def _spec(options: _Show) -> Any:
    """The federation of the preset `digits` with the options applied."""
    from fedjax_pfl.command import own_data, presets
    from fedjax_pfl.command.presets.experiment import apply_settings
    from fedjax_pfl.core import checks

    experiment = presets.get("digits").single()
    if options.data.path is not None:
        experiment = own_data.with_data(experiment, options.data)
    for setting in options.settings:
        name = setting.partition("=")[0]
        if not name.startswith("federation.") or name == "federation.seed":
            raise checks.InputError(
                "Expected --set with a field of the federation other than its seed, for"
                f" example federation.test_fraction=0.1, got {setting!r}."
            )
    experiment = apply_settings(experiment, options.settings)
    spec = experiment.grids[0].spec
    swept = {name for grid in experiment.grids for name in grid.axes}
    if swept or len(experiment.grids) > 1:
        names = f" of {', '.join(sorted(swept))}" if swept else ""
        raise checks.InputError(
            f"Expected one federation, got several values{names}; commas are for"
            " python -m experiments.sweep."
        )
    return dataclasses.replace(spec, seed=options.seed)


def _check_file(path: Path) -> None:
    """Checks the name of a figure before anything is computed."""
    from fedjax_pfl.core import checks

    if path.suffix.lower() not in _FORMATS:
        raise checks.InputError(
            f"Expected --out to end in {', '.join(_FORMATS)}, got '{path}'."
        )
    if path.is_dir() or not path.parent.is_dir():
        raise checks.InputError(
            f"Expected --out to be a file in a directory that exists, got '{path}'."
        )


def _check(data_dir: str | None) -> None:
    """The table of data sets in a directory."""
    from fedjax_pfl.core import checks
    from fedjax_pfl.data import sources

    found = sources.check(data_dir)
    rows = [
        (
            each.name,
            each.status,
            each.layout or "",
            *map(_count, (each.num_samples, each.num_classes, each.num_clients)),
            f"{each.seconds:.1f}",
        )
        for each in found
    ]
    names = ("name", "status", "layout", "examples", "classes", "clients", "seconds")
    _print_table(names, rows)
    if any(each.status == "missing" for each in found):
        print(
            "python -m experiments.data show --dataset NAME says which files it needs."
        )
    damaged = [each for each in found if each.status == "damaged"]
    for each in damaged:
        print(f"{each.name}: {each.problem}")
    if damaged:
        listed = ", ".join(each.name for each in damaged)
        raise checks.InputError(f"Damaged or unreadable data sets: {listed}.")


def _count(value: int | None) -> str:
    """A number with separators, or nothing."""
    return "" if value is None else f"{value:,}"


def _print_table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table of text; numbers are to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_lines=False)
    for k, name in enumerate(names):
        cells = [row[k].replace(",", "").replace(".", "") for row in rows]
        is_number = all(not cell or cell.isdecimal() for cell in cells) and any(cells)
        table.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table, markup=False, highlight=False)


if __name__ == "__main__":
    app()
