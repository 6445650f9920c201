"""Learning rates that follow a function, such as those of optax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl.core import checks, struct

__all__ = ["NAMES", "Rate", "Schedule", "counts_steps", "scheduled"]

NAMES: dict[str, Callable[..., Callable[[Any], Any]]] = {
    "cosine": optax.cosine_decay_schedule,
    "exponential": optax.exponential_decay,
    "linear": optax.linear_schedule,
    "warmup_cosine": optax.warmup_cosine_decay_schedule,
}
"""Schedules of optax that have a name in settings."""


class Named:
    """A schedule of `NAMES`; results show it as a call, `cosine(0.1, 1000)`."""

    def __init__(self, name: str, arguments: tuple[float, ...]):
        """Takes a name, and numbers in the order of optax."""
        self._call = name, arguments
        self.__name__ = f"{name}({', '.join(map(str, arguments))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)

    def __call__(self, count: Any) -> Any:
        """Returns the rate `[]` at a number `int32[]`."""
        name, arguments = self._call
        return NAMES[name](*arguments)(count)


@struct.pytree_dataclass
class Schedule:
    """A learning rate that changes from step to step, or from round to round.

    Attributes:
      function: static; from a number `int32[]`, which begins at 0, to the rate `[]`.
      per_round: static; whether the number is that of the round, so that the rate is
        constant in a round. Otherwise it counts all local steps of the client, over all
        rounds in which it took part.
    """

    function: Callable[[Any], Any] = struct.static_field()
    per_round: bool = struct.static_field(default=False)

    def rate(self, round: Any, step: Any) -> jax.Array:
        """Returns the rate `[]` of a step, in the default float type.

        Args:
          round: `int32[]` number of the round; None counts as 0.
          step: `int32[]` earlier steps of the client; None outside of steps.
        """
        number = step
        if self.per_round:
            number = 0 if round is None else round
        elif step is None:
            raise checks.InputError(
                "Expected a learning rate that is held during a round, as this method's"
                " rule requires, got a schedule of steps; add per_round=True."
            )
        return jnp.asarray(self.function(number), jnp.zeros(()).dtype)


Rate = float | Schedule | tuple[str | float, ...] | Callable[[Any], Any]


def scheduled(rate: Any, per_round: bool) -> Any:
    """Returns a learning rate in the form of solvers: a function as a `Schedule`.

    Args:
      rate: number, function, schedule, or the name of one of `NAMES` and its numbers,
        such as `("cosine", 0.1, 1000)`.
      per_round: see `Schedule`.
    """
    checks.boolean("per_round", per_round)
    if isinstance(rate, Schedule):
        return dataclasses.replace(rate, per_round=per_round)
    if isinstance(rate, tuple | list):
        rate = _parse(rate)
    if not callable(rate):
        return rate
    if problem := _problem(rate):
        raise checks.InputError(
            "Expected learning_rate to be a number or a function from the number of a"
            " step to one, such as optax.cosine_decay_schedule(0.1, 1000), got"
            f" {struct.plain(rate)}, {problem}."
        )
    return Schedule(function=rate, per_round=per_round)


def _parse(values: Sequence[Any]) -> Named:
    """Reads the name and the numbers of a schedule."""
    name, *numbers = values or ("",)
    checks.known(name, NAMES, "schedule")
    for number in numbers:
        checks.number(f"each number of the schedule {name!r}", number)
    return Named(name, tuple(numbers))


@functools.lru_cache(maxsize=128)
def _problem(function: Callable[[Any], Any]) -> str:
    """Returns why a function is no schedule, or an empty text."""
    try:
        rate = jax.eval_shape(function, jnp.zeros((), jnp.int32))
    except Exception as error:
        message = str(error).strip().partition("\n")[0].rstrip(".")
        return f"which raises {type(error).__name__}: {message}"
    shape = getattr(rate, "shape", None)
    return "" if shape == () else "which does not return one number"


def counts_steps(tree: Any) -> bool:
    """Returns whether a schedule of steps is among the fields of a method."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Schedule))
    return any(isinstance(node, Schedule) and not node.per_round for node in nodes)
