"""Quadratic problems of one's choice, for descent of several objectives."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests import problems


def bowls(
    curvature: Sequence[Any], minimizers: Sequence[Sequence[float]], least: float = 1.0
) -> problems.LeastSquares:
    """`f_i = (theta - m_i)' A_i (theta - m_i) / 2 + least`, of one's choice.

    Exists because descent of several objectives depends on their curvatures, and
    angles between losses on their values.

    Args:
      curvature: `A_i [N, d, d]`, or numbers `[N]` for multiples of the identity.
      minimizers: `m_i [N, d]`.
      least: the loss at the minimizer.

    Returns:
      The problem; every client has d + 1 examples.
    """
    inputs, targets = [], []
    for matrix, minimizer in zip(curvature, minimizers, strict=True):
        d = len(minimizer)
        values, vectors = np.linalg.eigh(np.asarray(matrix) * np.eye(d))
        rows = np.sqrt((d + 1) * values)[:, None] * vectors.T
        inputs.append(np.concatenate([rows, np.zeros((1, d))]))
        level = np.sqrt(2 * (d + 1) * least)
        targets.append(np.append(rows @ np.asarray(minimizer, float), level))
    return problems.least_squares(inputs, targets, "bowls")


def conflicting(
    num_clients: int = 5, dim: int = 10, seed: int = 0
) -> problems.LeastSquares:
    """Strongly convex bowls with eigenvalues in [1, 10] and minimizers far apart."""
    rng = np.random.default_rng(seed)
    matrices = []
    for _ in range(num_clients):
        basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        values = np.concatenate([[1.0, 10.0], rng.uniform(1, 10, dim - 2)])
        matrices.append(basis * values @ basis.T)
    return bowls(matrices, 2 * rng.normal(size=(num_clients, dim)))
