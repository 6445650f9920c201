"""Metrics and models of evaluations: their order, and which direction is better."""

from collections.abc import Collection, Iterable

import numpy as np

from fedjax_pfl.core import checks

__all__ = [
    "BESIDE",
    "HYBRID",
    "IN_UNITS",
    "METRICS",
    "MODELS",
    "SHARES",
    "headline",
    "judge",
    "masked_mean",
    "mean",
    "score",
    "sign",
    "wilson",
]

MODELS = ("personal", "global", "fine-tuned", "hybrid (validation)")
"""Models that figures show, in the order in which they stand for a method."""
HYBRID = "hybrid"
"""Prefixes of the names of models that were chosen client by client."""


SHARES = ("accuracy", "balanced_accuracy", "macro_f1")
SHARES += ("f1", "precision", "recall", "auc")
"""Metrics of classifiers that lie between 0 and 1."""

METRICS = (*SHARES, "r2", "annualized_return", "sharpe", "loss", "rmse", "mae")
"""Metrics for choices; the user's own models may have others."""

IN_UNITS = ("rmse", "mae")
"""Metrics in the units of targets, which models learn in deviations from the mean."""

_COSTS = ("loss", "rmse", "mae", "max_drawdown", "turnover")
"""Metrics for which less is better."""

BESIDE = {
    "loss": ("rmse", "r2"),
    "annualized_return": ("sharpe", "uniform_annualized_return", "uniform_sharpe"),
}
"""Metrics that are listed next to a headline."""


_WITHOUT_MODEL = ("uniform_", "hold_")
"""Prefixes of metrics of portfolios without a model: equal shares, buy and hold."""

_NORMAL = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


def headline(names: Collection[str], chosen: str | None = None) -> str:
    """Picks the metric that ranks models and chooses models and rounds."""
    if chosen is not None:
        if chosen not in names:
            hint = checks.suggestion(chosen, names)
            raise checks.InputError(
                "Expected the metric to be one that is measured,"
                f" {', '.join(sorted(names))}, got {checks.shown(chosen)}{hint}."
            )
        return chosen
    return next((n for n in ("accuracy", "annualized_return") if n in names), "loss")


def judge(models: Iterable[str]) -> str:
    """Returns the model that represents a method: personal, else global, else any."""
    single = [name for name in models if not name.startswith(HYBRID)]
    return min(single, key=lambda n: MODELS.index(n) if n in MODELS else len(MODELS))


def sign(name: str) -> int:
    """Returns 1 if more of a metric is better, -1 for a loss or an error."""
    # Such as `uniform_sharpe`. Of the user's own metrics, less is better if the name
    # ends in `loss` or `error`.
    for prefix in _WITHOUT_MODEL:
        name = name.removeprefix(prefix)
    return -1 if name in _COSTS or name.endswith(("loss", "error")) else 1


def score(name: str, value: float) -> float:
    """Returns a number that is larger if a metric is better, the least for NaN."""
    return -np.inf if np.isnan(value) else sign(name) * value


def mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the mean of `[..., N]` over clients that count and have a value."""
    return masked_mean(values, counts & ~np.isnan(values))


def masked_mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Averages the last axis under `mask`; NaN for no values or any NaN."""
    total, number = np.where(mask, values, 0).sum(-1), mask.sum(-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def wilson(shares: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns Wilson's 95 % intervals of shares of successes in `counts` trials."""
    has_share = (counts > 0) & ~np.isnan(shares)
    trials = np.where(has_share, counts, 1).astype(float)
    # Wilson (1927): the p with |share - p| <= z sqrt(p (1 - p) / n), solved for p.
    p, squared = np.where(has_share, shares, 0.5).astype(float), _NORMAL**2
    center = (p + squared / (2 * trials)) / (1 + squared / trials)
    spread = np.sqrt(p * (1 - p) / trials + squared / (4 * trials**2))
    half = _NORMAL * spread / (1 + squared / trials)
    low, high = np.clip(center - half, 0, 1), np.clip(center + half, 0, 1)
    return np.where(has_share, low, np.nan), np.where(has_share, high, np.nan)
