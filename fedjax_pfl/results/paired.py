"""Differences paired by seed, with intervals and tests of Student's t."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

__all__ = ["Interval", "holm", "interval", "of_mean"]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean difference with its 95 % interval."""

    mean: float  # NaN without pairs
    standard_error: float  # infinite with fewer than two pairs
    pairs: int  # number of pairs that count
    lost: int  # pairs in which one side diverged or is missing

    @property
    def margin(self) -> float:
        """Half the width of the interval; infinite with fewer than two pairs."""
        if self.pairs < 2:
            return math.inf
        from scipy import special  # only where there are intervals

        return float(special.stdtrit(self.pairs - 1, 0.975)) * self.standard_error

    @property
    def p_value(self) -> float:
        """Probability of a mean at least this far from zero if the truth is zero."""
        return min(1.0, 2 * self.beyond(abs(self.mean)))

    def beyond(self, distance: float) -> float:
        """Returns Student's probability of an error of at least that distance."""
        if self.pairs < 2:
            return 1.0
        if not self.standard_error > 0:  # all pairs differ by the same
            return 0.0 if distance > 0 else 1.0
        from scipy import special

        ratio = -distance / self.standard_error
        return float(special.stdtr(self.pairs - 1, ratio))

    @property
    def verdict(self) -> str:
        """`holds` for an interval above zero, `does not hold` below it, else open."""
        if self.mean - self.margin > 0:
            return "holds"
        return "does not hold" if self.mean + self.margin < 0 else "undecided"

    def __str__(self) -> str:
        return self.text("+.2f")

    def text(self, form: str) -> str:
        """Formats the interval, numbers in a format such as `+.2f`."""
        lost = f" ({self.lost} of {self.lost + self.pairs} lost)" if self.lost else ""
        if not self.pairs:
            return f"no pairs{lost}"
        if self.pairs == 1:
            return f"{self.mean:{form}}, one pair{lost}"
        low, high = self.mean - self.margin, self.mean + self.margin
        return f"{self.mean:{form}} [{low:{form}}, {high:{form}}]{lost}"


def interval(values: pd.Series, reference: pd.Series) -> Interval:
    """Returns the interval of the mean of `values - reference`, paired by index."""
    return of_mean(values.sub(reference))  # aligned by seed: NaN if one is missing


def of_mean(values: pd.Series) -> Interval:
    """Returns the interval of the mean of one number per seed; NaN is lost."""
    good = values.dropna().to_numpy(float)
    count = len(good)
    error = float(good.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    mean = float(good.mean()) if count else math.nan
    lost = len(values) - count
    return Interval(mean=mean, standard_error=error, pairs=count, lost=lost)


def holm(values: Sequence[float]) -> list[float]:
    """Returns p-values `[n]` corrected by Holm's step-down method."""
    # The k-th smallest of n counts n - k + 1 times; a larger one never counts less.
    order = np.argsort(values, kind="stable")
    scaled = np.asarray(values, float)[order] * (len(values) - np.arange(len(values)))
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected.tolist()
