"""Options of trainings, written once: for Python, the command line and run folders."""

import dataclasses
import functools
import inspect
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from fedjax_pfl.core import checks, sharding, struct
from fedjax_pfl.engine import schedule as schedules
from fedjax_pfl.engine import stopping
from fedjax_pfl.results import checkpoint

__all__ = [
    "EVALUATE_ON",
    "Options",
    "TrainingOptions",
    "as_keywords",
    "parse_memory",
    "time_limit",
]

EVALUATE_ON = ("test", "validation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a call of `simulate`, `grid` or `simulate_streamed`.

    Attributes:
      num_rounds: rounds R, at least 1.
      eval_every: rounds between evaluations; None gives about 20 evaluations.
      evaluate_on: data to evaluate on: a client's own `test`, `validation` or `train`
        examples; `others`, its own and some other clients' test examples (as many as
        the federation's `num_others`); `everybody`, all test examples. A mapping gives
        rounds between evaluations by name, None for `eval_every`.
      eval_clients: clients that are evaluated: `all`, `participants` of the last round,
        or the size of a sample of clients that is drawn once per seed.
      execution: `auto`, `loop`, `vmap`, `chunk=K`, `shard` or `shard=DEVICES`.
      diagnostics: whether to compute the algorithm's diagnostics at evaluations.
      points_per_chunk: grid points vmapped together, which bounds memory; None picks.
      metric: measured name, such as `macro_f1`, that chooses rounds, hybrids and
        settings, stops trainings, and ranks methods. None for the accuracy of
        classifiers, the annualized return of portfolios, else the loss.
      stop_when: when a training ends before its last round, or None. Ended
        points of a grid do not change while others go on. `StopWhen` or `Halving`.
      memory_limit: memory that the trainings of one compilation may need, for example
        `8GB`; more is refused before the first round. `free` allows the free memory,
        `none` refuses nothing.
      max_minutes: after which the call saves and ends, > 0; None for no limit.
      checkpoints: where trainings are saved, `Checkpoints` or a directory. If it has
        checkpoints of the same call, training continues from the newest: bit-identical,
        on the same backend and versions, to a call that was never interrupted. None
        saves nothing.
      callbacks: called at every evaluation; see `Callback`.
      models_to: directory, which must not exist yet, in which the trained models of the
        evaluated clients are saved; see `load_models`. None saves none.
      models_of: round of these models: the `last`; the `best` one, by a model's mean
        metric on clients' own validation data; or `best-of-each`, in which each client
        has the model of its own best round. Best models are kept on the host.
      progress: whether to show progress, on standard error or in a notebook's cell.

    Raises:
      InputError: if an option does not fit, in one sentence.
    """

    num_rounds: int = struct.static_field(at_least=1)
    eval_every: int | None = struct.static_field(default=None, at_least=1)
    evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON
    eval_clients: str | int = "all"
    execution: str | sharding.Execution = "auto"
    diagnostics: bool = False
    points_per_chunk: int | None = struct.static_field(default=None, at_least=1)
    metric: str | None = None
    stop_when: stopping.Watched | None = None
    memory_limit: str | int = "free"
    max_minutes: float | None = struct.static_field(default=None, above=0)
    checkpoints: checkpoint.Checkpoints | None = None
    callbacks: Sequence[Any] = ()
    models_to: str | os.PathLike[str] | None = None
    models_of: Literal["last", "best", "best-of-each"] = "last"
    progress: bool = True

    def __post_init__(self):
        if isinstance(self.checkpoints, str | os.PathLike):
            place = checkpoint.Checkpoints(self.checkpoints)
            object.__setattr__(self, "checkpoints", place)  # the class is frozen
        struct.check_fields(self)
        if self.stop_when is not None:
            rule = self.stop_when.by(self.metric)
            object.__setattr__(self, "stop_when", rule)
        # Parsed here, so that wrong options are refused where they are given.
        data, _, _ = self.schedule.data, self.parsed_execution, self.parsed_memory
        if self.stop_when is not None and self.stop_when.data not in data:
            raise checks.InputError(
                f"Expected the data to stop on to be one of {', '.join(data)},"
                f" which are evaluated, got {self.stop_when.data!r}."
            )

    @functools.cached_property
    def schedule(self) -> schedules.Schedule:
        """Schedule of evaluations."""
        parsed = schedules.Schedule.parse(
            self.evaluate_on, self.eval_every, self.eval_clients, self.num_rounds
        )
        return parsed.within(self.num_rounds)

    @functools.cached_property
    def parsed_execution(self) -> str | sharding.Execution:
        """Execution mode of the map over clients, or the string `auto`."""
        if self.execution == "auto":
            return "auto"
        return sharding.Execution.parse(self.execution)

    @functools.cached_property
    def parsed_memory(self) -> str | int:
        """The limit of memory in bytes, or the string `free` or `none`."""
        return parse_memory(self.memory_limit)

    def within(self, num_clients: int) -> "Options":
        """Returns options with a sample of at most all clients."""
        if not isinstance(self.eval_clients, int):
            return self
        sample = min(self.eval_clients, num_clients)
        return dataclasses.replace(self, eval_clients=sample)


class TrainingOptions(TypedDict, total=False):
    """Options of trainings by name, for editors and type checkers; see `Options`."""

    eval_every: int | None
    evaluate_on: Sequence[str] | Mapping[str, int | None]
    eval_clients: str | int
    execution: str | sharding.Execution
    diagnostics: bool
    points_per_chunk: int | None
    metric: str | None
    stop_when: stopping.Watched | None
    memory_limit: str | int
    max_minutes: float | None
    checkpoints: checkpoint.Checkpoints | None
    callbacks: Sequence[Any]
    models_to: str | os.PathLike[str] | None
    models_of: Literal["last", "best", "best-of-each"]
    progress: bool


def as_keywords(*left_out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function with the fields of `Options` as `**options`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        # Without the last one, `**options`, which the fields replace.
        parameters = list(signature.parameters.values())[:-1]
        names = {*left_out, *(parameter.name for parameter in parameters)}
        # The signature names them, with defaults, so that other keywords are refused.
        keywords = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field.type,
            )
            for field in dataclasses.fields(Options)
            if field.name not in names
        ]
        signature = signature.replace(parameters=[*parameters, *keywords])

        return struct.checked_call(function, signature)

    return decorate


def time_left(minutes: float | None) -> Callable[[], float | None]:
    """Returns a function of the minutes left, above 0, for calls in a row; or None."""
    start = time.monotonic()

    def left() -> float | None:
        if minutes is None:
            return None
        return max(minutes - (time.monotonic() - start) / 60, 1e-3)

    return left


def time_limit(minutes: float | None) -> Callable[[], str | None]:
    """Returns an interrupt that fires after `minutes`, or never for None."""
    start = time.monotonic()

    def reason() -> str | None:
        if minutes is None or time.monotonic() - start < 60 * minutes:
            return None
        return f"The time of {minutes:g} minutes was up"

    return reason


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_memory(limit: str | int) -> str | int:
    """Reads `free`, `none`, a number of bytes, or a size such as `8GB` or `512MiB`."""
    if isinstance(limit, str) and limit in ("free", "none"):
        return limit
    words = limit.strip() if isinstance(limit, str) else checks.shown(limit)
    match = _SIZE.fullmatch(words)
    size = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if isinstance(limit, bool) or size <= 0:
        raise checks.InputError(
            "Expected memory_limit to be a size such as 8GB or 512MiB, a number of"
            f" bytes above 0, free or none, got {checks.shown(limit)}."
        )
    return size
