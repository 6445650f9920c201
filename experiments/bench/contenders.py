"""Contenders of a comparison by name, and our own side of it."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from experiments.bench import workloads
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = [
    "INEXACT",
    "PEERS",
    "Contender",
    "Loop",
    "Ours",
    "UnavailableError",
    "imported",
    "library",
]

_CALLS = 400  # timed calls of one training; what its history keeps grows with them


class UnavailableError(Exception):
    """A peer cannot run here, with the reason."""


class Contender(Protocol):
    """A way to do the rounds of a workload."""

    def run(self) -> None:
        """Does the rounds of one call, from where the last one ended."""
        ...

    def result(self) -> Any:
        """Returns the global models, NumPy arrays `[G, *P]` in our layout."""
        ...


def _segments(rounds: int, execution: str) -> Options:
    """Options of a training whose segments have so many rounds."""
    return Options(
        num_rounds=_CALLS * rounds,
        eval_every=rounds,
        evaluate_on=("train",),
        execution=execution,
        memory_limit="none",
    )


class Ours:
    """The package's own driver: compiled segments of rounds, nothing evaluated.

    Attributes:
      execution: how the map over clients is run, as the driver chose.
    """

    def __init__(self, workload: workloads.Workload, execution: str = "auto"):
        self._rounds = _Rounds(workload.group(), _segments(workload.rounds, execution))
        self.execution = str(self._rounds.planned.plan)

    def run(self) -> None:
        """Runs one segment."""
        self._rounds.segment()

    def result(self) -> Any:
        """Returns server states."""
        return self._rounds.server()


class _Rounds:
    """A training of which only rounds are run, so that only these are compiled."""

    def __init__(self, group: groups.Group, options: Options):
        self.planned = groups.plan(group, options)
        self._trainer = Resident(self.planned)
        self._active = np.ones(len(group.points), bool)
        self._start()

    def _start(self) -> None:
        self._done = 0
        self._trainer.begin()

    def segment(self) -> None:
        """Runs the next segment; after the last, the first of a new training."""
        num_rounds = self.planned.options.num_rounds
        if self._done >= num_rounds:
            self._start()
        count = min(self.planned.plan.schedule.segment, num_rounds - self._done)
        self._trainer.advance(self._active, self._done, count)
        self._done += count
        jax.block_until_ready(self._trainer.states)

    def server(self) -> Any:
        """Copies the server's state: the next segment reuses the buffers."""
        return jax.tree.map(np.array, self._trainer.states.server)


class Loop:
    """A Python loop over the points of a grid, each a compiled training of its own."""

    execution = ""

    def __init__(self, workload: workloads.Workload):
        group, options = workload.group(), _segments(workload.rounds, "auto")
        names = ("points", "processes", "federations", "described", "keys")
        self._runs = [
            _Rounds(
                dataclasses.replace(
                    group, **{n: getattr(group, n)[point : point + 1] for n in names}
                ),
                options,
            )
            for point in range(workload.num_points)
        ]

    def run(self) -> None:
        """Runs one segment of every training."""
        for run in self._runs:
            run.segment()

    def result(self) -> Any:
        """Returns server states of all points."""
        states = [run.server() for run in self._runs]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)


def _torch(
    workload: workloads.Workload, kind: str = "Loop", **options: Any
) -> Contender:
    loops = imported("torch_loops")
    return loops.TorchTraining(workload, getattr(loops.torch_core, kind), **options)


def _pfl(workload: workloads.Workload) -> Contender:
    return imported("peer_pfl").start(workload)


def imported(module: str) -> Any:
    """Imports a module of this package whose library may not be installed.

    Raises:
      UnavailableError: if it is not.
    """
    return library(f"experiments.bench.{module}")


def library(name: str) -> Any:
    """Imports a module of a library that may not be installed.

    Raises:
      UnavailableError: if it is not.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"cannot be imported: {error}") from error


PEERS: dict[str, Callable[[workloads.Workload], Contender]] = {
    "torch": _torch,
    "torch.channels_last": functools.partial(_torch, channels_last=True),
    "torch.func": functools.partial(_torch, kind="Stacked"),
    "vmap": functools.partial(Ours, execution="vmap"),
    "loop-jit": Loop,
    "pfl": _pfl,
}
"""Makers of the peers of trainings."""

INEXACT = ("pfl",)
"""Peers that weigh or draw clients in another way, so that models are not equal."""
