"""Solvers of one client's local problem."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

from fedjax_pfl import core
from fedjax_pfl.core import (
    checks,
    client_rows,
    loops,
    statistics,
    struct,
    tree_paths,
)
from fedjax_pfl.local import minibatch_scan, objectives, schedules

__all__ = ["SGD", "MinibatchSolver", "Optax", "Step", "ToTolerance", "whole"]

_SAME = "the same for all methods of a comparison"

StepEnd = Callable[[Any, Any], Any]
EpochEnd = Callable[[jax.Array, Any, Any], tuple[Any, Any]]


def _joint(
    view: core.ClientView, objective: objectives.Objective, params: core.Params
) -> tuple[core.ClientView, objectives.Objective, Any]:
    """Returns the problem in a pair of parameters, shared and personal."""
    personal = view.data.personal
    shared_view = dataclasses.replace(view, data=view.data.with_personal(None))
    return shared_view, objectives.Joint(objective), (params, personal)


def _of_shared(
    step_end: StepEnd | None, epoch_end: EpochEnd | None
) -> tuple[StepEnd | None, EpochEnd | None]:
    """Returns hooks of pairs of parameters that change only the shared ones."""

    def end_step(pair: core.Tree, context: core.Tree) -> core.Tree:
        return step_end(pair[0], context), pair[1]  # pyright: ignore

    def end_epoch(epoch: jax.Array, pair: core.Tree, context: core.Tree) -> Any:
        params, context = epoch_end(epoch, pair[0], context)  # pyright: ignore
        return (params, pair[1]), context

    # A missing hook stays None.
    return step_end and end_step, epoch_end and end_epoch


def whole(
    view: core.ClientView, params: core.Params, info: minibatch_scan.LocalInfo
) -> core.Params:
    """Adds personal parameters and running statistics, for a client's predictors.

    Args:
      view: the client, as passed to its solver.
      params: parameters that the solver returned.
      info: report of the solver.

    Returns:
      The parameters, with the running statistics of a `StatisticsModel` among them;
      unchanged if there are neither.
    """
    if view.data.personal is not None:
        params = tree_paths.join(params, info.carry)
    return statistics.joined(params, info.statistics)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of local work."""

    round: jax.Array | None  # int32[], None outside of rounds
    number: jax.Array | None  # int32[] earlier steps, for a schedule of steps
    share: core.Scalar = 1.0  # [] factor of the step


