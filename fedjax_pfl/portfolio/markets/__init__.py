"""Markets: prices of assets, generated years, and federations of trading parties.

`MARKETS` and `GENERATORS` map command-line names to frozen dataclasses.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.portfolio.markets.augmentation import GENERATORS
    from fedjax_pfl.portfolio.markets.base import Market, MarketSource
    from fedjax_pfl.portfolio.markets.files import PriceFile, StockPrices
    from fedjax_pfl.portfolio.markets.gan import WassersteinGAN
    from fedjax_pfl.portfolio.markets.generators import (
        GeometricBrownianMotion,
        VariableOrderMarkov,
    )
    from fedjax_pfl.portfolio.markets.named import MARKETS
    from fedjax_pfl.portfolio.markets.spec import PortfolioSpec
    from fedjax_pfl.portfolio.markets.synthetic import SyntheticMarket
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "GENERATORS",
    "MARKETS",
    "GeometricBrownianMotion",
    "Market",
    "MarketSource",
    "PortfolioSpec",
    "PriceFile",
    "StockPrices",
    "SyntheticMarket",
    "VariableOrderMarkov",
    "WassersteinGAN",
]
