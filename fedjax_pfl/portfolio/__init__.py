"""Portfolio management of one party: price tables, costs, back-tests, metrics.

Cash is entry 0 of every vector of length `m + 1`. The weights `w_t` are chosen at the
close of day t and earn the growth `y_{t+1}`, the relative prices `close(t+1) /
close(t)`; the growth of cash is 1. Before the first decision everything is cash. Shape
letters: `B` successive decisions, `m` assets, `F` price features, `l` days of a window.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.portfolio.backtesting import MAX_COST as MAX_COST
    from fedjax_pfl.portfolio.backtesting import Backtest as Backtest
    from fedjax_pfl.portfolio.backtesting import annualized_return as annualized_return
    from fedjax_pfl.portfolio.backtesting import backtest as backtest
    from fedjax_pfl.portfolio.backtesting import (
        buy_and_hold_weights as buy_and_hold_weights,
    )
    from fedjax_pfl.portfolio.backtesting import drifted as drifted
    from fedjax_pfl.portfolio.backtesting import exact_factor as exact_factor
    from fedjax_pfl.portfolio.backtesting import (
        first_order_factor as first_order_factor,
    )
    from fedjax_pfl.portfolio.backtesting import max_drawdown as max_drawdown
    from fedjax_pfl.portfolio.backtesting import mean_turnover as mean_turnover
    from fedjax_pfl.portfolio.backtesting import sharpe_ratio as sharpe_ratio
    from fedjax_pfl.portfolio.backtesting import summary as summary
    from fedjax_pfl.portfolio.backtesting import turnover as turnover
    from fedjax_pfl.portfolio.backtesting import uniform_weights as uniform_weights
    from fedjax_pfl.portfolio.markets.files import MARKETS as MARKETS
    from fedjax_pfl.portfolio.markets.files import PriceFile as PriceFile
    from fedjax_pfl.portfolio.markets.files import StockPrices as StockPrices
    from fedjax_pfl.portfolio.markets.generators import GENERATORS as GENERATORS
    from fedjax_pfl.portfolio.markets.generators import (
        GeometricBrownianMotion as GeometricBrownianMotion,
    )
    from fedjax_pfl.portfolio.markets.generators import (
        VariableOrderMarkov as VariableOrderMarkov,
    )
    from fedjax_pfl.portfolio.markets.generators import WassersteinGAN as WassersteinGAN
    from fedjax_pfl.portfolio.markets.spec import PortfolioSpec as PortfolioSpec
    from fedjax_pfl.portfolio.markets.synthetic import (
        SyntheticMarket as SyntheticMarket,
    )
    from fedjax_pfl.portfolio.policies import EIIE as EIIE
    from fedjax_pfl.portfolio.tables import PriceTables as PriceTables
    from fedjax_pfl.portfolio.tables import batch_positions as batch_positions
    from fedjax_pfl.portfolio.tables import previous_example as previous_example
    from fedjax_pfl.portfolio.tables import windows as windows
else:
    __getattr__, __dir__ = lazy.attach(__name__)
