"""Counts of what the tests of the long mode did, printed at the end of their run."""

__all__ = ["COUNTS", "add", "lines"]

COUNTS = {"kills": {}, "inputs": {}, "signals": {}}
"""By kind: number and details by what was done."""


def add(kind, what, number, details=""):
    """Adds to the counts of a kind."""
    before, _ = COUNTS[kind].get(what, (0, ""))
    COUNTS[kind][what] = before + number, details


def lines():
    """The table: a total of each kind, and under it what it is made of."""
    found = []
    for kind, rows in COUNTS.items():
        found.append(f"{sum(number for number, _ in rows.values()):>9,}  {kind}")
        for what, (number, details) in rows.items():
            found.append(f"{number:>9,}    {what}{details and f': {details}'}")
    return found
