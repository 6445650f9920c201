"""Metrics of a client's examples together: F1 scores, areas under curves, R2.

A metric that the client's targets leave undefined is NaN.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core

__all__ = ["auc", "class_counts", "class_metrics", "error_metrics", "macro_auc"]

_POSITIVE = 1  # the second of two classes
_FEW = 256  # scores: on CPUs all pairs take half as long as sorting, or less


def class_counts(outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
    """Counts `int32[C]` examples by class: `actual`, `chosen`, and both in `hits`."""
    classes = jnp.arange(outputs.shape[1])[None]
    real = batch.weight[:, None] > 0
    actual = real & (batch.y[:, None] == classes)
    chosen = real & (jnp.argmax(outputs, axis=1)[:, None] == classes)
    # The diagonal and both margins of the confusion matrix, which are all that F1,
    # precision and recall read.
    masks = {"actual": actual, "chosen": chosen, "hits": actual & chosen}
    return {name: mask.sum(axis=0, dtype=jnp.int32) for name, mask in masks.items()}


def class_metrics(counts: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Computes metrics `[]` of classifiers; conventions are scikit-learn's."""
    actual, chosen, hits = (counts[name] for name in ("actual", "chosen", "hits"))
    dtype = jnp.zeros(()).dtype

    def share(part: jax.Array, total: jax.Array) -> jax.Array:
        return part.astype(dtype) / jnp.maximum(total, 1).astype(dtype)

    def mean(values: jax.Array, counted: jax.Array) -> jax.Array:
        total = jnp.where(counted, values, 0).sum()
        return total / jnp.maximum(counted.sum(), 1).astype(dtype)

    precision, recall = share(hits, chosen), share(hits, actual)
    # F1 is 2 hits / (2 hits + false positives + false negatives).
    f1 = share(2 * hits, actual + chosen)
    # Means over classes that have examples, and over classes with examples or
    # predictions.
    metrics = {
        "balanced_accuracy": mean(recall, actual > 0),
        "macro_f1": mean(f1, actual + chosen > 0),
    }
    if actual.shape[0] != 2:
        return metrics
    binary = {"precision": precision, "recall": recall, "f1": f1}
    # NaN if no example has the second class; 0 if some have, but none was predicted.
    is_defined = actual[_POSITIVE] > 0
    return metrics | {
        name: jnp.where(is_defined, values[_POSITIVE], jnp.nan)
        for name, values in binary.items()
    }


def auc(scores: jax.Array, positive: jax.Array, weight: jax.Array) -> jax.Array:
    """Computes the area under the ROC curve `[]`, exactly.

    It is the share of pairs of a positive and a negative example in which the positive
    one has the larger score; ties count one half.

    Args:
      scores: `[M]`.
      positive: `bool[M]`.
      weight: `[M]`, 0 for rows that do not count.

    Returns:
      The area; NaN without a positive or a negative example, or if a score is NaN.

    Example:
      >>> scores = jnp.array([0.1, 0.4, 0.4, 0.8])
      >>> auc(scores, jnp.array([False, True, False, True]), jnp.ones(4)).item()
      0.875
    """
    real = weight > 0
    is_negative, is_positive = real & ~positive, real & positive
    negatives, positives = is_negative.sum(), is_positive.sum()
    wins = jnp.where(is_positive, _wins(scores, is_negative), 0)
    wins = wins / jnp.maximum(negatives, 1).astype(scores.dtype)
    area = wins.sum() / jnp.maximum(positives, 1).astype(scores.dtype)
    is_known = (positives > 0) & (negatives > 0) & ~(real & jnp.isnan(scores)).any()
    return jnp.where(is_known, area, jnp.nan)


def _wins(scores: jax.Array, negative: jax.Array) -> jax.Array:
    """Counts for each score `[M]` the negative ones below it; equal ones by a half."""
    if len(scores) <= _FEW:
        points = (scores[:, None] > scores[None]) + 0.5 * (
            scores[:, None] == scores[None]
        )
        return jnp.where(negative[None], points, 0).sum(axis=1).astype(scores.dtype)
    # Other scores come last, as infinity, and are not counted.
    ordered = lax.sort(jnp.where(negative, scores, jnp.inf))
    below, up_to = (
        jnp.minimum(jnp.searchsorted(ordered, scores, side=side), negative.sum())
        for side in ("left", "right")
    )
    return (below.astype(scores.dtype) + up_to.astype(scores.dtype)) / 2


def macro_auc(logits: jax.Array, labels: jax.Array, weight: jax.Array) -> jax.Array:
    """Computes the mean `auc` of every class against the others.

    Args:
      logits: `[M, C]`; examples are ordered by their log-probabilities of the class.
      labels: `int[M]`.
      weight: `[M]`, 0 for rows that do not count.

    Returns:
      `[]` mean over the classes that some examples have, and some do not; NaN without
      such a class.
    """
    classes = jnp.arange(logits.shape[1])
    scores = jax.nn.log_softmax(logits, axis=1)

    def class_auc(column: jax.Array, label: jax.Array) -> jax.Array:
        return auc(column, labels == label, weight)

    return jnp.nanmean(jax.vmap(class_auc, in_axes=(1, 0))(scores, classes))


def error_metrics(
    errors: jax.Array, targets: jax.Array, weight: jax.Array
) -> dict[str, jax.Array]:
    """Computes `rmse`, `mae` and `r2`, `[]` each, of errors and targets `[M]`."""
    real = weight > 0
    count = jnp.maximum(real.sum(), 1).astype(errors.dtype)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.where(real, values, 0).sum() / count

    # Large targets that are alike lose digits in squares; differences do not.
    shifted = targets - targets[jnp.argmax(real)]
    variance = mean(jnp.square(shifted - mean(shifted)))
    squared = mean(jnp.square(errors))
    # R2 is NaN if all targets are equal.
    is_varied = (real & (shifted != 0)).any()
    unexplained = squared / jnp.where(is_varied, variance, 1)
    return {
        "rmse": jnp.sqrt(squared),
        "mae": mean(jnp.abs(errors)),
        "r2": jnp.where(is_varied, 1 - unexplained, jnp.nan),
    }
