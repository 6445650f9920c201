"""What evaluations measure: which metric comes first, and which way is better."""

from collections.abc import Collection

__all__ = ["BESIDE", "METRICS", "headline", "sign"]

METRICS = ("accuracy", "annualized_return", "sharpe", "loss")
"""Metrics that choices are made by."""

BESIDE = {
    "annualized_return": ("sharpe", "uniform_annualized_return", "uniform_sharpe"),
}
"""Metrics that are shown beside a headline."""


_WITHOUT_MODEL = ("uniform_", "hold_")
"""Before metrics of portfolios that no model made: equal shares, bought and held."""


def headline(names: Collection[str]) -> str:
    """The metric that speaks for a model, chooses between models and between rounds.

    Args:
      names: what was measured.

    Returns:
      The accuracy of classifiers, the annualized return of portfolios, else the loss.

    Example:
      >>> headline(["loss", "accuracy"])
      'accuracy'
    """
    return next((n for n in ("accuracy", "annualized_return") if n in names), "loss")


def sign(name: str) -> int:
    """1 for a metric of which more is better, -1 for a loss.

    Args:
      name: name of a metric; what is measured of portfolios that no model made, such
        as `uniform_sharpe`, is judged as the same of a model's.

    Returns:
      1 or -1.

    Example:
      >>> sign("loss"), sign("uniform_sharpe")
      (-1, 1)
    """
    for prefix in _WITHOUT_MODEL:
        name = name.removeprefix(prefix)
    return 1 if name in METRICS[:-1] else -1
