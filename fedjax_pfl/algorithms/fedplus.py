"""Fed+: personal models pulled to anchors between themselves and a robust center.

Problem, with a convex phi and its Moreau envelope Phi of radius `rho = mu / alpha`:

    min_W F(W) = sum_k p_k [f_k(w_k) + mu Phi(w_k - A(W))]
    A(W) = argmin_c sum_k p_k Phi(w_k - c)

One round, for members k (Algorithm 1), with a local step size eta:

    z_k = c + prox(w_k - c)                                   the anchor
    w_k <- (1 - lam) w_k + lam c                              the start
    w_k <- theta (w_k - eta grad f_k(w_k)) + (1 - theta) z_k  E_k times
    c   = A of the members' models, or of all last models

`theta = 1 / (1 + alpha eta)`, so that a step is one of gradient descent on `f_k(w) +
alpha/2 ||w - z_k||^2` with step size `theta eta` (Proposition 2).

| symbol | field | shape |
|---|---|---|
| w_k | `clients`, message | `[N, *P]` |
| c | `server.c` | `[*P]` |
| rho | `server.rho` | `[]`, or `[L]` for blocks |

| method | phi | aggregate | here |
|---|---|---|---|
| FedAvg+ | `sq` | mean | `FedPlus.mean()` |
| FedGeoMed+ | `l2` | smoothed geometric median | `FedPlus.geometric_median()` |
| FedCoMed+ | `l1` | smoothed coordinate median | `FedPlus.coordinate_median()` |
| hybrid | by layers | by layers | `FedPlus.layer_wise(...)` |
| FedProx | `indicator` | mean | `FedPlus.fedprox(mu=...)` |

Limits: `theta = 1` with `lam = 0` is local training, with `lam = 1` FedAvg, and with
the exact medians for aggregators RFA and coordinate-wise median. As soon as rho is
above all distances of models to their mean, `l2` and `l1` are `indicator`: the anchors
are the center and the center is the mean. As rho -> 0 the anchors are the models and
the center is their median: robustness and personalization hang on the same radius.

Reference: Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to Robust Personalized
Federated Learning". Deviations, each a switch: the center is over the members of the
round (section 5.2 of the paper; Algorithm 1 and Theorem 2 take all last models:
`aggregate_over="all"`); the prox of l1 has two sides; local iterations are epochs, as
in FedProx's experiments (`local.num_steps` counts steps); the anchor pulls after every
step (the authors' software: after every epoch, `pull_every="epoch"`). A member that
takes no step, for lack of examples or of budget, is as if not selected. Optimizers with
memory take their step before the pull; the theory covers plain gradient steps only.
"""

import dataclasses
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common, phi
from fedjax_pfl.core import ClientView, Downlink, Model, checks, client_rows, struct
from fedjax_pfl.local.schedules import Schedule
from fedjax_pfl.numerics import scaled_rows

__all__ = ["FedPlus", "FedPlusServer"]

_Phi = phi.Phi  # the class has a field `phi`


@struct.pytree_dataclass
class FedPlusServer:
    """State of the server; see the module's table."""

    c: core.Params
    rho: jax.Array


