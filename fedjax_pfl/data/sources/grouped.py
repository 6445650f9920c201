"""Examples of several clients, one client after the other."""

from collections.abc import Iterable, Mapping, Sized

import numpy as np

__all__ = ["owners", "windows"]


def owners(groups: Iterable[Sized]) -> np.ndarray:
    """Returns the client of every example.

    Args:
      groups: the examples of clients 0, 1, ....

    Returns:
      `int[S]`.

    Example:
      >>> owners(["abc", "d"])
      array([0, 0, 0, 1])
    """
    sizes = [len(group) for group in groups]
    return np.repeat(np.arange(len(sizes)), sizes)


def windows(
    series: Mapping[str, np.ndarray], length: int, stride: int = 1
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Cuts series into windows of an input and the value that follows.

    Args:
      series: values by client.
      length: values of an input.
      stride: values between the ends of two windows.

    Returns:
      Windows `[S, length + 1]`, the client `int[S]` of each, and the names of the
      clients: those whose series is longer than an input.
    """
    views = {
        name: np.lib.stride_tricks.sliding_window_view(values, length + 1)[::stride]
        for name, values in series.items()
        if len(values) > length
    }
    rows = [*views.values()] or [np.empty((0, length + 1))]
    return np.concatenate(rows), owners(rows), tuple(views)
