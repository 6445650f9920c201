"""The command line shared by `run` and `sweep`.

Arguments are parsed before JAX is imported, so that `--help` and wrong options answer
at once and so that `--devices` can take effect.
"""

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ClientColumn",
    "Data",
    "DataDirectory",
    "DataPath",
    "DatasetName",
    "LabelColumn",
    "Options",
    "answer",
    "make_app",
]

DatasetName = Annotated[
    str | None, typer.Option(help="Short for --set federation.dataset=NAME.")
]
DataDirectory = Annotated[
    str | None, typer.Option(help="Directory of data files (or set FEDJAX_PFL_DATA).")
]
DataPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Your own data: a csv, npz or LEAF json file, or a folder of images.",
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of a csv file to be predicted.")
]
ClientColumn = Annotated[
    str | None, typer.Option(help="Column of a csv file that names the client.")
]


@dataclasses.dataclass(frozen=True)
class Data:
    """Where data are read, and a user's own; None where a preset's are used."""

    path: str | None
    label: str | None
    client: str | None
    data_dir: str | None

    @classmethod
    def parse(
        cls,
        dataset: str | None,
        path: str | None,
        label: str | None,
        client: str | None,
        data_dir: str | None,
    ) -> "Data":
        """Checks that these options go together."""
        if path is not None and dataset is not None:
            raise typer.BadParameter("give --dataset or --data, not both")
        if path is None and (label is not None or client is not None):
            raise typer.BadParameter("--label and --client need --data")
        return cls(path=path, label=label, client=client, data_dir=data_dir)

    def settings(self) -> list[str]:
        """The directory as a setting."""
        if self.data_dir is None:
            return []
        return [f"federation.data_dir={json.dumps(self.data_dir)}"]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for; None where the preset decides."""

    command: str
    preset: str
    settings: tuple[str, ...]
    seeds: tuple[int, ...] | None
    execution: str
    data: Data
    evaluate_on: tuple[tuple[str, int | None], ...] | None
    eval_clients: str | int | None
    diagnostics: bool
    dry_run: bool
    out: Path | None
    quiet: bool


def make_app(command: str, help: str) -> typer.Typer:
    """Makes the application of one command.

    Args:
      command: `run` or `sweep`.
      help: first paragraph of `--help`.

    Returns:
      The application.
    """
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )

    @app.command(help=help)
    def main(
        preset: Annotated[
            str,
            typer.Option(
                help="digits, flame_mnist, quadratic, or a data set's name: mnist,"
                " fashion_mnist, cifar10, cifar100, medical_mnist, femnist, sent140,"
                " shakespeare, stocks; or fedacs_(fmnist|cifar10)_(pat2|dirichlet|"
                "small|many)."
            ),
        ] = "digits",
        set_: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="NAME=VALUE[,VALUE...]",
                help="A field by its dotted name, as in algorithm.lam=0.1,1 or"
                " algorithm=flame,fedavg; values are JSON, commas sweep."
                " Repeatable.",
            ),
        ] = None,
        seeds: Annotated[
            int | None, typer.Option(min=1, help="Use the seeds 0, ..., N-1.")
        ] = None,
        seed_list: Annotated[
            str | None, typer.Option(metavar="S,S,...", help="Use exactly these seeds.")
        ] = None,
        rounds: Annotated[
            int | None, typer.Option(min=1, help="Communication rounds.")
        ] = None,
        dataset: DatasetName = None,
        data_dir: DataDirectory = None,
        data: DataPath = None,
        label: LabelColumn = None,
        client: ClientColumn = None,
        clients: Annotated[
            int | None, typer.Option(min=1, help="Number of clients.")
        ] = None,
        eval_every: Annotated[
            int | None, typer.Option(min=1, help="Rounds between evaluations.")
        ] = None,
        eval_on: Annotated[
            str | None,
            typer.Option(
                metavar="DATA[=ROUNDS],...",
                help="Data to evaluate on: test, validation, train, others, everybody;"
                " each with a period of its own if wanted.",
            ),
        ] = None,
        eval_clients: Annotated[
            str | None,
            typer.Option(
                metavar="all|participants|N", help="Whose models are evaluated."
            ),
        ] = None,
        execution: Annotated[
            str,
            typer.Option(help="auto, loop, vmap, chunk=K, shard or shard=DEVICES."),
        ] = "auto",
        devices: Annotated[
            int | None, typer.Option(min=1, help="Split the CPU into N devices.")
        ] = None,
        diagnostics: Annotated[
            bool,
            typer.Option(
                "--diagnostics", help="Also record the algorithm's own values."
            ),
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say what would be trained.")
        ] = False,
        out: Annotated[
            Path | None,
            typer.Option(help="New directory; results/<preset>-<time> if not given."),
        ] = None,
        quiet: Annotated[
            bool, typer.Option("--quiet", help="Print only the directory's name.")
        ] = False,
    ) -> None:
        if seeds is not None and seed_list is not None:
            raise typer.BadParameter("give --seeds or --seed-list, not both")
        chosen = None if seeds is None else tuple(range(seeds))
        own = Data.parse(dataset, data, label, client, data_dir)
        short = {
            "num_rounds": rounds,
            "eval_every": eval_every,
            "federation.dataset": dataset,
            "federation.num_clients": clients,
        }
        settings = [f"{n}={v}" for n, v in short.items() if v is not None]
        options = Options(
            command=command,
            preset=preset,
            settings=(*settings, *own.settings(), *(set_ or [])),
            seeds=_seeds(seed_list) if seed_list is not None else chosen,
            execution=execution,
            data=own,
            evaluate_on=None if eval_on is None else _periods(eval_on),
            eval_clients=_number_or_name(eval_clients),
            diagnostics=diagnostics,
            dry_run=dry_run,
            out=out,
            quiet=quiet,
        )
        _start(options, devices)

    return app


def _seeds(text: str) -> tuple[int, ...]:
    """Reads `1,10,100`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"expected whole numbers like 1,10,100, got {text!r}")
    return tuple(map(int, parts))


