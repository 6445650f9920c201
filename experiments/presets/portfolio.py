"""Fed+'s portfolio management: fifty parties, nine assets each.

The paper's 800 rounds with learning rate 5e-5 would take hours here, and move a model
two percent of the way by its local pull. These presets have fewer rounds and Adam with
a rate chosen on validation days; lam is scaled so that a whole training moves a model
as far towards the center as the paper's does, `1 - 0.999^800` = 55 %. What the paper
has is `portfolio_paper`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import fedjax_pfl as fp
from experiments.presets import fedplus
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS"]

_ROUNDS, _RATES_ROUNDS = 15, 20
_RATE = 3e-3  # best on validation days in `portfolio_rates`
_MIXED = 0.999**800  # own share that is left of a model after the paper's training


def _adam(learning_rate: float = _RATE) -> fp.Optax:
    """Fifty iterations with pieces of fifty days."""
    return fp.Optax(
        hyperparameters={"learning_rate": learning_rate}, num_steps=50, batch_size=50
    )


def _processes(solver: Any, lam: float) -> list[fp.FederatedProcess]:
    """Every party alone, and the seven methods of Fed+'s Table 1."""
    return fedplus.methods(solver, mu=1.0, lam=lam)


def _experiment(
    name: str,
    processes: list[fp.FederatedProcess],
    spec: fp.portfolio.PortfolioSpec,
    num_rounds: int,
    **fields: Any,
) -> experiment.Experiment:
    """Processes with the recurrent policy, on the last 252 days."""
    axes = fields.pop("axes", {})
    grids = tuple(
        experiment.Grid(p, fp.portfolio.EIIE(), spec, axes) for p in processes
    )
    given = {"seeds": (0, 1, 2), "evaluate_on": (("test", None), ("validation", None))}
    every = max(1, num_rounds // 4)
    return experiment.Experiment(
        name=name,
        grids=grids,
        num_rounds=num_rounds,
        eval_every=every,
        **given | fields,
    )


def _lam(num_rounds: int) -> float:
    """The share of the center that moves models as far as the paper's 800 rounds."""
    return 1 - _MIXED ** (1 / num_rounds)


def _spec(**fields: Any) -> fp.portfolio.PortfolioSpec:
    """Fifty parties; generated years change as often, relative to the rounds."""
    given = {"validation_days": 252, "years": _ROUNDS, "rounds_per_year": 1}
    return fp.portfolio.PortfolioSpec(**given | fields)


_MARKETS = {"federation.market.seed": (0, 1, 2)}


def portfolio() -> experiment.Experiment:
    """Returns all methods and single-party training on three synthetic markets."""
    processes = _processes(_adam(), _lam(_ROUNDS))
    return _experiment("portfolio", processes, _spec(), _ROUNDS, axes=_MARKETS)


def portfolio_parties() -> experiment.Experiment:
    """FedAvg+ against single-party training among 5, 25 and 50 parties."""
    processes = _processes(_adam(), _lam(_ROUNDS))
    parts = [
        _experiment(
            "portfolio_parties",
            [processes[0], processes[5]],
            _spec(num_clients=count),
            _ROUNDS,
            axes=_MARKETS,
        )
        for count in (5, 25, 50)
    ]
    grids = tuple(grid for part in parts for grid in part.grids)
    return dataclasses.replace(parts[0], grids=grids)


def portfolio_rates() -> experiment.Experiment:
    """Adam's learning rate, by FedAvg and single-party training, on one market."""
    processes = _processes(_adam(), _lam(_RATES_ROUNDS))
    spec = _spec(years=_RATES_ROUNDS)
    axes = {"algorithm.local.hyperparameters.learning_rate": (3e-4, 1e-3, 3e-3, 1e-2)}
    return _experiment(
        "portfolio_rates", processes[:2], spec, _RATES_ROUNDS, axes=axes, seeds=(0,)
    )


def portfolio_stocks() -> experiment.Experiment:
    """All methods on daily closes of 50 stocks, tested on 2019; needs the file."""
    spec = _spec(market="stocks", test_from="2019-01-01", test_to="2019-12-31")
    processes = _processes(_adam(), _lam(_ROUNDS))
    return _experiment("portfolio_stocks", processes, spec, _ROUNDS)


def portfolio_paper() -> experiment.Experiment:
    """As printed: 800 rounds, SGD at 5e-5, lam = 0.001, a new year every 20 rounds."""
    sgd = fp.SGD(learning_rate=5e-5, num_steps=50, batch_size=50)
    processes, spec = _processes(sgd, 0.001), fp.portfolio.PortfolioSpec()
    return _experiment("portfolio_paper", processes, spec, 800, axes=_MARKETS)


PRESETS = {
    make.__name__: make
    for make in (
        portfolio,
        portfolio_parties,
        portfolio_rates,
        portfolio_stocks,
        portfolio_paper,
    )
}
