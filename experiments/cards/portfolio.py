"""Card of Fed+'s portfolio management: its Table 1, compared with ours.

The numbers in `printed/portfolio_table1.csv` are printed in Yu, Kundu, Wynter,
Lim, "Fed+: A Unified Approach to Robust Personalized Federated Learning".
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from experiments.cards import claims, headlines, markdown, pages, tables, verdicts
from experiments.cards.fedplus import SIDES
from experiments.cards.runs import Run, Side
from fedjax_pfl.results import paired

__all__ = ["CARD", "Returns"]

_BENCHMARKS = {"equal shares": "uniform", "bought and held": "hold"}
_RUNS = {
    "portfolio": "synthetic markets",
    "portfolio_stocks": "stocks, 2019",
    "portfolio_paper": "the paper's rounds and steps",
    "portfolio_paper_stocks": "the paper's rounds and steps, stocks, 2019",
}
_MEASURES = ("accuracy", "sharpe")


@dataclasses.dataclass(frozen=True)
class Returns(tables.Parts):
    """Table 1 and our runs: returns in percent, Sharpe ratios, and paired gaps."""

    file: str = "portfolio_table1.csv"  # method, return in percent, Sharpe ratio
    note = (
        "Annualized return in percent (Sharpe ratio), means over the fifty parties,"
        " then over markets and seeds ± standard deviation. The gap is to a single"
        " party's own training, over pairs of one market and seed, with a 95 %"
        " interval of Student's t that takes them for independent."
    )

    def cells(self, runs: tables.Runs) -> Iterator[tables.Cell]:
        """Yields returns and Sharpe ratios, at the best scale of any run."""
        printed = pd.read_csv(tables.FOLDER / self.file)
        for row, measure in itertools.product(printed["method"], _MEASURES):
            yield min(
                (
                    self.cell(
                        name,
                        runs.get(name),
                        _values(runs[name], SIDES[row], measure)
                        if name in runs
                        else None,
                    )
                    for name in self.runs
                ),
                key=lambda cell: tables.LEVELS.index(cell.level),
            )

    def part(self, name: str, runs: tables.Runs) -> Iterator[str]:
        """Yields a line per method."""
        run = runs.get(name)
        header = ("method", "paper", "ours", "gap to a single party", "markets")
        if run is not None:
            yield from (f"`{run.command}`", "", *markdown.table(header, _rows(run)))


def _rows(run: Run) -> Iterator[Sequence[str]]:
    """Yields the paper's rows in one run, and rows of portfolios without learning."""
    party = SIDES["single party"]
    values = {
        row: (_values(run, side, "accuracy"), _values(run, side, "sharpe"))
        for row, side in SIDES.items()
    }
    for row, prefix in _BENCHMARKS.items():
        returns = 100 * _values(run, party, f"{prefix}_annualized_return")
        values[row] = (returns, _values(run, party, f"{prefix}_sharpe"))
    base, _ = values["single party"]
    paper = pd.read_csv(tables.FOLDER / "portfolio_table1.csv", index_col="method")
    for row, (returns, sharpe) in values.items():
        is_printed = row in paper.index
        printed = "{:.2f} ({:.2f})".format(*paper.loc[row]) if is_printed else "–"
        gap = "" if row == "single party" else str(paired.interval(returns, base))
        markets = returns.index.get_level_values(0).nunique()
        yield row, printed, _return_cell(returns, sharpe), gap, str(markets)


def _values(run: Run, side: Side, measure: str) -> pd.Series:
    """Returns one side's measure by environment (market) and seed."""
    parts = {title: part.values(side, measure) for title, part in run.environments()}
    parts = {title: values for title, values in parts.items() if values is not None}
    if not parts:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], []]))
    return pd.concat(parts)


def _return_cell(returns: pd.Series, sharpe: pd.Series) -> str:
    """Returns text such as `12.30 ± 1.20 (0.71)`."""
    if not returns.count():
        return "diverged" if len(returns) else "–"
    return f"{markdown.mean_and_std(returns)} ({sharpe.mean():.2f})"


def _claims() -> list[claims.Claim]:
    """Returns the paper's claims about its table and about the number of parties."""
    claim_text = "FedAvg+ is better than single-party training"
    pairs = (
        (claim_text, "FedAvg+", "single party"),
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
    return [*of_table, claims.Claim(claim_text, "portfolio_parties", plus, single)]


def _headlines() -> list[headlines.Headline]:
    """Returns the paper's headlines."""
    gains = [
        claims.Claim(f"{plus} is better than {rival}", run, SIDES[plus], SIDES[rival])
        for run in _RUNS
        for plus in ("FedAvg+", "FedGeoMed+", "FedCoMed+")
        for rival in ("FedAvg", "RFA", "Coordinate median", "FedProx")
    ]
    single_party_claims = [claim for claim in _claims() if "single-party" in claim.text]
    by_key = {"gains": gains, "party": single_party_claims}
    return headlines.of("portfolio", by_key)


CARD = pages.Card(
    method="portfolio",
    title="Portfolio management",
    text=pages.text_of("portfolio"),
    reference=SIDES["single party"],
    rule=verdicts.Rule(delta=0.5),
    headlines=_headlines(),
    sides=SIDES | {"the only Fed+": Side("FedPlus", "personal")},
    settings=("portfolio",),
    claims=_claims(),
    printed=(Returns("Table 1", _RUNS),),
    headline="annualized return",
)
