"""What a user asked the commands for; read before JAX is imported."""

import dataclasses
import json
from importlib import metadata
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
    "LogTo",
    "Options",
    "Stop",
    "Version",
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
    """A whole number, or the text itself."""
    return int(text) if text is not None and _is_whole(text) else text


def _is_whole(text: str) -> bool:
    """Whether a text is a whole number of a length that Python reads."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


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
class Stop:
    """When trainings end early; None where nothing is asked for."""

    patience: int | None
    target: float | None
    model: str | None
    data: str | None
    metric: str | None

    @classmethod
    def parse(
        cls, patience: int | None, target: float | None, on: str | None
    ) -> "Stop":
        """Reads `personal:validation:accuracy`, parts of which may be empty."""
        if on is not None and patience is None and target is None:
            raise typer.BadParameter("--stop-on needs --patience or --target")
        parts = ("::" if on is None else on).split(":")
        if len(parts) != 3:
            raise typer.BadParameter(
                f"expected --stop-on like personal:validation:accuracy, got {on!r}"
            )
        model, data, metric = (part or None for part in parts)
        return cls(patience, target, model, data, metric)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for; None where the preset decides."""

    command: str
    preset: str
    settings: tuple[str, ...]
    seeds: tuple[int, ...] | None
    execution: str
    devices: int | None
    points_per_chunk: int | None
    memory_limit: str
    streamed: bool
    as_if_clients: int | None
    data: Data
    evaluate_on: tuple[tuple[str, int | None], ...] | None
    eval_clients: str | int | None
    stop: Stop
    diagnostics: bool
    save_models: bool
    checkpoint_seconds: float
    max_minutes: float | None
    resume: Path | None
    dry_run: bool
    profile: Path | None
    log: tuple[tuple[str, str | None], ...]
    out: Path | None
    quiet: bool
