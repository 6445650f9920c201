"""Synthetic(zeta, beta): every client labels its inputs by a linear model of its own.

With `d` features and C classes, client k has (FedProx's generator)

    W_k [d, C] = E_k + u_k,   b_k [C] = e_k + u_k,   entries of E_k, e_k ~ N(0, 1)
    B_k ~ N(0, beta),   v_k [d] entries ~ N(B_k, 1)
    x ~ N(v_k, diag(j^-1.2)), j = 1..d,   y = argmax softmax(x W_k + b_k)
    n_k = int(lognormal(4, 2)) + 50 examples.

In the published generator `u_k ~ N(0, zeta)` is one number for all classes. It adds
`u_k (1 + sum x)` to every logit, so labels do not depend on zeta; and where softmax is
computed without subtracting the largest logit, it overflows for large zeta, and the
labels are mostly class 0. `mode` chooses between the published and a repaired model.
"""

import dataclasses
from typing import Literal

import numpy as np

from fedjax_pfl.core import struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import synthetic
from fedjax_pfl.data.partition import draws

__all__ = ["Synthetic"]

_LARGEST = 1e30  # of zeta and beta, so that logits are finite in 64 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Synthetic(synthetic.Generated):
    """Synthetic(zeta, beta): one linear classifier per client, lognormal sizes.

    Truth: `weights [N, dim, C]` (E_k), `biases [N, C]` (e_k), `shifts [N, C]` (u_k of
    every class) and `centers [N, dim]` (v_k). In mode `class_shift` labels are the
    largest entries of `x (weights + shifts) + biases + shifts`; in mode `paper` this is
    the same with and without shifts.

    Attributes:
      zeta: spread of the clients' shifts u_k.
      beta: spread of the clients' means B_k.
      mode: `class_shift` draws u_k for each class, so that zeta moves labels; `paper`
        one u_k for all classes, and labels from E_k and e_k, on which alone they
        depend; `paper_naive` computes the softmax as published, in 64 bits and without
        subtracting the largest logit, and labels class 0 if it is not a number. The
        last is for the study of published numbers only.
      scale: zeta and beta are standard deviations (`std`) or variances (`var`).
      dim: number of features.
      num_classes: number of classes C.
      mean: of the logarithms of the sizes.
      sigma: standard deviation of the logarithms of the sizes.
      extra: examples added to every size.
      max_examples: larger sizes are cut to this one; None for no limit.
    """

    zeta: float = struct.static_field(default=1.0, at_least=0, at_most=_LARGEST)
    beta: float = struct.static_field(default=1.0, at_least=0, at_most=_LARGEST)
    mode: Literal["class_shift", "paper", "paper_naive"] = "class_shift"
    scale: Literal["std", "var"] = "std"
    dim: int = struct.static_field(default=60, at_least=1)
    num_classes: int = struct.static_field(default=10, at_least=1)
    mean: float = struct.traced_field(default=4.0)
    sigma: float = struct.static_field(default=2.0, at_least=0)
    extra: int = struct.static_field(default=50, at_least=1)
    max_examples: int | None = struct.static_field(default=None, at_least=1)
    name = "synthetic"

    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed, at least."""
        smallest = min(self.extra, self.max_examples or self.extra)
        return num_clients * self.dim * (smallest + self.num_classes)

    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws sizes, classifiers, shifts, centers, then inputs."""
        sizes = draws.lognormal_sizes(rng, self.mean, self.sigma, num_clients)
        sizes += self.extra
        if self.max_examples is not None:
            sizes = np.minimum(sizes, self.max_examples)
        total = sum(sizes.tolist())  # may exceed 64 bits
        models = num_clients * self.num_classes
        # Checked again with the drawn sizes: before, only the least is known.
        synthetic.require_memory(self.name, num_clients, self.dim * (total + models))
        shape = (num_clients, self.dim, self.num_classes)
        weights = rng.standard_normal(shape)
        biases = rng.standard_normal(shape[::2])
        per_class = self.num_classes if self.mode == "class_shift" else 1
        shifts = self._std(self.zeta) * rng.standard_normal((num_clients, per_class))
        shifts = np.broadcast_to(shifts, biases.shape)
        centers = self._std(self.beta) * rng.standard_normal((num_clients, 1))
        centers = centers + rng.standard_normal(shape[:2])
        client = datasets.owners(sizes)
        x = rng.standard_normal((total, self.dim))
        x *= np.arange(1, self.dim + 1) ** -0.6  # variances j^-1.2
        # Labels are of the stored inputs, so that the truth classifies all of them.
        x = synthetic.rounded(x + centers[client])
        parts = np.split(x, np.cumsum(sizes)[:-1])
        clients = zip(parts, weights, biases, shifts, strict=True)
        y = np.concatenate([self._labels(*client_model) for client_model in clients])
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y,
            num_classes=self.num_classes,
            client=client,
            truth={
                "weights": weights,
                "biases": biases,
                "shifts": shifts,
                "centers": centers,
            },
        )

    def _std(self, spread: float) -> float:
        """Returns the standard deviation that zeta or beta stands for."""
        return spread if self.scale == "std" else spread**0.5

    def _labels(
        self, x: np.ndarray, weights: np.ndarray, biases: np.ndarray, shifts: np.ndarray
    ) -> np.ndarray:
        """Returns the labels `int[n]` of one client."""
        logits = x @ weights + biases
        if self.mode != "paper":  # its shifts cancel, and would only cost digits
            logits += (1 + x.sum(axis=1, keepdims=True)) * shifts
        if self.mode != "paper_naive":
            return logits.argmax(axis=1)
        with np.errstate(all="ignore"):
            exponentials = np.exp(logits)
            shares = exponentials / exponentials.sum(axis=1, keepdims=True)
        return np.where(np.isnan(shares).any(axis=1), 0, shares.argmax(axis=1))
