"""Argument checks that name the argument and its value."""

import contextlib
import contextvars
import difflib
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
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
    "numbers",
    "one_line",
    "path",
    "positive_int",
    "setting",
    "shown",
    "suggestion",
    "text",
    "whole",
    "whole_name",
]

MAX_SEED = 2**32 - 1
_MAX_WHOLE = 2**31 - 1  # largest static number, which may become an int32 index
_NEAR = 0.7  # share of common letters from which a name counts as a typo
_SHORT, _NEAR_SHORT = 3, 0.6  # one typo in three letters leaves two thirds of them
_MAX_SENTENCE, _HEAD = 4000, 400  # characters of a sentence, and of its ends
_MAX_NAME = 255  # bytes of a file's name
_MAX_SHOWN = 200  # characters of a value in a message
_MAX_NAMES = 30  # of allowed names in a message, which stays a sentence


class InputError(ValueError):
    """A wrong input, described by one sentence that a user can act on."""

    def __init__(self, sentence: str):
        if len(sentence) > _MAX_SENTENCE:  # it contains a value of unreadable length
            sentence = f"{sentence[:_HEAD]} ... {sentence[-_HEAD:]}"
        super().__init__(one_line(sentence))


def one_line(text: str) -> str:
    r"""Escapes the unprintable characters of a text.

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


def setting(name: str, value: object) -> str:
    """Returns the setting of a field: in Python, or as an option of a command."""
    if not _is_command.get():
        return f"{name.rpartition('.')[2]}={value!r}"
    text = value if isinstance(value, str) else json.dumps(value)
    quote = "" if text == value else "'"
    return f"--set {quote}{name}={text}{quote}"


def shown(value: Any) -> str:
    """Formats a value in few characters, for messages.

    Example:
      >>> shown(np.zeros((2, 3)))
      'an array float64[2, 3]'
      >>> shown(dict)
      'the class dict'
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if _is_array(value) and value.shape:
        return f"an array {value.dtype}[{', '.join(map(str, value.shape))}]"
    try:
        words = repr(value.item() if _is_array(value) else value)
    except Exception:  # of a value's own class, or of Python: too many digits
        words = f"an object of the class {type(value).__name__}"
    if len(words) > _MAX_SHOWN:
        return f"{words[:_MAX_SHOWN]}... of the class {type(value).__name__}"
    return words


def _is_array(value: object) -> bool:
    """Returns whether a value is an array, of NumPy or JAX, or a tracer."""
    is_class = isinstance(value, type)
    return not is_class and hasattr(value, "dtype") and hasattr(value, "shape")


def number(name: str, value: object, **limits: float | None) -> None:
    """Checks that a value, if concrete, is one finite number in a range.

    Args:
      name: name shown in the message.
      value: number, array `[]`, or tracer.
      **limits: limits as in `numbers`.
    """
    numbers(name, value, **limits, shape=())


