"""The Trainer interface: holds and advances the states of a group."""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import checkpoint

__all__ = ["Interrupted", "Trainer", "compile_clock"]


class Interrupted(Exception):  # noqa: N818 (not an error)
    """A training that was interrupted before its last round.

    Attributes:
      reason: of the interrupt, as a sentence without its period.
      done: finished rounds of the group that was being trained; None between groups.
    """

    def __init__(self, reason: str, done: int | None = None):
        """Stores the reason and the round; see the class."""
        super().__init__(reason if done is None else f"{reason} at round {done}")
        self.reason, self.done = reason, done


@contextlib.contextmanager
def compile_clock() -> Iterator[list[float]]:
    """Adds up the seconds that JAX reports for lowering and compiling."""
    total = [0.0]

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/") and "trace" not in event:
            total[0] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield total
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Trainer(Protocol):
    """Holder of a group's states; one class per kind of storage."""

    planned: PlannedGroup
    recorder: Recorder
    execution: str  # how the map over clients is run, in words
    identity: dict[str, Any]  # must match for a checkpoint to be continued

    @classmethod
    def check(cls, planned: PlannedGroup) -> PlannedGroup:
        """Refuses a group that this trainer cannot train, before anything runs."""
        ...

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on compiling so far."""
        ...

    @property
    def like(self) -> core.State:
        """Shapes of the states in a checkpoint."""
        ...

    def compile(self) -> None:
        """Starts to compile programs ahead of their first run."""

    def check_fits(self) -> None:
        """Refuses a training that will not fit into memory; compiles it if needed."""

    def begin(self) -> None:
        """Makes the first states."""

    def restore(self, progress: checkpoint.Progress) -> None:
        """Takes the states of a checkpoint; raises ValueError if it is damaged."""

    def saved(self) -> tuple[Any, dict[str, np.ndarray], checkpoint.Own]:
        """Returns states, further arrays, and arrays of this process only."""
        ...

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Trains the active points for `count` rounds, and returns their reports."""
        ...

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Returns evaluated clients (None for all), metrics, diagnostics, snapshot."""
        ...

    def members(self, point: int) -> np.ndarray:
        """Returns rows `int[K]` of the clients of a point that are evaluated."""
        ...

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns trained parameters `[K, *P]` of predictors of clients `int[K]`."""
        ...

    def close(self) -> None:
        """Ends the trainer's threads, and removes its temporary files."""
