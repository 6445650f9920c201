"""Step sizes along a direction of common descent: S-FedPG's search."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.algorithms.common_descent import angle
from fedjax_pfl.algorithms.common_descent.direction import Direction, threshold
from fedjax_pfl.core import struct

__all__ = ["Armijo", "Searched"]

_BLOCK = 4  # trials at once: at most 3 more than one after another, far fewer exchanges
_ROUNDING = 1e-6  # of the smallest step
_NONE = 2**30  # the number of a trial that was not found


@struct.pytree_dataclass
class Searched:
    """Outcome of a search.

    Attributes:
      step: `[]` accepted step; 0 where none was.
      before: `[K]` losses at step 0.
      after: `[K]` losses at the accepted step.
      rule: `int32[]` what accepted it: 1 (every loss falls enough), 2 (the mean falls),
        3 (the smallest mean) or 0 (none: all trials non-finite, or rejected).
      trials: `int32[]` trials that the search one by one would have made.
    """

    step: jax.Array
    before: jax.Array
    after: jax.Array
    rule: jax.Array
    trials: jax.Array


@struct.pytree_dataclass
class Armijo(core.Pluggable):
    """Backtracking from a large step until every client's loss falls enough.

    Steps `e_k = ub / 2^k` down to `lb = eta / (2^s sigma)`, with `ub = 2^s eta`, or eta
    if a member of the round before is gone. Accepted is the largest that passes
    test 1, `L_i - L_i(e) >= -beta e (g_i . ds)` for all members and the same for the
    fairness objective; else the largest with a smaller mean loss; else the one with the
    smallest mean loss (Algorithm 1 of FedPG's supplement, whose line 10 prints `g d`
    for the client's own `g_i d`).

    Attributes:
      doublings: s, at least 0; static.
      decrease: `[]` beta in [0, 1), the share of the slope that a loss has to fall by.
      reject_increase: whether to take step 0 if no trial has a smaller mean loss;
        the paper takes the smallest even then.
    """

    doublings: int = struct.static_field(default=1, at_least=0, at_most=30)
    decrease: Any = struct.traced_field(default=1e-4, at_least=0, below=1)
    reject_increase: bool = struct.static_field(default=False)
    no_derivative: ClassVar[str] = "searches along a line"

    def bounds(
        self, rate: core.Scalar, sigma: core.Scalar, is_missing: jax.Array
    ) -> tuple[Any, Any]:
        """Returns the largest and smallest step `([], [])`.

        Args:
          rate: `[]` eta.
          sigma: `[]` how much longer ds is than d.
          is_missing: `bool[]` whether a member of the round before is not in this one.

        Returns:
          `ub, lb`.
        """
        factor = 2.0**self.doublings
        return jnp.where(is_missing, rate, factor * rate), rate / (factor * sigma)

    def most_trials(self, dtype: jnp.dtype) -> int:
        """Counts the trials of a search, at most, in floats of a type.

        No direction is shorter than `threshold(dtype)` of the average's norm.
        """
        return 2 * self.doublings + 1 + math.ceil(-math.log2(threshold(dtype)))

    def __call__(
        self,
        trial: Callable[[jax.Array], jax.Array],  # steps [B] to losses [K, B]
        *,
        rate: core.Scalar,  # eta
        direction: Direction,
        slopes: jax.Array,  # [K] derivatives of the losses along ds
        fair_slope: jax.Array,  # [] that of F; taken as 0 if positive
        present: jax.Array,  # bool[K] clients with losses that count
        is_fair: jax.Array,  # bool[] whether F is tested
        is_missing: jax.Array,  # bool[] whether a member of the last round is gone
    ) -> Searched:
        """Searches a step in blocks; a trial with a non-finite loss passes no test."""
        dtype = direction.sigma.dtype
        longest, shortest = self.bounds(rate, direction.sigma, is_missing)
        numbers = jnp.arange(self.most_trials(dtype), dtype=jnp.int32)
        # e_k = ub / 2^k, exact in binary floats, down to lb but for its rounding.
        steps = jnp.ldexp(longest, -numbers)
        count = (steps >= shortest * (1 - _ROUNDING)).sum(dtype=jnp.int32)
        tests = _Tests(
            need=-self.decrease * jnp.where(present, slopes, 0),
            fair_need=-self.decrease * jnp.minimum(fair_slope, 0),
            present=present,
            is_fair=is_fair,
        )

        def block(carry: core.Tree):
            number, base, best = carry
            # Trial -1 is step 0.
            trials = number * _BLOCK - 1 + jnp.arange(_BLOCK, dtype=jnp.int32)
            steps = jnp.where(trials < 0, 0, jnp.ldexp(longest, -trials)).astype(dtype)
            losses = trial(steps)
            base = jnp.where(number == 0, losses[:, 0], base)
            tried = (trials >= 0) & (trials < count)
            passed, smaller, mean = tests(losses, base, steps)
            mean = jnp.where(tried, mean, jnp.inf)
            best = best.updated(trials, losses, tried & passed, tried & smaller, mean)
            return number + 1, base, best

        def unfinished(carry: core.Tree):
            number, _, best = carry
            return (best.trials[0] == _NONE) & (number * _BLOCK - 1 < count)

        best = _Best(
            trials=jnp.full((3,), _NONE, jnp.int32),
            losses=jnp.zeros((3, *present.shape), dtype),
            lowest=jnp.asarray(jnp.inf, dtype),
        )
        start = (jnp.zeros((), jnp.int32), jnp.zeros(present.shape, dtype), best)
        _, base, best = lax.while_loop(unfinished, block, start)
        return self._accepted(longest, count, base, best)

    def _accepted(
        self, longest: jax.Array, count: jax.Array, base: jax.Array, best: "_Best"
    ) -> Searched:
        """Returns the step of the first rule that accepted any."""
        trials = best.trials
        if self.reject_increase:
            trials = trials.at[2].set(jnp.where(best.lowest < 0, trials[2], _NONE))
        # Rules are rows in the order in which they apply.
        has_trial = trials != _NONE
        rule, taken = jnp.argmax(has_trial), has_trial.any()
        step = jnp.where(taken, jnp.ldexp(longest, -trials[rule]), 0)
        return Searched(
            step=step.astype(base.dtype),
            before=base,
            after=jnp.where(taken, best.losses[rule], base),
            rule=jnp.where(taken, rule + 1, 0).astype(jnp.int32),
            trials=jnp.where(has_trial[0], trials[0] + 1, count).astype(jnp.int32),
        )


@struct.pytree_dataclass
class _Tests:
    """Tests of trials: required falls per unit of step, and the clients that count."""

    need: jax.Array
    fair_need: jax.Array
    present: jax.Array
    is_fair: jax.Array

    def __call__(
        self, losses: jax.Array, base: jax.Array, steps: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Tests losses `[K, B]`: test 1 and a smaller mean `bool[B]`, and means."""
        mask = self.present[:, None]
        finite = jnp.where(mask, jnp.isfinite(losses), True).all(axis=0)
        fall = jnp.where(mask, base[:, None] - losses, 0)
        # Test 1, `L_i - L_i(e) >= -beta e (g_i . ds)`, and the same for F.
        enough = (fall >= self.need[:, None] * steps[None, :]).all(axis=0)
        fair = jax.vmap(lambda row: angle.fairness(row, self.present).value)
        fair_fall = fair(base[None])[0] - fair(losses.T)
        enough &= ~self.is_fair | (fair_fall >= self.fair_need * steps)
        # Summed change of the losses: negative if the mean is smaller than at step 0.
        mean = jnp.where(finite, -fall.sum(axis=0), jnp.inf)
        return finite & enough, finite & (mean < 0), mean


@struct.pytree_dataclass
class _Best:
    """Best trials `int32[3]` of the rules, their losses `[3, K]`, lowest mean `[]`."""

    trials: jax.Array
    losses: jax.Array
    lowest: jax.Array

    def updated(
        self,
        trials: jax.Array,
        losses: jax.Array,
        passed: jax.Array,
        smaller: jax.Array,
        mean: jax.Array,
    ) -> "_Best":
        """Keeps the first trial of rules 1 and 2, and the lowest mean of rule 3."""
        chosen = jnp.stack([jnp.argmax(passed), jnp.argmax(smaller), jnp.argmin(mean)])
        new = jnp.stack(
            [
                (self.trials[0] == _NONE) & passed.any(),
                (self.trials[1] == _NONE) & smaller.any(),
                mean.min() < self.lowest,
            ]
        )
        return _Best(
            trials=jnp.where(new, trials[chosen], self.trials),
            losses=jnp.where(new[:, None], losses.T[chosen], self.losses),
            lowest=jnp.minimum(self.lowest, mean.min()),
        )
