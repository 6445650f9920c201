"""Markets by their names."""

from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.portfolio.markets import files, synthetic

__all__ = ["MARKETS", "market"]

MARKETS: dict[str, Any] = {
    kind.name: kind
    for kind in (synthetic.SyntheticMarket, files.StockPrices, files.PriceFile)
}


def market(given: Any) -> Any:
    """Returns the source of prices that a name, a path or an object stands for.

    Args:
      given: a name in `MARKETS`, the path of a table of prices, or a source.

    Returns:
      The source.

    Raises:
      InputError: if it is none of these.
    """
    if isinstance(given, str):
        if given.endswith((".csv", ".csv.gz")):
            return files.PriceFile(path=given)
        checks.known(given, MARKETS, "market")
        if given == files.PriceFile.name:
            raise checks.InputError(
                "Expected the path of a .csv or .csv.gz file in place of the market"
                f" {given!r}."
            )
        return MARKETS[given]()
    if isinstance(given, type) or not hasattr(given, "load"):
        raise checks.InputError(
            "Expected market to be a name in MARKETS, the path of a .csv file or an"
            f" object such as SyntheticMarket(), got {given!r}."
        )
    return given
