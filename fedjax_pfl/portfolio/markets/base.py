"""Prices of a market on the host."""

import dataclasses

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["Market", "check_features"]

_HOLE_DAYS = 14  # the longest closures of exchanges are shorter


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Market:
    """Daily prices without gaps. Compared and hashed by identity."""

    name: str  # shown in messages and result files
    dates: np.ndarray  # datetime64[D][T] ascending trading days
    tickers: tuple[str, ...]  # names of the A assets
    # float64[T, A, F], positive; feature 0 is the close, and for F = 3 high and low
    # follow. Before an asset's first day its first price is repeated.
    prices: np.ndarray
    listed: np.ndarray  # int64[A] first day of each asset

    def between(
        self, start: np.datetime64 | None, end: np.datetime64 | None
    ) -> "Market":
        """Returns the market from one date to another, both included, or unlimited."""
        begin = 0 if start is None else int(np.searchsorted(self.dates, start))
        stop = len(self.dates)
        if end is not None:
            stop = int(np.searchsorted(self.dates, end, side="right"))
        dates = self.dates[begin:stop]
        if len(dates) == 0:
            raise checks.InputError(
                f"Market {self.name!r} has no day from {start or 'its first'} to"
                f" {end or 'its last'}: its dates are {self.dates[0]} to"
                f" {self.dates[-1]}."
            )
        steps = np.diff(dates).astype(int)
        if len(steps) and steps.max() > _HOLE_DAYS:
            hole = int(steps.argmax())
            raise checks.InputError(
                f"Market {self.name!r} has no day between {dates[hole]} and"
                f" {dates[hole + 1]}; add the missing dates or begin later"
                " (train_from)."
            )
        return dataclasses.replace(
            self,
            dates=dates,
            prices=self.prices[begin:stop],
            listed=np.maximum(self.listed - begin, 0),
        )


def check_features(features: int) -> None:
    """Checks that the number of features is 1 (close) or 3 (close, high, low)."""
    if type(features) is not int or features not in (1, 3):
        raise checks.InputError(
            "Expected features to be 1 (close) or 3 (close, high, low), got"
            f" {checks.shown(features)}."
        )
