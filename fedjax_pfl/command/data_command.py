"""Data sets and partitions on the command line: `fedjax-pfl data`.

Arguments are parsed before JAX is imported, so that `--help` answers at once.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_pfl import command
from fedjax_pfl.command import cli, completion, invocation, outputs
from fedjax_pfl.command.arguments import DataOptions, in_data, in_output

__all__ = ["app"]

_FORMATS = (".png", ".pdf", ".svg")
_COLUMNS = {  # titles and fields of the table of a directory's data sets
    "name": "name",
    "status": "status",
    "layout": "layout",
    "examples": "num_samples",
    "classes": "num_classes",
    "clients": "num_clients",
    "seconds": "seconds",
}

app = cli.application(
    name="data", cls=cli.Commands, no_args_is_help=True, help=command.COMMANDS["data"]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Show(DataOptions):
    """Options of `data show`."""

    partition: str | None = in_data(
        "Short for --set federation.partition=NAME.",
        setting="federation.partition",
        autocompletion=completion.partitions,
    )
    seed: int = in_data("Seed of all that is drawn.", 0, min=0)
    set_: list[str] | None = in_data(
        "A field of the federation by its dotted name, as in"
        " federation.partition.concentration=0.1. Repeatable.",
        metavar="NAME=VALUE",
        autocompletion=completion.settings,
    )
    out: Path | None = in_output(
        "Also draw the partition into a file.", metavar="FILE.png"
    )
    rows: int = in_output("Clients in the table.", 20, min=0)


@cli.answered
def _show(context: typer.Context, **values: Any) -> None:
    """Distributes a data set and shows the clients' shares, without training."""
    options = _Show(**values)
    options.check()
    # JAX is imported late, so that `--help` answers at once.
    from fedjax_pfl.core import checks
    from fedjax_pfl.data import statistics
    from fedjax_pfl.figures import partitions
    from fedjax_pfl.results import plain_files

    # A wrong file is refused before the data are read, which may take minutes.
    out = options.out
    if out is not None and (
        out.suffix.lower() not in _FORMATS or out.is_dir() or not out.parent.is_dir()
    ):
        raise checks.InputError(
            f"Expected --out to end in {', '.join(_FORMATS)} and to lie in an existing"
            f" directory, got '{out}'."
        )
    spec = dataclasses.replace(_spec(options), seed=options.seed)
    described = statistics.describe(spec.build())
    outputs.say(described.table(max_rows=options.rows))
    outputs.say(described.summary())
    if out is not None:
        title = f"{described.name}, {type(spec.partition).name}, seed {options.seed}"
        holdings = partitions.Holdings(
            f"{title}: training",
            described.label_counts,
            described.num_train,
            described.class_names,
            described.client_names,
        )
        with plain_files.created(out) as draft:
            partitions.draw([holdings]).savefig(draft, dpi=200)
        outputs.say(f"Figure: {out}")


@cli.answered
def _list() -> None:
    """Lists the named data sets with their options."""
    import fedjax_pfl as fp
    from fedjax_pfl.command import printing
    from fedjax_pfl.data import synthetic
    from fedjax_pfl.data.sources import base, embedded

    origins = {
        base.FileSource: "files",
        synthetic.Generated: "generated",
        embedded.Digits: "embedded",
    }
    rows = []
    for name, kind in fp.data.DATASETS.items():
        kinds = (word for parent, word in origins.items() if issubclass(kind, parent))
        fields = [
            field.name
            if field.default is dataclasses.MISSING
            else f"{field.name}={json.dumps(field.default)}"
            for field in dataclasses.fields(kind)
        ]
        sentence = (kind.__doc__ or "").splitlines()[0]
        description = f"{sentence}\n{', '.join(fields)}".rstrip()
        rows.append((name, next(kinds, "yours"), description))
    titles = ("name", "kind", "description and options")
    printing.table(printing.console(), titles, rows)


def _directory(noun: str) -> Any:
    """Declares the option --data-dir."""
    return typer.Option(metavar="DIR", help=f"{noun} (or set FEDJAX_PFL_DATA).")


@cli.answered
def _check(
    data_dir: Annotated[str | None, _directory("Directory of data files")] = None,
) -> None:
    """Reads every data set in a directory and reports damage."""
    from fedjax_pfl.command import printing
    from fedjax_pfl.core import checks
    from fedjax_pfl.data import sources

    inspections = sources.check(data_dir)
    rows = [
        [_cell(getattr(item, field)) for field in _COLUMNS.values()]
        for item in inspections
    ]
    numbers = ("examples", "classes", "clients", "seconds")
    printing.table(printing.console(), tuple(_COLUMNS), rows, numbers=numbers)
    if any(item.status == "missing" for item in inspections):
        outputs.say(
            f"{invocation.of('data')} show --dataset NAME lists the files it needs."
        )
    # An error after all damage is printed, for the exit status.
    damaged = [item for item in inspections if item.status == "damaged"]
    for item in damaged:
        outputs.say(f"{item.name}: {item.problem}")
    if damaged:
        listed = ", ".join(item.name for item in damaged)
        raise checks.InputError(f"Damaged or unreadable data sets: {listed}.")


@cli.answered
def _fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=", ".join(completion.FETCHED),
            autocompletion=completion.fetched,
        ),
    ],
    data_dir: Annotated[str | None, _directory("Existing directory")] = None,
) -> None:
    """Downloads a data set with tensorflow-datasets, and checks it."""
    from fedjax_pfl import data

    outputs.say(f"Fetching {name}; this can take minutes.")
    dataset = data.fetch(name, data_dir)
    outputs.say(
        f"{name}: {dataset.num_samples:,} examples in {dataset.num_classes} classes."
    )


_MAINS = {
    "show": cli.with_options(_show, _Show),
    "list": _list,
    "check": _check,
    "fetch": _fetch,
}
for _name, _main in _MAINS.items():
    cli.add(app, _name, _main)


def _spec(options: _Show) -> Any:
    """Returns the federation of the preset `own_data` with the settings applied."""
    from fedjax_pfl.command import own_data
    from fedjax_pfl.core import checks

    # --seed sets the seed, and other fields would not change the table.
    for setting in options.settings:
        name = setting.partition("=")[0]
        if not name.startswith("federation.") or name == "federation.seed":
            raise checks.InputError(
                "Expected --set with a field of the federation other than its seed, for"
                f" example federation.test_fraction=0.1, got {setting!r}."
            )
    see = f"; see {invocation.of('sweep')}"
    return own_data.one_grid("own_data", options, "federation", see).spec


def _cell(value: str | float | None) -> str:
    """Formats a name, a number with separators, or seconds."""
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else value or ""
