"""Sharing of the values of a field that are learned by going back."""

import dataclasses
from typing import Protocol

import numpy as np

__all__ = ["PerClient", "PerLayer", "Sharing"]


class Sharing(Protocol):
    """Values `[V, K]` that are moved, and what the G points are trained with."""

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Returns the values `[V, K]` behind the points' own: inverse of `spread`."""
        ...

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Returns the points' own values, as `per_client` takes them."""
        ...

    def gathered(
        self, objective: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns objectives `[V]`, and what values are moved by, `[V, K]`.

        Args:
          objective: `[G]` of the points.
          slopes: derivatives in their own values.
        """
        ...


@dataclasses.dataclass(frozen=True)
class PerClient:
    """Values `[G, N]`, each of one client of one point."""

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Returns the points' values."""
        return values

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Returns the values."""
        return values

    def gathered(
        self, objective: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns every point's objective, and slopes without a client's share 1 / N.

        So steps are as long as those of a value for all.
        """
        return objective, slopes.shape[1] * slopes


@dataclasses.dataclass(frozen=True)
class PerLayer:
    """Values `[1, L]` of layers, which all points and clients share.

    Attributes:
      num_points: G.
      num_clients: N.
    """

    num_points: int
    num_clients: int

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Returns those of the first client of the first point, of `[G, N, L]`."""
        return values[:1, 0]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Returns `[G, N, L]`."""
        shape = (self.num_points, self.num_clients, values.shape[1])
        return np.broadcast_to(values[:, None], shape)

    def gathered(
        self, objective: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean objective `[1]`, and its derivatives `[1, L]`."""
        mean = slopes.sum(axis=1).mean(axis=0, keepdims=True)
        return objective.mean(keepdims=True), mean
