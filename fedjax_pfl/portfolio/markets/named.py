"""Markets by name."""

from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.portfolio.markets import files, synthetic

__all__ = ["MARKETS", "market"]

MARKETS: dict[str, Any] = {
    kind.name: kind
    for kind in (synthetic.SyntheticMarket, files.StockPrices, files.PriceFile)
}


def market(source: Any) -> Any:
    """Returns the source of prices with a name or a path, or a source itself.

    Args:
      source: a name in `MARKETS`, the path of a table of prices, or a source.

    Returns:
      The source.

    Raises:
      InputError: if it is none of these.
    """
    if isinstance(source, str):
        if source.endswith((".csv", ".csv.gz")):
            return files.PriceFile(path=source)
        checks.known(source, MARKETS, "market")
        if source == files.PriceFile.name:
            raise checks.InputError(
                "Expected the path of a .csv or .csv.gz file in place of the market"
                f" {source!r}."
            )
        return MARKETS[source]()
    if isinstance(source, type) or not hasattr(source, "load"):
        raise checks.InputError(
            "Expected market to be a name in MARKETS, the path of a .csv file or an"
            f" object such as SyntheticMarket(), got {source!r}."
        )
    return source
