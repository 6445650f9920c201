"""Texts: numbers with nouns, and untrusted names of data files and result folders."""

import re

__all__ = ["counted", "printable"]

# Terminals act on control characters; the others change lines and directions.
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def printable(text: object) -> str:
    """Escapes the control characters of a text, except tabs and newlines."""
    return _ACTING.sub(lambda match: ascii(match[0])[1:-1], str(text))


def counted(number: int, noun: str, form: str = "") -> str:
    """Returns a number with its noun, as `1 example`, or `1,200 examples` by `,`."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"
