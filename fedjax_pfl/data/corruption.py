"""Corrupted clients: poisoned training labels and noisy inputs (NumPy, on the host).

`LABEL_POISONINGS` and `FEATURE_NOISES` map command-line names to the classes.
"""

import abc
import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct

__all__ = [
    "FEATURE_NOISES",
    "LABEL_POISONINGS",
    "FeatureNoise",
    "FlippedLabels",
    "PairwiseLabels",
    "UniformLabels",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LabelPoisoning(abc.ABC):
    """Replacement of some of a client's labels.

    Attributes:
      fraction: share of the labels that are replaced, chosen at random. A larger
        fraction replaces the same labels and more.
    """

    fraction: float = struct.static_field(default=1.0, at_least=0, at_most=1)
    name: ClassVar[str]

    __post_init__ = struct.check_fields

    def __call__(
        self, rng: Generator, labels: np.ndarray, num_classes: int
    ) -> np.ndarray:
        """Returns poisoned labels `int32[n]` of one client."""
        # One permutation: a larger fraction replaces the same labels and more.
        rank = rng.permutation(len(labels))
        is_chosen = rank < round(float(self.fraction) * len(labels))
        wrong = self.wrong(rng, labels, num_classes)
        return np.where(is_chosen, wrong, labels).astype(np.int32)

    @abc.abstractmethod
    def wrong(self, rng: Generator, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Returns the replacement of each of the labels `int[n]`."""


class UniformLabels(_LabelPoisoning):
    """Labels drawn uniformly from all classes, which may hit the true one.

    Half of the labels of a binary task stay true; use `FlippedLabels` to flip them.
    """

    name = "uniform_labels"

    def wrong(self, rng: Generator, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Draws a class for every label."""
        return rng.integers(num_classes, size=len(labels))


class FlippedLabels(_LabelPoisoning):
    """Labels `C - 1 - y` instead of y."""

    name = "flipped_labels"

    def wrong(self, rng: Generator, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Counts the classes from the other end."""
        return num_classes - 1 - labels


class PairwiseLabels(_LabelPoisoning):
    """Labels `(y + 1) mod C`, the next class, instead of y."""

    name = "pairwise_labels"

    def wrong(self, rng: Generator, labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Takes the next class."""
        return (labels + 1) % num_classes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureNoise:
    """Gaussian noise on the scaled inputs of clients.

    Attributes:
      std: standard deviation of the noise, at least 0.
      who: `"all"` clients or the `"malicious"` ones.
      graded: client i of N has `std * (i + 1) / N` instead of `std`.
      resample: noise is drawn again at every access instead of once per example.
    """

    std: float = struct.static_field(default=0.1, at_least=0)
    who: Annotated[Literal["all", "malicious"], "group of clients"] = "all"
    graded: bool = False
    resample: bool = False
    name = "feature_noise"

    __post_init__ = struct.check_fields

    def scales(self, num_clients: int, malicious: np.ndarray) -> np.ndarray:
        """Returns the standard deviation `float32[N]` of each client's noise.

        Args:
          num_clients: N.
          malicious: `bool[N]`.
        """
        scales = np.full(num_clients, self.std, np.float64)
        if self.graded:
            scales *= np.arange(1, num_clients + 1) / num_clients
        if self.who == "malicious":
            scales = np.where(malicious, scales, 0.0)
        return scales.astype(np.float32)


LABEL_POISONINGS: dict[str, Any] = {
    kind.name: kind for kind in (UniformLabels, FlippedLabels, PairwiseLabels)
}
FEATURE_NOISES: dict[str, Any] = {FeatureNoise.name: FeatureNoise}
