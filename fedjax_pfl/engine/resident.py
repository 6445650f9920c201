"""The trainer whose clients are all on the device."""

from typing import Any

import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import cost
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import checkpoint

__all__ = ["Resident"]


class Resident:
    """All points of a group with all their clients on the device; a `Trainer`."""

    def __init__(self, planned: PlannedGroup, store: checkpoint.Store | None = None):
        """Places the data on the devices and starts to compile.

        Args:
          planned: the group.
          store: where its checkpoints are. If it has a finished training, nothing is
            compiled.
        """
        self.planned, self.programs = planned, planned.programs()
        if store is None or not store.has_ended():
            self.programs.compile()
        group, plan = planned.group, planned.plan
        self._has_clusters = group.federations[0].cluster is not None
        self.execution = str(plan)
        self.recorder = Recorder(planned, federations=group.described)
        self.identity = {
            "points_per_chunk": plan.points_per_chunk,
            "diagnostics": plan.diagnostics,
        }
        if store is not None:
            digest = checkpoint.fingerprint(self.programs.start)
            self.identity["data, seeds and settings"] = digest

    @classmethod
    def check(cls, planned: PlannedGroup) -> None:
        """Refuses a group whose arrays alone will not fit into memory."""
        cost.check_arrays(planned.programs(are_shapes=True), planned)

    @property
    def compile_seconds(self) -> float:
        """Seconds of lowering, and of waiting for the compiler."""
        return self.programs.seconds

    @property
    def like(self) -> core.State:
        """Shapes of the states of all points."""
        return self.programs.states

    def check_fits(self) -> None:
        """Refuses a group that will not fit into memory; waits for the compiler."""
        if self.planned.options.memory_limit != "none":
            cost.check(self.programs, self.planned.options)

    def begin(self) -> None:
        """Makes the first states."""
        self.states = self.programs.init()

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint."""
        self.states = self.programs.placed(progress.states)

    def saved(self) -> tuple[core.State, dict[str, np.ndarray]]:
        """Returns the states, which are all of a checkpoint."""
        return self.states, {}

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Runs one compiled segment; leaves of the reports are `[G, segment, ...]`."""
        self.states, info = self.programs.segment(
            self.states, active, done, done + count
        )
        return sharding.fetch(info)

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points; clusters always, heat maps and curves at the end."""
        measured = self.programs.evaluate(self.states, data)
        is_wanted = is_last or self._has_clusters
        snapshot = self.programs.snapshot(self.states) if is_wanted else {}
        return sharding.fetch((*measured, snapshot))

    def members(self, point: int) -> np.ndarray:
        """Returns rows `int32[K]` of the clients of a point that are evaluated now."""
        return sharding.fetch(self.programs.members(self.states, point))

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns what was trained of predictors `[K, *P]` of a point's clients."""
        trained = self.programs.trained(self.states, point, members, names)
        return sharding.fetch(trained)

    def close(self) -> None:
        """Ends the compiler's threads once they are done."""
        self.programs.close()