def _periods(text: str) -> tuple[tuple[str, int | None], ...]:
    """Reads `test,everybody=50`."""
    found = {}
    for part in text.split(","):
        name, equals, rounds = part.strip().partition("=")
        if name in found or (equals and not rounds.isdecimal()):
            raise typer.BadParameter(
                f"expected different names like test,everybody=50, got {text!r}"
            )
        found[name] = int(rounds) if equals else None
    return tuple(found.items())


def _number_or_name(text: str | None) -> str | int | None:
    """A whole number, or the text itself."""
    return int(text) if text is not None and text.isdecimal() else text


def _start(options: Options, devices: int | None) -> None:
    """Does the job, on simulated devices if wanted."""
    if devices is not None:
        flag = f"--xla_force_host_platform_device_count={devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()

    def work() -> None:
        from experiments import job  # imports JAX

        job.do(options)

    answer(work)


def answer(work: Callable[[], None]) -> None:
    """Does a command's work; errors of the user are one sentence and exit status 2.

    Args:
      work: imports JAX itself, so that `--help` answers at once.
    """
    warnings.showwarning = _show_warning
    try:
        from fedjax_pfl import checks

        try:
            work()
        except checks.InputError as error:
            _stop(str(error), 2)
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        _stop(f"Cannot read or write{where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        _stop("Interrupted; results are saved only at the end.", 130)


def _show_warning(message: Warning | str, *_: object) -> None:
    """Shows the sentence alone, without the line of code that it came from."""
    print(f"Warning: {message}", file=sys.stderr)


def _stop(sentence: str, status: int) -> None:
    """Ends the command with a sentence on standard error."""
    print(sentence, file=sys.stderr)
    raise typer.Exit(status)
