"""Solvers of one client's local problem."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.local import minibatch_scan, objectives

__all__ = ["SGD", "Optax", "ToTolerance"]

StepEnd = Callable[[Any, Any], Any]
EpochEnd = Callable[[jax.Array, Any, Any], tuple[Any, Any]]


class _MinibatchSolver:
    """Shared part of the solvers that walk over shuffled minibatches."""

    epochs: int
    num_steps: int | None
    batch_size: int

    def _check(self) -> None:
        checks.positive_int("epochs", self.epochs)
        if self.num_steps is not None:
            checks.positive_int("num_steps", self.num_steps)
        checks.positive_int("batch_size", self.batch_size)

    def _init(self, params: Any) -> Any:
        raise NotImplementedError

    def _update(
        self, gradient: Any, moments: Any, params: Any, work: core.Budget
    ) -> tuple[Any, Any]:
        raise NotImplementedError

    def solve(
        self,
        key: core.Key,
        work: core.Budget,
        objective: objectives.Objective,
        params: Any,
        context: Any,
        data: core.ClientData,
        *,
        step_end: StepEnd | None = None,
        epoch_end: EpochEnd | None = None,
    ) -> tuple[Any, Any, minibatch_scan.LocalInfo]:
        """Minimizes an objective approximately, starting at `params`.

        Args:
          key: `[]` key of this client in this round.
          work: budget of this client. Where it has a carry, batches are pieces that
            the `SequenceModel` draws, and the objective must be a `DataLoss`.
          objective: `(key, params, batch, context) -> []`.
          params: start.
          context: what the objective reads besides (a prox centre); constant within an
            epoch.
          data: examples of one client.
          step_end: `(params, context) -> params`, after every step.
          epoch_end: `(epoch, params, context) -> (params, context)`, after every epoch.

        Returns:
          Parameters, context and a `LocalInfo`.
        """
        gradient_of = jax.grad(
            objectives.stepwise(objective, work.carry), argnums=1, has_aux=True
        )

        def step(step_key, state, batches):
            params, moments, context, carry = state
            gradient, carry = gradient_of(step_key, params, batches[0], context, carry)
            params, moments = self._update(gradient, moments, params, work)
            if step_end is not None:
                params = step_end(params, context)
            return params, moments, context, carry

        def end(epoch, state):
            params, moments, context, carry = state
            params, context = epoch_end(epoch, params, context)  # pyright: ignore
            return params, moments, context, carry

        (params, _, context, carry), info = minibatch_scan.local_scan(
            key,
            work,
            step,
            (params, self._init(params), context, work.carry),
            data,
            batch_size=self.batch_size,
            epochs=self.epochs,
            num_steps=self.num_steps,
            sampler=objectives.sampler(objective, work),
            epoch_end=None if epoch_end is None else end,
            dtype=minibatch_scan.params_dtype(params),
        )
        return params, context, dataclasses.replace(info, carry=carry)


@struct.pytree_dataclass
class SGD(_MinibatchSolver):
    """Stochastic gradient descent over shuffled minibatches.

    `v <- momentum v + g + weight_decay params; params <- params - eta_t v`, with
    `v = 0` at the start of round t and `eta_t = learning_rate decay^t`.

    Attributes:
      learning_rate: `[]` step size, > 0. A traced bad value gives a diverging run.
      epochs: local epochs H, at least 1.
      num_steps: local steps in place of epochs, or None; a straggler's budget of epochs
        then counts steps.
      batch_size: B, at least 1; the last batch of an epoch may be short.
      momentum: `[]` in [0, 1), or None for none (and no buffer).
      weight_decay: `[]` L2 weight added to the gradient, at least 0.
      decay: `[]` factor of the learning rate per round, in (0, 1], or None for none.
    """

    learning_rate: Any = 0.1
    epochs: int = struct.static_field(default=1)
    num_steps: int | None = struct.static_field(default=None)
    batch_size: int = struct.static_field(default=20)
    momentum: Any = None
    weight_decay: Any = 0.0
    decay: Any = None

    def __post_init__(self):
        checks.number("learning_rate", self.learning_rate, above=0)
        self._check()
        checks.number("weight_decay", self.weight_decay, at_least=0)
        if self.momentum is not None:
            checks.number("momentum", self.momentum, at_least=0, below=1)
        if self.decay is not None:
            checks.number("decay", self.decay, above=0, at_most=1)

    def rate(self, round: Any) -> Any:
        """Returns the learning rate eta_t `[]` of a round.

        Args:
          round: `int32[]` t, from 0; None counts as 0.

        Returns:
          `learning_rate decay^t`.

        Example:
          >>> SGD(learning_rate=0.5, decay=0.1).rate(2)
          0.005000000000000001
        """
        if self.decay is None or round is None:
            return self.learning_rate
        return self.learning_rate * self.decay**round

    def _init(self, params):
        return None if self.momentum is None else jax.tree.map(jnp.zeros_like, params)

    def _update(self, gradient, moments, params, work):
        direction = jax.tree.map(
            lambda g, x: g + self.weight_decay * x, gradient, params
        )
        if moments is not None:
            direction = moments = jax.tree.map(
                lambda v, d: self.momentum * v + d, moments, direction
            )
        rate = self.rate(work.round)
        params = jax.tree.map(lambda x, d: x - rate * d, params, direction)
        return params, moments


@struct.pytree_dataclass
class Optax(_MinibatchSolver):
    """Any optax optimizer over shuffled minibatches; its state starts anew every round.

    Attributes:
      hyperparameters: dict of traced `[]` arguments of `optimizer`, by dotted name
        `local.hyperparameters.learning_rate`.
      optimizer: function such as `optax.adam`.
      epochs: local epochs, at least 1.
      num_steps: local steps in place of epochs, or None; see `SGD`.
      batch_size: B, at least 1.
    """

    hyperparameters: Any
    optimizer: Callable[..., optax.GradientTransformation] = struct.static_field(
        default=optax.adam
    )
    epochs: int = struct.static_field(default=1)
    num_steps: int | None = struct.static_field(default=None)
    batch_size: int = struct.static_field(default=20)

    def __post_init__(self):
        self._check()
        if isinstance(self.hyperparameters, dict):
            for name, value in self.hyperparameters.items():
                checks.number(f"hyperparameters.{name}", value)

    def _init(self, params):
        return self.optimizer(**self.hyperparameters).init(params)

    def _update(self, gradient, moments, params, work):
        del work
        transformation = self.optimizer(**self.hyperparameters)
        updates, moments = transformation.update(gradient, moments, params)
        params = jax.tree.map(lambda x, u: (x + u).astype(x.dtype), params, updates)
        return params, moments


@struct.pytree_dataclass
class ToTolerance:
    """Full-batch gradient descent until the squared gradient norm is small enough.

    Attributes:
      learning_rate: `[]` step size, > 0; below 2 / smoothness or it does not converge.
      tolerance: `[]` bound on the squared norm of the objective's gradient, >= 0.
      max_steps: hard cap; `info.converged` is False where it was hit.
      batch_size: examples per pass of the gradient; bounds memory, not the result.
    """

    learning_rate: Any = 0.1
    tolerance: Any = 1e-8
    max_steps: int = struct.static_field(default=1000)
    batch_size: int = struct.static_field(default=256)

    def __post_init__(self):
        checks.number("learning_rate", self.learning_rate, above=0)
        checks.number("tolerance", self.tolerance, at_least=0)
        checks.positive_int("max_steps", self.max_steps)
        checks.positive_int("batch_size", self.batch_size)

    def solve(
        self,
        key: core.Key,
        work: core.Budget,
        objective: objectives.Objective,
        params: Any,
        context: Any,
        data: core.ClientData,
        *,
        tolerance: jax.Array | None = None,
    ) -> tuple[Any, Any, minibatch_scan.LocalInfo]:
        """Minimizes an objective to the tolerance, starting at `params`.

        Args:
          key: unused; full gradients need no randomness.
          work: budget; its cap on steps applies.
          objective: `(key, params, batch, context) -> []`.
          params: start.
          context: what the objective reads besides.
          data: examples of one client.
          tolerance: `[]` in place of the field.

        Returns:
          Parameters, the same context and a `LocalInfo`.
        """
        del key
        goal = self.tolerance if tolerance is None else tolerance
        bound = jnp.minimum(jnp.int32(self.max_steps), work.steps)

        def gradient_at(point):
            _, gradient = minibatch_scan.full_value_and_gradient(
                objective, point, context, data, self.batch_size
            )
            norm = sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient))
            return gradient, norm

        def unfinished(state):
            _, _, norm, steps = state
            return ~(norm <= goal) & (steps < bound)

        def body(state):
            point, gradient, _, steps = state
            point = jax.tree.map(
                lambda x, g: x - self.learning_rate * g, point, gradient
            )
            return point, *gradient_at(point), steps + 1

        start = (params, *gradient_at(params), jnp.zeros((), jnp.int32))
        params, _, norm, steps = lax.while_loop(unfinished, body, start)
        info = minibatch_scan.LocalInfo(
            num_steps=steps,
            num_examples=(steps + 1) * data.num_examples,
            converged=norm <= goal,
        )
        return params, context, info
