"""FLAME: ADMM with Moreau envelopes for personalized federated learning.

Problem: `min sum_i alpha_i (f_i(theta_i) + lam/2 ||theta_i - w||^2)` over personal
models `theta_i` and the global model `w`, split with local copies `w_i = w` and scaled
duals `p_i = pi_i / rho`. One round, for members i (paper's equations, scaled):

    theta_i ~= argmin f_i(theta) + lam/2 ||theta - c_i||^2        c_i the prox centre
    w_i      = (theta_i + kappa_i (w - p_i)) / (1 + kappa_i)
    p_i     += w_i - w
    u_i      = w_i + p_i                                          the upload
    w        = mean of u_i over ALL clients, cached for absent ones
    kappa_i  = rho / (lam alpha_i)

| symbol | field | shape |
|---|---|---|
| theta_i, w_i, p_i | `clients.theta`, `.w_local`, `.p` | `[N, *P]` |
| eps_i | `clients.eps` (solver `ToTolerance` only) | `[N]` |
| alpha_i, 1/(N alpha_i) | `clients.alpha`, `.ratio` | `[N]` |
| u_i | `messages`, or `w_local + p` where nothing can alter them | `[N, *P]` |
| w | `server` | `[*P]` |

The iterates depend on rho and alpha only through kappa_i. Limits: at kappa = 1 the
upload is theta_i whatever the dual is; kappa = 1 with the received prox centre is
pFedMe with eta lam = 1; lam = 0 is local training (and leaves w where
it was if `rho` is given). `lam -> inf` does NOT give FedADMM
unless the centre is `joint`.

Reference: Zhu, Zeng, Wang, Sun, Li, Yao, Peng, "On ADMM in Heterogeneous Federated
Learning: Personalization, Robustness, and Fairness". Deviations from the authors'
release, each a switch: the prox centre is the client's own `w_i` (theirs: the received
`w`, `received`); the dual moves once per round (theirs: every local epoch,
`dual_update="epoch"`); no momentum and no L2 (theirs: 0.5 and 0.01, in `local`).
`Flame.official` sets all of them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, checks, client_rows, struct

__all__ = ["Flame"]


@struct.pytree_dataclass
class FlameClient:
    """State of one client; see the module's table."""

    theta: Any
    w_local: Any
    p: Any
    alpha: jax.Array
    ratio: jax.Array
    eps: jax.Array | None


