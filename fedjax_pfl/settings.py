"""How trainings are run, whatever is trained."""

import dataclasses
from collections.abc import Mapping, Sequence

from fedjax_pfl import checks, clients, schedule, stopping

__all__ = ["EVALUATE_ON", "Settings"]

EVALUATE_ON = ("test", "validation")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all static groups of a call have in common.

    Attributes:
      num_rounds: R.
      schedule: what is evaluated when.
      execution: how the map over clients is run, or `auto`.
      diagnostics: whether the algorithm's diagnostics are computed at evaluations.
      points_per_chunk: grid points vmapped together; None picks.
      stop_when: when a point ends early, or None.
    """

    num_rounds: int
    schedule: schedule.Schedule
    execution: str | clients.Execution = "auto"
    diagnostics: bool = False
    points_per_chunk: int | None = None
    stop_when: stopping.StopWhen | None = None

    @classmethod
    def parse(
        cls,
        num_rounds: int,
        *,
        eval_every: int | None = None,
        execution: str | clients.Execution = "auto",
        evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON,
        eval_clients: str | int = "all",
        diagnostics: bool = False,
        points_per_chunk: int | None = None,
        stop_when: stopping.StopWhen | None = None,
    ) -> "Settings":
        """Checks a user's arguments, which are those of `simulate` and `grid`.

        Raises:
          InputError: if one does not fit, in one sentence.
        """
        planned = schedule.Schedule.parse(
            evaluate_on, eval_every, eval_clients, num_rounds
        )
        if execution != "auto":
            execution = clients.Execution.parse(execution)
        checks.boolean("diagnostics", diagnostics)
        if points_per_chunk is not None:
            checks.positive_int("points_per_chunk", points_per_chunk)
        if stop_when is not None and stop_when.data not in planned.data:
            raise checks.InputError(
                f"Expected the data to stop on to be one of {', '.join(planned.data)},"
                f" which are evaluated, got {stop_when.data!r}."
            )
        return cls(
            num_rounds=num_rounds,
            schedule=planned.within(num_rounds),
            execution=execution,
            diagnostics=diagnostics,
            points_per_chunk=points_per_chunk,
            stop_when=stop_when,
        )
