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
    """Applies `fn(row, training examples)` to every client, `CHUNK` at a time.

    Args:
      fn: function of ONE client.
      rows: pytree of `[N, ...]`.
      federation: data of N clients.

    Returns:
      Pytree of `[N, ...]`.
    """
    pool = federation.train.pool()

    def of_client(row: tuple[Any, dict[str, Any]]) -> core.Tree:
        return fn(row[0], pool.with_rows(row[1]))

    return lax.map(of_client, (rows, federation.train.rows()), batch_size=CHUNK)


def after(view: core.ClientView, info: local.LocalInfo) -> core.ClientView:
    """Returns the view after local work, with the client's new personal parameters.

    Returns:
      The view, with new running statistics of a `StatisticsModel`, too.
    """
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
    """Returns features `[B, D]`, outputs, and running statistics after the batch.

    Args:
      model: one that `check_features` accepts.
      params: `[*P]` its parameters.
      batch: examples.
      key: `[]` key of the model's randomness, or None in evaluation mode.
    """
    return model.featured(params, batch.x, key=key, constants=batch.constants)


def stored_features(
    model: core.Model, params: core.Params, data: core.ClientData
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the features of all slots of ONE client, in evaluation mode.

    Args:
      model: one that `check_features` accepts.
      params: `[*P]` its parameters.
      data: examples of the client.

    Returns:
      Features `[M, D]`, labels `[M]`, and weights `[M]`, 0 for padding.
    """
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def at_place(place: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        weight = (place < data.num_examples).astype(dtype)
        batch = data.gather(place[None], weight[None])
        return featured(model, params, batch, None)[0][0], batch.y[0], weight

    return lax.map(at_place, jnp.arange(data.index.shape[0]), batch_size=_AT_ONCE)


@dataclasses.dataclass(frozen=True)
class FeatureLoss(local.StatefulLoss):
    """A model's loss on a batch plus the mean of a term of features.

    Attributes:
      model: one that `check_features` accepts.
      weight: `[]` of the term.
      term: `(features [B, D], batch, context) -> [B]`.
    """

    model: Any
    weight: Any
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
    """Returns half the squared distance `[]` of two trees: the proximal term.

    Args:
      a: `[*P]`.
      b: `[*P]`.

    Returns:
      `||a - b||^2 / 2`, with the gradient `a - b` in `a`.

    Example:
      >>> float(half_squared_distance({"w": 3.0}, {"w": 1.0}))
      2.0
    """
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    return jnp.asarray(sum(jax.tree.leaves(squares))) / 2


def pull(weight: core.Scalar, a: core.Tree, b: core.Tree) -> jax.Array:
    """Returns the proximal term `[]` with its weight, one for all layers or each's own.

    Args:
      weight: `[]`, or `[L]` for L leaves.
      a: `[*P]`.
      b: `[*P]`.

    Returns:
      `sum_l weight_l ||a_l - b_l||^2 / 2`.
    """
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
    """Returns the squared norm `[]` of ONE client's first `alpha_i grad f_i`.

    Returns:
      Where the schedule of the solver's tolerance starts; None unless the solver is
      `ToTolerance`.
    """
    if not isinstance(solver, local.ToTolerance):
        return None
    objective = local.DataLoss(model)

    def norm(params: core.Params, data: core.ClientData):
        _, gradient = local.full_value_and_gradient(
            objective, params, None, data, solver.batch_size
        )
        return optax.tree.norm(gradient, squared=True)

    return alpha**2 * client_map.chunked(norm, CHUNK)(params, data)


def local_consensus_update(
    theta: core.Params, w: core.Params, p: core.Params, *, share: core.Scalar
) -> core.Params:
    """Minimizes one client's augmented Lagrangian in its local copy `w_i`.

    Solves `argmin_v a/2 ||theta - v||^2 + rho <p, v - w> + rho/2 ||v - w||^2`, equation
    (12) scaled. `share = 1/(1 + kappa) = a/(a + rho)` instead of kappa, so that lam = 0
    works.

    Args:
      theta: `[*P]` personal parameters of this client.
      w: `[*P]` global parameters received this round.
      p: `[*P]` scaled dual variable.
      share: `[]` in [0, 1), or `[L]` for L leaves.

    Returns:
      `[*P]` the new local copy. As `share -> 0` it tends to `w - p`.

    Example:
      >>> local_consensus_update(2.0, 0.0, 0.0, share=0.5)
      1.0
    """
    shares = tree_paths.spread(share, theta)
    return jax.tree.map(
        lambda t, v, d, s: s * t + (1 - s) * (v - d), *(theta, w, p, shares)
    )


def class_counts(
    data: core.ClientData, num_classes: int, dtype: jnp.dtype
) -> jax.Array:
    """Counts the examples of ONE client per class.

    Returns:
      `[C]`, by the labels that the client trains on; zeros without examples.
    """
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
    return jax.tree.map(
        lambda a, b: ((1 - beta) * a + beta * b).astype(a.dtype), w, mean
    )


def stepped(start: core.Tree, direction: core.Tree, size: core.Scalar) -> core.Tree:
    """Returns `start + size direction [*P]`, in the dtype of `start`."""
    return jax.tree.map(lambda x, d: x + (size * d).astype(x.dtype), start, direction)
