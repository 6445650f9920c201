"""The scan over minibatches of one client, and gradients over all its examples."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

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
"""What becomes of an epoch whose examples do not fill its batches."""

_SORTED = tuple(64 * 4**k for k in range(12))
"""Numbers of positions for which there is a sort, up to half of the slots."""


@struct.pytree_dataclass
class LocalInfo:
    """Report of local work.

    Attributes:
      num_steps: `int32[]` steps taken.
      num_examples: `int32[]` gradients of single examples evaluated.
      converged: `bool[]` whether a tolerance was met; True where there is none.
      carry: what the solver keeps for the client's next round, or None.
      statistics: running statistics of a `StatisticsModel` after the work, or None.
    """

    num_steps: jax.Array
    num_examples: jax.Array
    converged: jax.Array
    carry: Any = None
    statistics: Any = None

    def then(self, later: "LocalInfo") -> "LocalInfo":
        """Adds later work of the same client, whose carry and statistics are kept."""
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
    """Draws an order of `count <= slots` positions, `int32[slots]`; the rest is any.

    Sorting random bits does not depend on how much padding there is. The lowest bits of
    a key are its position: one array to be sorted instead of two takes a third of the
    time. A tie of the others, as good as never and in favor of the earlier position,
    changes the chance that one comes before another by 2^(bits of count - 33).
    """
    low = 32 - lax.clz(jnp.maximum(count, 1).astype(jnp.uint32) - 1)
    position = jnp.arange(bits.shape[0], dtype=jnp.uint32)
    keys = bits >> low << low | position
    keys = jnp.where(position < count.astype(jnp.uint32), keys, jnp.uint32(2**32 - 1))
    order = lax.sort(keys, is_stable=False) & ((jnp.uint32(1) << low) - 1)
    return order.astype(jnp.int32)


def _shuffled_positions(key: core.Key, data: core.ClientData, length: int) -> jax.Array:
    """Returns a fresh order of the client's examples, `int32[length]`, padding last.

    The time follows the largest client of the vmapped chunk, not the padding.
    """
    slots = data.index.shape[0]
    sizes = [size for size in _SORTED if 2 * size <= slots] + [slots]

    def shuffle(size: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        def run(bits: jax.Array, count: jax.Array) -> jax.Array:
            order = _sorted_positions(bits[:size], count)
            return jnp.pad(order, (0, length - size))

        return run

    largest = client_map.lane_max(data.num_examples)
    number = sum((largest > size).astype(jnp.int32) for size in sizes[:-1])
    branches = [shuffle(size) for size in sizes]
    # Drawn once, outside the branches: each place that draws has to be compiled.
    bits = jax.random.bits(key, (slots,), jnp.uint32)
    return lax.switch(jnp.asarray(number), branches, bits, data.num_examples)


def independent_batch(
    key: core.Key, data: core.ClientData, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Returns a sampler for `local_scan` whose batches know nothing of each other.

    Every batch is a fresh uniform subset of `min(B, n)` of the client's n examples: an
    example appears once in a batch, and again in others. A batch size of at least n
    gives all examples every time, which draws with replacement would not.

    Args:
      key: `[]` key of this batch.
      data: examples of one client.
      batch_size: B.

    Returns:
      Positions `int32[B]` and weights `bool[B]`, padding last.
    """
    length = max(data.index.shape[0], batch_size)
    positions = _shuffled_positions(key, data, length)[:batch_size]
    return positions, jnp.arange(batch_size) < data.num_examples


