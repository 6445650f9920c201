"""Formulas and checks that several methods use."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core, local
from fedjax_pfl.core import checks, client_map, struct, tree_paths
from fedjax_pfl.models import objectives

__all__ = [
    "CHUNK",
    "FeatureLoss",
    "OFFICIAL",
    "after",
    "check_classes",
    "check_features",
    "check_plain_sgd",
    "class_counts",
    "dual_update",
    "featured",
    "first_residual",
    "half_squared_distance",
    "local_consensus_update",
    "map_everyone",
    "problem_weight",
    "pull",
    "proximal_objective",
    "relaxed",
    "stepped",
    "stored_features",
]

CHUNK = 16
"""Clients whose full gradients are in memory at once."""

_AT_ONCE = 256  # examples whose features are computed together

OFFICIAL = local.SGD(
    learning_rate=0.01,
    batch_size=100,
    momentum=0.5,
    weight_decay=0.01,
    remainder="full",
)
"""The solver of personal models in FLAME's release, whatever the method."""


def map_everyone(
    fn: Callable[[Any, core.ClientData], Any],
    rows: core.Tree,
    federation: core.Federation,
) -> core.Tree:
    """Applies `fn(row, training examples)` to all clients, of rows `[N, ...]`."""
    pool = federation.train.pool()

    def of_client(row: tuple[Any, dict[str, Any]]) -> core.Tree:
        return fn(row[0], pool.with_rows(row[1]))

    # Full gradients of all N clients at once would not fit into memory.
    return lax.map(of_client, (rows, federation.train.rows()), batch_size=CHUNK)


def after(view: core.ClientView, info: local.LocalInfo) -> core.ClientView:
    """Returns the view after local work: new personal parameters and statistics."""
    data = view.data
    if data.personal is not None:
        data = data.with_personal(info.carry)
    if data.statistics is not None:
        data = data.with_statistics(info.statistics)
    return dataclasses.replace(view, data=data)


def check_plain_sgd(algorithm: str, solver: core.Solver) -> None:
    """Refuses local solvers with steps other than a learning rate times a gradient."""
    is_plain = isinstance(solver, local.SGD) and solver.momentum is None
    if not is_plain or solver.clip_norm is not None:
        name = "Optax" if isinstance(solver, local.Optax) else repr(solver)
        raise checks.InputError(
            f"Expected {algorithm}'s local solver to be SGD without momentum and"
            f" clip_norm, whose plain steps its rule is made of, got {name}."
        )


def check_classes(algorithm: str, model: core.Model) -> None:
    """Refuses models with outputs other than logits of classes."""
    if model.num_classes is None:
        raise checks.InputError(
            f"Expected a model of classes for {algorithm}, got {type(model).__name__}"
            " for targets that are numbers."
        )


def check_features(algorithm: str, model: core.Model) -> None:
    """Refuses models without features, the inputs of a head."""
    inner = struct.innermost(model)
    if not hasattr(inner, "featured"):
        raise checks.InputError(
            f"Expected a network of layers before a head for {algorithm}, such as MLP,"
            f" CNN or a module of flax, got {type(inner).__name__}."
        )


def featured(
    model: Any, params: core.Params, batch: core.Batch, key: core.Key | None
) -> tuple[jax.Array, jax.Array, Any]:
    """Returns features `[B, D]`, outputs, and running statistics after the batch."""
    # Without a key the model is in evaluation mode.
    return model.featured(params, batch.x, key=key, constants=batch.constants)


