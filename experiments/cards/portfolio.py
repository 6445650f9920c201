"""Card of Fed+'s portfolio management: its Table 1 beside ours.

The numbers in `printed/portfolio_table1.csv` are those printed in Yu, Kundu, Wynter,
Lim, "Fed+: A Unified Approach to Robust Personalized Federated Learning".
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from experiments.cards import claims, markdown, pages, tables
from experiments.cards.fedplus import SIDES
from experiments.cards.runs import Run, Side
from fedjax_pfl.results import paired

__all__ = ["CARD", "Returns"]

_BESIDE = {"equal shares": "uniform", "bought and held": "hold"}
_RUNS = {"portfolio": "synthetic markets", "portfolio_stocks": "stocks, 2019"}


class Returns(tables.Parts):
    """Table 1 beside our runs: returns in percent, Sharpe ratios, and paired gaps."""

    note = (
        "Annualized return in percent (Sharpe ratio), means over the fifty parties,"
        " then over markets and seeds ± standard deviation. The gap is to a single"
        " party's own training, over pairs of one market and seed, with a 95 %"
        " interval of Student's t that takes them for independent."
    )

    def part(self, name: str, run: Run | None) -> Iterator[str]:
        """Yields a line per method."""
        header = ("method", "paper", "ours", "gap to a single party", "markets")
        if run is not None:
            yield from (f"`{run.command}`", "", *markdown.table(header, _rows(run)))


def _rows(run: Run) -> Iterator[Sequence[str]]:
    """Yields the paper's rows in one run, and those of what needs no learning."""
    alone = SIDES["single party"]
    values = {
        row: (_values(run, side, "accuracy"), _values(run, side, "sharpe"))
        for row, side in SIDES.items()
    }
    for row, prefix in _BESIDE.items():
        returns = 100 * _values(run, alone, f"{prefix}_annualized_return")
        values[row] = (returns, _values(run, alone, f"{prefix}_sharpe"))
    single, _ = values["single party"]
    theirs = pd.read_csv(tables.FOLDER / "portfolio_table1.csv", index_col="method")
    for row, (returns, sharpe) in values.items():
        is_printed = row in theirs.index
        printed = "{:.2f} ({:.2f})".format(*theirs.loc[row]) if is_printed else "–"
        gap = "" if row == "single party" else str(paired.interval(returns, single))
        markets = returns.index.get_level_values(0).nunique()
        yield row, printed, _shown(returns, sharpe), gap, str(markets)


def _values(run: Run, side: Side, measure: str) -> pd.Series:
    """Returns one side's measure by environment (market) and seed."""
    parts = {title: part.values(side, measure) for title, part in run.environments()}
    parts = {title: values for title, values in parts.items() if values is not None}
    if not parts:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], []]))
    return pd.concat(parts)


def _shown(returns: pd.Series, sharpe: pd.Series) -> str:
    """Returns text such as `12.30 ± 1.20 (0.71)`."""
    if not returns.count():
        return "diverged" if len(returns) else "–"
    return f"{markdown.mean_and_std(returns)} ({sharpe.mean():.2f})"


def _claims() -> list[claims.Claim]:
    """Returns the paper's claims of its table, and of the number of parties."""
    alone = "FedAvg+ is better than single-party training"
    pairs = (
        (alone, "FedAvg+", "single party"),
        ("FedAvg+ is better than FedAvg", "FedAvg+", "FedAvg"),
        ("FedAvg+ is better than FedProx", "FedAvg+", "FedProx"),
        ("FedAvg+ is better than RFA", "FedAvg+", "RFA"),
        ("FedAvg+ is better than FedGeoMed+", "FedAvg+", "FedGeoMed+"),
        ("FedAvg+ is better than FedCoMed+", "FedAvg+", "FedCoMed+"),
        ("the coordinate median is better than FedAvg", "Coordinate median", "FedAvg"),
    )
    of_table = [
        claims.Claim(text, run, SIDES[better], SIDES[worse])
        for run in _RUNS
        for text, better, worse in pairs
    ]
    plus = Side("FedPlus", "personal")  # the run has no other phi
    single = SIDES["single party"]
    return [*of_table, claims.Claim(alone, "portfolio_parties", plus, single)]


CARD = pages.Card(
    method="portfolio",
    title="Portfolio management",
    text=pages.text_of("portfolio"),
    reference=SIDES["single party"],
    claims=_claims(),
    printed=(Returns("Table 1", _RUNS),),
    headline="annualized return",
)
