"""Options of the commands, read before JAX is imported."""

import dataclasses
import json
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "ClientColumn",
    "Data",
    "DataDirectory",
    "DataPath",
    "DatasetName",
    "LabelColumn",
    "LogTo",
    "Options",
    "Version",
    "flag",
    "logs",
    "number_or_name",
    "periods",
    "seeds",
]


def _say_version(wanted: bool) -> None:
    """Prints the version and ends the command."""
    if wanted:
        print(f"fedjax_pfl {metadata.version('fedjax_pfl')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_say_version, is_eager=True, help="Only say the version."
    ),
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
LogTo = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="tensorboard[=DIR]|wandb[=PROJECT]",
        help="Write every evaluation for TensorBoard, or to Weights & Biases. Also with"
        " --resume. Repeatable.",
    ),
]
_LOGS = ("tensorboard", "wandb")
_MAX_DIGITS = 18  # that Python reads


def logs(texts: list[str] | None) -> tuple[tuple[str, str | None], ...]:
    """Reads `tensorboard=DIR` and `wandb`."""
    found = {}
    for text in texts or ():
        name, equals, where = text.partition("=")
        if name not in _LOGS or name in found or (equals and not where):
            raise typer.BadParameter(
                "expected each --log once, as tensorboard[=DIR] or wandb[=PROJECT], got"
                f" {text!r}"
            )
        found[name] = where or None
    return tuple(found.items())


def seeds(text: str) -> tuple[int, ...]:
    """Reads `1,10,100`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_is_whole, parts)):
        raise typer.BadParameter(f"expected whole numbers like 1,10,100, got {text!r}")
    return tuple(map(int, parts))


def periods(text: str) -> tuple[tuple[str, int | None], ...]:
    """Reads `test,everybody=50`."""
    found = {}
    for part in text.split(","):
        name, equals, rounds = part.strip().partition("=")
        if name in found or (equals and not _is_whole(rounds)):
            raise typer.BadParameter(
                f"expected different names like test,everybody=50, got {text!r}"
            )
        found[name] = int(rounds) if equals else None
    return tuple(found.items())


def number_or_name(text: str | None) -> str | int | None:
    """Returns a whole number, or the text itself."""
    return int(text) if text is not None and _is_whole(text) else text


def _is_whole(text: str) -> bool:
    """Returns whether a text is a whole number of a length that Python reads."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


@dataclasses.dataclass(frozen=True)
class Data:
    """Place of the data, and a user's own; None where a preset's are used."""

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
        """Returns the directory as a setting."""
        if self.data_dir is None:
            return []
        return [f"federation.data_dir={json.dumps(self.data_dir)}"]


