"""Constants of local gradients that derivatives of trainings pass through."""

import jax
import jax.numpy as jnp

from fedjax_pfl.core.aliases import Tree

__all__ = ["held"]


@jax.custom_vjp
def held(tree: Tree) -> Tree:
    """Returns a tree that is a constant in the innermost gradient."""
    return tree


# Unlike with `lax.stop_gradient`, the gradient itself can be differentiated with
# respect to inputs of the tree, such as a hyperparameter of earlier steps.
held.defvjp(
    lambda tree: (tree, None),
    lambda _, cotangents: (jax.tree.map(jnp.zeros_like, cotangents),),
)
