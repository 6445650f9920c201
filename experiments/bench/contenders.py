"""What takes part in a comparison, by name, and our own side of it."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from experiments.bench import workloads
from fedjax_pfl.engine import driver, groups
from fedjax_pfl.engine.options import Settings

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
    """One way to do the rounds of a workload."""

    def run(self) -> None:
        """Does the rounds of one call, to the end, going on where the last ended."""
        ...

    def result(self) -> Any:
        """Global models now, a tree of NumPy arrays `[G, *P]` in our layout."""
        ...


def _segments(rounds: int, execution: str) -> Settings:
    """Settings of a training whose segments have so many rounds."""
    return Settings.parse(
        _CALLS * rounds, eval_every=rounds, evaluate_on=("train",), execution=execution
    )


class Ours:
    """The package's own driver: compiled segments of rounds, nothing evaluated.

    Attributes:
      execution: how the map over clients is run, as the driver chose.
    """

    def __init__(self, workload: workloads.Workload, execution: str = "auto"):
        self._group = workload.group()
        self._settings = _segments(workload.rounds, execution)
        self._run = self._start()
        self.execution = str(self._run.config["execution"])

    def _start(self) -> driver.Run:
        return _run(self._group, self._settings)

    def run(self) -> None:
        """One segment."""
        if self._run.done >= self._settings.num_rounds:
            self._run = self._start()
        self._run.segment()
        jax.block_until_ready(self._run.states)

    def result(self) -> Any:
        """Server states."""
        # A copy: the next segment reuses the buffers.
        return jax.tree.map(np.array, self._run.states.server)


def _run(group: groups.Group, how: Settings) -> driver.Run:
    """A training of which only rounds are run, so that only these are compiled."""
    how = dataclasses.replace(how, memory_limit="none")
    programs, names = groups.programs_of(group, how), groups.predictor_names(group)
    return driver.Run(driver.Prepared(group, how, programs, None, names))


class Loop:
    """A Python loop over the points of a grid, each a compiled training of its own."""

    execution = ""

    def __init__(self, workload: workloads.Workload):
        self._group = workload.group()
        self._settings = _segments(workload.rounds, "auto")
        self._runs = [self._start(point) for point in range(workload.num_points)]

    def _start(self, point: int) -> driver.Run:
        group = self._group
        single = groups.Group(
            points=group.points[point : point + 1],
            processes=group.processes[point : point + 1],
            model=group.model,
            federations=group.federations[point : point + 1],
            described=group.described[point : point + 1],
            keys=group.keys[point : point + 1],
            config=group.config,
        )
        return _run(single, self._settings)

    def run(self) -> None:
        """One segment of every training."""
        for point, run in enumerate(self._runs):
            if run.done >= self._settings.num_rounds:
                self._runs[point] = run = self._start(point)
            run.segment()
            jax.block_until_ready(run.states)

    def result(self) -> Any:
        """Server states of all points."""
        states = [run.states.server for run in self._runs]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)


def _torch(workload: workloads.Workload, **options: Any) -> Contender:
    loops = imported("torch_loops")
    return loops.TorchTraining(workload, loops.torch_core.Loop, **options)


def _torch_func(workload: workloads.Workload) -> Contender:
    loops = imported("torch_loops")
    return loops.TorchTraining(workload, loops.torch_core.Stacked)


def _pfl(workload: workloads.Workload) -> Contender:
    return imported("peer_pfl").start(workload)


def imported(module: str) -> Any:
    """A module of this package whose library may not be installed.

    Raises:
      UnavailableError: if it is not.
    """
    return library(f"experiments.bench.{module}")


def library(name: str) -> Any:
    """A module of a library that may not be installed.

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
    "torch.func": _torch_func,
    "vmap": functools.partial(Ours, execution="vmap"),
    "loop-jit": Loop,
    "pfl": _pfl,
}
"""Makers of the peers of trainings."""

INEXACT = ("pfl",)
"""Peers that weigh or draw clients in another way, so that models are not equal."""