@struct.pytree_dataclass
class Flame(base.SingleExchange):
    """FLAME with every choice of paper and release as a switch.

    Attributes:
      lam: `[]` Moreau weight, at least 0.
      kappa: `[]` ADMM ratio `rho / (lam alpha)` at alpha = 1/N, > 0, or None where
        `rho` is given. Neither given means kappa = 1, the paper's experiments. Descent
        is proved for kappa > 4 lam / (lam - L); a traced bad value gives non-finite
        iterates.
      rho: `[]` ADMM penalty, > 0, in place of kappa.
      local: local solver: epochs (`SGD`, `Optax`), or `ToTolerance` with the schedule
        below.
      eps_decay: `[]` factor in [0, 1) of the schedule `eps_i <- eps_decay eps_i`, from
        `eps_i = ||alpha_i grad f_i(theta^0)||^2`, for `ToTolerance`; a solve ends when
        `||alpha_i (grad f_i + lam (theta - c))||^2 <= eps_i`, and the solver's own
        tolerance is a floor, so 0 gives solves as exact as that.
      prox_centre: `local` (own w_i, the paper), `received` (w in a round's first epoch,
        then w_i) or `joint` (theta and w_i minimized together: a genuine two-block
        ADMM).
      dual_update: after each `round` (the paper) or each local `epoch` (the release).
      weighting: alpha_i `uniform` (1/N) or by `examples`.
    """

    lam: Any = struct.traced_field(default=1.0, at_least=0, search=(0.001, 10.0))
    kappa: Any = struct.traced_field(
        default=None, above=0, search=(0.0003, 30.0), unless=("rho",)
    )
    rho: Any = struct.traced_field(
        default=None, above=0, unsearched="given in place of `kappa`"
    )
    local: core.Solver = local.SGD()
    eps_decay: Any = struct.traced_field(
        default=0.95, at_least=0, below=1, unsearched="of `ToTolerance` only"
    )
    prox_centre: Literal["local", "received", "joint"] = struct.static_field(
        default="local", search=["local", "received"]
    )
    dual_update: Literal["round", "epoch"] = "round"
    weighting: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self):
        checks.alternatives(kappa=self.kappa, rho=self.rho)
        if self._to_tolerance and self.dual_update == "epoch":
            raise checks.InputError(
                "Expected dual_update='round' with local=ToTolerance, which has no "
                "epochs, got 'epoch'."
            )

    @classmethod
    def official(cls, **fields: Any) -> "Flame":
        """Builds the release's variant: centre, dual cadence, momentum and L2."""
        defaults: dict[str, Any] = {"prox_centre": "received", "dual_update": "epoch"}
        defaults["local"] = common.OFFICIAL
        return cls(**(defaults | fields))

    @property
    def _to_tolerance(self) -> bool:
        return isinstance(self.local, local.ToTolerance)

    layered = ("lam", "local.learning_rate", "local.weight_decay")
    aggregate_over = "all"  # absent clients take part with their cached messages
    released = "the consensus variable w"
    uploads_through = "local"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean: it minimizes the Lagrangian in w for any alpha."""
        return aggregators.Mean()

    def check_per_client(self, fields: Sequence[str]) -> None:
        """Refuses lam per client with kappa, whose rho then differs among clients.

        The mean of messages minimizes the Lagrangian in w for one rho.
        """
        super().check_per_client(fields)
        if self.rho is None and {"lam", "kappa"} & {*fields}:
            raise checks.InputError(
                "Expected rho, one for all clients, where clients of Flame have a lam"
                f" of their own, got kappa={self.kappa!r}."
            )

    def share(self, alpha: jax.Array, ratio: jax.Array) -> jax.Array:
        """Returns `1 / (1 + kappa_i) = a_i / (a_i + rho)`, theta_i's weight in w_i.

        Args:
          alpha: `[]` or `[N]` client weights, sum 1.
          ratio: like `alpha`, `1 / (N alpha_i)`.

        Returns:
          Like `alpha`.
        """
        if self.rho is not None:
            return self.lam * alpha / (self.lam * alpha + self.rho)
        kappa = 1.0 if self.kappa is None else self.kappa
        return 1 / (1 + kappa * ratio)

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Starts from equal models and zero duals, as the descent theory needs."""
        params = model.init(key)
        alpha = common.problem_weight(self.weighting, population, data, params)
        eps = common.first_residual(model, self.local, alpha, params, data)
        state = FlameClient(
            theta=params,
            w_local=params,
            p=jax.tree.map(jnp.zeros_like, params),
            alpha=alpha,
            ratio=1 / (population.num_clients * alpha),
            eps=eps,
        )
        return params, state, params

    def _subproblem(self, model: Model, client: FlameClient, w: Any, share: jax.Array):
        """Builds the personal solve's objective and its first context."""
        plain = local.DataLoss(model)
        lam = self.lam
        joint = optax.tree.sub(w, client.p)
        if self.prox_centre == "joint":  # lam kappa/(1+kappa): w_i eliminated
            lam = self.lam * (1 - share)
        centre = {"local": client.w_local, "received": w, "joint": joint}[
            self.prox_centre
        ]

        def pull(theta: Any, context: Any):
            return common.pull(lam, theta, context["centre"])

        start = {"centre": centre, "w_local": client.w_local, "p": client.p}
        return plain.plus(pull), start

    def message_of(self, client: FlameClient) -> Any:
        """Returns the upload `u_i = w_i + p_i`."""
        return optax.tree.add(client.w_local, client.p)

    def client_update(
        self, view: ClientView, down: Downlink, client: FlameClient, model: Model
    ):
        """Solves for the personal model; updates local copy and dual."""
        w = down.shared
        share = self.share(client.alpha, client.ratio)
        objective, start = self._subproblem(model, client, w, share)

        def consensus(theta: Any, p: Any):
            w_local = common.local_consensus_update(theta, w, p, share=share)
            return w_local, common.dual_update(p, w_local, w)

        def epoch_end(epoch: jax.Array, theta: Any, context: Any):
            w_local, p = consensus(theta, context["p"])
            joint = optax.tree.sub(w, p)
            centre = joint if self.prox_centre == "joint" else w_local
            return theta, {"centre": centre, "w_local": w_local, "p": p}

        options, eps = {}, client.eps
        if self._to_tolerance:
            eps = self.eps_decay * client.eps
            tolerance = jnp.maximum(eps / client.alpha**2, self.local.tolerance)
            options = {"tolerance": tolerance}
        elif self.dual_update == "epoch":
            options = {"epoch_end": epoch_end}
        theta, context, info = self.local.solve(
            view, objective, client.theta, start, **options
        )
        w_local, p = context["w_local"], context["p"]
        if self.dual_update == "round":
            w_local, p = consensus(theta, p)
        new = dataclasses.replace(client, theta=theta, w_local=w_local, p=p, eps=eps)
        report = info.report(unconverged=~info.converged)
        return new, view.upload(self.message_of(new)), report

    def parameters(self, server: Any, client: Any):
        """Returns the personal model theta_i and the global model w."""
        return {"personal": client.theta, "global": server}

    def diagnostics(self, state: core.State, model: Model, federation: core.Federation):
        """Returns Lagrangian, Lyapunov value, objective, residuals and distances.

        Args:
          state: state after a round.
          model: the model.
          federation: data of N clients.

        Returns:
          `lagrangian` L; `objective` f(Theta, w); `lyapunov` Ltil = L + sum iota_i
          eps_i with iota_i = ups / (4 s_i (1 - ups)) and s_i = alpha_i lam / 4 (L
          itself where there is no eps schedule or lam = 0); `residual_theta`, the
          largest `||grad f_i(theta_i) + lam (theta_i - w)||`; `residual_w`,
          `||w - sum alpha_i theta_i||`; `dual_sum`, `||sum pi_i||`;
          `consensus_distance`, the root mean square of `||w_i - w||`.
        """
        w, rows = state.server, state.clients
        plain = local.DataLoss(model)

        half_squared = common.half_squared_distance

        def one(client: FlameClient, data: core.ClientData):
            loss, gradient = local.full_value_and_gradient(
                plain, client.theta, None, data
            )
            gap = optax.tree.sub(client.theta, w)
            residual = optax.tree.add_scale(gradient, self.lam, gap)
            return {
                "loss": loss,
                "residual": optax.tree.norm(residual, squared=True),
                "to_w": half_squared(client.theta, w),
                "to_w_local": half_squared(client.theta, client.w_local),
                "copy": half_squared(client.w_local, w),
                "dual": optax.tree.vdot(client.p, optax.tree.sub(client.w_local, w)),
            }

        parts = common.map_everyone(one, rows, federation)
        alpha = rows.alpha
        share = self.share(alpha, rows.ratio)
        rho = self.lam * alpha * (1 - share) / jnp.where(share > 0, share, 1)
        rho = jnp.where(share > 0, rho, 0 if self.rho is None else self.rho)
        lagrangian = (
            alpha * (parts["loss"] + self.lam * parts["to_w_local"])
            + rho * parts["dual"]
            + rho * parts["copy"]
        ).sum()
        objective = (alpha * (parts["loss"] + self.lam * parts["to_w"])).sum()
        lyapunov = lagrangian
        if rows.eps is not None:
            s = alpha * self.lam / 4
            iota = self.eps_decay / (4 * jnp.where(s > 0, s, 1) * (1 - self.eps_decay))
            lyapunov = lagrangian + jnp.where(s > 0, iota * rows.eps, 0).sum()
        mean = client_rows.weighted_sum(rows.theta, alpha)
        duals = client_rows.weighted_sum(rows.p, rho)
        return {
            "lagrangian": lagrangian,
            "lyapunov": lyapunov,
            "objective": objective,
            "residual_theta": jnp.sqrt(parts["residual"].max()),
            "residual_w": optax.tree.norm(optax.tree.sub(mean, w)),
            "dual_sum": optax.tree.norm(duals),
            "consensus_distance": jnp.sqrt(2 * parts["copy"].mean()),
        }
