"""Constants of local gradients that derivatives of trainings pass through."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["held"]


@jax.custom_vjp
def held(tree: Any) -> Any:
    """Returns a tree that is a constant in the innermost gradient.

    Unlike with `lax.stop_gradient`, the gradient itself can be differentiated with
    respect to inputs of the tree, such as a hyperparameter of earlier steps.

    Example:
      >>> def descend(rate):
      ...     x = 1.0 - rate
      ...     return jax.grad(lambda y: y * held(y))(x)
      >>> float(jax.grad(descend)(0.25))
      -1.0
    """
    return tree


held.defvjp(
    lambda tree: (tree, None),
    lambda _, cotangents: (jax.tree.map(jnp.zeros_like, cotangents),),
)
