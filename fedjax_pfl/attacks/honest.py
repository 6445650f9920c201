"""Knowledge of colluding attackers: the cohort's finite honest messages."""

import functools
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct

__all__ = [
    "CENTER",
    "About",
    "Direction",
    "Honest",
    "direction",
    "look",
    "origin",
    "square_norms",
]

CENTER = "center of the attack"
About = Annotated[Literal["message", "reference"], CENTER]
"""Target of an attack: the message itself, or its difference to the reference."""

Direction = Literal["unit", "sign", "std"]
"""Where Min-Max and Min-Sum go: against the mean, its signs, or the deviations."""


@struct.pytree_dataclass
class Honest:
    """The honest rows of a cohort, about their mean."""

    known: jax.Array  # bool[K] rows that are honest and finite
    acts: jax.Array  # bool[K] malicious rows; none if no row is known
    center: core.Message  # [*P] a point near the mean of the known rows
    offset: core.Message  # [*P] the mean less the center, its rounding error
    rows: core.Message  # [K, *P] rows less the mean; zeros if not known

    @property
    def count(self) -> jax.Array:
        """Number `[]` of known rows, at least 1, in the rows' dtype."""
        dtype = jnp.result_type(*jax.tree.leaves(self.rows))
        return jnp.maximum(self.known.sum(), 1).astype(dtype)

    def mean_less(self, point: core.Message) -> core.Message:
        """Returns the mean less a point `[*P]`."""
        return jax.tree.map(
            lambda c, o, p: (c - p) + o, self.center, self.offset, point
        )

    def mean_plus(self, step: core.Message) -> core.Message:
        """Returns the mean plus a step `[*P]`."""
        return jax.tree.map(lambda c, o, s: c + (o + s), self.center, self.offset, step)

    def deviation(self, *, sample: bool = False) -> core.Message:
        """Returns the deviation `[*P]` of every coordinate; of one row it is 0."""
        rows, scale = client_rows.rescale(self.rows)
        divisor = jnp.maximum(self.count - 1, 1) if sample else self.count
        return jax.tree.map(
            lambda x: scale * jnp.sqrt(jnp.square(x).sum(axis=0) / divisor), rows
        )


def look(messages: core.Message, malicious: jax.Array) -> Honest:
    """Returns the honest rows of messages `[K, *P]`, their mean, and differences."""
    valid = ~malicious & client_rows.finite_rows(messages, malicious.shape[0])
    weights = valid.astype(jnp.result_type(*jax.tree.leaves(messages)))
    # Two means: rows about a point near them keep the digits of their differences in
    # float32, if all of them share a large offset.
    center = client_rows.weighted_mean(messages, weights)
    rows = jax.tree.map(lambda x, c: x - c[None], messages, center)
    offset = client_rows.weighted_mean(rows, weights)
    rows = jax.tree.map(lambda x, o: x - o[None], rows, offset)
    return Honest(
        known=valid,
        acts=malicious & valid.any(),
        center=center,
        offset=offset,
        rows=client_rows.select_rows(valid, rows, jax.tree.map(jnp.zeros_like, rows)),
    )


def origin(about: str, message: core.Message, reference: core.Message) -> core.Message:
    """Returns the point `[*P]` that an attack takes for zero: the reference, or 0."""
    return reference if about == "reference" else optax.tree.zeros_like(message)


def square_norms(rows: core.Message) -> jax.Array:
    """Returns squared norms `[K]` of the rows of a tree `[K, *P]`."""

    def of_leaf(leaf: jax.Array) -> jax.Array:
        return jnp.square(leaf.reshape(leaf.shape[0], -1)).sum(axis=1)

    return functools.reduce(jnp.add, map(of_leaf, jax.tree.leaves(rows)))


def direction(kind: Direction, honest: Honest, start: core.Message) -> core.Message:
    """Returns the unit vector `[*P]` along which a message leaves the honest mean."""
    if kind == "std":
        along = honest.deviation()
    else:
        along = honest.mean_less(start)
    if kind == "sign":
        along = jax.tree.map(jnp.sign, along)
    # Over a power of two, so that squares neither overflow nor vanish.
    along, _ = client_rows.rescale(along)
    norm = jnp.sqrt(square_norms(jax.tree.map(lambda leaf: leaf[None], along))[0])
    return jax.tree.map(lambda leaf: -leaf / jnp.where(norm > 0, norm, 1), along)