def stored_features(
    model: core.Model, params: core.Params, data: core.ClientData
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns features `[M, D]`, labels `[M]`, weights `[M]` of ONE client's slots."""
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def at_place(place: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        # Slots beyond the examples are padding, with weight 0.
        weight = (place < data.num_examples).astype(dtype)
        batch = data.gather(place[None], weight[None])
        return featured(model, params, batch, None)[0][0], batch.y[0], weight

    return lax.map(at_place, jnp.arange(data.index.shape[0]), batch_size=_AT_ONCE)


@dataclasses.dataclass(frozen=True)
class FeatureLoss(local.StatefulLoss):
    """A model's loss on a batch plus `weight` times the mean of a term of features."""

    model: Any
    weight: core.Scalar
    # `(features [B, D], batch, context) -> [B]`
    term: Callable[[jax.Array, core.Batch, Any], jax.Array]

    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and model state after the batch."""
        z, outputs, running = featured(self.model, params, batch, key)
        values = self.term(z, batch, context)
        mean = objectives.weighted_mean(values, batch.weight)
        return self.model.loss(outputs, batch) + self.weight * mean, (carry, running)


def half_squared_distance(a: core.Tree, b: core.Tree) -> jax.Array:
    """Returns `||a - b||^2 / 2` `[]` of two trees; its gradient in a is `a - b`."""
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    return jnp.asarray(sum(jax.tree.leaves(squares))) / 2


def pull(weight: core.Scalar, a: core.Tree, b: core.Tree) -> jax.Array:
    """Returns `sum_l weight_l ||a_l - b_l||^2 / 2` `[]`; weight `[]` or per leaf."""
    if jnp.ndim(weight) == 0:
        return weight * half_squared_distance(a, b)
    parts = jax.tree.map(
        lambda w, x, y: w * half_squared_distance(x, y),
        *(tree_paths.spread(weight, a), a, b),
    )
    return jnp.asarray(sum(jax.tree.leaves(parts)))


def problem_weight(
    weighting: str,
    population: core.Population,
    data: core.ClientData,
    params: core.Params,
) -> jax.Array:
    """Returns the weight alpha_i `[]` of ONE client: 1/N or by its examples."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    if weighting == "uniform":
        return jnp.asarray(1 / population.num_clients, dtype)
    return data.num_examples / population.num_examples.astype(dtype)


def proximal_objective(model: core.Model, weight: core.Scalar) -> local.DataLoss:
    """Returns `f_i(x) + weight/2 ||x - center||^2`, with the center as context."""
    return local.DataLoss(model).plus(lambda x, center: pull(weight, x, center))


def first_residual(
    model: core.Model,
    solver: core.Solver,
    alpha: jax.Array,
    params: core.Params,
    data: core.ClientData,
) -> jax.Array | None:
    """Returns ONE client's `||alpha_i grad f_i||^2` `[]`, or None without tolerance."""
    # The schedule of tolerances starts here; other solvers have none.
    if not isinstance(solver, local.ToTolerance):
        return None
    objective = local.DataLoss(model)

    def norm(params: core.Params, data: core.ClientData):
        _, gradient = local.full_value_and_gradient(
            objective, params, None, data, solver.batch_size
        )
        return optax.tree.norm(gradient, squared=True)

    # `init` is mapped over all clients: chunks bound the gradients in memory.
    return alpha**2 * client_map.chunked(norm, CHUNK)(params, data)


def local_consensus_update(
    theta: core.Params, w: core.Params, p: core.Params, *, share: core.Scalar
) -> core.Params:
    """Returns ONE client's local copy w_i `[*P]`, equation (12) scaled."""
    # argmin_v a/2 ||theta - v||^2 + rho <p, v - w> + rho/2 ||v - w||^2, with
    # share = a / (a + rho) = 1 / (1 + kappa), 0 at lam = 0: then w_i = w - p.
    shares = tree_paths.spread(share, theta)
    return jax.tree.map(
        lambda t, v, d, s: s * t + (1 - s) * (v - d), *(theta, w, p, shares)
    )


def class_counts(
    data: core.ClientData, num_classes: int, dtype: jnp.dtype
) -> jax.Array:
    """Counts ONE client's examples per class `[C]`, by the labels it trains on."""
    real = jnp.arange(data.index.shape[0]) < data.num_examples
    labels = data.labels
    if labels is None:  # padding may point anywhere
        labels = data.y[jnp.where(real, data.index, 0)]
    labels = jnp.where(real, labels, 0)
    return jnp.zeros(num_classes, dtype).at[labels].add(real.astype(dtype))


def dual_update(p: core.Params, w_local: core.Params, w: core.Params) -> core.Params:
    """Returns the scaled dual `p + w_i - w` `[*P]`, equation (13) scaled."""
    return jax.tree.map(lambda d, a, b: d + a - b, p, w_local, w)


def relaxed(w: core.Params, mean: core.Params, beta: core.Scalar) -> core.Params:
    """Returns `(1 - beta) w + beta mean [*P]`; exactly the mean at beta = 1."""
    # A traced beta may have more bits than the model.
    return jax.tree.map(
        lambda a, b: ((1 - beta) * a + beta * b).astype(a.dtype), w, mean
    )


def stepped(start: core.Tree, direction: core.Tree, size: core.Scalar) -> core.Tree:
    """Returns `start + size direction [*P]`, in the dtype of `start`."""
    return jax.tree.map(lambda x, d: x + (size * d).astype(x.dtype), start, direction)