class MinibatchSolver(core.LocalSolver):
    """Common base of solvers over minibatches."""

    epochs: int
    num_steps: int | None
    batch_size: int
    order: minibatch_scan.Order | None
    remainder: minibatch_scan.Remainder

    def share(self, batch: core.Batch) -> core.Scalar:
        """Returns the factor `[]` of a step, below 1 if short batches are scaled."""
        if self.remainder != "scaled":
            return 1.0
        return batch.weight.sum() / self.batch_size

    def _gradient_of(
        self, objective: objectives.Objective, view: core.ClientView
    ) -> Callable[..., tuple[Any, Any]]:
        """Returns `(key, params, batch, context, carry) -> (gradient, carry)`."""
        step = objectives.stepwise(objective, view.carry)
        return jax.grad(step, argnums=1, has_aux=True)

    def _sampler(
        self, objective: objectives.Objective, view: core.ClientView
    ) -> Callable[..., Any] | None:
        """Returns a sampler in place of shuffled epochs, or None."""
        return objectives.sampler(objective, view)

    def _init(self, params: core.Params, at: Step) -> core.Tree:
        raise NotImplementedError

    def _update(
        self, gradient: core.Params, moments: core.Tree, params: core.Params, at: Step
    ) -> tuple[Any, Any]:
        raise NotImplementedError

    def scan(
        self,
        view: core.ClientView,
        step: Callable[[core.Key, Any, tuple[core.Batch, ...]], Any],
        carry: core.Tree,
        *,
        dtype: DTypeLike,
        **options: Any,
    ) -> tuple[Any, minibatch_scan.LocalInfo]:
        """Runs a method's `step(key, carry, batches) -> carry`, scaled by `share`."""
        return minibatch_scan.local_scan(
            view, step, carry, dtype=dtype, **self._walk, **options
        )

    @property
    def _walk(self) -> dict[str, Any]:
        """Returns the arguments of `local_scan` that determine the minibatches."""
        names = ("batch_size", "epochs", "num_steps", "order", "remainder")
        return {name: getattr(self, name) for name in names}

    def solve(
        self,
        view: core.ClientView,
        objective: objectives.Objective,
        params: core.Params,
        context: core.Tree = None,
        *,
        step_end: StepEnd | None = None,
        epoch_end: EpochEnd | None = None,
    ) -> tuple[Any, Any, minibatch_scan.LocalInfo]:
        """Minimizes an objective approximately, starting at `params`.

        Args:
          view: the client. If it has a carry, batches are pieces drawn by the
            `SequenceModel`, and the objective must be a `DataLoss`.
          objective: `(key, params, batch, context) -> []`.
          params: start.
          context: further input of the objective, such as a prox center; constant in an
            epoch.
          step_end: `(params, context) -> params`, after every step.
          epoch_end: `(epoch, params, context) -> (params, context)`, after every epoch.

        Returns:
          Parameters, context and a `LocalInfo`.
        """
        has_personal = view.data.personal is not None
        if has_personal:
            view, objective, params = _joint(view, objective, params)
            step_end, epoch_end = _of_shared(step_end, epoch_end)
        # Personal parameters are part of the point from here on, hooks see shared ones.
        gradient_of = self._gradient_of(objective, view)

        def step(
            step_key: core.Key, state: tuple[Any, ...], batches: tuple[core.Batch, ...]
        ):
            params, moments, context, (carry, running), count = state
            batch = batches[0].with_statistics(running)
            gradient, memory = gradient_of(step_key, params, batch, context, carry)
            at = Step(view.round, count, self.share(batch))
            params, moments = self._update(gradient, moments, params, at)
            if step_end is not None:
                params = step_end(params, context)
            count = None if count is None else count + 1
            return params, moments, context, memory, count

        def end(epoch: jax.Array, state: tuple[Any, ...]):
            params, moments, context, *tail = state
            params, context = epoch_end(epoch, params, context)  # pyright: ignore
            return params, moments, context, *tail

        sampler = self._sampler(objective, view)
        if sampler is not None and self.order is not None:
            raise checks.InputError(
                "Expected order=None with a model of series, which draws its own pieces"
                f" of them, got {self.order!r}."
            )
        count = None
        if schedules.counts_steps(self):
            count = jnp.zeros((), jnp.int32) if view.steps is None else view.steps
        moments = self._init(params, Step(view.round, count))
        memory = (view.carry, view.data.statistics)
        (params, _, context, memory, _), info = minibatch_scan.local_scan(
            view,
            step,
            (params, moments, context, memory, count),
            dtype=minibatch_scan.params_dtype(params),
            sampler=sampler,
            epoch_end=None if epoch_end is None else end,
            **self._walk,
        )
        carry, running = memory
        if has_personal:
            params, carry = params
        info = dataclasses.replace(info, carry=carry, statistics=running)
        return params, context, info


