"""Portfolio policy that is equivariant in the assets (Jiang, Xu and Liang 2017).

EIIE, an ensemble of identical independent evaluators: the same small network evaluates
every asset, so a model does not depend on which assets a party holds. With `x_j in R^F`
the prices of day j of the window in units of the last close, w' the weights held, and m
assets (cash is entry 0 of w):

    h_0 = 0,  h_j = sigmoid(W_x x_j + W_h h_{j-1} + b_h),  j = 1..l     (recurrent)
    score_i = a . [h_l; w'_i] + a_0
    w = softmax([b_cash, score_1, ..., score_m])

Training maximizes the mean of `ln(b_t y_{t+1} . w_t)` over pieces of successive days,
with the first-order cost factor b_t: as this is an explicit function of the actions,
its gradient is the deterministic policy gradient, without a critic. The weights held
before come from the portfolio-vector memory, through which no gradient flows; the cost
of a day uses the piece's own action of the day before, and its first day is free.
Back-tests pay the exact cost.

Reconstructed: the logistic sigmoid of the recurrent evaluator, and its width 20 (from a
figure). Without source: `centered`.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, portfolio
from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import initializers, objectives, starts

__all__ = ["EIIE", "Held"]

_KERNEL, _FILTERS = 2, (3, 10)  # of the convolutional evaluator


@struct.pytree_dataclass
class Held:
    """Examples with the weights held before them.

    Attributes:
      x: `int32[B, 3]` examples as `portfolio.windows` reads them.
      weights: `[B, m]` of the assets, without cash.
    """

    x: jax.Array
    weights: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class EIIE(starts.Startable):
    """Portfolio weights of a party's assets; a `core.SequenceModel`.

    463 parameters with closes alone and the recurrent evaluator, 503 with three
    features; 902 with the convolutional one, closes alone and windows of 30 days. Its
    federations come from `PortfolioSpec`. Metrics of a client: `loss` (minus the
    mean log-return of a day) and those of `portfolio.summary`, of the policy and,
    beginning with `uniform_` and `hold_`, of equal shares of its assets, rebalanced
    every day and never again; all with exact costs, beginning with cash. Series: the
    `value` of each, from 1 on.

    Attributes:
      evaluator: `"recurrent"`, or `"convolutional"`: a 1 x 2 convolution with 3 filters
        and a 1 x (l - 1) one with 10, each with a rectifier.
      units: of the recurrent evaluator.
      cost: rate c of buying and selling, in [0, `portfolio.MAX_COST`].
      sampling_decay: q in (0, 1]; recent pieces are sampled more often.
      centered: feed the network `10 (x - 1)` in place of prices x near 1.
      initialization: see `Network`.
      features: F, or None until `for_federation`.
      window: l, or None until `for_federation`.
      assets: m, or None until `for_federation`.
    """

    evaluator: Literal["recurrent", "convolutional"] = "recurrent"
    units: int = struct.static_field(default=20, at_least=1)
    cost: float = struct.static_field(
        default=0.002, at_least=0, at_most=portfolio.MAX_COST
    )
    sampling_decay: float = struct.static_field(default=5e-5, above=0, at_most=1)
    centered: bool = False
    initialization: initializers.Scheme = "pytorch"
    features: int | None = None
    window: int | None = None
    assets: int | None = None

    def for_federation(self, federation: core.Federation) -> "EIIE":
        """Returns the policy with the federation's features and window."""
        tables = federation.train.constants
        if not isinstance(tables, portfolio.PriceTables):
            raise checks.InputError(
                "EIIE is a policy for prices: expected the federation of a"
                f" PortfolioSpec, got {federation.name!r}."
            )
        return dataclasses.replace(
            self,
            features=tables.prices.shape[-1],
            window=tables.window,
            assets=tables.prices.shape[-2],
        )

    @property
    def floats_per_example(self) -> int:
        """Number of floats that the gradient of one day keeps: windows and states."""
        return (self.assets or 1) * (self.window or 1) * (1 + self.units)

    def _draw(self, key: core.Key) -> core.Params:
        """Draws the parameters: `evaluator`, `head` and `cash`."""
        if self.features is None or self.window is None:
            raise checks.InputError(
                "Expected features and window; call for_federation."
            )
        # The same evaluator for every asset: parameters do not depend on m.
        evaluator_key, head_key = jax.random.split(key)
        keys, units = jax.random.split(evaluator_key), self.units
        if self.evaluator == "recurrent":
            layer = self._layer(keys[0], (units, self.features), units, units)
            scheme, width = self.initialization, units
            state = initializers.weights(keys[1], (units, units), units, units, scheme)
            evaluator = {
                "input_kernel": layer["kernel"],
                "state_kernel": state,
                "bias": layer["bias"],
            }
        else:
            few, width = _FILTERS
            short, long = _KERNEL * self.features, (self.window - _KERNEL + 1) * few
            evaluator = {
                "short": self._layer(keys[0], (few, short), short, few),
                "long": self._layer(keys[1], (width, long), long, width),
            }
        return {
            "evaluator": evaluator,
            "head": self._layer(head_key, (width + 1,), width + 1, 1),
            "cash": {"bias": jnp.zeros(())},
        }

    def _layer(
        self, key: core.Key, shape: tuple[int, ...], inputs: int, outputs: int
    ) -> dict[str, jax.Array]:
        """Draws weights and biases of one layer, `[outputs]`, or `[]` for a vector."""
        scheme = self.initialization
        return initializers.layer(key, shape, inputs, outputs, scheme)

    def _evaluate(
        self, params: core.Params, x: jax.Array, tables: portfolio.PriceTables
    ) -> jax.Array:
        """Evaluates all assets on all days: hidden states `[width, B, m]`."""
        dtype = params["cash"]["bias"].dtype
        prices = portfolio.windows(tables, x).astype(dtype)  # [B, m, l, F]
        if self.centered:
            prices = 10 * (prices - 1)
        evaluate = _recur if self.evaluator == "recurrent" else _convolve
        rows = prices.reshape(-1, *prices.shape[2:])  # [B m, l, F]
        hidden = evaluate(params["evaluator"], jnp.transpose(rows, (1, 2, 0)))
        return hidden.reshape(-1, *prices.shape[:2])

    def apply(
        self,
        params: core.Params,
        x: jax.Array | Held,
        *,
        key: core.Key | None = None,
        constants: Any = None,
    ) -> jax.Array:
        """Computes weights `[B, m+1]`, cash first.

        Args:
          params: parameters.
          x: `int32[B, 3]` successive days, acted on one after the other, starting with
            cash; or `Held`, any days with the weights held before each.
          key: not used.
          constants: the federation's `PriceTables`.

        Returns:
          Weights on the simplex.
        """
        del key
        head, cash = params["head"], params["cash"]["bias"]
        kernel, action_kernel = head["kernel"][:-1], head["kernel"][-1]
        days = x.x if isinstance(x, Held) else x
        hidden = self._evaluate(params, days, constants)
        scores = jnp.tensordot(kernel, hidden, axes=1) + head["bias"]

        # w = softmax([b_cash, score_1, ..., score_m]), scores with the weights held.
        def act(scores: jax.Array, held: jax.Array) -> jax.Array:
            scores = scores + action_kernel * held.astype(scores.dtype)
            cash_score = jnp.broadcast_to(cash, (*scores.shape[:-1], 1))
            return jax.nn.softmax(jnp.concatenate([cash_score, scores], axis=-1))

        if isinstance(x, Held):
            # In training the weights held come from the memory: all days at once.
            return act(scores, x.weights)

        def step(held: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            weights = act(row, held)
            return weights[1:], weights

        return lax.scan(step, jnp.zeros_like(scores[0]), scores)[1]

    def _rewards(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Computes `ln(b_t y_{t+1} . w_t)` `[B]` of successive days, 0 for padding."""
        real = batch.weight > 0
        outputs = jnp.where(real[:, None], outputs, 1 / outputs.shape[-1])
        growth = jnp.where(real[:, None], batch.y, 1).astype(outputs.dtype)
        # The cost of a day follows the action before it; the first day is free.
        held = portfolio.drifted(outputs[:-1], growth[:-1])
        paid = portfolio.first_order_factor(held, outputs[1:], self.cost)
        factor = jnp.concatenate([jnp.ones_like(paid[:1]), paid])
        rewards = jnp.log(factor * (outputs * growth).sum(axis=-1))
        return jnp.where(real, rewards, 0)

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns minus the mean log-return `[]` of successive days, costs included."""
        return objectives.weighted_mean(-self._rewards(outputs, batch), batch.weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the loss `[B]` of every day."""
        return {"loss": -self._rewards(outputs, batch)}

    def first_carry(self, data: core.ClientData) -> jax.Array:
        """Returns the portfolio-vector memory `[slots, m]` of ONE client, uniform."""
        slots, assets = data.constants.slots, data.y.shape[-1] - 1
        return jnp.full((slots, assets), 1 / assets, jnp.zeros(()).dtype)

    def positions(
        self,
        key: core.Key,
        round: jax.Array | int | None,
        data: core.ClientData,
        batch_size: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Draws successive training days `int32[B]` without padding."""
        round = 0 if round is None else round
        tables, decay = data.constants, self.sampling_decay
        rows = portfolio.batch_positions(key, tables, round, batch_size, decay)
        return rows, jnp.ones(batch_size, bool)

    def recall(self, carry: jax.Array, batch: core.Batch) -> Held:
        """Adds the actions of the day before to each day; uniform before the first."""
        predecessor = portfolio.previous_example(batch.constants, batch.x[:, 2])
        uniform = jnp.full_like(carry[:1], 1 / carry.shape[-1])
        held = jnp.where(predecessor[:, None] < 0, uniform, carry[predecessor])
        return Held(x=batch.x, weights=held)

    def remember(
        self, carry: jax.Array, batch: core.Batch, outputs: jax.Array
    ) -> jax.Array:
        """Writes these actions into the carry."""
        return carry.at[batch.x[:, 2]].set(outputs[:, 1:].astype(carry.dtype))

    def sequence_metrics(
        self, outputs: jax.Array, batch: core.Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Back-tests all days of a client; names are in the class's docstring."""
        mask, growth = batch.weight > 0, batch.y
        strategies = {
            "": outputs.astype(growth.dtype),
            "uniform_": portfolio.uniform_weights(growth),
            "hold_": portfolio.buy_and_hold_weights(growth),
        }
        metrics, series = {}, {}
        for prefix, weights in strategies.items():
            course = portfolio.backtest(weights, growth, mask, self.cost)
            values = portfolio.summary(course, mask)
            metrics |= {prefix + name: value for name, value in values.items()}
            series[f"{prefix}value"] = course.values
            if not prefix:
                rewards = jnp.log1p(course.returns)
                metrics["loss"] = -objectives.weighted_mean(rewards, batch.weight)
        is_known = mask.any()
        return {n: jnp.where(is_known, v, jnp.nan) for n, v in metrics.items()}, series


def _recur(params: core.Params, x: jax.Array) -> jax.Array:
    """Returns the last states `[H, R]` of windows `[l, F, R]`."""
    # Rows are columns here: products of a small and a wide matrix are faster, by a
    # third, than products of a tall and a small one.
    bias = params["bias"][:, None]

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        inputs = params["input_kernel"] @ x + bias
        return jax.nn.sigmoid(inputs + params["state_kernel"] @ state), None

    start = jnp.zeros((bias.shape[0], x.shape[-1]), x.dtype)
    return lax.scan(step, start, x)[0]


def _convolve(params: core.Params, x: jax.Array) -> jax.Array:
    """Returns the filters `[10, R]` of windows `[l, F, R]`."""
    rows = x.shape[-1]
    pairs = jnp.concatenate([x[:-1], x[1:]], axis=1)  # [l-1, 2F, R]
    short, long = params["short"], params["long"]
    hidden = jnp.einsum("fk,lkr->lfr", short["kernel"], pairs)
    hidden = jax.nn.relu(hidden + short["bias"][None, :, None])
    hidden = long["kernel"] @ hidden.reshape(-1, rows)
    return jax.nn.relu(hidden + long["bias"][:, None])
