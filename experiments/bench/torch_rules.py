"""Robust rules in PyTorch, as one would write them."""

import functools
from collections.abc import Callable

import torch

from experiments.bench import rules

__all__ = ["of"]

_STEPS = 100


def of(rule: "rules.Rule") -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a rule as a function of the messages `[K, D]`."""
    return {
        "median": _median,
        "geometric_median": _geometric_median,
        "krum": functools.partial(_krum, num_outliers=rule.num_outliers),
    }[rule.kind]


def _median(x: torch.Tensor) -> torch.Tensor:
    """Returns PyTorch's own: the lower of two middle values."""
    return x.median(dim=0).values


def _geometric_median(x: torch.Tensor, tolerance: float = 1e-6) -> torch.Tensor:
    """Takes Weiszfeld's steps from the mean, until the mean unit pull is small."""
    centre = x.mean(dim=0)
    for _ in range(_STEPS):
        pull = 1 / torch.linalg.vector_norm(x - centre, dim=1).clamp_min(1e-12)
        following = pull @ x / pull.sum()
        residual = torch.linalg.vector_norm(following - centre) * pull.mean()
        centre = following
        if residual <= tolerance:
            break
    return centre


def _krum(x: torch.Tensor, num_outliers: int) -> torch.Tensor:
    """Returns the row closest to its nearest ones, distances from one product."""
    square = (x * x).sum(dim=1)
    distance = square[:, None] + square[None] - 2 * (x @ x.T)
    distance.fill_diagonal_(torch.inf)
    nearest = distance.topk(len(x) - num_outliers - 2, dim=1, largest=False).values
    return x[nearest.sum(dim=1).argmin()]
