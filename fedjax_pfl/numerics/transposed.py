"""Derivatives in both directions from the formula of one of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.aliases import Tree

__all__ = ["with_cotangents"]


def with_cotangents(
    forward: Callable[..., tuple[tuple[jax.Array, Any], Any]],
    backward: Callable[[Any, jax.Array], tuple[Any, ...]],
) -> Callable[..., tuple[jax.Array, Any]]:
    """Makes a function of known cotangents, with their transpose as its tangents."""

    def of_leaves(*arguments: Tree) -> tuple[jax.Array, Any]:
        # As leaves, since JAX would put tangents into the arguments' own classes, which
        # refuse some values.
        leaves, structure = jax.tree.flatten(arguments)
        sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
        places = [sum(sizes[:number]) for number in range(len(sizes))]

        @jax.custom_jvp
        def call(leaves: list[Any]) -> tuple[jax.Array, Any]:
            return forward(*jax.tree.unflatten(structure, leaves))[0]

        @call.defjvp
        def rule(primals: Tree, tangents: Tree):  # pyright: ignore[reportUnusedFunction]
            # The report is a constant to derivatives; so are arguments with cotangent
            # None.
            (output, report), residuals = forward(
                *jax.tree.unflatten(structure, *primals)
            )
            directions: list[jax.Array] = []

            def pull(cotangent: jax.Array) -> list[jax.Array]:
                pairs = zip(places, backward(residuals, cotangent), strict=True)
                cotangents = {place: c for place, c in pairs if c is not None}
                directions[:] = [tangents[0][place] for place in cotangents]
                return list(cotangents.values())

            transposed = jax.linear_transpose(pull, output)
            tangent = transposed(directions)[0]
            return (output, report), (tangent, jax.tree.map(_still, report))

        return call(leaves)

    return of_leaves


def _still(leaf: jax.Array) -> Any:
    """Returns the tangent of a leaf that does not move."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)
