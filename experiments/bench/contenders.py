"""Contenders of a comparison by name, and our side."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from experiments.bench import machine
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = [
    "Contender",
    "Loop",
    "Ours",
    "Repeated",
    "Timed",
    "library",
    "relative_difference",
]

_CALLS = 400  # timed calls of one training; what its history keeps grows with them


class Contender(Protocol):
    """A way to do the rounds of a workload."""

    execution: str  # how the map over clients is run; empty if there is one way

    def run(self) -> None:
        """Does the rounds of one call, from where the last one ended."""
        ...

    def result(self) -> Any:
        """Returns the results as NumPy arrays in our layout."""
        ...


@dataclasses.dataclass(frozen=True)
class Timed:
    """Work that is timed."""

    name: str  # for example `W1`
    title: str  # a description in one line
    peers: tuple[str, ...]  # names of comparable implementations
    rounds: int = dataclasses.field(default=1, kw_only=True)  # rounds of one timed call

    @property
    def steps_per_round(self) -> float | None:
        """Returns steps of single clients in a round, or None without steps."""
        return None

    @property
    def flops_per_round(self) -> float | None:
        """Returns a round's operations in matrix products, if they are counted."""
        return None

    @property
    def bytes_per_round(self) -> float | None:
        """Returns the least bytes that a round reads and writes, if counted."""
        return None

    def contender(self, name: str) -> Contender:
        """Makes a contender, `ours` or a peer; fails if it cannot run here."""
        raise NotImplementedError

    def agreement(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns the largest relative `difference` of each peer, and the `loss`."""
        numbers: dict[str, dict[str, float]] = {name: {} for name in results}
        for name, result in results.items():
            if name != "ours" and result is not None:
                difference = relative_difference(results["ours"], result)
                numbers[name]["difference"] = difference
            loss = self.loss(result)
            if loss is not None:
                numbers[name]["loss"] = loss
        return numbers

    def loss(self, result: Any) -> float | None:
        """Returns the loss of a result, or None without one."""
        return None


class Repeated:
    """A computation that every call starts from the beginning."""

    def __init__(
        self,
        call: Callable[[], Any],
        convert: Callable[[Any], Any] = np.array,
        execution: str = "",
    ):
        """Takes the computation, and what makes its result of the last output."""
        self._call, self._convert, self.execution = call, convert, execution

    def run(self) -> None:
        """Computes once."""
        self._output = self._call()

    def result(self) -> Any:
        """Returns the last result."""
        return self._convert(self._output)


def _segments(rounds: int, execution: str, points: int | None) -> Options:
    """Returns options of a training with segments of so many rounds."""
    return Options(
        num_rounds=_CALLS * rounds,
        eval_every=rounds,
        evaluate_on=("train",),
        execution=execution,
        points_per_chunk=points,
        memory_limit="none",
    )


class Ours:
    """The package's own driver: compiled segments of rounds without evaluations."""

    def __init__(
        self,
        group: groups.Group,
        rounds: int,
        execution: str = "auto",
        points: int | None = None,
    ):
        planned = groups.plan(group, _segments(rounds, execution, points))
        self.planned, self.plan = planned, planned.plan
        self.execution = str(planned.plan)
        self._num_rounds = self._done = planned.options.num_rounds
        self._trainer = Resident(planned)
        self._active = np.ones(len(group.points), bool)

    def compiled(self) -> jax.stages.Compiled:
        """Returns the program of a call, which is compiled if need be."""
        return self._trainer.programs[("segment",)]

    def run(self, *, is_reported: bool = True) -> None:
        """Runs the next segment; after the last, the first of a new training."""
        if self._done >= self._num_rounds:
            self._done = 0
            self._trainer.begin()
        count = min(self.plan.schedule.segment, self._num_rounds - self._done)
        # `run` leaves reports on the device: `hosts` counts the bytes of rounds alone.
        run = self._trainer.advance if is_reported else self._trainer.run
        run(self._active, self._done, count)
        self._done += count
        jax.block_until_ready(self._trainer.states)

    def result(self) -> Any:
        """Copies the server's states: the next segment reuses the buffers."""
        return self._trainer.by_point(self._trainer.states.server)


class Loop:
    """A Python loop over the points of a grid, each a compiled training of its own."""

    execution = ""

    def __init__(self, group: groups.Group, rounds: int):
        names = ("points", "processes", "federations", "described", "keys")
        self._runs = []
        for point in range(len(group.points)):
            point_fields = {n: getattr(group, n)[point : point + 1] for n in names}
            self._runs.append(Ours(dataclasses.replace(group, **point_fields), rounds))

    def run(self) -> None:
        """Runs one segment of every training."""
        for run in self._runs:
            run.run()

    def result(self) -> Any:
        """Returns server states of all points."""
        states = [run.result() for run in self._runs]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)


def library(name: str) -> Any:
    """Imports a module that, like its library, may not be installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise machine.UnavailableError(f"cannot be imported: {error}") from error


def relative_difference(reference: Any, values: Any) -> float:
    """Returns the largest difference, relative to the largest value of the first."""
    pairs = list(zip(jax.tree.leaves(reference), jax.tree.leaves(values), strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    return difference / max(float(np.abs(a).max()) for a, _ in pairs)