def numbers(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Checks that a value, if concrete, has only finite numbers in a range."""
    is_array = _is_array(value)
    # Tracers pass: compiled code never raises.
    if is_array and not _is_concrete(value):
        return
    limits = [
        (above, "above", np.greater),
        (at_least, "at least", np.greater_equal),
        (at_most, "at most", np.less_equal),
        (below, "below", np.less),
    ]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_array:
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        is_number = kind in ("f", "i", "u")
    concrete = np.asarray(value if is_number else math.nan)
    if (
        concrete.dtype == object  # an integer of more than 64 bits
        or (shape is not None and concrete.shape != shape)
        or not np.isfinite(concrete).all()
        or not all(
            compare(concrete, limit).all()
            for limit, _, compare in limits
            if limit is not None
        )
    ):
        noun = "a finite number" if shape == () else "finite numbers"
        ranges = [f"{word} {limit:g}" for limit, word, _ in limits if limit is not None]
        words = f"{noun} {' and '.join(ranges)}".rstrip()
        raise InputError(f"Expected {name} to be {words}, got {shown(value)}.")


def _is_concrete(value: object) -> bool:
    """Returns whether an array has values; tracers and shapes have none."""
    if isinstance(value, np.ndarray | np.generic):
        return True
    # Not at the top: commands reject wrong names before JAX is imported.
    import jax
    from jax.core import Tracer

    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


def whole(name: str, value: Any, *, at_least: int, at_most: int = _MAX_WHOLE) -> None:
    """Checks that a static field is an integer in a range."""
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_int or not at_least <= value <= at_most:
        limits = f"of at least {at_least}"
        if is_int and value > at_most:
            limits += f" and at most {at_most}"
        raise InputError(
            f"Expected {name} to be a whole number {limits}, got {shown(value)}."
        )


def positive_int(name: str, value: object) -> None:
    """Checks that a static field is an integer from 1 to 2^31 - 1."""
    whole(name, value, at_least=1)


def alternatives(**values: object) -> None:
    """Checks that at most one of two fields is given."""
    if all(value is not None for value in values.values()):
        pairs = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
        raise InputError(f"Expected {' or '.join(values)}, got both: {pairs}.")


def boolean(name: str, value: object) -> None:
    """Checks that a static field is true or false."""
    if not isinstance(value, bool):
        raise InputError(f"Expected {name} to be true or false, got {shown(value)}.")


def is_text(name: str, value: object) -> None:
    """Checks that a static field is text."""
    if not isinstance(value, str):
        raise InputError(f"Expected {name} to be text, got {shown(value)}.")


def path(name: str, value: object) -> Path:
    """Checks a path, given as text or as a path, and returns it.

    Example:
      >>> path("directory", "runs").name
      'runs'
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"Expected {name} to be text or a path, got {shown(value)}.")
    text(name, os.fspath(value))
    if any(len(part.encode()) > _MAX_NAME for part in Path(value).parts):
        raise InputError(
            f"Expected {name} with names of at most {_MAX_NAME} bytes, got"
            f" {shown(value)}."
        )
    return Path(value)


def text(name: str, value: str) -> None:
    """Checks that a text can be written into files and be part of a path."""
    is_text(name, value)
    try:
        is_readable = "\0" not in value and value.encode().decode() == value
    except UnicodeError:
        is_readable = False
    if not is_readable:
        raise InputError(
            f"Expected {name} to be text in UTF-8 without the character 0, got"
            f" {value!a}."
        )


def memory(what: str, needed: int, advice: str) -> None:
    """Checks that there is enough memory, before it is allocated."""
    import psutil

    free = psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"{what} would take {needed / 1e9:,.3g} GB of memory, but"
            f" {free / 1e9:,.3g} GB are free: {advice}."
        )


def known(value: object, allowed: Iterable[str], what: str) -> None:
    """Checks that a name is one of the allowed ones and suggests near misses.

    Args:
      value: the given name.
      allowed: allowed names.
      what: noun for the message, for example `"dataset"`.

    Example:
      >>> known("mnits", ["mnist", "digits"], "dataset")
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Unknown dataset 'mnits' (did you mean ...
    """
    allowed = sorted(allowed)
    if isinstance(value, str) and value in allowed:
        return
    hint = suggestion(value, allowed) if isinstance(value, str) else ""
    names = ", ".join(allowed[:_MAX_NAMES]) or "none"
    if len(allowed) > _MAX_NAMES:
        names += f" and {len(allowed) - _MAX_NAMES} more"
    raise InputError(f"Unknown {what} {shown(value)}{hint}; allowed: {names}.")


def whole_name(name: str, known: Iterable[str], what: str) -> None:
    """Refuses the last part of a dotted name in place of the whole name."""
    ends = [dotted for dotted in known if dotted.endswith(f".{name}")]
    if ends:
        raise InputError(
            f"Expected the whole name of {what} {name!r}: did you mean {ends[0]!r}?"
        )


def suggestion(value: object, allowed: Iterable[str]) -> str:
    """Returns ` (did you mean ...?)` with the nearest name, or an empty text.

    Dotted names are compared by their last parts, since a common head does not make two
    fields similar; among equal last parts the shortest name counts.
    """
    # Sorted, so that the shortest of equal last parts stays.
    parts = {n.rpartition(".")[2]: n for n in sorted(allowed, key=len, reverse=True)}
    part = str(value)[-_MAX_SHOWN:].rpartition(".")[2]
    cutoff = _NEAR if len(part) > _SHORT else _NEAR_SHORT
    near = difflib.get_close_matches(part, parts, n=1, cutoff=cutoff)
    return f" (did you mean {parts[near[0]]!r}?)" if near else ""