@struct.pytree_dataclass
class FedPlus(base.SingleExchange):
    """Fed+ with every choice of paper and software as a switch.

    Attributes:
      phi: what couples a model to the center; see `fedjax_pfl.algorithms.phi`.
      alpha: `[]` strength of the pull, at least 0, or None where `theta` is given.
        Neither given means 0.01, as in the paper.
      theta: `[]` own share of a step in (0, 1], in place of alpha.
      rho: `[]` radius of phi, > 0: a distance between models for `l1` and `l2`, a pure
        number for others. The paper has 10, and 1000 for `sq`.
      rho_quantile: `[]` in (0, 1), or None: scale-free, the radius of `l1` and `l2` is
        this quantile of the members' last distances to the center (0.5: the median), in
        place of rho. A distance is the norm for `l2` and the root mean square of the
        coordinates for `l1`.
      lam: `[]` share of the center in the start of a round, in [0, 1].
      local: local solver. `ToTolerance` minimizes `f_k + alpha/2 ||w - z_k||^2`.
      pull_every: static, `step` or `epoch`.
      weighting: static, p_k `uniform` (the paper) or by `examples`.
      drop_stragglers: static; whether stragglers' messages are dropped, as by FedAvg.
      aggregate_over: static, `cohort` or `all` clients' last models.
    """

    phi: _Phi = phi.L2()
    alpha: Any = struct.traced_field(
        default=None, at_least=0, search=(0.001, 10.0), unless=("theta",)
    )
    theta: Any = struct.traced_field(
        default=None, above=0, at_most=1, unsearched="given in place of `alpha`"
    )
    rho: Any = struct.traced_field(default=10.0, above=0, search=(0.001, 1000.0))
    rho_quantile: Any = struct.traced_field(
        default=None, above=0, below=1, unsearched="given in place of `rho`"
    )
    lam: Any = struct.traced_field(
        default=0.0, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    local: core.Solver = local.SGD()
    pull_every: Literal["step", "epoch"] = "step"
    weighting: Literal["uniform", "examples"] = "uniform"
    drop_stragglers: bool = struct.static_field(default=False)
    aggregate_over: Literal["cohort", "all"] = "cohort"

    def __post_init__(self):
        checks.alternatives(alpha=self.alpha, theta=self.theta)
        is_number = isinstance(self.phi, phi.Phi) and not self.phi.has_lengths
        if self.rho_quantile is not None and is_number:
            raise checks.InputError(
                "Expected rho_quantile with phi l1 or l2, whose radius is a distance,"
                f" got {type(self.phi).__name__}."
            )
        if self._exact and (self.theta is not None or self.pull_every == "epoch"):
            raise checks.InputError(
                "Expected alpha and pull_every='step' with local=ToTolerance, which"
                " has neither steps to share nor epochs, got"
                f" theta={self.theta!r} and pull_every={self.pull_every!r}."
            )
        if self.theta is None and not self._exact and self._step_size() is None:
            raise checks.InputError(
                "Expected theta in place of alpha with a local optimizer that has no"
                f" learning rate, got {self.local!r}."
            )

    @classmethod
    def mean(cls, *, rho: core.Scalar = 1000.0, **fields: Any) -> Self:
        """Builds FedAvg+."""
        return cls(phi=phi.Squared(), rho=rho, **fields)

    @classmethod
    def geometric_median(cls, **fields: Any) -> Self:
        """Builds FedGeoMed+."""
        return cls(phi=phi.L2(), **fields)

    @classmethod
    def coordinate_median(cls, **fields: Any) -> Self:
        """Builds FedCoMed+."""
        return cls(phi=phi.L1(), **fields)

    @classmethod
    def layer_wise(
        cls, patterns: tuple[str, ...], phis: tuple[str, ...], **fields: Any
    ) -> Self:
        """Couples every block of leaves by its own phi; see `phi.LayerWise`."""
        return cls(phi=phi.LayerWise(patterns=patterns, phis=phis), **fields)

    @classmethod
    def fedprox(cls, *, mu: float, local: core.Solver, **fields: Any) -> Self:
        """FedProx's steps of size e: `theta = 1 - mu e` and `eta = e / (1 - mu e)`.

        Args:
          mu: weight of the proximal term, at least 0, below 1 / e.
          local: SGD without momentum or weight decay and with learning rate e.
          **fields: other fields.

        Returns:
          The method; its server has FedProx's model.

        Raises:
          InputError: if `mu e >= 1`.
        """
        common.check_plain_sgd("FedProx as Fed+", local)
        checks.number("mu", mu, at_least=0)
        if local.decay is not None or dataclasses.is_dataclass(local.learning_rate):
            raise checks.InputError(
                "Expected FedProx as Fed+ with a constant learning rate, of which theta"
                f" is made, got decay={local.decay!r} and {local.learning_rate!r}."
            )
        checks.number("mu times the learning rate", mu * local.learning_rate, below=1)
        # FedProx: theta (w - eta grad f_k) + (1 - theta) c with 1 - theta = mu e.
        theta = 1 - mu * local.learning_rate
        solver = struct.replace_field(
            local, "learning_rate", local.learning_rate / theta
        )
        defaults = {"phi": phi.Indicator(), "lam": 1.0, "weighting": "examples"}
        return cls(theta=theta, local=solver, **(defaults | fields))

    @property
    def _exact(self) -> bool:
        """Returns whether local problems are solved exactly, not in steps."""
        return isinstance(self.local, local.ToTolerance)

    def _step_size(self, round: jax.Array | None = None) -> Any:
        """Returns eta in a round, or None if the local optimizer has none."""
        if isinstance(self.local, local.SGD):
            return self.local.rate(round)
        rate = self.local.learning_rate
        if isinstance(self.local, local.Optax):
            rate = self.local.hyperparameters.get("learning_rate")
        return rate.rate(round, None) if isinstance(rate, Schedule) else rate

    def _alpha(self) -> Any:
        """Returns the strength of the pull, None where only a step's share is known."""
        if self.theta is None:
            return 0.01 if self.alpha is None else self.alpha
        eta = self._step_size()
        return None if eta is None else (1 / self.theta - 1) / eta

    def _theta(self, round: jax.Array) -> core.Scalar:
        """Returns the own share of a step."""
        if self.theta is not None:
            return self.theta
        # theta = 1 / (1 + alpha eta), Proposition 2.
        return 1 / (1 + self._alpha() * self._step_size(round))

    def default_aggregator(self) -> core.Aggregator:
        """Returns the rule that belongs to phi."""
        return self.phi.aggregator(self.rho, self.rho_quantile, self.weighting)

    def first(self, params: core.Params):
        """Starts all clients from one network, which is also the center."""
        self.phi.check(params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        rho = self._radii(self.phi.lengths(zeros))
        message = params if self.aggregate_over == "all" else None
        return FedPlusServer(c=params, rho=rho), params, message

    def _radii(self, quantiles: jax.Array) -> jax.Array:
        """Returns the radii of phi's blocks, from quantiles of their lengths."""
        if self.rho_quantile is None:
            # NaN stands for "no quantile": phi then takes rho.
            quantiles = jnp.full_like(quantiles, jnp.nan)
        rho = jnp.asarray(self.rho, quantiles.dtype)
        return self.phi.radii(rho, quantiles)

    def reference(self, server: FedPlusServer):
        """Returns the center."""
        return server.c

    def anchor(self, server: FedPlusServer, w: core.Params) -> core.Params:
        """Returns `z = c + prox(w - c)`, trees of `[*P]`."""
        nearer = self.phi.prox(optax.tree.sub(w, server.c), server.rho)
        return jax.tree.map(lambda c, x: c + x, server.c, nearer)

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Descends on the own loss, with pulls to the anchor."""
        c = down.shared.c
        difference = optax.tree.sub(client, c)
        # z_k = c + prox(w_k - c), and the start (1 - lam) w_k + lam c.
        z = self.anchor(down.shared, client)
        start = base.mixture(client, c, 1 - self.lam)
        w, info = self._solve(view, model, start, z)
        is_idle = (view.data.num_examples if self._exact else info.num_steps) == 0
        # The start has moved towards c already: a member without work goes back.
        w = optax.tree.where(is_idle, client, w)
        is_dropped = is_idle | (view.work.straggler & self.drop_stragglers)
        upload = view.upload(w)
        weight = jnp.where(is_dropped, 0, upload.weight)
        distance = optax.tree.norm(difference)
        report = info.report(
            distance=distance,
            clipped=self.phi.clipped(difference, down.shared.rho),
            jump=self.lam * distance,
        )
        return w, dataclasses.replace(upload, weight=weight), report

    def _solve(
        self, view: ClientView, model: Model, start: core.Params, z: core.Params
    ):
        """Trains about the anchor: new parameters and work."""
        if self._exact:
            objective = common.proximal_objective(model, self._alpha())
            w, _, info = self.local.solve(view, objective, start, z)
            return w, info
        theta = self._theta(view.round)

        def pulled(w: core.Params, z: core.Params) -> core.Params:
            return base.mixture(w, z, theta)

        # w <- theta (w - eta grad f_k(w)) + (1 - theta) z, after the optimizer.
        hook = {"step_end": pulled}
        if self.pull_every == "epoch":
            hook = {"epoch_end": lambda _, w, z: (pulled(w, z), z)}
        plain = local.DataLoss(model)
        w, _, info = self.local.solve(view, plain, start, z, **hook)
        return w, info

    def server_update(
        self,
        ctx: core.RoundContext,
        server: FedPlusServer,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Returns the new center, and the new radius if it is a quantile."""
        if self.rho_quantile is None:
            return FedPlusServer(c=aggregate, rho=server.rho)
        messages, weights = uploads.message, uploads.weight
        valid = (weights > 0) & client_rows.finite_rows(messages, weights.shape[0])
        # Radius of the next round: the quantile of distances to the new center.
        away = jax.vmap(lambda w: optax.tree.sub(w, aggregate))(messages)
        lengths = jax.vmap(self.phi.lengths)(away)
        quantiles = _quantiles(lengths, valid, self.rho_quantile)
        rho = jnp.where(valid.any(), self._radii(quantiles), server.rho)
        return FedPlusServer(c=aggregate, rho=rho)

    def parameters(self, server: FedPlusServer, client: core.ClientState):
        """Returns the personal model w_k, its anchor z_k and the center c."""
        anchor = self.anchor(server, client)
        return {"personal": client, "anchor": anchor, "global": server.c}

    def diagnostics(self, state: core.State, model: Model, federation: core.Federation):
        """Returns the objective, and how far from stationary the clients are.

        Args:
          state: state after a round.
          model: the model.
          federation: data of N clients.

        Returns:
          `objective`, `sum_k p_k [f_k(w_k) + mu Phi(w_k - c)]` with the server's center
          c, which is F where c is that of all models; `residual`, the largest
          `||grad f_k(w_k) + alpha (w_k - z_k)||`; `center_shift`, the distance of c to
          the mean of all models over the median distance of models to c: how much
          another center it is than FedAvg's. Without a known alpha there are none.
        """
        alpha = self._alpha()
        if alpha is None:
            return {}
        plain, server = local.DataLoss(model), state.server

        def terms(w: core.Params, data: core.ClientData):
            loss, gradient = local.full_value_and_gradient(plain, w, None, data)
            away = optax.tree.sub(w, self.anchor(server, w))
            # ||grad f_k(w_k) + alpha (w_k - z_k)||, and mu Phi = alpha rho Phi.
            residual = optax.tree.norm(optax.tree.add_scale(gradient, alpha, away))
            penalty = self.phi.penalty(optax.tree.sub(w, server.c), server.rho)
            gap = optax.tree.norm(optax.tree.sub(w, server.c))
            return loss + alpha * penalty, residual, gap

        values, residuals, gaps = common.map_everyone(terms, state.clients, federation)
        counts = federation.train.num_examples.astype(values.dtype)
        weights = counts if self.weighting == "examples" else jnp.ones_like(counts)
        weights = jnp.where(counts > 0, weights, 0)
        objective = jnp.vdot(weights, values) / weights.sum()
        mean = client_rows.weighted_mean(state.clients, weights)
        shift = optax.tree.norm(optax.tree.sub(mean, server.c))
        # Relative to the usual distance, since rho and models have any scale.
        typical = jnp.median(gaps)
        return {
            "objective": objective,
            "residual": residuals.max(),
            "center_shift": shift / jnp.where(typical > 0, typical, 1),
        }


def _quantiles(values: jax.Array, valid: jax.Array, level: core.Scalar) -> jax.Array:
    """Returns lower quantiles of the valid rows `[K, ...]`; NaN for rows of NaN."""
    p = valid.astype(values.dtype) / jnp.maximum(valid.sum(), 1)
    columns = values.reshape(values.shape[0], -1)
    levels = jax.vmap(scaled_rows.quantile, in_axes=(1, None, None))(columns, p, level)
    return jnp.where(jnp.isnan(values[0]), jnp.nan, levels.reshape(values.shape[1:]))
