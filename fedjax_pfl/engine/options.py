"""How trainings are run, whatever is trained."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import schedule, stopping

__all__ = ["EVALUATE_ON", "Settings", "parse_memory"]

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
      memory_limit: bytes that a group may need, `free` for what is free when it
        starts, or `none`.
    """

    num_rounds: int
    schedule: schedule.Schedule
    execution: str | sharding.Execution = "auto"
    diagnostics: bool = False
    points_per_chunk: int | None = None
    stop_when: stopping.StopWhen | None = None
    memory_limit: str | int = "free"

    @classmethod
    def parse(
        cls,
        num_rounds: int,
        *,
        eval_every: int | None = None,
        execution: str | sharding.Execution = "auto",
        evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON,
        eval_clients: str | int = "all",
        diagnostics: bool = False,
        points_per_chunk: int | None = None,
        stop_when: stopping.StopWhen | None = None,
        memory_limit: str | int = "free",
    ) -> "Settings":
        """Checks a user's arguments, which are those of `simulate` and `grid`.

        Raises:
          InputError: if one does not fit, in one sentence.
        """
        planned = schedule.Schedule.parse(
            evaluate_on, eval_every, eval_clients, num_rounds
        )
        if execution != "auto":
            execution = sharding.Execution.parse(execution)
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
            memory_limit=parse_memory(memory_limit),
        )


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_memory(limit: str | int) -> str | int:
    """Reads a limit of memory.

    Args:
      limit: `free`, `none`, a number of bytes, or a size such as `8GB` or `512MiB`.

    Returns:
      `free`, `none` or bytes.

    Raises:
      InputError: for anything else.

    Example:
      >>> parse_memory("1.5 GB")
      1500000000
    """
    if limit in ("free", "none"):
        return limit
    found = _SIZE.fullmatch(str(limit).strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if isinstance(limit, bool) or size <= 0:
        raise checks.InputError(
            "Expected memory_limit to be a size such as 8GB or 512MiB, a number of"
            f" bytes above 0, free or none, got {limit!r}."
        )
    return size
