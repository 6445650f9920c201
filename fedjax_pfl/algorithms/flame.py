"""FLAME: ADMM with Moreau envelopes for personalized federated learning.

Problem: `min sum_i alpha_i (f_i(theta_i) + lam/2 ||theta_i - w||^2)` over personal
models `theta_i` and the global model `w`, split with local copies `w_i = w` and scaled
duals `p_i = pi_i / rho`. One round, for members i (paper's equations, scaled):

    theta_i ~= argmin f_i(theta) + lam/2 ||theta - c_i||^2        c_i the prox center
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
upload is theta_i whatever the dual is; kappa = 1 with the received prox center is
pFedMe with eta lam = 1; lam = 0 is local training (and leaves w where
it was if `rho` is given). `lam -> inf` does NOT give FedADMM
unless the center is `joint`.

Reference: Zhu, Zeng, Wang, Sun, Li, Yao, Peng, "On ADMM in Heterogeneous Federated
Learning: Personalization, Robustness, and Fairness". Deviations from the authors'
release, each a switch: the prox center is the client's own `w_i` (theirs: the received
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
from fedjax_pfl.algorithms import base, common, flame_diagnostics
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct

__all__ = ["Flame"]


@struct.pytree_dataclass
class FlameClient:
    """State of one client; see the module's table."""

    theta: core.Params
    w_local: core.Params
    p: core.Params
    alpha: jax.Array
    ratio: jax.Array
    eps: jax.Array | None


@struct.pytree_dataclass
class Copies:
    """Copies of the consensus in ONE client's solver, which move after epochs."""

    center: core.Params  # c_i, to which theta_i is pulled
    w_local: core.Params  # w_i
    p: core.Params  # p_i


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
      center: `local` (own w_i, the paper), `received` (w in a round's first epoch,
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
    center: Literal["local", "received", "joint"] = struct.static_field(
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
        """Builds the release's variant: center, dual cadence, momentum and L2."""
        defaults: dict[str, Any] = {"center": "received", "dual_update": "epoch"}
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
        """Refuses lam per client with kappa: rho would differ among clients.

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
            # In terms of rho, lam = 0 does not divide by zero as kappa_i would.
            return self.lam * alpha / (self.lam * alpha + self.rho)
        # kappa_i = kappa / (N alpha_i).
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

    def message_of(self, client: FlameClient) -> core.Message:
        """Returns the upload `u_i = w_i + p_i`."""
        return optax.tree.add(client.w_local, client.p)

    def client_update(
        self, view: ClientView, down: Downlink, client: FlameClient, model: Model
    ):
        """Solves for the personal model; updates local copy and dual."""
        w, share = down.shared, self.share(client.alpha, client.ratio)
        # Prox center c_i, and theta_i of equation (11) about it.
        center = self.prox_center(client.w_local, client.p, w, received=w)
        copies = Copies(center=center, w_local=client.w_local, p=client.p)
        theta, copies, eps, info = self.personal_step(view, model, client, copies, w)
        # w_i of equation (12) and p_i of (13). With `epoch`, the solver has moved both
        # after each of its epochs.
        if self.dual_update == "round":
            copies = self.consensus_step(theta, copies, w, share)
        # Upload u_i = w_i + p_i, of which the server takes the mean over ALL clients.
        new = dataclasses.replace(
            client, theta=theta, w_local=copies.w_local, p=copies.p, eps=eps
        )
        report = info.report(unconverged=~info.converged)
        return new, view.upload(self.message_of(new)), report

    def prox_center(
        self,
        w_local: core.Params,
        p: core.Params,
        w: core.Params,
        *,
        received: core.Params,
    ) -> core.Params:
        """Returns the center c_i `[*P]` of the personal step.

        With `center="received"` it is `received`: w in a round's first epoch, then w_i.
        """
        if self.center == "joint":
            return optax.tree.sub(w, p)
        return received if self.center == "received" else w_local

    def personal_step(
        self,
        view: ClientView,
        model: Model,
        client: FlameClient,
        copies: Copies,
        w: core.Params,
    ):
        """Returns theta_i of equation (11), the copies, eps_i and the solver's report.

        `theta_i ~= argmin f_i(theta) + lam/2 ||theta - c_i||^2`, started at theta_i.
        """
        share = self.share(client.alpha, client.ratio)
        # Joint: w_i is eliminated, which leaves the weight lam kappa_i / (1 + kappa_i).
        lam = self.lam * (1 - share) if self.center == "joint" else self.lam

        def pull(theta: core.Params, copies: Copies):
            return common.pull(lam, theta, copies.center)

        def epoch_end(epoch: jax.Array, theta: core.Params, copies: Copies):
            return theta, self.consensus_step(theta, copies, w, share)

        options, eps = {}, client.eps
        if self._to_tolerance:
            eps = self.eps_decay * client.eps
            # eps_i bounds the gradient of alpha_i f_i; the solver works on f_i.
            tolerance = jnp.maximum(eps / client.alpha**2, self.local.tolerance)
            options = {"tolerance": tolerance}
        elif self.dual_update == "epoch":
            options = {"epoch_end": epoch_end}
        objective = local.DataLoss(model).plus(pull)
        theta, copies, info = self.local.solve(
            view, objective, client.theta, copies, **options
        )
        return theta, copies, eps, info

    def consensus_step(
        self, theta: core.Params, copies: Copies, w: core.Params, share: core.Scalar
    ) -> Copies:
        """Returns `w_i = (theta_i + kappa_i (w - p_i)) / (1 + kappa_i)`, equation (12).

        The result also holds p_i of equation (13), which needs w_i, and the next
        center. `share` is `1 / (1 + kappa_i)`, which exists at lam = 0, too.
        """
        w_local = common.local_consensus_update(theta, w, copies.p, share=share)
        p = self.dual_step(copies.p, w_local, w)
        center = self.prox_center(w_local, p, w, received=w_local)
        return Copies(center=center, w_local=w_local, p=p)

    def dual_step(
        self, p: core.Params, w_local: core.Params, w: core.Params
    ) -> core.Params:
        """Returns the scaled dual `p_i + w_i - w` `[*P]`, equation (13)."""
        return common.dual_update(p, w_local, w)

    def parameters(self, server: core.ServerState, client: FlameClient):
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
          itself if there is no eps schedule or lam = 0); `residual_theta`, the
          largest `||grad f_i(theta_i) + lam (theta_i - w)||`; `residual_w`,
          `||w - sum alpha_i theta_i||`; `dual_sum`, `||sum pi_i||`;
          `consensus_distance`, the root mean square of `||w_i - w||`.
        """
        return flame_diagnostics.values(self, state, model, federation)
