"""The scan over minibatches of one client, and gradients over all its examples."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

from fedjax_pfl import core
from fedjax_pfl.core import client_map, loops, struct
from fedjax_pfl.local.objectives import Objective, stepwise

__all__ = [
    "LocalInfo",
    "Order",
    "Remainder",
    "full_value",
    "full_value_and_gradient",
    "independent_batch",
    "local_scan",
    "params_dtype",
    "passed_statistics",
]

Order = Callable[[core.ClientView, jax.Array], jax.Array]

Remainder = Literal["even", "full", "drop", "scaled"]
"""How an epoch ends if the batch size does not divide the number of examples."""

_SORTED = tuple(64 * 4**k for k in range(12))
"""Compiled sizes of the sort, up to half of the slots."""


@struct.pytree_dataclass
class LocalInfo:
    """Report of local work.

    Attributes:
      num_steps: `int32[]` steps taken.
      num_examples: `int32[]` gradients of single examples evaluated.
      converged: `bool[]` whether a tolerance was met; True without a tolerance.
      carry: state of the solver for the client's next round, or None.
      statistics: running statistics of a `StatisticsModel` after the work, or None.
    """

    num_steps: jax.Array
    num_examples: jax.Array
    converged: jax.Array
    carry: core.Tree = None
    statistics: core.Tree = None

    def then(self, later: "LocalInfo") -> "LocalInfo":
        """Adds later work of the same client, and takes its carry and statistics."""
        return LocalInfo(
            num_steps=self.num_steps + later.num_steps,
            num_examples=self.num_examples + later.num_examples,
            converged=self.converged & later.converged,
            carry=later.carry,
            statistics=later.statistics,
        )

    def report(self, **values: jax.Array) -> core.Report:
        """Returns the client's report of this work, with further values `[]`."""
        values = {"gradient_evaluations": self.num_examples, **values}
        return core.Report(
            values=values,
            carry=self.carry,
            steps=self.num_steps,
            statistics=self.statistics,
        )


def _sorted_positions(bits: jax.Array, count: jax.Array) -> jax.Array:
    """Draws an order of `count <= slots` positions, `int32[slots]`; the rest is any."""
    # Sorting random bits does not depend on how much padding there is. The lowest bits
    # of a key are its position: one array to be sorted instead of two takes a third of
    # the time. A tie of the upper bits is negligible: in favor of the earlier position,
    # it changes the probability of an order of two by 2^(bits of count - 33).
    low = 32 - lax.clz(jnp.maximum(count, 1).astype(jnp.uint32) - 1)
    position = jnp.arange(bits.shape[0], dtype=jnp.uint32)
    keys = bits >> low << low | position
    keys = jnp.where(position < count.astype(jnp.uint32), keys, jnp.uint32(2**32 - 1))
    order = lax.sort(keys, is_stable=False) & ((jnp.uint32(1) << low) - 1)
    return order.astype(jnp.int32)


