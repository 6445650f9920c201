"""Fed+'s portfolio management: fifty parties, nine assets each.

The paper's 800 rounds with learning rate 5e-5 would take hours here, and move a model
two percent of the way by its local pull. These presets have fewer rounds and Adam with
a rate chosen on validation days; lam is scaled so that a whole training moves a model
as far towards the center as the paper's does, `1 - 0.999^800` = 55 %. What the paper
has is `portfolio_paper`, and `portfolio_paper_stocks` on real prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fedjax_pfl as fp
from experiments.presets import fedplus
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS"]

_ROUNDS, _RATES_ROUNDS = 15, 20
_RATE = 3e-3  # best on validation days in `portfolio_rates`
_MIXED = 0.999**800  # own share that is left of a model after the paper's training


def _processes(num_rounds: int) -> list[fp.FederatedProcess]:
    """Returns every party alone, and the seven methods of Fed+'s Table 1."""
    # lam is the share of the center that moves models as far as the paper's 800 rounds.
    lam = 1 - _MIXED ** (1 / num_rounds)
    # Fifty iterations with pieces of fifty days.
    rate = {"learning_rate": _RATE}
    adam = fp.Optax(hyperparameters=rate, num_steps=50, batch_size=50)
    return fedplus.methods(adam, mu=1.0, lam=lam)


def _experiment(
    name: str,
    processes: list[fp.FederatedProcess],
    spec: fp.portfolio.PortfolioSpec,
    num_rounds: int,
    axes: Mapping[str, tuple[Any, ...]] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> experiment.Experiment:
    """Returns processes with the recurrent policy, on the last 252 days."""
    return experiment.Experiment(
        name=name,
        grids=experiment.grids_of(processes, fp.portfolio.EIIE(), spec, axes),
        num_rounds=num_rounds,
        seeds=seeds,
        eval_every=max(1, num_rounds // 4),
        evaluate_on=(("test", None), ("validation", None)),
    )


def _spec(**fields: Any) -> fp.portfolio.PortfolioSpec:
    """Returns fifty parties; years change as often as in the paper, for our rounds."""
    defaults = {"validation_days": 252, "years": _ROUNDS, "rounds_per_year": 1}
    return fp.portfolio.PortfolioSpec(**defaults | fields)


_MARKETS = {"federation.market.seed": (0, 1, 2)}
_STOCKS = {
    "market": "stocks",
    "test_from": "2019-01-01",
    "test_to": "2019-12-31",
}


def portfolio() -> experiment.Experiment:
    """Returns all methods and single-party training on three synthetic markets."""
    return _experiment("portfolio", _processes(_ROUNDS), _spec(), _ROUNDS, _MARKETS)


def portfolio_parties() -> experiment.Experiment:
    """Returns FedAvg+ against single-party training among 5, 25 and 50 parties."""
    alone, *_, plus, _, _ = _processes(_ROUNDS)
    specs = [_spec(num_clients=count) for count in (5, 25, 50)]
    return fedplus.joined(
        _experiment("portfolio_parties", [alone, plus], spec, _ROUNDS, _MARKETS)
        for spec in specs
    )


def portfolio_rates() -> experiment.Experiment:
    """Returns Adam's learning rates of FedAvg and single parties, on one market."""
    processes, spec = _processes(_RATES_ROUNDS)[:2], _spec(years=_RATES_ROUNDS)
    axes = {"algorithm.local.hyperparameters.learning_rate": (3e-4, 1e-3, 3e-3, 1e-2)}
    name = "portfolio_rates"
    return _experiment(name, processes, spec, _RATES_ROUNDS, axes, seeds=(0,))


def portfolio_stocks() -> experiment.Experiment:
    """Returns all methods on closes of 50 stocks, tested on 2019; needs the file."""
    spec = _spec(**_STOCKS)
    return _experiment("portfolio_stocks", _processes(_ROUNDS), spec, _ROUNDS)


def _paper(
    name: str, spec: fp.portfolio.PortfolioSpec, **fields: Any
) -> experiment.Experiment:
    """Returns 800 rounds, SGD at 5e-5, lam = 0.001, a year every 20, as printed."""
    sgd = fp.SGD(learning_rate=5e-5, num_steps=50, batch_size=50)
    processes = fedplus.methods(sgd, mu=1.0, lam=0.001)
    return _experiment(name, processes, spec, 800, **fields)


def portfolio_paper() -> experiment.Experiment:
    """Returns what the paper prints, on three synthetic markets."""
    return _paper("portfolio_paper", fp.portfolio.PortfolioSpec(), axes=_MARKETS)


def portfolio_paper_stocks() -> experiment.Experiment:
    """Returns what the paper prints, on closes of 50 stocks, with one seed."""
    spec = fp.portfolio.PortfolioSpec(**_STOCKS)
    return _paper("portfolio_paper_stocks", spec, seeds=(0,))


PRESETS = {
    make.__name__: make
    for make in (
        portfolio,
        portfolio_parties,
        portfolio_rates,
        portfolio_stocks,
        portfolio_paper,
        portfolio_paper_stocks,
    )
}
