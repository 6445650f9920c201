"""Mixing of models by similarities: the objective and the theorem behind FedACS.

The objective is `F(W) + lam R(W)`, `R(W) = 1/4 sum_ij s_ij |w_i - w_j|^2` with frozen
similarities s. Rounds alternate `U = W - alpha grad R(W)`, `W = U - beta grad F(U)`.

Reference: Chen, Li, Shen, "Personalized Federated Learning with Attention-based Client
Selection". The paper prints R without 1/4 and the gradient `w_i - sum_j s_ij w_j`,
which is the gradient only of R above, and only for symmetric s with rows of sum 1.
"""

import math

import numpy as np

__all__ = ["doubly_stochastic", "incremental_bound", "mixing_gradient"]


def mixing_gradient(similarity: np.ndarray, models: np.ndarray) -> np.ndarray:
    """Returns the gradient of R for any s: `1/2 sum_j (s_ij + s_ji) (w_i - w_j)`.

    For symmetric s with rows of sum 1 it is `(I - S) W`.

    Args:
      similarity: `[m, m]` weights s.
      models: `[..., m, D]` models W.

    Returns:
      Like `models`.
    """
    both = (similarity + similarity.T) / 2
    return both.sum(axis=1)[:, None] * models - both @ models


def doubly_stochastic(similarity: np.ndarray) -> np.ndarray:
    """Scales a positive symmetric matrix until rows and columns have sum 1.

    Args:
      similarity: `[m, m]` symmetric, positive.

    Returns:
      `[m, m]` of the form `D s D` with a diagonal D; symmetric.
    """
    scale = np.ones(len(similarity))
    for _ in range(_SINKHORN_STEPS):
        scale = np.sqrt(scale / (similarity @ scale))
    return scale[:, None] * similarity * scale


def incremental_bound(
    num_rounds: int, gap: float, smoothness: float, largest: float
) -> float:
    """Bounds `min_k |grad (F + lam R)(W^k)|^2`, k from 0 to K, for frozen s.

    For `beta = 1 / sqrt(K)` and `alpha = lam / sqrt(K)` it is

        6 (gap + 16 L B^2) / sqrt(K) + 3 B^2 / K

    Args:
      num_rounds: K.
      gap: start minus minimum of the objective.
      smoothness: L, a Lipschitz constant of `grad F` and of `lam grad R`.
      largest: B, a bound of `|grad F|` and of `lam |grad R|` along the run.

    Returns:
      The bound.

    Example:
      >>> incremental_bound(4, gap=1.0, smoothness=1.0, largest=1.0)
      51.75
    """
    squared = largest**2
    rate = 6 * (gap + 16 * smoothness * squared) / math.sqrt(num_rounds)
    return rate + 3 * squared / num_rounds


_SINKHORN_STEPS = 500