def _shuffled_positions(key: core.Key, data: core.ClientData, length: int) -> jax.Array:
    """Returns a fresh order of the client's examples, `int32[length]`, padding last."""
    slots = data.index.shape[0]
    sizes = [size for size in _SORTED if 2 * size <= slots] + [slots]

    def shuffle(size: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        def run(bits: jax.Array, count: jax.Array) -> jax.Array:
            order = _sorted_positions(bits[:size], count)
            return jnp.pad(order, (0, length - size))

        return run

    # The time follows the largest client of the vmapped chunk, not the padding.
    largest = client_map.lane_max(data.num_examples)
    number = sum((largest > size).astype(jnp.int32) for size in sizes[:-1])
    branches = [shuffle(size) for size in sizes]
    # Draw once, outside the branches: every call is compiled separately.
    bits = jax.random.bits(key, (slots,), jnp.uint32)
    return lax.switch(jnp.asarray(number), branches, bits, data.num_examples)


def independent_batch(
    key: core.Key, data: core.ClientData, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Draws positions `int32[B]` and weights `bool[B]` of an independent batch."""
    length = max(data.index.shape[0], batch_size)
    # A uniform subset of min(B, n) examples: a batch size of at least n gives all
    # examples every time, which draws with replacement would not.
    positions = _shuffled_positions(key, data, length)[:batch_size]
    return positions, jnp.arange(batch_size) < data.num_examples


def local_scan(
    view: core.ClientView,
    step: Callable[[core.Key, Any, tuple[core.Batch, ...]], Any],
    carry: core.Tree,
    *,
    batch_size: int,
    epochs: int = 1,
    num_steps: int | None = None,
    batches_per_step: int = 1,
    sampler: Callable[..., tuple[jax.Array, jax.Array]] | None = None,
    epoch_steps: int | None = None,
    epoch_end: Callable[[jax.Array, Any], Any] | None = None,
    order: Order | None = None,
    remainder: Remainder = "even",
    dtype: DTypeLike = jnp.float32,
) -> tuple[Any, LocalInfo]:
    """Runs a step over minibatches of one client: shuffles, masks, trip counts.

    An epoch visits every example once, in a fresh order, in batches of nearly one size.
    Steps beyond a client's number or budget leave the carry unchanged. Under `vmap` a
    loop runs as long as the longest client of the vmapped chunk.

    Args:
      view: the client; the caps of its budget apply on top of `epochs`.
      step: `(key, carry, batches) -> carry`; `batches` is a tuple of
        `batches_per_step`.
      carry: pytree.
      batch_size: B, examples per batch, at most.
      epochs: local epochs.
      num_steps: local steps in place of epochs, over as many epochs as necessary, the
        last one incomplete; a budget of epochs then caps steps.
      batches_per_step: batches that one step consumes.
      sampler: `(key, data, batch_size) -> (positions int32[B], weight [B])` in place of
        shuffled epochs; an epoch has the same number of steps as with shuffling.
      epoch_steps: steps of an epoch in place of that number, for all clients with
        examples; without a sampler at most that number.
      epoch_end: `(epoch, carry) -> carry`, after every epoch with a step of the client.
      order: `(view, epoch) -> int32[m]`, positions of the client's n examples in place
        of a shuffle; the first n are used.
      remainder: `even`, the n examples of an epoch in ceil(n / B) batches with sizes
        that differ by at most one; `full` or `scaled`, batches of B and a shorter last
        one; `drop`, only batches of B, so that a client with fewer examples takes no
        step. The weights of a short batch have zeros.
      dtype: floating dtype of batches and weights.

    Returns:
      The carry and a `LocalInfo`. A client without examples takes no step.
    """
    batches = _Batches(
        view, batch_size, batches_per_step, sampler, order, remainder, dtype
    )
    limits = _limits(view, batches, epochs, num_steps, epoch_steps)
    slots = view.data.index.shape[0]
    most_steps = epoch_steps or -(-slots // batches.step_size)
    most_epochs = epochs
    if num_steps is not None:
        # Every epoch then has at least one step.
        most_epochs, most_steps = num_steps, min(num_steps, most_steps)

    # In reverse mode a scan saves the values of all steps at once, and no epoch is
    # computed again. Epochs beyond the bound, without steps, cost next to nothing.
    is_whole = loops.is_reversible() and num_steps is None

    def run_step(
        index: jax.Array,
        state: tuple[Any, jax.Array, jax.Array],
        *,
        positions: jax.Array | None,
        epoch_key: core.Key,
        epoch: jax.Array,
    ):
        carry, steps, examples = state
        # Key 0 of an epoch is that of its order.
        step_key = jax.random.fold_in(epoch_key, index + 1)
        parts = batches.of_step(step_key, positions, index)
        next_carry = step(step_key, carry, parts)
        active = limits.allow(epoch, index, steps)
        # Reversible loops recognize unchanged leaves by identity.
        carry = jax.tree.map(
            lambda a, b: b if a is b else jnp.where(active, a, b), next_carry, carry
        )
        size = sum((batch.weight.sum() for batch in parts), jnp.zeros((), dtype))
        return (
            carry,
            steps + active,
            examples + jnp.where(active, size, 0).astype(jnp.int32),
        )

    def run_epoch(epoch: jax.Array, state: tuple[Any, jax.Array, jax.Array]):
        epoch_key = jax.random.fold_in(view.key, epoch)
        positions = batches.positions(jax.random.fold_in(epoch_key, 0), epoch)
        epoch_start, most = state[1], limits.epoch_steps
        if num_steps is not None:
            most = jnp.minimum(most, limits.steps - epoch_start)
        most = client_map.lane_max(most)
        state = loops.bounded(
            jnp.where(epoch < bound, most, 0) if is_whole else most,
            most_steps,
            functools.partial(
                run_step, positions=positions, epoch_key=epoch_key, epoch=epoch
            ),
            state,
        )
        if epoch_end is None:
            return state
        carry, steps, examples = state
        next_carry = epoch_end(epoch, carry)
        # An epoch without a step of the client does not end.
        carry = optax.tree.where(steps > epoch_start, next_carry, carry)
        return carry, steps, examples

    zero = jnp.zeros((), jnp.int32)
    bound = client_map.lane_max(limits.epochs)
    start = (carry, zero, zero)
    if is_whole:
        carry, steps, examples = lax.scan(
            lambda state, epoch: (run_epoch(epoch, state), None),
            start,
            jnp.arange(most_epochs, dtype=jnp.int32),
        )[0]
    else:
        carry, steps, examples = loops.bounded(bound, most_epochs, run_epoch, start)
    return carry, LocalInfo(
        num_steps=steps, num_examples=examples, converged=jnp.ones((), bool)
    )


@dataclasses.dataclass(frozen=True)
class _Batches:
    """Minibatches of one client's examples, by step number."""

    view: core.ClientView
    batch_size: int
    per_step: int
    sampler: Callable[..., tuple[jax.Array, jax.Array]] | None
    order: Order | None
    remainder: Remainder
    dtype: DTypeLike

    @property
    def data(self) -> core.ClientData:
        """The client's examples."""
        return self.view.data

    @property
    def step_size(self) -> int:
        """Examples that a step consumes."""
        return self.batch_size * self.per_step

    @property
    def num_steps(self) -> jax.Array:
        """Steps of an epoch, `int32[]`."""
        count = self.data.num_examples
        if self.remainder == "drop" and self.sampler is None:
            return count // self.step_size
        return -(-count // self.step_size)

    def positions(self, key: core.Key, epoch: jax.Array) -> jax.Array | None:
        """Draws the order of an epoch; None if a sampler draws each batch."""
        if self.sampler is not None:
            return None
        slots = self.data.index.shape[0]
        # Whole steps, so that no slice reaches past the end.
        length = max(1, -(-slots // self.step_size)) * self.step_size
        if self.order is None:
            return _shuffled_positions(key, self.data, length)
        positions = jnp.asarray(self.order(self.view, epoch), jnp.int32)[:slots]
        return jnp.pad(positions, (0, length - len(positions)))

    def of_step(
        self, key: core.Key, positions: jax.Array | None, index: jax.Array
    ) -> tuple[core.Batch, ...]:
        """Gathers the batches of one step of an epoch."""
        return tuple(
            self._gather(
                jax.random.fold_in(key, part), positions, index * self.per_step + part
            )
            for part in range(self.per_step)
        )

    def _gather(
        self, key: core.Key, epoch: jax.Array | None, number: jax.Array
    ) -> core.Batch:
        """Gathers batch `number` of an epoch; positions past its end have weight 0."""
        if self.sampler is not None or epoch is None:
            assert self.sampler is not None
            positions, weight = self.sampler(key, self.data, self.batch_size)
        else:
            start, end = self._bounds(number)
            positions = lax.dynamic_slice(epoch, (start,), (self.batch_size,))
            weight = start + jnp.arange(self.batch_size) < end
        return self.data.gather(positions, weight.astype(self.dtype), key=key)

    def _bounds(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns start and end of a batch in the order of its epoch."""
        count = self.data.num_examples
        if self.remainder != "even":
            return number * self.batch_size, count
        batches = jnp.maximum(self.num_steps * self.per_step, 1)
        # Quotient and remainder, since the product number * count may overflow.
        size, longer = count // batches, count % batches
        start = number * size + jnp.minimum(number, longer)
        # Steps past the last batch run, but are discarded; their slots are padding.
        return start, jnp.minimum(start + size + (number < longer), count)


@dataclasses.dataclass(frozen=True)
class _Limits:
    """Limits of one client: epochs, steps per epoch, steps in total."""

    epochs: jax.Array
    epoch_steps: jax.Array
    steps: jax.Array

    def allow(self, epoch: jax.Array, index: jax.Array, steps: jax.Array) -> jax.Array:
        """Returns whether the client takes this step of this epoch."""
        in_epoch = (index < self.epoch_steps) & (epoch < self.epochs)
        return in_epoch & (steps < self.steps)


def _limits(
    view: core.ClientView,
    batches: _Batches,
    epochs: int,
    num_steps: int | None,
    epoch_steps: int | None,
) -> _Limits:
    """Combines the solver's epochs or steps with the client's budget and examples."""
    work, data = view.work, view.data
    client_steps = batches.num_steps
    if epoch_steps is not None:
        client_steps = jnp.where(data.num_examples > 0, jnp.int32(epoch_steps), 0)
    client_epochs, most_steps = jnp.minimum(jnp.int32(epochs), work.epochs), work.steps
    if num_steps is not None:
        most_steps = jnp.minimum(jnp.minimum(num_steps, work.epochs), work.steps)
        # Rounded up: the last epoch may be incomplete.
        needed = -(-most_steps // jnp.maximum(client_steps, 1))
        client_epochs = jnp.where(client_steps > 0, needed, 0)
    return _Limits(epochs=client_epochs, epoch_steps=client_steps, steps=most_steps)


def params_dtype(params: core.Params) -> jnp.dtype:
    """Returns the floating dtype of a parameter tree."""
    return jnp.result_type(*jax.tree.leaves(params))


def full_value_and_gradient(
    objective: Objective,
    params: core.Params,
    context: core.Tree,
    data: core.ClientData,
    batch_size: int = 256,
) -> tuple[jax.Array, Any]:
    """Returns the value and gradient of an objective over all examples of one client.

    Args:
      objective: `(key, params, batch, context) -> []`, a mean over the batch plus terms
        that do not depend on it; called without randomness (key None).
      params: point.
      context: further input of the objective.
      data: examples of one client.
      batch_size: examples per pass; bounds memory, not the result.

    Returns:
      Value `[]` and gradient like `params`; zeros for a client without examples.
    """
    evaluate = jax.value_and_grad(objective, argnums=1)
    zero = (jnp.zeros((), params_dtype(params)), jax.tree.map(jnp.zeros_like, params))
    return _mean_over_examples(
        lambda batch: evaluate(None, params, batch, context), zero, data, batch_size
    )


def full_value(
    objective: Objective,
    params: core.Params,
    context: core.Tree,
    data: core.ClientData,
    batch_size: int = 256,
) -> jax.Array:
    """Computes the value `[]` of `full_value_and_gradient`, without the gradient."""
    zero = jnp.zeros((), params_dtype(params))
    return _mean_over_examples(
        lambda batch: objective(None, params, batch, context), zero, data, batch_size
    )


def passed_statistics(
    objective: Objective,
    params: core.Params,
    context: core.Tree,
    view: core.ClientView,
    batch_size: int = 256,
) -> core.Tree:
    """Updates running statistics by one pass over all examples of one client.

    For solvers with gradients over all examples, during which statistics are fixed.

    Args:
      objective: see `full_value_and_gradient`.
      params: point.
      context: further input of the objective.
      view: the client.
      batch_size: examples per batch.

    Returns:
      `[*S]` like `view.data.statistics`, or None without statistics.
    """
    if (running := view.data.statistics) is None:
        return None
    move = stepwise(objective, None)

    def add(running: core.Tree, pair: tuple[jax.Array, core.Batch]):
        number, batch = pair
        # Models update statistics only if they get a key.
        key = jax.random.fold_in(view.key, number)
        batch = batch.with_statistics(running)
        return move(key, params, batch, context, None)[1][1]

    dtype = params_dtype(params)
    return _over_examples(add, running, view.data, batch_size, dtype)


def _mean_over_examples(
    fn: Callable[[core.Batch], Any],
    zero: core.Tree,
    data: core.ClientData,
    batch_size: int,
) -> core.Tree:
    """Averages a function `batch -> tree` over one client's examples, like `zero`."""
    dtype = params_dtype(zero)
    total = jnp.maximum(data.num_examples, 1).astype(dtype)

    def add(sums: core.Tree, pair: tuple[jax.Array, core.Batch]):
        _, batch = pair
        # The function is a mean over its batch.
        share = batch.weight.sum() / total
        return jax.tree.map(lambda t, g: t + share * g, sums, fn(batch))

    return _over_examples(add, zero, data, batch_size, dtype)


def _over_examples(
    fn: Callable[[Any, tuple[jax.Array, core.Batch]], Any],
    start: core.Tree,
    data: core.ClientData,
    batch_size: int,
    dtype: DTypeLike,
) -> core.Tree:
    """Folds `(state, (number, batch)) -> state` over ONE client's examples."""
    slots = data.index.shape[0]
    num_batches = max(1, -(-slots // batch_size))

    def step(state: core.Tree, number: jax.Array):
        positions = number * batch_size + jnp.arange(batch_size)
        weight = (positions < data.num_examples).astype(dtype)
        # Positions past the end have weight 0, but must exist.
        batch = data.gather(jnp.minimum(positions, slots - 1), weight)
        return fn(state, (number, batch)), None

    return lax.scan(step, start, jnp.arange(num_batches))[0]
