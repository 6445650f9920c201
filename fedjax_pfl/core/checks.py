"""Argument checks that name the argument and its value.

They look at concrete values and let tracers pass: inside compiled code nothing raises.
Names are checked without JAX, so that commands answer wrong ones at once.
"""

import contextlib
import contextvars
import difflib
import json
import numbers
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = [
    "MAX_SEED",
    "InputError",
    "alternatives",
    "as_command",
    "boolean",
    "is_text",
    "known",
    "memory",
    "number",
    "one_line",
    "positive_int",
    "setting",
    "suggestion",
    "text",
    "whole",
    "whole_name",
]

MAX_SEED = 2**32 - 1
_MAX_WHOLE = 2**31 - 1  # what a static number may be where it becomes an index
_NEAR = 0.7  # share of letters in common from which a name is taken for a slip
_SHORT, _NEAR_SHORT = 3, 0.6  # one slip in three letters leaves two thirds of them
_MAX_NAMES = 30  # of many allowed ones, so that a message stays a sentence


class InputError(ValueError):
    """A wrong input, described by one sentence that a user can act on."""

    def __init__(self, sentence: str):
        super().__init__(one_line(sentence))


def one_line(text: str) -> str:
    r"""Returns a text as messages show it: what is not printable is escaped.

    Example:
      >>> one_line("There is no 'a\nb'.")
      "There is no 'a\\nb'."
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


_is_command = contextvars.ContextVar("is_command", default=False)


@contextlib.contextmanager
def as_command() -> Iterator[None]:
    """Makes messages name settings as options of a command inside the context."""
    token = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(token)


def setting(name: str, value: Any) -> str:
    r"""Returns how a user sets a field: in Python, or as an option of a command.

    Args:
      name: dotted name of the field in a command.
      value: text, number or tuple of these.

    Example:
      >>> setting("federation.dataset.drop", ("when",))
      "drop=('when',)"
      >>> with as_command():
      ...     setting("federation.dataset.drop", ("when",))
      '--set \'federation.dataset.drop=["when"]\''
    """
    if not _is_command.get():
        return f"{name.rpartition('.')[2]}={value!r}"
    text = value if isinstance(value, str) else json.dumps(value)
    shown = f"{name}={text}"
    return f"--set '{shown}'" if text != value else f"--set {shown}"


def _wrong_type(value: Any) -> bool:
    """Tells whether a value is of a kind given by mistake for a number.

    Anything else that is not a number is a placeholder that JAX puts into trees.
    """
    return isinstance(value, bool | str | bytes | complex | list | tuple | dict | set)


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Checks that a traced field, where concrete, is a finite number in a range.

    Args:
      name: name shown in the message.
      value: number, array of numbers, tracer, or a placeholder that JAX puts into
        trees.
      above: exclusive lower bound.
      at_least: inclusive lower bound.
      at_most: inclusive upper bound.
      below: exclusive upper bound.

    Raises:
      InputError: if a concrete value is not a number, not finite or out of range.
    """
    import jax
    from jax import core

    limits = [
        (above, "above", np.greater),
        (at_least, "at least", np.greater_equal),
        (at_most, "at most", np.less_equal),
        (below, "below", np.less),
    ]
    wanted = " and ".join(
        f"{word} {limit:g}" for limit, word, _ in limits if limit is not None
    )
    expected = f"Expected {name} to be a finite number" + (
        f" {wanted}" if wanted else ""
    )
    if _wrong_type(value):
        raise InputError(f"{expected}, got {value!r}.")
    is_array = isinstance(value, np.ndarray | jax.Array)
    if isinstance(value, core.Tracer) or not (
        is_array or isinstance(value, numbers.Number)
    ):
        return
    concrete = np.asarray(value)
    if concrete.dtype.kind not in "fiu":
        raise InputError(f"{expected}, got {value!r}.")
    inside = np.isfinite(concrete).all() and all(
        compare(concrete, limit).all()
        for limit, _, compare in limits
        if limit is not None
    )
    if not inside:
        shown = concrete.item() if concrete.ndim == 0 else concrete.tolist()
        raise InputError(f"{expected}, got {shown!r}.")


def whole(name: str, value: Any, *, at_least: int, at_most: int = _MAX_WHOLE) -> None:
    """Checks that a static field is an integer in a range.

    Args:
      name: name shown in the message.
      value: the static value.
      at_least: inclusive lower bound.
      at_most: inclusive upper bound.

    Raises:
      InputError: if it is not.
    """
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or not at_least <= value <= at_most:
        limits = f"of at least {at_least}"
        if is_int and value > at_most:
            limits += f" and at most {at_most}"
        raise InputError(
            f"Expected {name} to be a whole number {limits}, got {value!r}."
        )


