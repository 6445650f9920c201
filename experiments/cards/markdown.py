"""Markdown of cards: tables, and means with standard deviations."""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

__all__ = ["mean_and_std", "table"]


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None
) -> Iterator[str]:
    """Yields the lines of a table; numbers from column `left` on, at the right."""
    count = len(header) if left is None else left
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * count + "---:|" * (len(header) - count)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def mean_and_std(values: pd.Series) -> str:
    """Returns the mean, and the standard deviation of several values; NaN left out."""
    numbers = values.dropna()
    spread = f" ± {numbers.std():.2f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.2f}{spread}"
