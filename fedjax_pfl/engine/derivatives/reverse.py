"""Derivatives in many values: one backward pass through the rounds of a training.

The state before every round is kept, or only the first states of pieces of rounds.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import cost
from fedjax_pfl.engine.derivatives import differentiated, fields, trainer
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.results import checkpoint

__all__ = ["Backward", "Kept", "kept"]

_ALL = 2**31  # bytes up to which all steps are kept, the same on every machine
_NO_REVERSE = "Reverse-mode differentiation does not work"
_ByName = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Kept:
    """Bytes kept for the way back: between rounds, of a round, and of local steps."""

    num_rounds: int
    state: int
    round: int
    steps: int

    @property
    def pieces(self) -> tuple[int, int]:
        """Number of pieces, and rounds of each: one of all rounds, or about sqrt(R)."""
        rounds = self.num_rounds
        # With many bytes each piece is trained once more on the way back. The clients'
        # work is always repeated, some clients at a time.
        if rounds * self.round <= _ALL:
            return 1, rounds
        # Divisors of R, so that all pieces share one program.
        lengths = [n for n in range(1, rounds + 1) if rounds % n == 0]
        length = min(lengths, key=lambda n: rounds // n * self.state + n * self.round)
        return rounds // length, length

    @property
    def total(self) -> int:
        """Bytes that are kept at a time."""
        count, length = self.pieces
        states = count * self.state if count > 1 else 0
        return states + length * self.round + self.steps

    def __str__(self) -> str:
        count, length = self.pieces
        states = f"states of {length} rounds"
        if count > 1:
            states = f"{count} states, those of {length} rounds at a time"
        return (
            f"{cost.shown(self.total)} ({states}, and {cost.shown(self.steps)} of local"
            " steps)"
        )


def kept(planned: PlannedGroup, names: tuple[str, ...]) -> Kept:
    """Counts the stored bytes of a backward pass; compiles nothing."""
    plan = planned.plan
    resident = Resident(planned, are_shapes=True)
    with _reversed(planned):
        state, round, steps = differentiated.kept_bytes(plan, names, *resident.start)
    points = min(len(planned.group.points), plan.points_per_chunk * plan.point_devices)
    size = planned.processes[0].participation.cohort_size(planned.num_clients)
    # Chunks go back one after the other: only the steps of one are stored.
    at_once = size
    if plan.execution.chunk_size:
        at_once = min(
            size, plan.execution.chunk_size * (plan.execution.num_devices or 1)
        )
    return Kept(
        num_rounds=planned.options.num_rounds,
        state=points * state,
        round=points * round,
        steps=points * steps * at_once // size,
    )


class Backward:
    """The compiled backward pass of a group, for any values of its fields."""

    def __init__(
        self,
        planned: PlannedGroup,
        maker: trainer.Differentiation,
        store: checkpoint.Store | None = None,
    ):
        """Places the data, and compiles."""
        self.kept = kept(planned, maker.names)
        # By counted bytes before compiling, which takes long, and by the compiler's
        # after it.
        _check_fits(self.kept.total, self.kept, planned)
        self.trainer, self._names = Resident(planned, store), maker.names
        self.objective = maker.model_of(planned)
        self.num_rounds = planned.options.num_rounds
        static = (planned.plan, maker.names, self.objective, self.kept.pieces)
        with _reversed(planned):
            lowered = differentiated.backward.lower(*static, *self.trainer.start)
        self._program = lowered.compile()
        analysis = self._program.memory_analysis()
        if analysis is not None:  # of backends that report it
            _check_fits(analysis.temp_size_in_bytes, self.kept, planned)

    def __call__(self, values: _ByName | None = None) -> tuple[np.ndarray, _ByName]:
        """Returns the objective `[G]`, and its derivatives shaped like the fields."""
        processes, *arguments = self.trainer.start
        if values is not None:
            # Values are in the order of the points, arguments in that of the programs.
            order = self.trainer.planned.order
            numbers = fields.taken(processes, self._names).items()
            arrays = {
                n: jax.numpy.asarray(values[n][order], x.dtype) for n, x in numbers
            }
            processes = fields.put(processes, arrays)
        return self.trainer.by_point(self._program(processes, *arguments))

    def values(self) -> _ByName:
        """Returns the values of the processes by name, `[G]` or `[G, N]`."""
        taken = fields.taken(self.trainer.start[0], self._names)
        return self.trainer.by_point(sharding.fetch(taken))


@contextlib.contextmanager
def _reversed(planned: PlannedGroup) -> Iterator[None]:
    """Replaces JAX's error about loops without reverse derivatives."""
    try:
        yield
    except ValueError as error:
        if _NO_REVERSE not in str(error):
            raise
        raise checks.InputError(
            "Expected loops of a known length for derivatives in values per client,"
            f" got one of {planned.algorithm} that ends by a tolerance; leave"
            " per_client out, and differentiate forward."
        ) from error


def _check_fits(needed: int, kept: Kept, planned: PlannedGroup) -> None:
    """Refuses a pass that needs more memory than there is."""
    limit = planned.options.parsed_memory
    free = limit if isinstance(limit, int) else cost.available_bytes()
    if limit == "none" or free is None or needed <= free:
        return
    advice = "fewer rounds or a smaller model"
    if 2 * kept.steps > kept.total:
        advice = "a smaller chunk (execution) or fewer local steps"
    raise checks.InputError(
        f"Going back through {kept.num_rounds} rounds of {planned.num_clients} clients"
        f" needs {cost.shown(needed)}, of which {cost.shown(kept.total)} are kept,"
        f" {cost.shown(kept.steps)} for local steps, more than the {cost.shown(free)}"
        f" that there are; use {advice}."
    )
