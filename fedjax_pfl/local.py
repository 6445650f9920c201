"""Local work of one client: the scan over minibatches and the solvers built on it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import checks, clients, struct, types

__all__ = [
    "LOCAL_SOLVERS",
    "SGD",
    "LocalInfo",
    "Optax",
    "ToTolerance",
    "full_value_and_gradient",
    "local_scan",
]

Objective = Callable[[types.Key | None, Any, types.Batch, Any], jax.Array]
EpochEnd = Callable[[jax.Array, Any, Any], Any]


@struct.pytree_dataclass
class LocalInfo:
    """What local work reports.

    Attributes:
      num_steps: `int32[]` steps taken.
      num_examples: `int32[]` gradients of single examples evaluated.
      converged: `bool[]` whether a tolerance was met; True where there is none.
    """

    num_steps: jax.Array
    num_examples: jax.Array
    converged: jax.Array


def _shuffled_positions(
    key: types.Key, data: types.ClientData, length: int
) -> jax.Array:
    """A fresh order of the client's examples, `int32[length]`, padding last.

    Sorting random bits does not depend on how much padding there is.
    """
    slots = data.index.shape[0]
    bits = jax.random.bits(key, (slots,), jnp.uint32) >> 1
    position = jnp.arange(slots, dtype=jnp.int32)
    bits = jnp.where(position < data.num_examples, bits, jnp.uint32(2**32 - 1))
    _, order = lax.sort((bits, position), num_keys=1)
    return jnp.pad(order, (0, length - slots))


def local_scan(
    key: types.Key,
    work: types.Budget,
    step: Callable[[types.Key, Any, tuple[types.Batch, ...]], Any],
    carry: Any,
    data: types.ClientData,
    *,
    batch_size: int,
    epochs: int = 1,
    batches_per_step: int = 1,
    sampler: Callable[..., tuple[jax.Array, jax.Array]] | None = None,
    epoch_end: Callable[[jax.Array, Any], Any] | None = None,
    dtype: Any = jnp.float32,
) -> tuple[Any, LocalInfo]:
    """Runs a step over minibatches of one client: shuffles, masks, trip counts.

    An epoch visits every example once, in a fresh order; its last batch may be short.
    Steps beyond a client's own number or budget leave the carry as it is. Under `vmap`
    a loop runs as long as the longest client of the vmapped chunk.

    Args:
      key: `[]` key of this client in this round.
      work: budget of this client; its caps apply on top of `epochs`.
      step: `(key, carry, batches) -> carry`; `batches` is a tuple of
        `batches_per_step`.
      carry: pytree.
      data: examples of one client (`index [M]`).
      batch_size: B, examples per batch.
      epochs: local epochs.
      batches_per_step: batches that one step consumes.
      sampler: `(key, data, batch_size) -> (positions int32[B], weight [B])` in place of
        shuffled epochs; an epoch is then as many steps as it would be with shuffling.
      epoch_end: `(epoch, carry) -> carry`, after every epoch that the client took part
        in.
      dtype: floating dtype of batches and weights.

    Returns:
      The carry and a `LocalInfo`. A client without examples takes no step.
    """
    per_step = batch_size * batches_per_step
    slots = data.index.shape[0]
    max_steps = max(1, -(-slots // per_step))
    own_steps = -(-data.num_examples // per_step)
    own_epochs = jnp.minimum(jnp.int32(epochs), work.epochs)

    def batch_of(step_key: types.Key, order: jax.Array, start: jax.Array, part: int):
        if sampler is not None:
            positions, weight = sampler(
                jax.random.fold_in(step_key, part), data, batch_size
            )
            return data.gather(positions, weight.astype(dtype))
        first = start + part * batch_size
        positions = lax.dynamic_slice(order, (first,), (batch_size,))
        weight = first + jnp.arange(batch_size) < data.num_examples
        return data.gather(positions, weight.astype(dtype))

    def run_step(index, state, *, order, epoch_key, epoch):
        carry, steps, examples = state
        step_key = jax.random.fold_in(epoch_key, index + 1)
        start = index * per_step
        batches = tuple(
            batch_of(step_key, order, start, p) for p in range(batches_per_step)
        )
        new = step(step_key, carry, batches)
        active = (index < own_steps) & (epoch < own_epochs) & (steps < work.steps)
        carry = jax.tree.map(lambda a, b: jnp.where(active, a, b), new, carry)
        seen = sum((batch.weight.sum() for batch in batches), jnp.zeros((), dtype))
        return (
            carry,
            steps + active,
            examples + jnp.where(active, seen, 0).astype(jnp.int32),
        )

    def run_epoch(epoch, state):
        epoch_key = jax.random.fold_in(key, epoch)
        order = None
        if sampler is None:
            order = _shuffled_positions(
                jax.random.fold_in(epoch_key, 0), data, max_steps * per_step
            )
        before = state[1]
        state = lax.fori_loop(
            0,
            clients.lane_max(own_steps),
            lambda i, s: run_step(i, s, order=order, epoch_key=epoch_key, epoch=epoch),
            state,
        )
        if epoch_end is None:
            return state
        carry, steps, examples = state
        ended = epoch_end(epoch, carry)
        carry = jax.tree.map(lambda a, b: jnp.where(steps > before, a, b), ended, carry)
        return carry, steps, examples

    zero = jnp.zeros((), jnp.int32)
    bound = clients.lane_max(own_epochs)
    carry, steps, examples = lax.fori_loop(0, bound, run_epoch, (carry, zero, zero))
    return carry, LocalInfo(
        num_steps=steps, num_examples=examples, converged=jnp.ones((), bool)
    )


def _dtype(params: Any) -> Any:
    """Floating dtype of a parameter tree."""
    return jnp.result_type(*jax.tree.leaves(params))


class _MinibatchSolver:
    """Shared part of the solvers that walk over shuffled minibatches."""

    epochs: int
    batch_size: int

    def _init(self, params: Any) -> Any:
        raise NotImplementedError

    def _update(self, gradient: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def solve(
        self,
        key: types.Key,
        work: types.Budget,
        objective: Objective,
        params: Any,
        context: Any,
        data: types.ClientData,
        *,
        epoch_end: EpochEnd | None = None,
    ) -> tuple[Any, Any, LocalInfo]:
        """Minimizes an objective approximately, starting at `params`.

        Args:
          key: `[]` key of this client in this round.
          work: budget of this client.
          objective: `(key, params, batch, context) -> []`.
          params: start.
          context: what the objective reads besides (a prox centre); constant within an
            epoch.
          data: examples of one client.
          epoch_end: `(epoch, params, context) -> context`, after every epoch.

        Returns:
          Parameters, context and a `LocalInfo`.
        """

        def step(step_key, carry, batches):
            params, memory, context = carry
            gradient = jax.grad(objective, argnums=1)(
                step_key, params, batches[0], context
            )
            params, memory = self._update(gradient, memory, params)
            return params, memory, context

        def end(epoch, carry):
            params, memory, context = carry
            return params, memory, epoch_end(epoch, params, context)  # pyright: ignore

        (params, _, context), info = local_scan(
            key,
            work,
            step,
            (params, self._init(params), context),
            data,
            batch_size=self.batch_size,
            epochs=self.epochs,
            epoch_end=None if epoch_end is None else end,
            dtype=_dtype(params),
        )
        return params, context, info


@struct.pytree_dataclass
class SGD(_MinibatchSolver):
    """Stochastic gradient descent over shuffled minibatches.

    `v <- momentum v + g + weight_decay params; params <- params - learning_rate v`,
    with `v = 0` at the start of every round.

    Attributes:
      learning_rate: `[]` step size, > 0. A traced bad value gives a diverging run.
      epochs: local epochs H, at least 1.
      batch_size: B, at least 1; the last batch of an epoch may be short.
      momentum: `[]` in [0, 1), or None for none (and no buffer).
      weight_decay: `[]` L2 weight added to the gradient, at least 0.
    """

    learning_rate: Any = 0.1
    epochs: int = struct.static_field(default=1)
    batch_size: int = struct.static_field(default=20)
    momentum: Any = None
    weight_decay: Any = 0.0

    def __post_init__(self):
        checks.number("learning_rate", self.learning_rate, above=0)
        checks.positive_int("epochs", self.epochs)
        checks.positive_int("batch_size", self.batch_size)
        checks.number("weight_decay", self.weight_decay, at_least=0)
        if self.momentum is not None:
            checks.number("momentum", self.momentum, at_least=0, below=1)

    def _init(self, params):
        return None if self.momentum is None else jax.tree.map(jnp.zeros_like, params)

    def _update(self, gradient, memory, params):
        direction = jax.tree.map(
            lambda g, x: g + self.weight_decay * x, gradient, params
        )
        if memory is not None:
            memory = jax.tree.map(lambda v, d: self.momentum * v + d, memory, direction)
            direction = memory
        params = jax.tree.map(
            lambda x, d: x - self.learning_rate * d, params, direction
        )
        return params, memory


@struct.pytree_dataclass
class Optax(_MinibatchSolver):
    """Any optax optimizer over shuffled minibatches; its state starts anew every round.

    Attributes:
      hyperparameters: dict of traced `[]` arguments of `optimizer`, by dotted name
        `local.hyperparameters.learning_rate`.
      optimizer: function such as `optax.adam`.
      epochs: local epochs, at least 1.
      batch_size: B, at least 1.
    """

    hyperparameters: Any
    optimizer: Callable[..., optax.GradientTransformation] = struct.static_field(
        default=optax.adam
    )
    epochs: int = struct.static_field(default=1)
    batch_size: int = struct.static_field(default=20)

    def __post_init__(self):
        checks.positive_int("epochs", self.epochs)
        checks.positive_int("batch_size", self.batch_size)
        if isinstance(self.hyperparameters, dict):
            for name, value in self.hyperparameters.items():
                checks.number(f"hyperparameters.{name}", value)

    def _init(self, params):
        return self.optimizer(**self.hyperparameters).init(params)

    def _update(self, gradient, memory, params):
        transformation = self.optimizer(**self.hyperparameters)
        updates, memory = transformation.update(gradient, memory, params)
        params = jax.tree.map(lambda x, u: (x + u).astype(x.dtype), params, updates)
        return params, memory


def full_value_and_gradient(
    objective: Objective,
    params: Any,
    context: Any,
    data: types.ClientData,
    batch_size: int,
) -> tuple[jax.Array, Any]:
    """Value and gradient of an objective over all examples of one client.

    Args:
      objective: `(key, params, batch, context) -> []`, a mean over the batch plus terms
        that do not depend on it; called without randomness (key None).
      params: point.
      context: what the objective reads besides.
      data: examples of one client.
      batch_size: examples per pass; bounds memory, not the result.

    Returns:
      Value `[]` and gradient like `params`; zeros for a client without examples.
    """
    slots = data.index.shape[0]
    dtype = _dtype(params)
    total = jnp.maximum(data.num_examples, 1).astype(dtype)
    num_batches = max(1, -(-slots // batch_size))

    def add(sums, number):
        positions = number * batch_size + jnp.arange(batch_size)
        weight = (positions < data.num_examples).astype(dtype)
        batch = data.gather(jnp.minimum(positions, slots - 1), weight)
        found = jax.value_and_grad(objective, argnums=1)(None, params, batch, context)
        share = weight.sum() / total
        return jax.tree.map(lambda t, g: t + share * g, sums, found), None

    zero = (jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, params))
    return lax.scan(add, zero, jnp.arange(num_batches))[0]


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
        key: types.Key,
        work: types.Budget,
        objective: Objective,
        params: Any,
        context: Any,
        data: types.ClientData,
        *,
        tolerance: jax.Array | None = None,
    ) -> tuple[Any, Any, LocalInfo]:
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
            _, gradient = full_value_and_gradient(
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
        info = LocalInfo(
            num_steps=steps,
            num_examples=(steps + 1) * data.num_examples,
            converged=norm <= goal,
        )
        return params, context, info


LOCAL_SOLVERS = {"sgd": SGD, "optax": Optax, "to_tolerance": ToTolerance}
