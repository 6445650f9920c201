"""What evaluations measure: which metric comes first, and which way is better."""

from collections.abc import Collection

__all__ = ["BESIDE", "METRICS", "headline", "sign"]

METRICS = ("accuracy", "annualized_return", "sharpe", "loss")
"""Metrics that choices are made by."""

BESIDE = {
    "annualized_return": ("sharpe", "uniform_annualized_return", "uniform_sharpe"),
}
"""Metrics that are shown beside a headline."""


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
      name: name of a metric.

    Returns:
      1 or -1.

    Example:
      >>> sign("loss")
      -1
    """
    return 1 if name in METRICS[:-1] else -1
