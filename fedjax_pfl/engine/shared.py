"""Groups of a grid that several processes share, each group trained by one process.

Processes communicate through checkpoints only: the last one of a group has its history.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

from fedjax_pfl.core import checks
from fedjax_pfl.engine import callbacks, groups
from fedjax_pfl.engine.callbacks import pace
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.engine.simulation import Run, clean_up
from fedjax_pfl.engine.trainer import Interrupted, Trainer
from fedjax_pfl.results import checkpoint
from fedjax_pfl.results.leases import BEATS, Lease, Leases, LostError

__all__ = ["Crew", "title"]

_RESULT = "result"
"""Unit of the result, which one process writes when all groups are finished."""


def title(planned: Sequence[groups.PlannedGroup], number: int) -> str:
    """Names a unit, for example `1/3 Flame x 4`."""
    group = planned[number]
    return pace.title(number, len(planned), group.algorithm, len(group.group.points))


class Crew:
    """One of several processes that share groups."""

    def __init__(
        self,
        planned: Sequence[groups.PlannedGroup],
        options: Options,
        seconds: float,
        *,
        trainer: Callable[..., Trainer] = Resident,
        is_complete: Callable[[], bool],
        say: Callable[[str], None],
    ):
        """Joins the other processes; after silent `seconds` a unit is taken over."""
        if options.checkpoints is None:
            raise checks.InputError("Expected checkpoints, which processes share.")
        self._checkpoints: checkpoint.Checkpoints = options.checkpoints
        self._planned, self._trainer = planned, trainer
        self._options = dataclasses.replace(options, callbacks=())
        self._is_complete, self._say = is_complete, say
        self._leases = Leases(self._checkpoints.path / ".leases", seconds)
        self._pause = seconds / BEATS / 4
        self._left = list(range(len(planned)))
        self._last_text = ""

    def train(self, interrupt: Callable[[], str | None]) -> Lease | None:
        """Trains free units until all are finished; returns the lease on the result."""
        groups.warn_of_idle_parts([group.group for group in self._planned])
        try:
            while not self._is_complete():
                if (reason := interrupt()) is not None:
                    raise Interrupted(reason)
                self._left = [n for n in self._left if not self._has_ended(n)]
                # Only one process gets this lease, to be entered; others wait for its
                # result.
                if not self._left:
                    if (lease := self._leases.claim(_RESULT)) is not None:
                        return lease
                elif self._train_one(interrupt):
                    continue
                self._wait()
        except checks.InputError:
            if not self._is_complete():  # which removes checkpoints and leases
                raise
        return None

    def _has_ended(self, number: int) -> bool:
        """Returns whether a group's training has ended."""
        return self._store(number).has_ended()

    def _store(
        self, number: int, guard: Callable[[], None] = lambda: None
    ) -> checkpoint.Store:
        """Returns the checkpoints of a group."""
        name = self._planned[number].algorithm
        return self._checkpoints.store(number, name, guard)

    def _train_one(self, interrupt: Callable[[], str | None]) -> bool:
        """Claims and trains the first free group; returns whether there was one."""
        for number in self._left:
            last_owner = self._leases.holder(_name(number))
            lease = self._leases.claim(_name(number))
            if lease is None:
                continue
            # A process that stood still and lost its lease does no harm: both write the
            # same numbers, and the slower one notices.
            with contextlib.suppress(LostError), lease:
                if not self._has_ended(number):  # by another process, just now
                    self._announce(number, last_owner)
                    self._train(number, lease, interrupt)
            return True
        return False

    def _train(
        self, number: int, lease: Lease, interrupt: Callable[[], str | None]
    ) -> None:
        """Trains a group, from its newest checkpoint to its end."""

        def ask() -> str | None:
            lease.check()
            return interrupt()

        unplanned = [group.group for group in self._planned]
        store = self._store(number, lease.check)
        with (
            contextlib.closing(self._trainer(self._planned[number], store)) as trainer,
            callbacks.watching(unplanned, self._options, only=number) as watch,
        ):
            trainer.compile()
            try:
                run = Run(trainer, store)
                run.train(interrupt=ask, evaluated=watch.evaluated(number))
            except checks.InputError:
                lease.check()  # its new owner may have removed files
                raise
        clean_up()

    def _announce(self, number: int, last_owner: str | None) -> None:
        """Prints the unit that begins here, its last owner, and all progress."""
        num_finished = len(self._planned) - len(self._left)
        busy_units = [n for n in self._left if n != number and self._holder(n)]
        text = f"Training {title(self._planned, number)}"
        if last_owner is not None:
            text += f", taken over from {last_owner}, which gives no sign of life"
        self._say(
            f"{text}; {num_finished} of {len(self._planned)} units are finished,"
            f" {len(busy_units)} are with other processes."
        )

    def _wait(self) -> None:
        """Prints the process that this one waits for, if it is new, and pauses."""
        units = [(title(self._planned, n), self._holder(n)) for n in self._left]
        parts = [f"{name} ({owner})" for name, owner in units if owner is not None]
        if not self._left and (owner := self._leases.holder(_RESULT)) is not None:
            parts = [f"the result ({owner})"]
        text = f"Waiting for {', '.join(parts)}."
        if parts and text != self._last_text:
            self._last_text = text
            self._say(text)
        time.sleep(self._pause)

    def _holder(self, number: int) -> str | None:
        """Returns the process that has a group, if any."""
        return self._leases.holder(_name(number))


def _name(number: int) -> str:
    """Returns the name of a group's leases."""
    return f"unit-{number:03d}"
