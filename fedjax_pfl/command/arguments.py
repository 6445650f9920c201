"""Options of the commands, read before JAX is imported."""

import dataclasses
import functools
import itertools
import json
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import typer

import fedjax_pfl as fp
from fedjax_pfl.command import completion

__all__ = [
    "ADDRESS",
    "DataOptions",
    "Group",
    "NOT_STORED",
    "Options",
    "PAPERS",
    "absent",
    "flag",
    "in_budget",
    "in_data",
    "in_method",
    "in_output",
    "logs",
    "number_or_name",
    "periods",
    "seeds",
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
_MODELS_OF = ("last", "best", "best-of-each")
_LOGS = ("tensorboard", "wandb", "mlflow")
_MAX_DIGITS = 18  # that Python reads
_OF_OWN_DATA = ("label", "client", "split", "time", "window", "scale", "missing")
_OF_OWN_DATA += ("text", "tokenizer")
_OF_HOSTS = ("device_tflops", "link_gb", "network_gb", "latency_us")
ADDRESS = ("coordinator", "num_processes", "process_id", "connect_seconds")
"""Options that connect a process to others."""
NOT_STORED = ("version", "memory_limit", "max_minutes", "resume", "resume_anyway")
NOT_STORED += ("dry_run", "as_if_clients", "profile", "log", "out", "quiet", "hosts")
NOT_STORED += (*_OF_HOSTS, *ADDRESS)
"""Options of one command alone, which do not belong to the run that it makes."""
_COMMANDS = {  # options of some commands only
    ("run",): ("streamed", "distributed", *ADDRESS),
    ("sweep",): ("tune", "join", "lease_seconds"),
    ("plan",): ("as_if_clients", "learn_per_client", "learn_per_layer", "hosts")
    + _OF_HOSTS,
    ("benchmark",): ("only",),
    ("sweep", "plan"): ("points_per_unit",),
    ("sweep", "benchmark"): ("tune_budget",),
    ("run", "sweep", "benchmark"): ("resume", "resume_anyway"),
    ("run", "sweep", "plan"): ("learn", "learn_on", "learn_trainings", "problem")
    + ("init", "eval_every", "eval_on", "eval_clients", "patience", "target", "stop_on")
    + ("diagnostics", "save_models", "dry_run", "profile", "log", "points_per_chunk")
    + ("checkpoint_seconds",),
}
_NEEDS = {  # options without a meaning of their own
    **dict.fromkeys(_OF_OWN_DATA, "data"),
    **dict.fromkeys(_OF_HOSTS, "hosts"),
    "lease_seconds": "join",
    "resume_anyway": "resume",
}
_EXCLUDES = {  # options that cannot be combined with others
    "streamed": ("diagnostics", "profile", "memory_limit"),
    "points_per_unit": ("tune", "tune_budget", "learn"),
    "join": ("profile",),
    "distributed": ("learn", "profile"),
    "learn": ("streamed", "tune", "tune_budget", "patience", "target"),
}
_REASONS = {
    "points_per_unit": ", since their settings in one unit depend on each other"
}


def _option(
    group: Group,  # heading in `--help`
    help: str,
    default: Any = None,
    *,
    setting: str | None = None,  # NAME of the --set that it abbreviates
    **more: Any,  # arguments of `typer.Option`; those of one command by its name
) -> Any:
    """Declares a field that a command reads from an option of its name."""
    others = {
        name: more.pop(name) for name in more.keys() & {"run", "plan", "benchmark"}
    }
    spec = {"help": help, "rich_help_panel": group, **more}
    metadata = {"typer": spec, "setting": setting, "others": others}
    return dataclasses.field(default=default, metadata=metadata)


in_data, in_method, in_search, in_budget, in_output, in_processes = (
    functools.partial(_option, group) for group in typing.get_args(Group)
)
_COUNT: dict[str, Any] = {"min": 1, "metavar": "N"}


def absent(command: str) -> set[str]:
    """Returns the fields of options that a command does not have."""
    others = (names for some, names in _COMMANDS.items() if command not in some)
    return set(itertools.chain.from_iterable(others))


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


def seeds(text: str) -> tuple[int, ...]:
    """Reads `1,10,100`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_is_whole, parts)):
        raise typer.BadParameter(f"expected whole numbers like 1,10,100, got {text!r}")
    return tuple(map(int, parts))


def periods(text: str) -> tuple[tuple[str, int | None], ...]:
    """Reads `test,everybody=50`."""
    rounds_of = {}
    for part in text.split(","):
        name, equals, rounds = part.strip().partition("=")
        if name in rounds_of or (equals and not _is_whole(rounds)):
            raise typer.BadParameter(
                f"expected different names like test,everybody=50, got {text!r}"
            )
        rounds_of[name] = int(rounds) if equals else None
    return tuple(rounds_of.items())


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
    label: str | None = in_data("Column of a table to be predicted.", metavar="COLUMN")
    client: str | None = in_data(
        "Column of a table that names the client.", metavar="COLUMN"
    )
    split: str | None = in_data(
        "Column of a table that names the part: train, validation or test.",
        metavar="COLUMN",
    )
    time: str | None = in_data(
        "Column of a table with the time of each row: the last rows of a client become"
        " its test part.",
        metavar="COLUMN",
    )
    window: int | None = in_data(
        "With --time: number of previous rows of the same client, including labels,"
        " that form the input of a row.",
        setting="federation.dataset.window",
        min=1,
        metavar="ROWS",
    )
    scale: str | None = in_data(
        "Training rows for scaling columns of numbers: of all clients, the default, or"
        " of each client.",
        setting="federation.dataset.scale",
        metavar="all|client",
    )
    missing: str | None = in_data(
        "Missing values of a table: refuse, the default; drop their rows; or fill"
        " features, numbers with the mean of training rows, or with 0 and a separate"
        " class.",
        setting="federation.dataset.missing",
        metavar="refuse|drop|mean|class",
    )
    text: str | None = in_data(
        "Column of a table with texts as inputs.", metavar="COLUMN"
    )
    tokenizer: str | None = in_data(
        "Tokenizer of these texts: a tokenizer.json, or minilm.", metavar="FILE|minilm"
    )
    dataset: str | None = in_data(
        "Short for --set federation.dataset=NAME.",
        setting="federation.dataset",
        metavar="NAME",
        autocompletion=completion.data_sets,
    )
    data_dir: str | None = in_data(
        "Directory of data files (or set FEDJAX_PFL_DATA).", metavar="DIR"
    )
    clients: int | None = in_data(
        "Number of clients; --set federation.num_clients=null takes all natural ones.",
        setting="federation.num_clients",
        **_COUNT,
    )
    set_: list[str] | None = in_method(
        "A field by its dotted name, as in algorithm.lam=0.1,1 or"
        " algorithm=flame,fedavg; values are JSON, commas sweep. Repeatable.",
        metavar="NAME=VALUE[,VALUE...]",
        autocompletion=completion.settings,
    )
    version: bool = in_output(
        "Only print the version.", False, callback=say_version, is_eager=True
    )

    def check(self) -> None:
        """Refuses options that exclude each other."""
        if self.data is not None and self.dataset is not None:
            raise typer.BadParameter("give --dataset or --data, not both")
        for name, needed in _NEEDS.items():
            if self._is_given(name) and not self._is_given(needed):
                raise typer.BadParameter(f"{flag(name)} needs {flag(needed)}")
        for name, others in _EXCLUDES.items():
            if self._is_given(name) and any(map(self._is_given, others)):
                *flags, last = map(flag, others)
                text = f"{', '.join(flags)} or {last}" if flags else last
                raise typer.BadParameter(
                    f"{flag(name)} cannot be combined with {text}"
                    f"{_REASONS.get(name, '')}"
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
        texts = [
            f"{name}={value}" for name, value in short.items() if value is not None
        ]
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
        metavar="NAME",
        autocompletion=completion.presets,
    )
    problem: str | None = in_method(
        "classification, the default, or, in a clone, portfolio: short for --preset"
        " portfolio.",
        metavar="classification|portfolio",
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
    )
    only: list[str] | None = in_method(
        "Only these methods, by the names of their folders.", metavar="NAME[,NAME...]"
    )
    seeds: int | None = in_budget(
        "Use the seeds 0, ..., N-1.", min=1, max=10_000, metavar="N"
    )
    seed_list: str | None = in_budget("Use exactly these seeds.", metavar="S,S,...")
    rounds: int | None = in_budget(
        "Communication rounds.", setting="num_rounds", **_COUNT
    )
    eval_every: int | None = in_budget(
        "Rounds between evaluations.", setting="eval_every", min=1, metavar="ROUNDS"
    )
    eval_on: str | None = in_budget(
        "Data to evaluate on: test, validation, train, others, everybody; each with an"
        " optional period.",
        metavar="DATA[=ROUNDS],...",
    )
    metric: str | None = in_search(
        "Metric that chooses rounds, settings and hybrids, stops trainings and ranks"
        " methods, for example macro_f1.",
        show_default="accuracy, of regressions loss",
        metavar="NAME",
        benchmark={
            "help": "Metric that chooses settings and ranks methods, for example"
            " macro_f1.",
            "show_default": "accuracy",
        },
    )
    eval_clients: str | None = in_budget(
        "Clients to evaluate.", metavar="all|participants|N"
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
        metavar="N",
        plan={
            "help": "Devices to split the CPU into, one per core if not given; with"
            " --hosts: devices of each host."
        },
    )
    points_per_chunk: int | None = in_processes(
        "Grid points computed together; bounds memory.", **_COUNT
    )
    points_per_unit: int | None = in_processes(
        "Most grid points to compile and train together, and for a process of --join to"
        " take at a time; as many as possible if not given.",
        **_COUNT,
        plan={
            "help": "Most grid points to compile and train together; as many as"
            " possible if not given."
        },
    )
    streamed: bool = in_processes(
        "Keep the clients' models in a file, for populations larger than the memory.",
        False,
    )
    patience: int | None = in_budget(
        "End after this many evaluations without improvement.", **_COUNT
    )
    target: float | None = in_budget(
        "End when the metric is this good.", metavar="VALUE"
    )
    tune: int | None = in_search(
        "Search this many random settings of every method, in its declared ranges, and"
        " drop settings that fall behind on validation data.",
        min=2,
        max=10_000,
        metavar="N",
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
    )
    learn: str | None = in_search(
        "Learn these fields during the training, from the derivatives of a loss on"
        " validation data, in every method that has them; for example"
        " algorithm.lam,algorithm.local.learning_rate.",
        metavar="NAME[,NAME...]",
        autocompletion=completion.fields,
    )
    learn_on: str | None = in_search(
        "Objective that --learn minimizes, for example validation:loss:personal, with"
        " :worst_decile or :client=3 in place of the mean over clients.",
        metavar="DATA:METRIC:MODEL",
    )
    learn_trainings: int | None = in_search(
        "Train this many times, each time from the fields that the last one learned.",
        **_COUNT,
    )
    learn_per_client: str | None = in_search(
        "Estimate the memory of learning this field of every client by reverse mode,"
        " for example algorithm.lam.",
        metavar="NAME",
    )
    learn_per_layer: str | None = in_search(
        "The same for learning this field of every layer.", metavar="NAME"
    )
    stop_on: str | None = in_budget(
        "Value for --patience and --target, for example personal:validation:accuracy;"
        " parts may be empty, the last one for --metric.",
        metavar="MODEL:DATA:METRIC",
    )
    memory_limit: str = in_budget(
        "Most memory for the trainings of one compilation, for example 8GB; free allows"
        " the free memory, none has no limit.",
        "free",
        metavar="SIZE|free|none",
    )
    max_minutes: float | None = in_budget(
        "Save and end after this time, with exit status 3.", metavar="MINUTES"
    )
    checkpoint_seconds: float = in_budget(
        "Least time between two checkpoints.", 5.0, min=0, metavar="SECONDS"
    )
    resume: Path | None = in_output(
        "Continue the run of an earlier command in its directory.", metavar="DIR"
    )
    resume_anyway: bool = in_output(
        "Let --resume continue with changed code; the result records the change.", False
    )
    diagnostics: bool = in_output("Also record the algorithm's own values.", False)
    save_models: Literal["last", "best", "best-of-each"] | None = in_output(
        "Also write the trained models of the evaluated clients: from the last round,"
        " the best round on validation data, or the best round of each client.",
        metavar="last|best|best-of-each",
    )
    dry_run: bool = in_output("Only print what would be trained.", False)
    as_if_clients: int | None = in_budget(
        "Plan for this many clients like the actual ones.",
        min=1,
        max=2**31 - 1,
        metavar="N",
    )
    hosts: int | None = in_processes(
        "Plan for this many hosts with --devices each, by formulas only.",
        min=1,
        max=100_000,
        metavar="N",
    )
    device_tflops: float = in_processes(
        "With --hosts: 10^12 floating-point operations of a device per second.",
        10.0,
        min=1e-6,
        metavar="TFLOPS",
    )
    link_gb: float = in_processes(
        "With --hosts: 10^9 bytes per second between devices of one host.",
        100.0,
        min=1e-6,
        metavar="GB",
    )
    network_gb: float = in_processes(
        "With --hosts: 10^9 bytes per second from a host.", 12.5, min=1e-6, metavar="GB"
    )
    latency_us: float = in_processes(
        "With --hosts: microseconds per message.",
        20.0,
        min=1e-6,
        metavar="MICROSECONDS",
    )
    profile: Path | None = in_output(
        "Write a profile of the rounds between the second and the third evaluation.",
        metavar="DIR",
    )
    log: list[str] | None = in_output(
        "Write every evaluation for TensorBoard, or to Weights & Biases or MLflow."
        " Also with --resume. Repeatable.",
        metavar="tensorboard[=DIR]|wandb[=PROJECT]|mlflow[=EXPERIMENT]",
    )
    out: Path | None = in_output(
        "New directory; results/<preset>-<time> if not given.", metavar="DIR"
    )
    distributed: bool = in_processes(
        "Train with the devices of all processes that are started with these options,"
        " on one host or several; JAX detects them with Slurm, MPI or a pod of TPUs.",
        False,
    )
    coordinator: str | None = in_processes(
        "Without such a launcher: address of process 0 for --distributed.",
        metavar="HOST:PORT",
    )
    num_processes: int | None = in_processes(
        "Without such a launcher: number of processes.", **_COUNT
    )
    process_id: int | None = in_processes(
        "Without such a launcher: number of this process, from 0.", min=0, metavar="N"
    )
    connect_seconds: float = in_processes(
        "Longest wait of a --distributed process for the others at the start.",
        300.0,
        min=1,
        metavar="SECONDS",
    )
    join: bool = in_processes(
        "Begin the sweep in --out, or join it if it has begun: processes that share the"
        " folder, on any hosts, divide its static groups.",
        False,
    )
    lease_seconds: float = in_processes(
        "A process of --join without a sign of life for this time loses its work to"
        " another one.",
        60.0,
        min=1,
        metavar="SECONDS",
    )
    quiet: bool = in_output("Print only the directory's name.", False)

    def check(self) -> None:
        """Refuses options that exclude each other, or cannot be read."""
        super().check()
        if self.seeds is not None and self.seed_list is not None:
            raise typer.BadParameter("give --seeds or --seed-list, not both")
        if self.join and self.out is None and not self.dry_run:
            raise typer.BadParameter(
                "--join needs --out, the folder that all processes share"
            )
        self._check_processes()
        if len(self.only or ()) > 1:
            raise typer.BadParameter("give --only once, as in --only flame,ditto")
        # Properties that refuse texts that they cannot read.
        for name in ("preset_name", "all_seeds", "evaluate_on"):
            getattr(self, name)
        if self.learn is None and (self.learn_on or self.learn_trainings):
            raise typer.BadParameter("--learn-on and --learn-trainings need --learn")
        if self.stop_rule() is not None and self.is_search:
            raise typer.BadParameter("give --tune, or --patience and --target")
        if self.save_models not in (None, *_MODELS_OF):
            raise typer.BadParameter(
                f"expected --save-models with {', '.join(_MODELS_OF)}, got"
                f" {self.save_models!r}"
            )
        logs(self.log)

    def _check_processes(self) -> None:
        """Refuses options of a training of several processes that do not fit."""
        values = (self.coordinator, self.num_processes, self.process_id)
        if not self.distributed:
            # With --resume the first command may have had --distributed, which is
            # checked again with its options.
            is_given = any(map(self._is_given, ADDRESS))
            if is_given and (self.resume is None or self.out is not None):
                raise typer.BadParameter(
                    "--coordinator, --num-processes, --process-id and --connect-seconds"
                    " need --distributed"
                )
            return
        if self.execution not in ("auto", "shard"):
            raise typer.BadParameter(
                "--distributed needs --execution shard, with all devices, got"
                f" {self.execution!r}"
            )
        if None in values and values != (None, None, None):
            raise typer.BadParameter(
                "give --coordinator, --num-processes and --process-id together, or none"
                " of them if JAX detects the cluster"
            )
        if self.process_id is None or self.num_processes is None:
            return
        if self.process_id >= self.num_processes:
            raise typer.BadParameter(
                f"expected --process-id below --num-processes {self.num_processes},"
                f" got {self.process_id}"
            )
        self.address  # noqa: B018 (raises for an invalid one)

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
        if self.preset is not None:
            raise typer.BadParameter("give --problem or --preset, not both")
        presets = {"classification": usual, "portfolio": "portfolio"}
        if self.problem not in presets:
            raise typer.BadParameter(
                f"expected --problem {' or '.join(presets)}, got {self.problem!r}"
            )
        return presets[self.problem]

    @property
    def all_seeds(self) -> tuple[int, ...] | None:
        """The given seeds, or None."""
        if self.seed_list is not None:
            return seeds(self.seed_list)
        return None if self.seeds is None else tuple(range(self.seeds))

    @property
    def evaluate_on(self) -> tuple[tuple[str, int | None], ...] | None:
        """Names and periods of the data to evaluate on, or None."""
        return None if self.eval_on is None else periods(self.eval_on)

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