@struct.pytree_dataclass
class SGD(MinibatchSolver):
    """Stochastic gradient descent over shuffled minibatches.

    `v <- momentum v + g + weight_decay params; params <- params - eta_t v`, with
    `v = 0` at the start of round t and `eta_t = learning_rate decay^t`.

    Attributes:
      learning_rate: `[]` step size, > 0; a bad traced value gives a diverging run. Or a
        schedule, such as one of optax or `("cosine", 0.1, 1000)`: a function of the
        number of a step, which counts all steps of the client in the rounds in which it
        took part (the steps of both solvers in methods with two); outside of rounds it
        begins at 0.
      epochs: local epochs H, at least 1.
      num_steps: local steps in place of epochs, or None; a straggler's budget of epochs
        then counts steps.
      batch_size: B, at least 1; no batch has more examples.
      momentum: `[]` in [0, 1), or None for none (and no buffer).
      weight_decay: `[]` L2 weight added to the gradient, at least 0.
      decay: `[]` factor of the learning rate per round, in (0, 1], or None for none.
      clip_norm: `[]` norm, > 0, to which the gradient of a batch is clipped before
        weight decay and momentum, or None.
      per_round: whether a schedule gets the number of the round instead, so that its
        rate is constant in a round.
      order: static; a function `(view, epoch) -> int32[m]` that returns the order of
        the client's examples in an epoch, to replay another program's run; `view` has
        the round and `data.client_id`. None shuffles every epoch.
      remainder: batches of the n examples of an epoch if B does not divide n: `even`,
        ceil(n / B) batches with sizes that differ by at most one; `full`, as in
        PyTorch, a short last batch with a step of full length, even for a single
        example; `scaled`, that step times its number of examples over B; `drop`, no
        such step, and no step at all for a client with n < B.
    """

    learning_rate: schedules.Rate = struct.traced_field(
        default=0.1, above=0, search=(0.003, 10.0)
    )
    epochs: int = struct.static_field(default=1, at_least=1)
    num_steps: int | None = struct.static_field(default=None, at_least=1)
    batch_size: int = struct.static_field(default=20, at_least=1)
    momentum: Any = struct.traced_field(
        default=None, at_least=0, below=1, unsearched=_SAME
    )
    weight_decay: Any = struct.traced_field(default=0.0, at_least=0, unsearched=_SAME)
    decay: Any = struct.traced_field(default=None, above=0, at_most=1, unsearched=_SAME)
    clip_norm: Any = struct.traced_field(default=None, above=0, unsearched=_SAME)
    per_round: bool = struct.static_field(default=False)
    order: minibatch_scan.Order | None = struct.static_field(default=None)
    remainder: minibatch_scan.Remainder = "even"

    def __post_init__(self):
        rate = schedules.scheduled(self.learning_rate, self.per_round)
        object.__setattr__(self, "learning_rate", rate)  # the class is frozen

    def rate(self, round: core.Scalar | None, step: jax.Array | None = None) -> Any:
        """Returns the learning rate eta_t `[]` of a round.

        Args:
          round: `int32[]` t, from 0; None counts as 0.
          step: `int32[]` earlier steps of the client, for a schedule of steps.

        Returns:
          `learning_rate decay^t`.

        Raises:
          InputError: if a schedule of steps has no rate of a round.

        Example:
          >>> SGD(learning_rate=0.5, decay=0.1).rate(2)
          0.005000000000000001
        """
        rate = self.learning_rate
        if isinstance(rate, schedules.Schedule):
            rate = rate.rate(round, step)
        return rate if self.decay is None or round is None else rate * self.decay**round

    def clipped(self, gradient: core.Params) -> core.Params:
        """Clips the gradient `[*P]` of a batch to `clip_norm`, if there is one."""
        if self.clip_norm is None:
            return gradient
        return client_rows.clip(gradient, self.clip_norm)

    def rate_sum(
        self, info: minibatch_scan.LocalInfo, round: jax.Array | None
    ) -> jax.Array:
        """Returns the sum of the step sizes `[]` of local work.

        Args:
          info: report of the work.
          round: `int32[]` t; the rate must not change within a round.

        Returns:
          The rate times the number of steps, a scaled step counting as a fraction; at
          least the rate of one step.
        """
        rate = self.rate(round)
        if self.remainder == "scaled":  # a quotient of integers would be a float32
            return jnp.maximum(info.num_examples, 1) * rate / self.batch_size
        return jnp.maximum(info.num_steps, 1) * rate

    def _init(self, params: core.Params, at: Step):
        return None if self.momentum is None else jax.tree.map(jnp.zeros_like, params)

    def _update(
        self, gradient: core.Params, moments: core.Tree, params: core.Params, at: Step
    ):
        # Weight decay and momentum act on the clipped gradient.
        gradient = self.clipped(gradient)
        shrinkage = tree_paths.spread(self.weight_decay, params)
        direction = jax.tree.map(lambda g, x, w: g + w * x, gradient, params, shrinkage)
        if moments is not None:
            direction = moments = jax.tree.map(
                lambda v, d: self.momentum * v + d, moments, direction
            )
        rates = tree_paths.spread(self.rate(at.round, at.number) * at.share, params)
        params = jax.tree.map(lambda x, d, r: x - r * d, params, direction, rates)
        return params, moments


