"""Robust rules in PyTorch, as one would write them."""

from collections.abc import Callable

import numpy as np
import torch

from experiments.bench import rules

__all__ = ["of", "tensor"]

_STEPS = 100


def tensor(messages: np.ndarray) -> torch.Tensor:
    """The messages."""
    return torch.from_numpy(messages)


def of(rule: "rules.Rule") -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of the messages `[K, D]` that a rule is."""
    if rule.kind == "median":
        return _median
    if rule.kind == "geometric_median":
        return _geometric_median
    return lambda x: _krum(x, rule.num_outliers)


def _median(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own: the lower of two middle values."""
    return x.median(dim=0).values


def _geometric_median(x: torch.Tensor, tolerance: float = 1e-6) -> torch.Tensor:
    """Weiszfeld's steps from the mean, until the mean of the unit pulls is small."""
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
    """The row closest to its nearest ones, distances from one product."""
    square = (x * x).sum(dim=1)
    distance = square[:, None] + square[None] - 2 * (x @ x.T)
    distance.fill_diagonal_(torch.inf)
    nearest = distance.topk(len(x) - num_outliers - 2, dim=1, largest=False).values
    return x[nearest.sum(dim=1).argmin()]
