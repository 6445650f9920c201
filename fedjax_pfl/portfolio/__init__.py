"""Portfolio management of one party: price tables, costs, back-tests, metrics.

Cash is entry 0 of every vector of length `m + 1`. The weights `w_t` are chosen at the
close of day t and earn the growth `y_{t+1}`, the relative prices `close(t+1) /
close(t)`; the growth of cash is 1. Before the first decision everything is cash. Shape
letters: `B` successive decisions, `m` assets, `F` price features, `l` days of a window.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.portfolio.backtesting import (
        Backtest,
        backtest,
        buy_and_hold_weights,
        uniform_weights,
    )
    from fedjax_pfl.portfolio.costs import (
        MAX_COST,
        drifted,
        exact_factor,
        first_order_factor,
        turnover,
    )
    from fedjax_pfl.portfolio.markets.augmentation import GENERATORS
    from fedjax_pfl.portfolio.markets.files import PriceFile, StockPrices
    from fedjax_pfl.portfolio.markets.gan import WassersteinGAN
    from fedjax_pfl.portfolio.markets.generators import (
        GeometricBrownianMotion,
        VariableOrderMarkov,
    )
    from fedjax_pfl.portfolio.markets.named import MARKETS
    from fedjax_pfl.portfolio.markets.spec import PortfolioSpec
    from fedjax_pfl.portfolio.markets.synthetic import SyntheticMarket
    from fedjax_pfl.portfolio.metrics import (
        annualized_return,
        max_drawdown,
        mean_turnover,
        sharpe_ratio,
        summary,
    )
    from fedjax_pfl.portfolio.policies import EIIE
    from fedjax_pfl.portfolio.tables import (
        PriceTables,
        batch_positions,
        previous_example,
        windows,
    )
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Backtest",
    "EIIE",
    "GENERATORS",
    "GeometricBrownianMotion",
    "MARKETS",
    "MAX_COST",
    "PortfolioSpec",
    "PriceFile",
    "PriceTables",
    "StockPrices",
    "SyntheticMarket",
    "VariableOrderMarkov",
    "WassersteinGAN",
    "annualized_return",
    "backtest",
    "batch_positions",
    "buy_and_hold_weights",
    "drifted",
    "exact_factor",
    "first_order_factor",
    "max_drawdown",
    "mean_turnover",
    "previous_example",
    "sharpe_ratio",
    "summary",
    "turnover",
    "uniform_weights",
    "windows",
]