def local_scan(
    view: core.ClientView,
    step: Callable[[core.Key, Any, tuple[core.Batch, ...]], Any],
    carry: Any,
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
    dtype: Any = jnp.float32,
) -> tuple[Any, LocalInfo]:
    """Runs a step over minibatches of one client: shuffles, masks, trip counts.

    An epoch visits every example once, in a fresh order, in batches of nearly one size.
    Steps beyond a client's own number or budget leave the carry as it is. Under `vmap`
    a loop runs as long as the longest client of the vmapped chunk.

    Args:
      view: the client; the caps of its budget apply on top of `epochs`.
      step: `(key, carry, batches) -> carry`; `batches` is a tuple of
        `batches_per_step`.
      carry: pytree.
      batch_size: B, examples per batch, at most.
      epochs: local epochs.
      num_steps: local steps in place of epochs, through as many epochs as they take,
        the last one broken off; a budget of epochs then caps steps.
      batches_per_step: batches that one step consumes.
      sampler: `(key, data, batch_size) -> (positions int32[B], weight [B])` in place of
        shuffled epochs; an epoch is then as many steps as it would be with shuffling.
      epoch_steps: steps of an epoch in place of these, the same for all clients with
        examples; no more than these without a sampler, which fills any number.
      epoch_end: `(epoch, carry) -> carry`, after every epoch that the client took part
        in.
      order: `(view, epoch) -> int32[m]`, positions of the client's examples in place of
        a shuffle, of which the first as many as it has are taken.
      remainder: `even`, the n examples of an epoch in ceil(n / B) batches whose sizes
        differ by at most one; `full` or `scaled`, batches of B and a shorter last one;
        `drop`, without that one, so that a client with fewer than B examples takes no
        step. A step learns from the weights of its batch that it is short.
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
        most_epochs, most_steps = num_steps, min(num_steps, most_steps)

    # On a way back all steps are kept at once, and no epoch is run again for its own,
    # where epochs are so few that those beyond the bound, without a step, are nothing.
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
        step_key = jax.random.fold_in(epoch_key, index + 1)
        drawn = batches.of_step(step_key, positions, index)
        new = step(step_key, carry, drawn)
        active = limits.allow(epoch, index, steps)
        # What a step returns as it was is told apart by loops with a way back.
        carry = jax.tree.map(
            lambda a, b: b if a is b else jnp.where(active, a, b), new, carry
        )
        seen = sum((batch.weight.sum() for batch in drawn), jnp.zeros((), dtype))
        return (
            carry,
            steps + active,
            examples + jnp.where(active, seen, 0).astype(jnp.int32),
        )

    def run_epoch(epoch: jax.Array, state: tuple[Any, jax.Array, jax.Array]):
        epoch_key = jax.random.fold_in(view.key, epoch)
        positions = batches.positions(jax.random.fold_in(epoch_key, 0), epoch)
        before, most = state[1], limits.epoch_steps
        if num_steps is not None:
            most = jnp.minimum(most, limits.steps - before)
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
        ended = epoch_end(epoch, carry)
        carry = optax.tree.where(steps > before, ended, carry)
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
    """Minibatches of one client's examples, by the number of the step."""

    view: core.ClientView
    batch_size: int
    per_step: int
    sampler: Callable[..., tuple[jax.Array, jax.Array]] | None
    order: Order | None
    remainder: Remainder
    dtype: Any

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
        """Draws the order of an epoch; None where a sampler draws each batch."""
        if self.sampler is not None:
            return None
        slots = self.data.index.shape[0]
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
        """Gathers batch `number` of an epoch; what lies past its end weighs nothing."""
        if self.sampler is not None or epoch is None:
            assert self.sampler is not None
            positions, weight = self.sampler(key, self.data, self.batch_size)
        else:
            first, end = self._bounds(number)
            positions = lax.dynamic_slice(epoch, (first,), (self.batch_size,))
            weight = first + jnp.arange(self.batch_size) < end
        return self.data.gather(positions, weight.astype(self.dtype), key=key)

    def _bounds(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns where a batch begins and ends in the order of its epoch."""
        count = self.data.num_examples
        if self.remainder != "even":
            return number * self.batch_size, count
        batches = jnp.maximum(self.num_steps * self.per_step, 1)
        # A quotient and a rest, since the product number * count may overflow.
        size, longer = count // batches, count % batches
        first = number * size + jnp.minimum(number, longer)
        # Steps past the last batch run and are undone; their slots are padding.
        return first, jnp.minimum(first + size + (number < longer), count)


@dataclasses.dataclass(frozen=True)
class _Limits:
    """Limits of one client: epochs, steps of an epoch, steps in all."""

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
    own_steps = batches.num_steps
    if epoch_steps is not None:
        own_steps = jnp.where(data.num_examples > 0, jnp.int32(epoch_steps), 0)
    own_epochs, most_steps = jnp.minimum(jnp.int32(epochs), work.epochs), work.steps
    if num_steps is not None:
        most_steps = jnp.minimum(jnp.minimum(num_steps, work.epochs), work.steps)
        many = -(-most_steps // jnp.maximum(own_steps, 1))
        own_epochs = jnp.where(own_steps > 0, many, 0)
    return _Limits(epochs=own_epochs, epoch_steps=own_steps, steps=most_steps)


def params_dtype(params: Any) -> Any:
    """Returns the floating dtype of a parameter tree."""
    return jnp.result_type(*jax.tree.leaves(params))


def full_value_and_gradient(
    objective: Objective,
    params: Any,
    context: Any,
    data: core.ClientData,
    batch_size: int = 256,
) -> tuple[jax.Array, Any]:
    """Returns the value and gradient of an objective over all examples of one client.

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
    evaluate = jax.value_and_grad(objective, argnums=1)
    zero = (jnp.zeros((), params_dtype(params)), jax.tree.map(jnp.zeros_like, params))
    return _mean_over_examples(
        lambda batch: evaluate(None, params, batch, context), zero, data, batch_size
    )


def full_value(
    objective: Objective,
    params: Any,
    context: Any,
    data: core.ClientData,
    batch_size: int = 256,
) -> jax.Array:
    """Computes an objective over all examples of one client, without its gradient.

    Args:
      objective: see `full_value_and_gradient`.
      params: point.
      context: what the objective reads besides.
      data: examples of one client.
      batch_size: examples per pass; bounds memory, not the result.

    Returns:
      `[]`; zero for a client without examples.
    """
    zero = jnp.zeros((), params_dtype(params))
    return _mean_over_examples(
        lambda batch: objective(None, params, batch, context), zero, data, batch_size
    )


def passed_statistics(
    objective: Objective,
    params: Any,
    context: Any,
    view: core.ClientView,
    batch_size: int = 256,
) -> Any:
    """Moves running statistics by one pass over all examples of one client.

    Where gradients are over all examples, and take the statistics as they are.

    Args:
      objective: see `full_value_and_gradient`.
      params: point.
      context: what the objective reads besides.
      view: the client.
      batch_size: examples per batch.

    Returns:
      `[*S]` like `view.data.statistics`, or None where there are none.
    """
    if (running := view.data.statistics) is None:
        return None
    move = stepwise(objective, None)

    def add(running: Any, drawn: tuple[jax.Array, core.Batch]):
        number, batch = drawn
        key = jax.random.fold_in(view.key, number)
        batch = batch.with_statistics(running)
        return move(key, params, batch, context, None)[1][1]

    dtype = params_dtype(params)
    return _over_examples(add, running, view.data, batch_size, dtype)


def _mean_over_examples(
    fn: Callable[[core.Batch], Any],
    zero: Any,
    data: core.ClientData,
    batch_size: int,
) -> Any:
    """Averages a function `batch -> tree` over one client's examples, like `zero`."""
    dtype = params_dtype(zero)
    total = jnp.maximum(data.num_examples, 1).astype(dtype)

    def add(sums: Any, drawn: tuple[jax.Array, core.Batch]):
        _, batch = drawn
        share = batch.weight.sum() / total
        return jax.tree.map(lambda t, g: t + share * g, sums, fn(batch))

    return _over_examples(add, zero, data, batch_size, dtype)


def _over_examples(
    fn: Callable[[Any, tuple[jax.Array, core.Batch]], Any],
    start: Any,
    data: core.ClientData,
    batch_size: int,
    dtype: Any,
) -> Any:
    """Folds `(state, (number, batch)) -> state` over ONE client's examples."""
    slots = data.index.shape[0]
    num_batches = max(1, -(-slots // batch_size))

    def step(state: Any, number: jax.Array):
        positions = number * batch_size + jnp.arange(batch_size)
        weight = (positions < data.num_examples).astype(dtype)
        batch = data.gather(jnp.minimum(positions, slots - 1), weight)
        return fn(state, (number, batch)), None

    return lax.scan(step, start, jnp.arange(num_batches))[0]