@struct.pytree_dataclass
class Optax(MinibatchSolver):
    """Any optax optimizer over shuffled minibatches; its state is reset every round.

    Attributes:
      hyperparameters: dict of traced `[]` arguments of `optimizer`, by dotted name
        `local.hyperparameters.learning_rate`; the learning rate may be a schedule, as
        in `SGD`.
      optimizer: function such as `optax.adam`.
      epochs: local epochs, at least 1.
      num_steps: local steps in place of epochs, or None; see `SGD`.
      batch_size: B, at least 1.
      per_round: see `SGD`.
      order: see `SGD`.
      remainder: see `SGD`.
    """

    hyperparameters: Any
    optimizer: Callable[..., optax.GradientTransformation] = struct.static_field(
        default=optax.adam
    )
    epochs: int = struct.static_field(default=1, at_least=1)
    num_steps: int | None = struct.static_field(default=None, at_least=1)
    batch_size: int = struct.static_field(default=20, at_least=1)
    per_round: bool = struct.static_field(default=False)
    order: minibatch_scan.Order | None = struct.static_field(default=None)
    remainder: minibatch_scan.Remainder = "even"

    def __post_init__(self):
        if not isinstance(self.hyperparameters, dict):
            raise checks.InputError(
                "Expected hyperparameters to be a dict, such as"
                f' {{"learning_rate": 0.1}}, got {checks.shown(self.hyperparameters)}.'
            )
        values = dict(self.hyperparameters)
        if "learning_rate" in values:
            rate = schedules.scheduled(values["learning_rate"], self.per_round)
            values["learning_rate"] = rate
        for name, value in values.items():
            struct.refuse_stand_in(f"hyperparameters.{name}", value, "a number")
            if not isinstance(value, schedules.Schedule):
                checks.number(f"hyperparameters.{name}", value)
        object.__setattr__(self, "hyperparameters", values)  # the class is frozen

    def _transformation(self, at: Step) -> optax.GradientTransformation:
        """Makes the optimizer of a step."""
        values = dict(self.hyperparameters)
        rate = values.get("learning_rate")
        if isinstance(rate, schedules.Schedule):
            values["learning_rate"] = rate.rate(at.round, at.number)
        return self.optimizer(**values)

    def _init(self, params: core.Params, at: Step):
        return self._transformation(at).init(params)

    def _update(
        self, gradient: core.Params, moments: core.Tree, params: core.Params, at: Step
    ):
        updates, moments = self._transformation(at).update(gradient, moments, params)
        # Updates may have a wider dtype; parameters keep theirs.
        params = jax.tree.map(
            lambda x, u: (x + at.share * u).astype(x.dtype), params, updates
        )
        return params, moments


@struct.pytree_dataclass
class ToTolerance(core.LocalSolver):
    """Full-batch gradient descent until the squared gradient norm is small enough.

    Gradients use fixed running statistics of a `StatisticsModel`, which are updated by
    one pass over the examples at the end.

    Attributes:
      learning_rate: `[]` step size, > 0; below 2 / smoothness or it does not converge.
      tolerance: `[]` bound on the squared norm of the objective's gradient, >= 0.
      max_steps: hard cap; `info.converged` is False if it was reached.
      batch_size: examples per pass of the gradient; bounds memory, not the result.
    """

    learning_rate: Any = struct.traced_field(default=0.1, above=0, search=(0.003, 10.0))
    tolerance: Any = struct.traced_field(
        default=1e-8, at_least=0, unsearched="an accuracy"
    )
    max_steps: int = struct.static_field(default=1000, at_least=1)
    batch_size: int = struct.static_field(default=256, at_least=1)
    chooses: ClassVar[str] = "the number of steps"
    forward_only: ClassVar[str] = "ends by a tolerance"

    def solve(
        self,
        view: core.ClientView,
        objective: objectives.Objective,
        params: core.Params,
        context: core.Tree = None,
        *,
        tolerance: jax.Array | None = None,
    ) -> tuple[Any, Any, minibatch_scan.LocalInfo]:
        """Minimizes an objective to the tolerance, starting at `params`.

        Args:
          view: the client; full gradients need no key, the cap on steps applies.
          objective: `(key, params, batch, context) -> []`.
          params: start.
          context: further input of the objective.
          tolerance: `[]` in place of the field.

        Returns:
          Parameters, the same context and a `LocalInfo`.
        """
        has_personal = view.data.personal is not None
        if has_personal:
            view, objective, params = _joint(view, objective, params)
        goal = self.tolerance if tolerance is None else tolerance
        bound = jnp.minimum(jnp.int32(self.max_steps), view.work.steps)

        def gradient_at(point: core.Tree):
            _, gradient = minibatch_scan.full_value_and_gradient(
                objective, point, context, view.data, self.batch_size
            )
            norm = sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient))
            return gradient, norm

        def unfinished(state: tuple[Any, ...]):
            _, _, norm, steps = state
            # Not `norm > goal`, which is false for NaN.
            return ~(norm <= goal) & (steps < bound)

        def body(state: tuple[Any, ...]):
            point, gradient, _, steps = state
            point = jax.tree.map(
                lambda x, g: x - self.learning_rate * g, point, gradient
            )
            return point, *gradient_at(point), steps + 1

        start = (params, *gradient_at(params), jnp.zeros((), jnp.int32))
        params, _, norm, steps = lax.while_loop(unfinished, body, start)
        # Under `at_solutions` derivatives are those of the solution, not of the steps.
        params = loops.stationary(lambda x: gradient_at(x)[0], params)
        running = minibatch_scan.passed_statistics(
            objective, params, context, view, self.batch_size
        )
        params, personal = params if has_personal else (params, None)
        info = minibatch_scan.LocalInfo(
            num_steps=steps,
            num_examples=(steps + 1) * view.data.num_examples,
            converged=norm <= goal,
            carry=personal,
            statistics=running,
        )
        return params, context, info
