"""Options of the commands, read before JAX is imported."""

import dataclasses
import functools
import json
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import typer

import fedjax_pfl as fp
from fedjax_pfl.command import completion

__all__ = [
    "DataOptions",
    "Group",
    "NOT_STORED",
    "Options",
    "PAPERS",
    "WITH_RESUME",
    "flag",
    "in_budget",
    "in_data",
    "in_method",
    "in_output",
    "logs",
    "number_or_name",
]

PAPERS = ("fedacs_", "fedpg_", "fedplus_", "flame_", "portfolio", "finetune_", "atlas_")
"""Prefixes of the presets that only a clone has."""
_PAPERS = ", ".join(f"{name.rstrip('_')}_*" for name in PAPERS)
_MORE = (  # if they were added before
    f"portfolio, or a comparison: {_PAPERS}"
    if "experiments.presets" in sys.modules
    else f"{_PAPERS} in a clone, by python -m experiments.COMMAND"
)
Group = Literal["Data", "Method", "Search", "Budget", "Output", "Processes"]
_ModelsOf = Literal["last", "best", "best-of-each"]
_LOGS = ("tensorboard", "wandb", "mlflow")
_MAX_DIGITS = 18  # that Python reads
_SWEEPS = ("sweep", "plan")
_TRAININGS = ("run", "sweep", "plan")  # the same options for all of them


def _option(
    group: Group,  # heading in `--help`
    help: str,
    default: Any = None,
    *,
    setting: str | None = None,  # NAME of the --set that it abbreviates
    only: tuple[str, ...] = (),  # commands that have it; all if empty
    needs: str | None = None,  # option without which it has no meaning
    unless: str | None = None,  # option in place of which it is given
    excludes: tuple[str, ...] = (),  # options that it cannot be combined with
    reason: str = "",  # why, for the end of the sentence
    # `run` is stored with a run and in the line that repeats it, `command` belongs to
    # one command alone, and `resume` too, though it may be given with --resume.
    scope: Literal["run", "command", "resume"] = "run",
    **more: Any,  # arguments of `typer.Option`; those of one command by its name
) -> Any:
    """Declares a field that a command reads from an option of its name."""
    others = {
        name: more.pop(name) for name in more.keys() & {"run", "plan", "benchmark"}
    }
    metadata = {"typer": {"help": help, "rich_help_panel": group, **more}}
    metadata |= {"others": others, "setting": setting, "only": only, "needs": needs}
    metadata |= {"unless": unless, "excludes": excludes, "reason": reason}
    return dataclasses.field(default=default, metadata={**metadata, "scope": scope})


in_data, in_method, in_search, in_budget, in_output, in_processes = (
    functools.partial(_option, group) for group in typing.get_args(Group)
)
_of_table = functools.partial(in_data, needs="data", metavar="COLUMN")
_of_hosts = functools.partial(
    in_processes, only=("plan",), needs="hosts", scope="command", min=1e-6
)
_of_address = functools.partial(in_processes, only=("run",), scope="resume")
_ADDRESS = ("coordinator", "num_processes", "process_id", "connect_seconds")


def flag(name: str) -> str:
    """Returns the name of a field on the command line."""
    return "--" + name.strip("_").replace("_", "-")


def logs(texts: list[str] | None) -> tuple[tuple[str, str | None], ...]:
    """Reads `tensorboard=DIR`, `wandb` and `mlflow`."""
    places = {}
    for text in texts or ():
        name, equals, place = text.partition("=")
        if name not in _LOGS or name in places or (equals and not place):
            raise typer.BadParameter(
                "expected each --log once, as tensorboard[=DIR], wandb[=PROJECT] or"
                f" mlflow[=EXPERIMENT], got {text!r}"
            )
        places[name] = place or None
    return tuple(places.items())


def number_or_name(text: str | None) -> str | int | None:
    """Returns a whole number, or the text itself."""
    return int(text) if text is not None and _is_whole(text) else text


