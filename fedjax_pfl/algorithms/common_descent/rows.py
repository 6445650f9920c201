"""The rows of the searched convex hull: scaled gradients and their Gram matrix."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.algorithms.common_descent import angle
from fedjax_pfl.core import checks, client_rows, struct, tree_paths

__all__ = [
    "FairFrom",
    "Normalization",
    "Rows",
    "Scale",
    "layer_names",
    "make_rows",
]

Scale = Literal["median", "mean"]
FairFrom = Literal["scaled", "raw"]
Normalization = Literal["scale", "none"]

_STATIONARY = 1e-6  # a shorter gradient has no direction
_NO_FAIR_ROW = 1e-12


@struct.pytree_dataclass
class Rows:
    """Rows `q_j = scale_j vector_j`: K members, H absent clients, fairness last.

    Attributes:
      vectors: pytree of `[J, *P]` with `J = K + H + 1`; rows left out are
        finite, and have scale 0.
      scales: `[J]` factors; 0 for rows left out.
      mask: `bool[J]` which rows there are.
      norms: `[J]` norms of the vectors.
      mu: `[]` the norm that scaled rows have.
      gram: `[L, J, J]` inner products of the scaled rows, one matrix per layer; their
        sum is that of whole rows.
      layers: the layer of every leaf, in the order of the tree's leaves; static.
      num_members: K, static.
    """

    vectors: core.Tree
    scales: jax.Array
    mask: jax.Array
    norms: jax.Array
    mu: jax.Array
    gram: jax.Array
    layers: tuple[int, ...] = struct.static_field()
    num_members: int = struct.static_field()

    @property
    def whole(self) -> jax.Array:
        """Gram matrix `[J, J]` of the whole rows."""
        return self.gram.sum(axis=0)

    @property
    def gradients(self) -> jax.Array:
        """`bool[J]` which rows count, without that of fairness."""
        return self.mask.at[-1].set(False)

    @property
    def members(self) -> jax.Array:
        """`bool[J]` which rows are members of the cohort that count."""
        return self.mask & (jnp.arange(self.mask.shape[0]) < self.num_members)

    def combine(self, weights: jax.Array) -> core.Tree:
        """Sums scaled rows.

        Args:
          weights: `[I, L, J]` weights of I sums, in every layer.

        Returns:
          Pytree of `[I, *P]`, at highest precision.
        """
        parts, tree = jax.tree.flatten(self.vectors)
        factors = weights * self.scales[None, None, :]
        mixed = [
            client_rows.mix(leaf, factors[:, layer])
            for leaf, layer in zip(parts, self.layers, strict=True)
        ]
        return jax.tree.unflatten(tree, mixed)

    def products(self, vector: core.Tree) -> jax.Array:
        """Returns the inner products `[J]` of the scaled rows with a vector `[*P]`."""
        along = client_rows.products(self.vectors, vector)
        return jnp.where(self.mask, self.scales * along, 0)


def layer_names(params: core.Params) -> list[str]:
    """Names the layer of every leaf: `conv1` for the path `conv1/kernel`.

    Args:
      params: parameter tree.

    Returns:
      One name per leaf, in the order of the tree's leaves.

    Example:
      >>> layer_names({"head": {"kernel": 1, "bias": 2}, "scale": 3})
      ['head', 'head', 'scale']
    """
    names = jax.tree.leaves(tree_paths.names(params))
    return [name.rpartition("/")[0] or name for name in names]


def _norms(tree: core.Tree) -> jax.Array:
    """Returns the norms `[K]` of the rows."""

    def squares(leaf: jax.Array) -> jax.Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        return jnp.einsum("kd,kd->k", flat, flat, precision=lax.Precision.HIGHEST)

    return jnp.sqrt(sum(squares(leaf) for leaf in jax.tree.leaves(tree)))


def _center(values: jax.Array, mask: jax.Array, scale: str) -> jax.Array:
    """Returns the median or mean `[]` of the values that count; 1 if there are none."""
    count = mask.sum()
    if scale == "mean":
        total = jnp.where(mask, values, 0).sum()
        center = total / jnp.maximum(count, 1).astype(values.dtype)
    else:
        # Values left out come last; of an even number the middle two are averaged.
        ordered = jnp.sort(jnp.where(mask, values, jnp.inf))
        last = jnp.maximum(count - 1, 0)
        center = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
    return jnp.where(count > 0, center, 1)


def make_rows(
    members: core.Message,
    present: jax.Array,
    fair: angle.Fairness,
    history: core.Message = None,
    used: jax.Array | None = None,
    *,
    scale: Scale = "median",
    fair_from: FairFrom = "scaled",
    normalize: Normalization = "scale",
    fair_row: bool = True,
    layerwise: bool = False,
) -> Rows:
    """Scales gradients to a common norm mu and adds the row of the fairness objective.

    Unscaled, the client with the smallest gradient owns the direction. The median keeps
    mu among the norms of the honest as long as they are the majority.

    Args:
      members: pytree of `[K, *P]` gradients of the cohort.
      present: `bool[K]` clients with gradients that arrived.
      fair: fairness objective at their losses.
      history: pytree of `[H, *P]` last gradients of absent clients, all finite, or
        None.
      used: `bool[H]` that count.
      scale: mu is the `median` or `mean` norm of the members' gradients.
      fair_from: the fairness row sums `scaled` members' rows, or their `raw` gradients.
      normalize: `scale` brings all rows to mu; `none` leaves the members' as they are.
      fair_row: whether there is a fairness row at all.
      layerwise: whether every layer has a Gram matrix of its own.

    Returns:
      The rows. Gradients with a norm below 1e-6, or one that overflows, are left out.
    """
    checks.known(scale, get_args(Scale), "scale")
    checks.known(fair_from, get_args(FairFrom), "fair_from")
    checks.known(normalize, get_args(Normalization), "normalize")
    num_members = present.shape[0]
    # Rows left out are replaced before any product: 0 * NaN is NaN.
    zeros = jax.tree.map(jnp.zeros_like, members)
    members = client_rows.select_rows(present, members, zeros)
    norms = _norms(members)
    valid = present & _usable(norms)
    members = client_rows.select_rows(valid, members, zeros)
    mu = _center(norms, valid, scale)
    scales = jnp.where(valid, mu / jnp.where(valid, norms, 1), 0)
    if normalize == "none":
        scales = valid.astype(norms.dtype)
    # grad F = sum_i h_i g_i, of the scaled rows or of the gradients themselves.
    slopes = fair.slopes * (scales if fair_from == "scaled" else valid)
    fair_vector = client_rows.weighted_sum(members, slopes)

    # One copy of all rows: with many absent clients the largest array of a round.
    parts = [members, *([] if history is None else [history])]
    parts.append(jax.tree.map(lambda leaf: leaf[None], fair_vector))
    vectors = jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts)
    layers, gram = _gram(vectors, layerwise)
    sizes = jnp.sqrt(jnp.diagonal(gram, axis1=1, axis2=2).sum(axis=0))
    masks = [valid, *([] if used is None else [used & _usable(sizes[num_members:-1])])]
    has_fair = fair.usable & (sizes[-1] >= _NO_FAIR_ROW) & fair_row
    mask = jnp.concatenate([*masks, has_fair[None]])
    # History and fairness have the norm mu, also if members keep theirs.
    tail = mu / jnp.where(mask, sizes, 1)[num_members:]
    scales = jnp.where(mask, jnp.concatenate([scales, tail]), 0)
    # Scaled here, since the scales themselves follow from the Gram matrix.
    products = (scales[:, None] * scales[None, :])[None]
    return Rows(
        vectors=vectors,
        scales=scales,
        mask=mask,
        norms=jnp.where(mask, sizes, 0),
        mu=mu,
        gram=jnp.where((mask[:, None] & mask[None, :])[None], gram * products, 0),
        layers=layers,
        num_members=num_members,
    )


def _usable(norms: jax.Array) -> jax.Array:
    """Returns which gradients are neither stationary nor too long to square."""
    return (norms >= _STATIONARY) & jnp.isfinite(norms)


def _gram(vectors: core.Tree, layerwise: bool) -> tuple[tuple[int, ...], jax.Array]:
    """Returns every leaf's layer, and the layers' Gram matrices `[L, J, J]`."""
    parts = jax.tree.leaves(vectors)
    names = layer_names(vectors) if layerwise else [""] * len(parts)
    kinds = list(dict.fromkeys(names))
    layers = tuple(kinds.index(name) for name in names)
    grams = [
        client_rows.gram(
            [part for part, layer in zip(parts, layers, strict=True) if layer == i]
        )
        for i in range(len(kinds))
    ]
    return layers, jnp.stack(grams)
