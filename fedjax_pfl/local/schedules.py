"""Learning rates that follow a function, such as a schedule of optax."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
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
        # Equal schedules share a compiled program.
        return isinstance(other, Named) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)

    def __call__(self, count: jax.Array) -> jax.Array:
        """Returns the rate `[]` at a number `int32[]`."""
        name, arguments = self._call
        return NAMES[name](*arguments)(count)


@struct.pytree_dataclass
class Schedule:
    """A learning rate that changes from step to step, or from round to round."""

    # From a number `int32[]` from 0 to the rate `[]`. The number counts rounds, or all
    # local steps of the client over the rounds in which it took part.
    function: Callable[[Any], Any] = struct.static_field()
    per_round: bool = struct.static_field(default=False)

    def rate(self, round: core.Scalar | None, step: jax.Array | None) -> jax.Array:
        """Returns the rate `[]` of a step, in the default float type."""
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


def scheduled(rate: Rate, per_round: bool) -> float | Schedule:
    """Returns a learning rate in the form of solvers: a function as a `Schedule`."""
    checks.boolean("per_round", per_round)
    if isinstance(rate, Schedule):
        return dataclasses.replace(rate, per_round=per_round)
    # Such as ("cosine", 0.1, 1000): settings contain no functions.
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


def counts_steps(tree: core.Tree) -> bool:
    """Returns whether a schedule of steps is among the fields of a method."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Schedule))
    return any(isinstance(node, Schedule) and not node.per_round for node in nodes)
