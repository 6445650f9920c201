"""Texts of times: numbers, dates and timestamps."""

import datetime
import re
from collections.abc import Collection
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import tables

__all__ = ["parse_times"]

_MONTH = re.compile(r"\d{4}-\d{2}", re.ASCII)
_MAX_DIGITS = 40


def parse_times(texts: Collection[str], subject: str) -> list[Any] | None:
    """Converts texts to numbers or to moments; None if they are neither."""
    value_of = {text: _parsed(text) for text in set(texts)}
    example_of = {type(value): text for text, value in sorted(value_of.items())}
    if float in example_of and int in example_of:  # these can be compared
        del example_of[int]
    moments = [v for v in value_of.values() if isinstance(v, datetime.datetime)]
    if len(example_of) > 1:
        quotes = " and ".join(repr(text[:_MAX_DIGITS]) for text in example_of.values())
        raise checks.InputError(
            f"Expected only numbers or only ISO dates in {subject}, got {quotes}."
        )
    if len({moment.tzinfo is None for moment in moments}) > 1:
        raise checks.InputError(
            f"Expected all timestamps in {subject} with a time zone or all without one,"
            " got both."
        )
    if type(None) in example_of:
        return None
    return [value_of[text] for text in texts]


def _parsed(text: str) -> int | float | datetime.datetime | None:
    """Returns the number or moment of a text, or None if it is neither."""
    text = text.strip()
    if tables.NUMBER.fullmatch(text):
        # Nanoseconds since 1970 are too large to be exact as floats.
        is_whole = text.lstrip("+-").isdecimal() and len(text) <= _MAX_DIGITS
        return int(text) if is_whole else float(text)
    try:
        return datetime.datetime.fromisoformat(
            f"{text}-01" if _MONTH.fullmatch(text) else text
        )
    except ValueError:
        return None
