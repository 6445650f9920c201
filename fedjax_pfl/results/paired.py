"""Differences paired by seed, with intervals of Student's t (no SciPy needed)."""

import dataclasses
import math

import pandas as pd

__all__ = ["Interval", "interval", "quantile"]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean difference with its 95 % interval.

    Attributes:
      mean: mean difference; NaN without pairs.
      margin: half the width of the interval; infinite with fewer than two pairs.
      pairs: pairs that count.
      lost: pairs in which one side diverged or is missing.
    """

    mean: float
    margin: float
    pairs: int
    lost: int

    @property
    def verdict(self) -> str:
        """`holds` if all of it is above zero, `does not hold` if below, else open."""
        if self.mean - self.margin > 0:
            return "holds"
        return "does not hold" if self.mean + self.margin < 0 else "undecided"

    def __str__(self) -> str:
        return self.text("+.2f")

    def text(self, form: str) -> str:
        """In words, numbers in a format such as `+.2f`."""
        lost = f" ({self.lost} of {self.lost + self.pairs} lost)" if self.lost else ""
        if not self.pairs:
            return f"no pairs{lost}"
        if self.pairs == 1:
            return f"{self.mean:{form}}, one pair{lost}"
        low, high = self.mean - self.margin, self.mean + self.margin
        return f"{self.mean:{form}} [{low:{form}}, {high:{form}}]{lost}"


def interval(values: pd.Series, others: pd.Series) -> Interval:
    """The interval of the mean of `values - others`, by common index.

    Args:
      values: one number per seed; NaN where it is lost.
      others: like `values`.

    Returns:
      The interval; seeds that are not in both, or NaN in one, are lost.
    """
    gaps = values.sub(others)  # aligned by seed: NaN where one is missing
    good = gaps.dropna()
    count = len(good)
    margin = math.inf
    if count > 1:
        margin = quantile(count - 1) * float(good.std()) / math.sqrt(count)
    mean = float(good.mean()) if count else math.nan
    return Interval(mean=mean, margin=margin, pairs=count, lost=len(gaps) - count)


def quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, by bisection of its distribution.

    Args:
      degrees: degrees of freedom, at least 1.

    Returns:
      The quantile.

    Example:
      >>> round(quantile(4), 4)
      2.7764
    """
    low, high = 0.0, 13.0  # the largest is 12.7, of one degree
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _inside(t: float, degrees: int) -> float:
    """Probability of `[-t, t]`: finite sums in `angle = atan(t / sqrt(degrees))`.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for k in range(1 + is_odd, degrees, 2):
        total += term
        term *= square * k / (k + 1)
    part = math.sin(angle) * total
    return 2 / math.pi * (angle + part) if is_odd else part
