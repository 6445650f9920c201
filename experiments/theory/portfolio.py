"""The page of portfolio management: the effect of aggregation on parties' policies."""

import dataclasses

import fedjax_pfl as fp
from experiments.theory import fedplus_failure, rows
from fedjax_pfl.algorithms import phi

__all__ = ["aggregation"]

_SGD = fp.SGD(learning_rate=1.0, num_steps=50, batch_size=50)
_METHODS = {
    # FedAvg that keeps trained models between rounds, in `clients`.
    "FedAvg": fp.FedPlus(phi=phi.Indicator(), theta=1.0, lam=1.0, local=_SGD),
    "FedAvg+": fp.FedPlus.mean(alpha=0.01, lam=0.04, local=_SGD),
}
_PARTIES, _REPETITIONS = 10, 3


def aggregation(options: rows.Options) -> rows.Findings:
    """Measures annualized returns along lines from policies to the aggregate."""
    seeds = range(min(options.seeds, _REPETITIONS))
    days = 700 if options.quick else 3523
    spec = fp.portfolio.PortfolioSpec(
        fp.portfolio.SyntheticMarket(num_days=days), num_clients=_PARTIES, years=0
    )
    return fedplus_failure.compared(
        "portfolio_failure",
        "annualized return of the test year",
        _METHODS,
        [dataclasses.replace(spec, seed=seed).build() for seed in seeds],
        fp.portfolio.EIIE(),
        num_rounds=2 if options.quick else 20,
    )
