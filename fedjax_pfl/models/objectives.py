"""Losses and metrics of the problem families; padded rows contribute exactly zero."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core

__all__ = ["Classification", "Regression", "Supervised", "weighted_mean"]


def weighted_mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Averages `values [B]` with `weight [B]`; 0 where the weights sum to zero."""
    total = weight.sum()
    safe = jnp.where(weight > 0, values, 0)
    return (safe * weight).sum() / jnp.where(total > 0, total, 1)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes cross-entropies `[B]` of logits `[B, C]` and labels `int[B]`."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


class Classification:
    """Softmax cross-entropy on logits `[B, C]`; reports loss and accuracy."""

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the weighted mean cross-entropy `[]`; 0 for an empty batch."""
        return weighted_mean(_cross_entropy(outputs, batch.y), batch.weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the per-example loss and accuracy `[B]`."""
        hit = jnp.argmax(outputs, axis=1) == batch.y
        return {
            "loss": _cross_entropy(outputs, batch.y),
            "accuracy": hit.astype(outputs.dtype),
        }


class Regression:
    """Half the squared error between outputs `[B]` and targets `[B]`."""

    def _values(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        return 0.5 * (outputs - batch.y.astype(outputs.dtype)) ** 2

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Averages half the squared error to `[]`; 0 for an empty batch."""
        return weighted_mean(self._values(outputs, batch), batch.weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the per-example loss `[B]`."""
        return {"loss": self._values(outputs, batch)}


class Supervised:
    """Classes where the model has `num_classes`, else numbers."""

    num_classes: int | None

    @property
    def _objective(self) -> Classification | Regression:
        return Regression() if self.num_classes is None else Classification()

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the weighted mean loss `[]`; 0 for an empty batch."""
        return self._objective.loss(outputs, batch)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the per-example loss `[B]`, of classes also the accuracy."""
        return self._objective.metrics(outputs, batch)
