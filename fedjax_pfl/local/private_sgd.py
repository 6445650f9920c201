"""Stochastic gradient descent that is private for the examples of a client."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, randomness, struct
from fedjax_pfl.local import minibatch_scan, objectives, solvers

__all__ = ["PrivateSGD"]

_NOISE = 2**30  # stream of the noise under a step's key; examples have 0, 1, ...


@struct.pytree_dataclass
class PrivateSGD(solvers.MinibatchSolver):
    """DP-SGD: gradients of single examples are clipped, and their sum is noisy.

    Every step draws B of the client's n examples without replacement, and moves along

        (sum_j g_j min(1, c / |g_j|) + N(0, (z c)^2 I)) / B  +  gradient of other terms,

    where terms of the objective without examples, such as a pull to the server's model,
    are neither clipped nor noisy. Replacing one example moves the sum by 2 c at most. A
    step needs gradients of B examples at once.

    Attributes:
      learning_rate: `[]` step size, > 0.
      norm: `[]` c, > 0.
      multiplier: `[]` z, at least 0; without noise epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).
      epochs: local epochs of ceil(n / B) steps.
      num_steps: local steps in place of epochs, or None.
      batch_size: B, at least 1; a client with fewer examples takes all in every step.

    Reference: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep Learning
    with Differential Privacy".
    """

    learning_rate: Any = struct.traced_field(default=0.1, above=0, search=(0.003, 10.0))
    norm: Any = struct.traced_field(default=1.0, above=0, search=(0.01, 100.0))
    multiplier: Any = struct.traced_field(
        default=1.0, at_least=0, unsearched="sets the privacy"
    )
    delta: Any = struct.traced_field(
        default=1e-5, above=0, below=1, unsearched="sets the privacy"
    )
    epochs: int = struct.static_field(default=1, at_least=1)
    num_steps: int | None = struct.static_field(default=None, at_least=1)
    batch_size: int = struct.static_field(default=20, at_least=1)
    order: ClassVar[None] = None
    remainder: ClassVar[minibatch_scan.Remainder] = "even"

    def most_steps(self, num_examples: int) -> int:
        """Bounds the steps per round of a client with `num_examples` examples."""
        if self.num_steps is not None:
            return self.num_steps if num_examples else 0
        return self.epochs * -(-num_examples // self.batch_size)

    def _sampler(
        self, objective: objectives.Objective, view: core.ClientView
    ) -> Callable[..., Any] | None:
        return minibatch_scan.independent_batch

    def _gradient_of(
        self, objective: objectives.Objective, view: core.ClientView
    ) -> Callable[..., tuple[Any, Any]]:
        if view.carry is not None:
            raise checks.InputError(
                "Expected a model of single examples with PrivateSGD, got one of"
                " series."
            )
        if view.data.statistics is not None:
            raise checks.InputError(
                "Expected a model whose examples stand alone with PrivateSGD, got one"
                " that normalizes by statistics of batches; normalization='group' does"
                " not."
            )
        gradient = jax.grad(objective, argnums=1)

        def private(
            key: core.Key,
            params: core.Params,
            batch: core.Batch,
            context: core.Tree,
            carry: core.Tree,
        ):
            def slope(key: core.Key, x: jax.Array, y: jax.Array, weight: jax.Array):
                example = dataclasses.replace(
                    batch, x=x[None], y=y[None], weight=weight[None]
                )
                return gradient(key, params, example, context)

            weight = batch.weight
            # An example of weight 0 leaves the other terms, which must not be clipped.
            term = slope(key, batch.x[0], batch.y[0], 0 * weight[0])

            def clipped(
                number: jax.Array, x: jax.Array, y: jax.Array, weight: jax.Array
            ):
                subkey = jax.random.fold_in(key, number)
                full = slope(subkey, x, y, jnp.ones_like(weight))
                # The example's part alone, without the other terms.
                part = optax.tree.sub(full, term)
                part = client_rows.clip(part, self.norm)
                return optax.tree.where(weight > 0, part, optax.tree.zeros_like(part))

            numbers = jnp.arange(weight.shape[0])
            parts = jax.vmap(clipped)(numbers, batch.x, batch.y, weight)
            total = jax.tree.map(lambda g: g.sum(axis=0), parts)
            # Noise for privacy uses the cipher with all 20 rounds.
            subkey = randomness.noise_key(jax.random.fold_in(key, _NOISE))
            total = randomness.plus_gaussian(subkey, total, self.multiplier * self.norm)
            count = jnp.maximum(weight.sum(), 1)
            mean = jax.tree.map(lambda g, r: g / count.astype(g.dtype) + r, total, term)
            return mean, (carry, None)

        return private

    def _init(self, params: core.Params, at: solvers.Step) -> None:
        return None

    def _update(
        self,
        gradient: core.Params,
        moments: None,
        params: core.Params,
        at: solvers.Step,
    ):
        rate = self.learning_rate * at.share
        return jax.tree.map(lambda x, g: x - rate * g, params, gradient), moments
