"""Markdown of cards and studies: tables, lists, and means with deviations."""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

__all__ = ["mean_and_std", "numbered", "table"]


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None
) -> Iterator[str]:
    """Yields the lines of a table; numbers from column `left` on, at the right."""
    count = len(header) if left is None else left
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * count + "---:|" * (len(header) - count)
    yield from (f"| {' | '.join(row)} |" for row in rows)


def numbered(texts: Iterable[str]) -> str:
    """Returns a numbered list."""
    return "\n".join(f"{k}. {text}" for k, text in enumerate(texts, 1))


def mean_and_std(values: pd.Series) -> str:
    """Returns the mean, and the standard deviation of several values; NaN left out."""
    numbers = values.dropna()
    spread = f" ± {numbers.std():.2f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.2f}{spread}"
