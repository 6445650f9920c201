"""Markets: prices of assets, generated years, and federations of trading parties.

`MARKETS` and `GENERATORS` map command-line names to frozen dataclasses.
"""

from fedjax_pfl.data.markets.augmentation import GENERATORS
from fedjax_pfl.data.markets.base import Market, MarketSource
from fedjax_pfl.data.markets.files import PriceFile, StockPrices
from fedjax_pfl.data.markets.gan import WassersteinGAN
from fedjax_pfl.data.markets.generators import (
    GeometricBrownianMotion,
    VariableOrderMarkov,
)
from fedjax_pfl.data.markets.spec import MARKETS, PortfolioSpec
from fedjax_pfl.data.markets.synthetic import SyntheticMarket

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