def positive_int(name: str, value: Any) -> None:
    """Checks that a static field is an integer from 1 to 2^31 - 1.

    Args:
      name: name shown in the message.
      value: the static value.

    Raises:
      InputError: if it is not.
    """
    whole(name, value, at_least=1)


def alternatives(**values: Any) -> None:
    """Checks that of two fields at most one is given.

    Args:
      **values: the two, by name; None where a field is not given.

    Raises:
      InputError: if both are.
    """
    if all(value is not None for value in values.values()):
        both = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise InputError(f"Expected {' or '.join(values)}, got both: {both}.")


def boolean(name: str, value: Any) -> None:
    """Checks that a static field is true or false.

    Args:
      name: name shown in the message.
      value: the static value.

    Raises:
      InputError: if it is not.
    """
    if not isinstance(value, bool):
        raise InputError(f"Expected {name} to be true or false, got {value!r}.")


def is_text(name: str, value: Any) -> None:
    """Checks that a static field is text.

    Args:
      name: name shown in the message.
      value: the static value.

    Raises:
      InputError: if it is not.
    """
    if not isinstance(value, str):
        raise InputError(f"Expected {name} to be text, got {value!r}.")


def text(name: str, value: str) -> None:
    """Checks that a text can be written into files and be part of a path.

    Args:
      name: name shown in the message.
      value: the text.

    Raises:
      InputError: if it has a character 0, half of a surrogate pair, which is how
        Python reads bytes that are not UTF-8, or a number that is no character, which
        NumPy reads from damaged files.
    """
    try:
        is_text = "\0" not in value and value.encode().decode() == value
    except UnicodeError:
        is_text = False
    if not is_text:
        raise InputError(
            f"Expected {name} to be text in UTF-8 without the character 0, got"
            f" {value!a}."
        )


def memory(what: str, needed: int, advice: str) -> None:
    """Checks that there is enough memory, before it is taken.

    Args:
      what: the noun of the message.
      needed: bytes.
      advice: what to do otherwise; ends the sentence.

    Raises:
      InputError: if there is not.
    """
    import psutil

    free = psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"{what} would take {needed / 1e9:,.3g} GB of memory, but"
            f" {free / 1e9:,.3g} GB are free: {advice}."
        )


def known(value: Any, allowed: Iterable[str], what: str) -> None:
    """Checks that a name is one of the allowed ones and suggests near misses.

    Args:
      value: the given name.
      allowed: allowed names.
      what: noun for the message, for example `"dataset"`.

    Raises:
      InputError: if the name is unknown.

    Example:
      >>> known("mnits", ["mnist", "digits"], "dataset")
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Unknown dataset 'mnits' (did you mean ...
    """
    allowed = sorted(allowed)
    if value in allowed:
        return
    hint = suggestion(value, allowed)
    shown = ", ".join(allowed[:_MAX_NAMES]) or "none"
    if len(allowed) > _MAX_NAMES:
        shown += f" and {len(allowed) - _MAX_NAMES} more"
    raise InputError(f"Unknown {what} {value!r}{hint}; allowed: {shown}.")


def whole_name(name: str, known: Iterable[str], what: str) -> None:
    """Refuses the end of a dotted name in place of all of it.

    Args:
      name: the given name, which begins with nothing that is known.
      known: dotted names.
      what: noun for the message, for example `"axis"`.

    Raises:
      InputError: if a name ends so; names the first.

    Example:
      >>> whole_name("lam", ["algorithm.kappa", "algorithm.lam"], "axis")
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Expected the whole name of axis 'lam': did ...
    """
    ends = [one for one in known if one.endswith(f".{name}")]
    if ends:
        raise InputError(
            f"Expected the whole name of {what} {name!r}: did you mean {ends[0]!r}?"
        )


def suggestion(value: Any, allowed: Iterable[str]) -> str:
    """Returns ` (did you mean ...?)` where a name is near, else nothing.

    Dotted names are compared by their last parts, since a common head makes no two
    fields alike; of equal parts the shortest name counts.
    """
    parts = {n.rpartition(".")[2]: n for n in sorted(allowed, key=len, reverse=True)}
    part = str(value).rpartition(".")[2]
    cutoff = _NEAR if len(part) > _SHORT else _NEAR_SHORT
    near = difflib.get_close_matches(part, parts, n=1, cutoff=cutoff)
    return f" (did you mean {parts[near[0]]!r}?)" if near else ""
