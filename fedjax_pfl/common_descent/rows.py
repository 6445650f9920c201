"""The rows whose convex hull is searched: scaled gradients and their Gram matrix."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import checks, clients, leaves, struct
from fedjax_pfl.common_descent import angle

__all__ = [
    "FAIR_FROM",
    "NORMALIZATIONS",
    "SCALES",
    "Rows",
    "layer_names",
    "make_rows",
]

SCALES = ("median", "mean")
FAIR_FROM = ("scaled", "raw")
NORMALIZATIONS = ("scale", "none")

_STATIONARY = 1e-6  # a client with a smaller gradient has nothing to say
_NO_FAIR_ROW = 1e-12


@struct.pytree_dataclass
class Rows:
    """Rows `q_j = scale_j vector_j`: K members, H absent clients, fairness last.

    Attributes:
      vectors: pytree of `[J, *P]` with `J = K + H + 1`; rows left out are zeros.
      scales: `[J]` factors; 0 for rows left out.
      mask: `bool[J]` which rows there are.
      norms: `[J]` norms of the vectors.
      mu: `[]` the norm that scaled rows have.
      gram: `[L, J, J]` inner products of the scaled rows, one matrix per layer; their
        sum is that of whole rows.
      layers: the layer of every leaf, in the order of the tree's leaves; static.
      num_members: K, static.
    """

    vectors: Any
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
    def members(self) -> jax.Array:
        """`bool[J]` which rows are members of the cohort that count."""
        return self.mask & (jnp.arange(self.mask.shape[0]) < self.num_members)

    def combine(self, weights: jax.Array) -> Any:
        """Sums of scaled rows.

        Args:
          weights: `[I, L, J]` weights of I sums, in every layer.

        Returns:
          Pytree of `[I, *P]`, at highest precision.
        """
        parts, tree = jax.tree.flatten(self.vectors)
        given = weights * self.scales[None, None, :]
        mixed = [
            clients.mix(leaf, given[:, layer])
            for leaf, layer in zip(parts, self.layers, strict=True)
        ]
        return jax.tree.unflatten(tree, mixed)

    def products(self, vector: Any) -> jax.Array:
        """Inner products `[J]` of the scaled rows with a vector `[*P]`."""
        found = jax.tree.map(
            lambda rows, v: jnp.matmul(
                rows.reshape(rows.shape[0], -1),
                v.reshape(-1),
                precision=lax.Precision.HIGHEST,
            ),
            self.vectors,
            vector,
        )
        return self.scales * sum(jax.tree.leaves(found))


def layer_names(params: Any) -> list[str]:
    """The layer of every leaf: its path without the last part, `conv1/kernel`: `conv1`.

    Args:
      params: parameter tree.

    Returns:
      One name per leaf, in the order of the tree's leaves.

    Example:
      >>> layer_names({"head": {"kernel": 1, "bias": 2}, "scale": 3})
      ['head', 'head', 'scale']
    """
    names = jax.tree.leaves(leaves.names(params))
    return [name.rpartition("/")[0] or name for name in names]


def _norms(tree: Any) -> jax.Array:
    """Norms `[K]` of the rows."""

    def squares(leaf: jax.Array) -> jax.Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        return jnp.einsum("kd,kd->k", flat, flat, precision=lax.Precision.HIGHEST)

    return jnp.sqrt(sum(squares(leaf) for leaf in jax.tree.leaves(tree)))


def _center(values: jax.Array, mask: jax.Array, scale: str) -> jax.Array:
    """Median or mean `[]` of the values that count; 1 if there are none."""
    count = mask.sum()
    if scale == "mean":
        total = jnp.where(mask, values, 0).sum()
        center = total / jnp.maximum(count, 1).astype(values.dtype)
    else:
        ordered = jnp.sort(jnp.where(mask, values, jnp.inf))
        last = jnp.maximum(count - 1, 0)
        center = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
    return jnp.where(count > 0, center, 1)


def make_rows(
    members: Any,
    present: jax.Array,
    fair: angle.Fairness,
    history: Any = None,
    used: jax.Array | None = None,
    *,
    scale: str = "median",
    fair_from: str = "scaled",
    normalize: str = "scale",
    fair_row: bool = True,
    layerwise: bool = False,
) -> Rows:
    """Scales gradients to a common norm mu and adds the row of the fairness objective.

    Unscaled, the client with the smallest gradient owns the direction. The median keeps
    mu among the norms of the honest as long as they are the majority.

    Args:
      members: pytree of `[K, *P]` gradients of the cohort.
      present: `bool[K]` whose gradients arrived.
      fair: fairness objective at their losses.
      history: pytree of `[H, *P]` last gradients of absent clients, or None.
      used: `bool[H]` which of them count.
      scale: mu is the `median` or `mean` norm of the members' gradients.
      fair_from: the fairness row sums `scaled` members' rows, or their `raw` gradients.
      normalize: `scale` brings all rows to mu; `none` leaves the members' as they are.
      fair_row: whether there is a fairness row at all.
      layerwise: whether every layer has a Gram matrix of its own.

    Returns:
      The rows. Gradients with a norm below 1e-6, or one that overflows, are left out.
    """
    checks.known(scale, SCALES, "scale")
    checks.known(fair_from, FAIR_FROM, "fair_from")
    checks.known(normalize, NORMALIZATIONS, "normalize")
    num_members, given = present.shape[0], present
    if history is not None:
        assert used is not None
        members = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), members, history)
        given = jnp.concatenate([present, used])
    norms = _norms(clients.select_rows(given, members, _zeros(members)))
    mask = given & (norms >= _STATIONARY) & jnp.isfinite(norms)
    vectors = clients.select_rows(mask, members, _zeros(members))
    norms = jnp.where(mask, norms, 0)
    is_member = jnp.arange(norms.shape[0]) < num_members
    mu = _center(norms, mask & is_member, scale)
    scales = jnp.where(mask, mu / jnp.where(mask, norms, 1), 0)
    if normalize == "none":
        scales = jnp.where(is_member, mask.astype(scales.dtype), scales)

    slopes = jnp.zeros_like(norms).at[:num_members].set(fair.slopes)
    slopes = slopes * (scales if fair_from == "scaled" else mask)
    fair_vector = clients.weighted_sum(vectors, slopes)
    fair_norm = _norms(jax.tree.map(lambda leaf: leaf[None], fair_vector))
    has_fair = fair.usable & (fair_norm[0] >= _NO_FAIR_ROW) & fair_row
    fair_scale = jnp.where(has_fair, mu / jnp.where(has_fair, fair_norm[0], 1), 0)

    vectors = jax.tree.map(
        lambda rows, f: jnp.concatenate([rows, f[None]]), vectors, fair_vector
    )
    scales = jnp.append(scales, fair_scale)
    layers, gram = _gram(vectors, layerwise)
    return Rows(
        vectors=vectors,
        scales=scales,
        mask=jnp.append(mask, has_fair),
        norms=jnp.append(norms, fair_norm[0]),
        mu=mu,
        gram=gram * (scales[:, None] * scales[None, :])[None],
        layers=layers,
        num_members=num_members,
    )


def _zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


def _gram(vectors: Any, layerwise: bool) -> tuple[tuple[int, ...], jax.Array]:
    """The layer of every leaf, and Gram matrices `[L, J, J]` of the layers."""
    parts = jax.tree.leaves(vectors)
    names = layer_names(vectors) if layerwise else [""] * len(parts)
    known = list(dict.fromkeys(names))
    layers = tuple(known.index(name) for name in names)
    grams = [
        clients.gram(
            [part for part, own in zip(parts, layers, strict=True) if own == i]
        )
        for i in range(len(known))
    ]
    return layers, jnp.stack(grams)
