"""Checks of JSON values for fields of dataclasses."""

import dataclasses
import json
import types
import typing
from typing import Any

from fedjax_pfl.core import checks

__all__ = ["annotation", "check", "fits"]

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a name",
    type(None): "null",
}


def annotation(cls: type, field: dataclasses.Field) -> Any:
    """Returns the declared type of a field; traced fields are numbers."""
    declared = typing.get_type_hints(cls)[field.name]
    if declared is Any:
        return float | None if field.default is None else float
    return declared


def check(name: str, value: Any, annotation: object) -> Any:
    """Returns the value, with whole numbers as floats if the field is a float."""
    if not fits(value, annotation):
        expected = f"Expected {name} to be {describe(annotation)}"
        raise checks.InputError(f"{expected}, got {json.dumps(value)}.")
    if isinstance(value, str):
        checks.text(name, value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or type(value) in _members(annotation):
        return value
    try:
        return float(value)
    except OverflowError as error:
        raise checks.InputError(
            f"Expected {name} to be a finite number, got {value}."
        ) from error


def _members(annotation: object) -> tuple[Any, ...]:
    """Returns the alternatives of a union, or the type itself; names are texts."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(member for part in arguments for member in _members(part))
    # The component checks the names itself, and suggests similar ones.
    if origin is typing.Literal:
        return tuple({type(name) for name in arguments})
    return (annotation,)


def fits(value: Any, annotation: object) -> bool:
    """Returns whether a JSON value may be put into a field of this type."""
    for member in _members(annotation):
        if typing.get_origin(member) is type(value):  # a tuple or a list
            inner = typing.get_args(member)[0]
            if all(fits(v, inner) for v in value):
                return True
        if type(value) is member or (member is float and type(value) is int):
            return True
    return False


def describe(annotation: object) -> str:
    """Returns a type in words."""
    words = []
    for member in _members(annotation):
        if typing.get_origin(member) is tuple:
            inner = _WORDS.get(typing.get_args(member)[0], "value").partition(" ")[2]
            words.append(f"a list of {inner}s")
        elif member in _WORDS:
            words.append(_WORDS[member])
    return " or ".join(words) or "set in Python"