_NOW = {"is_stored": False}
"""Metadata of options that belong to one command, not to the run that it begins."""
_PROBLEMS = {"classification": "digits", "portfolio": "portfolio"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `run`, `sweep` and `plan` as given; None where the preset decides.

    Their only list: the command line, the files of runs and the line that repeats a run
    are made of these fields.

    Attributes:
      command: `run`, `sweep` or `plan`.
    """

    command: str
    preset: Annotated[
        str | None,
        typer.Option(
            show_default="digits, or own_data with --data",
            help="digits, quadratic, portfolio, a data set's name (mnist,"
            " fashion_mnist, cifar10, cifar100, medical_mnist, femnist, sent140,"
            " shakespeare, stocks), or a card's comparison: fedacs_*, fedpg_*,"
            " fedplus_*, flame_*, portfolio_*; a pattern such as"
            " 'flame_fair_mnist_*' runs all that match, one after the other, in"
            " one directory.",
        ),
    ] = None
    problem: Annotated[
        str | None,
        typer.Option(
            help="classification or portfolio: short for --preset digits and"
            " --preset portfolio."
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE[,VALUE...]",
            help="A field by its dotted name, as in algorithm.lam=0.1,1 or"
            " algorithm=flame,fedavg; values are JSON, commas sweep."
            " Repeatable.",
        ),
    ] = None
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Short for --set algorithm=NAME,...: names of the package's, or"
            " module:Class of your own.",
        ),
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Use the seeds 0, ..., N-1."),
    ] = None
    seed_list: Annotated[
        str | None, typer.Option(metavar="S,S,...", help="Use exactly these seeds.")
    ] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="Communication rounds.")] = (
        None
    )
    dataset: DatasetName = None
    data_dir: DataDirectory = None
    data: DataPath = None
    label: LabelColumn = None
    client: ClientColumn = None
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients.")] = (
        None
    )
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Rounds between evaluations.")
    ] = None
    eval_on: Annotated[
        str | None,
        typer.Option(
            metavar="DATA[=ROUNDS],...",
            help="Data to evaluate on: test, validation, train, others, everybody;"
            " each with a period of its own if wanted.",
        ),
    ] = None
    eval_clients: Annotated[
        str | None,
        typer.Option(metavar="all|participants|N", help="Whose models are evaluated."),
    ] = None
    execution: Annotated[
        str,
        typer.Option(help="auto, loop, vmap, chunk=K, shard or shard=DEVICES."),
    ] = "auto"
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Devices that the CPU is split into; one per core if not given.",
        ),
    ] = None
    points_per_chunk: Annotated[
        int | None,
        typer.Option(min=1, help="Grid points computed together; bounds memory."),
    ] = None
    streamed: Annotated[
        bool,
        typer.Option(
            "--streamed",
            help="Keep the clients' models in a file: for populations beyond the"
            " memory.",
        ),
    ] = False
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="End after so many evaluations without improvement."),
    ] = None
    target: Annotated[
        float | None, typer.Option(help="End when the metric is this good.")
    ] = None
    stop_on: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL:DATA:METRIC",
            help="What --patience and --target look at, for example"
            " personal:validation:accuracy; parts may be empty.",
        ),
    ] = None
    memory_limit: Annotated[
        str,
        typer.Option(
            metavar="SIZE|free|none",
            help="Most memory that the trainings of one compilation may need, for"
            " example 8GB; free is what is free then, none refuses nothing.",
        ),
    ] = dataclasses.field(default="free", metadata=_NOW)
    max_minutes: Annotated[
        float | None,
        typer.Option(help="Save and end after this time, with exit status 3."),
    ] = dataclasses.field(default=None, metadata=_NOW)
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Least time between two checkpoints.")
    ] = 5.0
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with what an earlier command has left in its directory.",
        ),
    ] = dataclasses.field(default=None, metadata=_NOW)
    diagnostics: Annotated[
        bool,
        typer.Option("--diagnostics", help="Also record the algorithm's own values."),
    ] = False
    save_models: Annotated[
        bool,
        typer.Option(
            "--save-models",
            help="Write the trained models of the evaluated clients, too.",
        ),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be trained.")
    ] = dataclasses.field(default=False, metadata=_NOW)
    as_if_clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**31 - 1,
            help="Plan for so many clients like those that there are.",
        ),
    ] = dataclasses.field(default=None, metadata=_NOW)
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a profile of the rounds between the second and the third"
            " evaluation.",
        ),
    ] = dataclasses.field(default=None, metadata=_NOW)
    log: LogTo = dataclasses.field(default=None, metadata=_NOW)
    out: Annotated[
        Path | None,
        typer.Option(help="New directory; results/<preset>-<time> if not given."),
    ] = dataclasses.field(default=None, metadata=_NOW)
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only the directory's name.")
    ] = dataclasses.field(default=False, metadata=_NOW)

    def check(self) -> None:
        """Refuses options that do not go together, or cannot be read."""
        if self.seeds is not None and self.seed_list is not None:
            raise typer.BadParameter("give --seeds or --seed-list, not both")
        if self.streamed and (
            self.diagnostics or self.profile is not None or self.memory_limit != "free"
        ):
            raise typer.BadParameter(
                "--streamed goes with none of --diagnostics, --profile and"
                " --memory-limit"
            )
        for read in ("preset_name", "all_seeds", "own_data", "evaluate_on"):
            getattr(self, read)
        self.stop_rule()
        logs(self.log)

    @property
    def preset_name(self) -> str:
        """The preset, or that of a family of problems."""
        if self.problem is None:
            return self.preset or ("digits" if self.data is None else "own_data")
        if self.preset is not None:
            raise typer.BadParameter("give --problem or --preset, not both")
        if self.problem not in _PROBLEMS:
            raise typer.BadParameter(
                f"expected --problem {' or '.join(_PROBLEMS)}, got {self.problem!r}"
            )
        return _PROBLEMS[self.problem]

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings `name=value`, those of the short options first."""
        short = {
            "algorithm": self.algorithm,
            "num_rounds": self.rounds,
            "eval_every": self.eval_every,
            "federation.dataset": self.dataset,
            "federation.num_clients": self.clients,
        }
        given = [f"{n}={v}" for n, v in short.items() if v is not None]
        return (*self.own_data.settings(), *given, *(self.set_ or ()))

    @property
    def all_seeds(self) -> tuple[int, ...] | None:
        """Seeds that were asked for, or None."""
        if self.seed_list is not None:
            return seeds(self.seed_list)
        return None if self.seeds is None else tuple(range(self.seeds))

    @property
    def own_data(self) -> Data:
        """Place of the data, and a user's own."""
        place = (self.dataset, self.data, self.label, self.client, self.data_dir)
        return Data.parse(*place)

    @property
    def evaluate_on(self) -> tuple[tuple[str, int | None], ...] | None:
        """Names and periods of the data to evaluate on, or None."""
        return None if self.eval_on is None else periods(self.eval_on)

    def stop_rule(self) -> dict[str, Any] | None:
        """Arguments of `StopWhen`, or None where trainings do not end early."""
        if self.patience is None and self.target is None:
            if self.stop_on is not None:
                raise typer.BadParameter("--stop-on needs --patience or --target")
            return None
        parts = ("::" if self.stop_on is None else self.stop_on).split(":")
        if len(parts) != 3:
            raise typer.BadParameter(
                "expected --stop-on like personal:validation:accuracy, got"
                f" {self.stop_on!r}"
            )
        rule = {"patience": self.patience, "target": self.target}
        rule |= dict(zip(("model", "data", "metric"), parts, strict=True))
        return {name: value for name, value in rule.items() if value not in (None, "")}


def flag(name: str) -> str:
    """Returns how a field is called on the command line."""
    return "--" + name.strip("_").replace("_", "-")
