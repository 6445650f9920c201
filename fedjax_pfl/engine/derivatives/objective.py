"""The differentiated number of a training: a metric after its last round."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import checks, struct
from fedjax_pfl.results import metrics

__all__ = ["WORST_DECILE", "Objective"]

WORST_DECILE = "worst_decile"
_DATA = ("validation", "train")
_METRICS = ("loss", "annualized_return", "sharpe")
_SHARE = 0.1
_SMOOTHING = 0.1
_BISECTIONS = 50


@dataclasses.dataclass(frozen=True)
class Objective:
    """A metric of the evaluated honest clients, as one number.

    Attributes:
      data: on which the models are measured, `validation` or `train`.
      metric: one that has a derivative.
      model: name of a predictor; None takes the one that stands for the method.
      over: `mean` of the clients; `worst_decile`, the mean of the worst tenth of them,
        smoothed; or the number of one client.

    The worst tenth is the conditional value at risk,
    `min_t t + 1/(0.1 n) sum_i s softplus((f_i - t)/s)` with s a tenth of the losses'
    standard deviation (Rockafellar and Uryasev 2000, with a softplus in place of the
    hinge): at least the mean of the worst tenth, and more by at most 7 s.
    """

    data: str = "validation"
    metric: str = "loss"
    model: str | None = None
    over: str | int = "mean"

    def __post_init__(self):
        struct.check_fields(self)
        if self.data in ("test", "others", "everybody"):
            raise checks.InputError(
                "Expected an objective on validation or train data, since nothing is"
                f" chosen on test data, got {self.data!r}."
            )
        checks.known(self.data, _DATA, "data of an objective")
        if self.metric == "accuracy":
            raise checks.InputError(
                "Expected an objective that has a derivative, such as loss, got"
                " 'accuracy', whose derivative is 0 almost everywhere."
            )
        checks.known(self.metric, _METRICS, "metric of an objective")
        if isinstance(self.over, str):
            checks.known(self.over, ("mean", WORST_DECILE), "mean over clients")
        else:
            checks.whole("client of an objective", self.over, at_least=0)

    @classmethod
    def parse(cls, text: "str | Objective") -> "Objective":
        """Reads an objective such as `validation:loss:personal`.

        Args:
          text: data, metric and model in any order, all but the data optional, and
            `worst_decile` or `client=NUMBER` for other than the mean over clients; or
            an objective, which is returned unchanged.

        Returns:
          The objective.

        Raises:
          InputError: if a part is none of these, or is there twice.

        Example:
          >>> Objective.parse("validation:loss:personal:client=3").over
          3
        """
        if isinstance(text, Objective):
            return text
        checks.is_text("objective", text)
        # Parts come in any order: their names do not overlap.
        fields: dict[str, Any] = {}
        for part in text.split(":"):
            name, value = "model", part
            if part in (*_DATA, "test", "others", "everybody"):
                name = "data"
            elif part in metrics.METRICS:
                name = "metric"
            elif part in ("mean", WORST_DECILE):
                name = "over"
            elif part.startswith("client="):
                number = part.removeprefix("client=")
                name, value = "over", int(number) if number.isdecimal() else number
            if not part or name in fields:
                raise checks.InputError(
                    "Expected an objective such as validation:loss:personal, got"
                    f" {text!r}."
                )
            fields[name] = value
        return cls(**fields)

    def __str__(self) -> str:
        over = f"client={self.over}" if isinstance(self.over, int) else self.over
        parts = (self.data, self.metric, self.model, None if over == "mean" else over)
        return ":".join(part for part in parts if part is not None)

    @property
    def sign(self) -> int:
        """1 if less is better, -1 if more is."""
        return -metrics.sign(self.metric)

    def measured(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns options that evaluate on the objective's data if none are named."""
        if options.get("evaluate_on") is not None:
            return options
        data = dict.fromkeys(("test", "validation", self.data))
        return options | {"evaluate_on": tuple(data)}

    def of(self, values: jax.Array, rows: jax.Array, counted: jax.Array) -> jax.Array:
        """Combines the clients' values to one.

        Args:
          values: `[K]` of the evaluated clients.
          rows: `int32[K]` of these clients.
          counted: `bool[K]` whether clients are honest and have examples.

        Returns:
          `[]`; NaN if no client counts.
        """
        if isinstance(self.over, int):
            counted = counted & (rows == self.over)
        number = counted.sum().astype(values.dtype)
        values = jnp.where(counted, values, 0)
        # The worst clients have the least values of a metric that is better if larger.
        if self.over == WORST_DECILE:
            return self.sign * _tail(self.sign * values, counted, number)
        return values.sum() / number


def _tail(losses: jax.Array, counted: jax.Array, number: jax.Array) -> jax.Array:
    """Computes the smoothed mean of the largest tenth of losses `[K]`."""
    mean = losses.sum() / number
    variance = jnp.where(counted, jnp.square(losses - mean), 0).sum() / number
    least = jnp.square(jnp.finfo(losses.dtype).eps * mean)
    is_spread = variance > least
    # If all losses are equal, their mean has the worst tenth's value and slope.
    scale = _SMOOTHING * jnp.sqrt(jnp.where(is_spread, variance, 1))

    def share_above(level: jax.Array) -> jax.Array:
        return jnp.where(counted, jax.nn.sigmoid((losses - level) / scale), 0).sum()

    def halve(_: int, ends: tuple[jax.Array, jax.Array]):
        low, high = ends
        middle = (low + high) / 2
        is_low = share_above(middle) > _SHARE * number
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    # The minimum's derivative in t is 0, so that t may count as a constant.
    constant = lax.stop_gradient
    values, width = constant(losses), constant(40 * scale)
    # The minimizer t lies between the extreme losses, up to the width of the softplus.
    low = jnp.where(counted, values, jnp.inf).min() - width
    high = jnp.where(counted, values, -jnp.inf).max() + width
    low, high = lax.fori_loop(0, _BISECTIONS, lambda n, e: halve(n, e), (low, high))
    level = constant((low + high) / 2)
    above = scale * jax.nn.softplus((losses - level) / scale)
    worst = level + jnp.where(counted, above, 0).sum() / (_SHARE * number)
    return jnp.where(is_spread, worst, mean)
