"""Values at which gradients of local losses end, and those of trainings do not."""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["held"]


@jax.custom_vjp
def held(tree: Any) -> Any:
    """Returns a tree that counts as a constant in the innermost gradient.

    Unlike `lax.stop_gradient` it lets derivatives of the gradient itself through, with
    respect to what the tree depends on, such as a hyperparameter of earlier steps.

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