def _is_whole(text: str) -> bool:
    """Returns whether a text is a whole number of a length that Python reads."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def say_version(is_given: bool) -> None:
    """Prints the version and ends the command."""
    if is_given:
        print(f"fedjax_pfl {fp.__version__}")
        raise typer.Exit


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options for the data; None if the preset decides."""

    data: str | None = in_data(
        "Your own data: a csv, parquet, npz or LEAF json file, a folder of images, or"
        " a folder with a table or npz file for each client.",
        metavar="PATH",
    )
    label: str | None = _of_table("Column of a table to be predicted.")
    client: str | None = _of_table("Column of a table that names the client.")
    split: str | None = _of_table(
        "Column of a table that names the part: train, validation or test."
    )
    time: str | None = _of_table(
        "Column of a table with the time of each row: the last rows of a client become"
        " its test part."
    )
    window: int | None = _of_table(
        "With --time: number of previous rows of the same client, including labels,"
        " that form the input of a row.",
        setting="federation.dataset.window",
        min=1,
        metavar="ROWS",
    )
    scale: str | None = _of_table(
        "Training rows for scaling columns of numbers: of all clients, the default, or"
        " of each client.",
        setting="federation.dataset.scale",
        metavar="all|client",
    )
    missing: str | None = _of_table(
        "Missing values of a table: refuse, the default; drop their rows; or fill"
        " features, numbers with the mean of training rows, or with 0 and a separate"
        " class.",
        setting="federation.dataset.missing",
        metavar="refuse|drop|mean|class",
    )
    text: str | None = _of_table("Column of a table with texts as inputs.")
    tokenizer: str | None = _of_table(
        "Tokenizer of these texts: a tokenizer.json, or minilm.", metavar="FILE|minilm"
    )
    dataset: str | None = in_data(
        "Short for --set federation.dataset=NAME.",
        setting="federation.dataset",
        autocompletion=completion.data_sets,
        unless="data",
    )
    data_dir: str | None = in_data(
        "Directory of data files (or set FEDJAX_PFL_DATA).", metavar="DIR"
    )
    clients: int | None = in_data(
        "Number of clients; --set federation.num_clients=null takes all natural ones.",
        setting="federation.num_clients",
        min=1,
    )
    set_: list[str] | None = in_method(
        "A field by its dotted name, as in algorithm.lam=0.1,1 or"
        " algorithm=flame,fedavg; values are JSON, commas sweep. Repeatable.",
        metavar="NAME=VALUE[,VALUE...]",
        autocompletion=completion.settings,
    )
    version: bool = in_output(
        "Only print the version.",
        False,
        callback=say_version,
        is_eager=True,
        scope="command",
    )

    def check(self) -> None:
        """Refuses options that exclude or need each other."""
        for field in dataclasses.fields(self):
            name, rules = flag(field.name), field.metadata
            if not rules or not self._is_given(field.name):
                continue
            if (other := rules["unless"]) and self._is_given(other):
                raise typer.BadParameter(f"give {name} or {flag(other)}, not both")
            if (needed := rules["needs"]) and not self._is_given(needed):
                raise typer.BadParameter(f"{name} needs {flag(needed)}")
            if any(map(self._is_given, rules["excludes"])):
                *flags, last = map(flag, rules["excludes"])
                text = f"{', '.join(flags)} or {last}" if flags else last
                raise typer.BadParameter(
                    f"{name} cannot be combined with {text}{rules['reason']}"
                )

    def _is_given(self, name: str) -> bool:
        """Returns whether the command has an option, with another value than usual."""
        return getattr(self, name, None) != getattr(type(self), name, None)

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings `name=value`, the short options first."""
        # Settings of --set come last, so that they can change those of short options.
        short = {"federation.data_dir": self.data_dir and json.dumps(self.data_dir)}
        for field in dataclasses.fields(self):
            if setting := field.metadata.get("setting"):
                short[setting] = getattr(self, field.name)
        texts = [f"{name}={v}" for name, v in short.items() if v is not None]
        return (*texts, *(self.set_ or ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(DataOptions):
    """Options of trainings as given to the commands; None if the preset decides."""

    # The only list: these fields make the command line, the files of runs and the line
    # that repeats a run.
    command: str  # `run`, `sweep`, `plan` or `benchmark`
    preset: str | None = in_method(
        f"{', '.join(completion.PRESETS)}, benchmark_*, {_MORE}; a pattern such as"
        " 'benchmark_*' runs all that match, one after the other, in one directory.",
        show_default="digits, or own_data with --data",
        run={"help": f"{', '.join(completion.PRESETS)}, benchmark_*, {_MORE}."},
        benchmark={"show_default": "benchmark_digits"},
        autocompletion=completion.presets,
    )
    problem: str | None = in_method(
        "classification, the default, or, in a clone, portfolio: short for --preset"
        " portfolio.",
        metavar="classification|portfolio",
        only=_TRAININGS,
        unless="preset",
    )
    algorithm: str | None = in_method(
        "Short for --set algorithm=NAME,...: names from the package, or module:Class of"
        " your own; +NAME,... adds methods to the preset.",
        setting="algorithm",
        metavar="[+]NAME[,NAME...]",
        autocompletion=completion.algorithms,
    )
    init: str | None = in_method(
        "Start every training from the parameters in this safetensors file, for example"
        " from --save-models.",
        metavar="FILE",
        only=_TRAININGS,
    )
    only: list[str] | None = in_method(
        "Only these methods, by the names of their folders.",
        metavar="NAME[,NAME...]",
        only=("benchmark",),
    )
    seeds: int | None = in_budget(
        "Use the seeds 0, ..., N-1.", unless="seed_list", min=1, max=10_000
    )
    seed_list: str | None = in_budget("Use exactly these seeds.", metavar="S,S,...")
    rounds: int | None = in_budget("Communication rounds.", setting="num_rounds", min=1)
    eval_every: int | None = in_budget(
        "Rounds between evaluations.",
        setting="eval_every",
        min=1,
        metavar="ROUNDS",
        only=_TRAININGS,
    )
    eval_on: str | None = in_budget(
        "Data to evaluate on: test, validation, train, others, everybody; each with an"
        " optional period.",
        metavar="DATA[=ROUNDS],...",
        only=_TRAININGS,
    )
    metric: str | None = in_search(
        "Metric that chooses rounds, settings and hybrids, stops trainings and ranks"
        " methods, for example macro_f1.",
        show_default="accuracy, of regressions loss",
        benchmark={
            "help": "Metric that chooses settings and ranks methods, for example"
            " macro_f1.",
            "show_default": "accuracy",
        },
    )
    eval_clients: str | None = in_budget(
        "Clients to evaluate.", metavar="all|participants|N", only=_TRAININGS
    )
    execution: str = in_processes(
        "How to compute clients: one after the other, as one array axis, K at a time,"
        " or divided among devices.",
        "auto",
        metavar="auto|loop|vmap|chunk=K|shard[=DEVICES]",
    )
    devices: int | None = in_processes(
        "Number of devices to split the CPU into; one per core if not given.",
        min=1,
        max=1000,
        plan={
            "help": "Devices to split the CPU into, one per core if not given; with"
            " --hosts: devices of each host."
        },
    )
    points_per_chunk: int | None = in_processes(
        "Grid points computed together; bounds memory.", min=1, only=_TRAININGS
    )
    points_per_unit: int | None = in_processes(
        "Most grid points to compile and train together, and for a process of --join to"
        " take at a time; as many as possible if not given.",
        min=1,
        plan={
            "help": "Most grid points to compile and train together; as many as"
            " possible if not given."
        },
        only=_SWEEPS,
        excludes=("tune", "tune_budget", "learn"),
        reason=", since their settings in one unit depend on each other",
    )
    streamed: bool = in_processes(
        "Keep the clients' models in a file, for populations larger than the memory.",
        False,
        only=("run",),
        excludes=("diagnostics", "profile", "memory_limit"),
    )
    patience: int | None = in_budget(
        "End after this many evaluations without improvement.", min=1, only=_TRAININGS
    )
    target: float | None = in_budget(
        "End when the metric is this good.", metavar="VALUE", only=_TRAININGS
    )
    tune: int | None = in_search(
        "Search this many random settings of every method, in its declared ranges, and"
        " drop settings that fall behind on validation data.",
        min=2,
        max=10_000,
        only=("sweep",),
    )
    tune_budget: str | None = in_search(
        "In place of the number of --tune: as many settings of every method as this"
        " many rounds or gradients allow. Or minutes of each compiled program, after"
        " which the search ends with its results so far.",
        metavar="Nrounds|Ngradients|Nmin",
        benchmark={
            "help": "Gradients for the search of every method, for example"
            " 2e6gradients; if not given, as many as 27 settings of the usual"
            " method take.",
            "metavar": "Ngradients",
        },
        only=("sweep", "benchmark"),
    )
    learn: str | None = in_search(
        "Learn these fields during the training, from the derivatives of a loss on"
        " validation data, in every method that has them; for example"
        " algorithm.lam,algorithm.local.learning_rate.",
        metavar="NAME[,NAME...]",
        autocompletion=completion.fields,
        only=_TRAININGS,
        excludes=("streamed", "tune", "tune_budget", "patience", "target"),
    )
    learn_on: str | None = in_search(
        "Objective that --learn minimizes, for example validation:loss:personal, with"
        " :worst_decile or :client=3 in place of the mean over clients.",
        metavar="DATA:METRIC:MODEL",
        only=_TRAININGS,
    )
    learn_trainings: int | None = in_search(
        "Train this many times, each time from the fields that the last one learned.",
        min=1,
        only=_TRAININGS,
    )
    learn_per_client: str | None = in_search(
        "Estimate the memory of learning this field of every client by reverse mode,"
        " for example algorithm.lam.",
        only=("plan",),
    )
    learn_per_layer: str | None = in_search(
        "The same for learning this field of every layer.", only=("plan",)
    )
    stop_on: str | None = in_budget(
        "Value for --patience and --target, for example personal:validation:accuracy;"
        " parts may be empty, the last one for --metric.",
        metavar="MODEL:DATA:METRIC",
        only=_TRAININGS,
    )
    memory_limit: str = in_budget(
        "Most memory for the trainings of one compilation, for example 8GB; free allows"
        " the free memory, none has no limit.",
        "free",
        metavar="SIZE|free|none",
        scope="resume",
    )
    max_minutes: float | None = in_budget(
        "Save and end after this time, with exit status 3.",
        metavar="MINUTES",
        scope="resume",
    )
    checkpoint_seconds: float = in_budget(
        "Least time between two checkpoints.",
        5.0,
        min=0,
        metavar="SECONDS",
        only=_TRAININGS,
    )
    resume: Path | None = in_output(
        "Continue the run of an earlier command in its directory.",
        only=("run", "sweep", "benchmark"),
        scope="resume",
    )
    resume_anyway: bool = in_output(
        "Let --resume continue with changed code; the result records the change.",
        False,
        only=("run", "sweep", "benchmark"),
        needs="resume",
        scope="resume",
    )
    diagnostics: bool = in_output(
        "Also record the algorithm's own values.", False, only=_TRAININGS
    )
    save_models: _ModelsOf | None = in_output(
        "Also write the trained models of the evaluated clients: from the last round,"
        " the best round on validation data, or the best round of each client.",
        metavar="|".join(typing.get_args(_ModelsOf)),
        only=_TRAININGS,
    )
    dry_run: bool = in_output(
        "Only print what would be trained.", False, only=_TRAININGS, scope="command"
    )
    as_if_clients: int | None = in_budget(
        "Plan for this many clients like the actual ones.",
        min=1,
        max=2**31 - 1,
        only=("plan",),
        scope="command",
    )
    hosts: int | None = in_processes(
        "Plan for this many hosts with --devices each, by formulas only.",
        min=1,
        max=100_000,
        only=("plan",),
        scope="command",
    )
    device_tflops: float = _of_hosts(
        "With --hosts: 10^12 floating-point operations of a device per second.",
        10.0,
        metavar="TFLOPS",
    )
    link_gb: float = _of_hosts(
        "With --hosts: 10^9 bytes per second between devices of one host.",
        100.0,
        metavar="GB",
    )
    network_gb: float = _of_hosts(
        "With --hosts: 10^9 bytes per second from a host.", 12.5, metavar="GB"
    )
    latency_us: float = _of_hosts(
        "With --hosts: microseconds per message.", 20.0, metavar="MICROSECONDS"
    )
    profile: Path | None = in_output(
        "Write a profile of the rounds between the second and the third evaluation.",
        only=_TRAININGS,
        scope="command",
    )
    log: list[str] | None = in_output(
        "Write every evaluation for TensorBoard, or to Weights & Biases or MLflow."
        " Also with --resume. Repeatable.",
        metavar="tensorboard[=DIR]|wandb[=PROJECT]|mlflow[=EXPERIMENT]",
        only=_TRAININGS,
        scope="resume",
    )
    out: Path | None = in_output(
        "New directory; results/<preset>-<time> if not given.", scope="command"
    )
    distributed: bool = in_processes(
        "Train with the devices of all processes that are started with these options,"
        " on one host or several; JAX detects them with Slurm, MPI or a pod of TPUs.",
        False,
        only=("run",),
        excludes=("learn", "profile"),
    )
    coordinator: str | None = _of_address(
        "Without such a launcher: address of process 0 for --distributed.",
        metavar="HOST:PORT",
    )
    num_processes: int | None = _of_address(
        "Without such a launcher: number of processes.", min=1
    )
    process_id: int | None = _of_address(
        "Without such a launcher: number of this process, from 0.", min=0
    )
    connect_seconds: float = _of_address(
        "Longest wait of a --distributed process for the others at the start.",
        300.0,
        min=1,
        metavar="SECONDS",
    )
    join: bool = in_processes(
        "Begin the sweep in --out, or join it if it has begun: processes that share the"
        " folder, on any hosts, divide its static groups.",
        False,
        only=("sweep",),
        excludes=("profile",),
    )
    lease_seconds: float = in_processes(
        "A process of --join without a sign of life for this time loses its work to"
        " another one.",
        60.0,
        min=1,
        metavar="SECONDS",
        only=("sweep",),
        needs="join",
    )
    quiet: bool = in_output("Print only the directory's name.", False, scope="resume")

    def check(self) -> None:
        """Refuses options that exclude or need each other, or cannot be read."""
        super().check()
        if self.join and self.out is None and not self.dry_run:
            raise typer.BadParameter(
                "--join needs --out, the folder that all processes share"
            )
        if len(self.only or ()) > 1:
            raise typer.BadParameter("give --only once, as in --only flame,ditto")
        if self.learn is None and (self.learn_on or self.learn_trainings):
            raise typer.BadParameter("--learn-on and --learn-trainings need --learn")
        if self.stop_rule() is not None and self.is_search:
            raise typer.BadParameter("give --tune, or --patience and --target")
        models = typing.get_args(_ModelsOf)
        if self.save_models not in (None, *models):
            raise typer.BadParameter(
                f"expected --save-models with {', '.join(models)}, got"
                f" {self.save_models!r}"
            )
        # These refuse texts that they cannot read.
        _ = self.preset_name, self.all_seeds, self.evaluate_on, logs(self.log)
        if self.distributed:
            self._check_distributed()
        elif any(map(self._is_given, _ADDRESS)):
            *flags, last = map(flag, _ADDRESS)
            raise typer.BadParameter(
                f"{', '.join(flags)} and {last} need --distributed"
            )

    def _check_distributed(self) -> None:
        """Refuses options of a training of several processes that do not fit."""
        if self.execution not in ("auto", "shard"):
            raise typer.BadParameter(
                "--distributed needs --execution shard, with all devices, got"
                f" {self.execution!r}"
            )
        values = (self.coordinator, self.num_processes, self.process_id)
        if values == (None, None, None):
            return
        if self.process_id is None or self.num_processes is None or None in values:
            raise typer.BadParameter(
                "give --coordinator, --num-processes and --process-id together, or none"
                " of them if JAX detects the cluster"
            )
        if self.process_id >= self.num_processes:
            raise typer.BadParameter(
                f"expected --process-id below --num-processes {self.num_processes},"
                f" got {self.process_id}"
            )
        _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of process 0."""
        host, _, port = (self.coordinator or "").rpartition(":")
        if not host or not _is_whole(port) or not 0 < int(port) < 2**16:
            raise typer.BadParameter(
                f"expected --coordinator like node1:12345, got {self.coordinator!r}"
            )
        return host, int(port)

    @property
    def is_search(self) -> bool:
        """Returns whether the methods are tuned."""
        return self.tune is not None or self.tune_budget is not None

    @property
    def preset_name(self) -> str:
        """The preset, or the preset of a family of problems."""
        usual = "digits" if self.data is None else "own_data"
        if self.command == "benchmark":
            usual = "benchmark_digits"
        if self.problem is None:
            return self.preset or usual
        presets = {"classification": usual, "portfolio": "portfolio"}
        if self.problem not in presets:
            raise typer.BadParameter(
                f"expected --problem {' or '.join(presets)}, got {self.problem!r}"
            )
        return presets[self.problem]

    @property
    def all_seeds(self) -> tuple[int, ...] | None:
        """The given seeds, as in `1,10,100`, or None."""
        if self.seed_list is None:
            return None if self.seeds is None else tuple(range(self.seeds))
        parts = [part.strip() for part in self.seed_list.split(",")]
        if not all(map(_is_whole, parts)):
            raise typer.BadParameter(
                f"expected whole numbers like 1,10,100, got {self.seed_list!r}"
            )
        return tuple(map(int, parts))

    @property
    def evaluate_on(self) -> tuple[tuple[str, int | None], ...] | None:
        """Data to evaluate on and their periods, as in `test,everybody=50`, or None."""
        if self.eval_on is None:
            return None
        rounds_of = {}
        for part in self.eval_on.split(","):
            name, equals, rounds = part.strip().partition("=")
            if name in rounds_of or (equals and not _is_whole(rounds)):
                raise typer.BadParameter(
                    "expected different names like test,everybody=50, got"
                    f" {self.eval_on!r}"
                )
            rounds_of[name] = int(rounds) if equals else None
        return tuple(rounds_of.items())

    def stop_rule(self) -> dict[str, Any] | None:
        """Arguments of `StopWhen`, or None if trainings do not end early."""
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


def _of_scope(*scopes: str) -> tuple[str, ...]:
    """Returns the names of options of these scopes."""
    fields = dataclasses.fields(Options)
    return tuple(f.name for f in fields if f.metadata.get("scope") in scopes)


NOT_STORED = _of_scope("command", "resume")
"""Options of one command alone, which do not belong to the run that it makes."""
WITH_RESUME = _of_scope("resume")
"""Options of one command alone that may be given with --resume."""
