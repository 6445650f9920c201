"""Losses and metrics of the problem families; padded rows contribute exactly zero."""

import abc
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import statistics
from fedjax_pfl.models import counting, starts

__all__ = [
    "Call",
    "Classification",
    "Regression",
    "Supervised",
    "Wrapper",
    "weighted_mean",
]


def weighted_mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    """Averages `values [B]` with `weight [B]`; 0 if the weights sum to zero."""
    total = weight.sum()
    # Padding is replaced first, since 0 * NaN is NaN.
    safe = jnp.where(weight > 0, values, 0)
    return (safe * weight).sum() / jnp.where(total > 0, total, 1)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes cross-entropies `[B]` of logits `[B, C]` and labels `int[B]`."""
    label_logits = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - label_logits


class Classification:
    """Softmax cross-entropy on logits `[B, C]`, with the metrics of `counting`."""

    class_weights: tuple[float, ...] | None = None

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the weighted mean cross-entropy `[]`; 0 for an empty batch."""
        weight = batch.weight
        # An example counts as its class does.
        if self.class_weights is not None:
            weight = weight * jnp.asarray(self.class_weights, weight.dtype)[batch.y]
        return weighted_mean(_cross_entropy(outputs, batch.y), weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the per-example loss and accuracy `[B]`."""
        hit = jnp.argmax(outputs, axis=1) == batch.y
        return {
            "loss": _cross_entropy(outputs, batch.y),
            # This is the micro-averaged F1 score, too.
            "accuracy": hit.astype(outputs.dtype),
        }

    def metric_sums(self, outputs: jax.Array, batch: core.Batch) -> core.Tree:
        """Returns counts `int32[C]` of examples by class."""
        return counting.class_counts(outputs, batch)

    def finish_metrics(self, sums: core.Tree, count: jax.Array) -> dict[str, jax.Array]:
        """Returns the metrics `[]` of counts."""
        del count
        return counting.class_metrics(sums)

    def metric_rows(self, outputs: jax.Array, batch: core.Batch) -> core.Tree:
        """Returns labels and scores `[B]` of the second of two classes, else None."""
        # Areas of many classes, with a ranking for each, can cost more than the
        # outputs.
        if outputs.shape[1] != 2:
            return None
        return {"positive": batch.y == 1, "score": outputs[:, 1] - outputs[:, 0]}

    def finish_rows(self, rows: core.Tree, weight: jax.Array) -> dict[str, jax.Array]:
        """Returns the area under the curve `[]` of two classes."""
        if rows is None:
            return {}
        return {"auc": counting.auc(rows["score"], rows["positive"], weight)}


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

    def metric_rows(self, outputs: jax.Array, batch: core.Batch) -> core.Tree:
        """Returns errors and targets `[B]`."""
        targets = batch.y.astype(outputs.dtype)
        return {"error": outputs - targets, "target": targets}

    def finish_rows(self, rows: core.Tree, weight: jax.Array) -> dict[str, jax.Array]:
        """Returns the metrics `[]` of errors."""
        return counting.error_metrics(rows["error"], rows["target"], weight)


class Wrapper:
    """Loss and metrics of another model, `judge`."""

    judge: Any

    def _judged(self, batch: core.Batch) -> core.Batch:
        """Returns the batch as the other model reads it."""
        return batch

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the weighted mean loss `[]`; 0 for an empty batch."""
        return self.judge.loss(outputs, self._judged(batch))

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the other model's values `[B]` per example."""
        return self.judge.metrics(outputs, self._judged(batch))

    def metric_sums(self, outputs: jax.Array, batch: core.Batch) -> core.Tree:
        """Returns the other model's sums, or None."""
        if not isinstance(self.judge, core.SummedModel):
            return None
        return self.judge.metric_sums(outputs, self._judged(batch))

    def finish_metrics(self, sums: core.Tree, count: jax.Array) -> dict[str, jax.Array]:
        """Returns the metrics `[]` of sums."""
        is_summed = isinstance(self.judge, core.SummedModel)
        return self.judge.finish_metrics(sums, count) if is_summed else {}

    def metric_rows(self, outputs: jax.Array, batch: core.Batch) -> core.Tree:
        """Returns the other model's rows `[B, ...]`, or None."""
        if not isinstance(self.judge, core.RankedModel):
            return None
        return self.judge.metric_rows(outputs, self._judged(batch))

    def finish_rows(self, rows: core.Tree, weight: jax.Array) -> dict[str, jax.Array]:
        """Returns the metrics `[]` of rows."""
        is_ranked = isinstance(self.judge, core.RankedModel)
        return self.judge.finish_rows(rows, weight) if is_ranked else {}


@dataclasses.dataclass(frozen=True)
class _Weighted(Classification):
    """Classification with weights of classes."""

    class_weights: tuple[float, ...] | None = None


class Call(NamedTuple):
    """The arguments of a network's evaluation, or of its training if it has a key.

    `params` are without running statistics, and named as the network names them.
    """

    params: core.Params
    x: jax.Array
    key: core.Key | None
    constants: core.Constants


class Supervised(Wrapper, starts.Startable):
    """A network for classes if it has `num_classes`, else for numbers; abstract.

    It may have running statistics, and its head is known by the names of parameters.
    """

    head: str | None = None  # regular expression; None for names below `head/`

    @property
    def judge(self) -> Any:
        """Loss and metrics of classes, or of numbers."""
        is_regression = self.num_classes is None
        return Regression() if is_regression else _Weighted(self.class_weights)

    @abc.abstractmethod
    def _call(self, call: Call) -> tuple[Any, Any]:
        """Returns outputs, and running statistics after the batch."""

    def own_params(self, params: core.Params) -> core.Params:
        """Returns parameters as the network itself names them."""
        return params

    def apply(
        self,
        params: core.Params,
        x: jax.Array,
        *,
        key: core.Key | None = None,
        constants: core.Tree = None,
    ) -> jax.Array:
        """Logits `[B, C]` or numbers `[B]`, in the parameters' dtype."""
        return self.apply_with_statistics(params, x, key=key, constants=constants)[0]

    def apply_with_statistics(
        self,
        params: core.Params,
        x: jax.Array,
        *,
        key: core.Key | None,
        constants: core.Tree,
    ) -> tuple[jax.Array, Any]:
        """Returns the outputs of `apply`, and running statistics after this batch."""
        params, constants = statistics.taken(params, constants)
        running, dtype = constants.running, jnp.result_type(*jax.tree.leaves(params))
        self._require_statistics(running)
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(dtype)
        call = Call(self.own_params(params), x, key, constants)
        outputs, updated = self._call(call)
        if running is not None:
            updated = statistics.settled(updated, running, constants.weight)
        outputs = outputs.astype(dtype)
        return outputs.reshape(-1) if self.num_classes is None else outputs, updated

    def featured(
        self, params: core.Params, x: jax.Array, **options: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns inputs `[B, D]` of the head, and `apply_with_statistics`.

        Networks of functions have none.
        """
        from fedjax_pfl.models import heads  # imports flax

        return heads.featured(self, self.head or "^head/", params, x, **options)
