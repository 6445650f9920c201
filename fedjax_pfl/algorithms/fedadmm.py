"""FedADMM: consensus ADMM for one global model (Zhou, Li 2023; Gong, Li, Freris 2022).

Problem: `min_w sum_i alpha_i f_i(w)`, split as `min sum_i alpha_i f_i(theta_i)` with
local copies `theta_i = w`, penalty rho and scaled duals `p_i = pi_i / rho`. One round,
for members i, divided by alpha_i:

    theta_i ~= argmin f_i(theta) + mu_i/2 ||theta - (w - p_i)||^2    started at w
    p_i     += theta_i - w
    u_i      = theta_i + p_i                                         the upload
    w        = mean of u_i over ALL clients, cached for absent ones  `mean_all`
    mu_i     = rho / alpha_i

or, where the server keeps no messages, with uploads `Delta_i`, the change of u_i,

    w       += eta mean_S Delta_i                                    `delta_selected`

| symbol | field | shape |
|---|---|---|
| theta_i, p_i | `clients.theta`, `.p` | `[N, *P]` |
| eps_i | `clients.eps` (solver `ToTolerance` only) | `[N]` |
| alpha_i, 1/(N alpha_i) | `clients.alpha`, `.ratio` | `[N]` |
| u_i (`mean_all` only) | `messages` | `[N, *P]` |
| w | `server` | `[*P]` |

rho is the penalty beside `alpha_i f_i`, as in `Flame`; the iterates depend on rho and
alpha only through mu_i, which does not shrink as N grows: `mu` is mu_i at alpha_i =
1/N, so `mu = N rho`. It is FedProx's mu, and the rho of Gong et al., who do not weigh
f_i. A member's work starts at w, so theta_i is kept only as its last message
(`delta_selected`) and as its own model.

Limits: without the dual, theta_i is FedProx's with mu_i, and as rho -> 0 FedAvg's with
uniform weights, the difference linear in rho; even then u_i goes twice as far from w.
`Flame` with the `joint` center tends to this method as lam -> inf with the same rho,
that is with `kappa = mu / lam`, the difference proportional to 1/lam; with its other
centers it does not. With exact solves, convex f_i and all clients in every round it
converges for every rho.

`eta = |S|/N` is `mean_all` without its cache, and the default. With any other constant
eta the method does NOT minimize the problem: the Delta_i of a client add up to its u_i,
so that w stays at `w^0 + c (mean u - w^0)` with `c = eta N/|S|`, and a stationary w
solves

    sum_i alpha_i grad f_i(w) + (1/c - 1) N rho (w - w^0) = 0.

A message that is lost is missing in w from then on; `mean_all` takes the next one.

Reference: Zhou, Li, "Federated Learning via Inexact ADMM", TPAMI 2023; Gong, Li,
Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity", ICDE 2022. Deviations: rho is one number, where Zhou and Li take
`sigma_i = r L_i / N` with smoothness constants L_i, which are not known here; the
solver is any of `local`, where theirs takes at most three gradient steps
(`ToTolerance` with `max_steps=3` and the same decay of eps_i, which here bounds a
squared norm and not its mean over coordinates); Gong et al. draw the number of epochs
for each client (`work`); their release sends `2 (theta_i - w)`, which leaves out how
the received w has moved.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, checks, client_rows, struct

__all__ = ["FedADMM"]


@struct.pytree_dataclass
class FedADMMClient:
    """State of one client; see the module's table."""

    theta: core.Params
    p: core.Params
    alpha: jax.Array
    ratio: jax.Array
    eps: jax.Array | None


@struct.pytree_dataclass
class FedADMM(base.SingleExchange):
    """Consensus ADMM with inexact local solves and partial participation.

    Attributes:
      mu: `[]` ratio `rho / alpha` at alpha = 1/N, > 0, or None where `rho` is given.
        Neither given means mu = 0.1. Steps need `learning_rate (L + mu_i) < 2` for
        L-smooth f_i; a traced bad value gives non-finite iterates.
      rho: `[]` ADMM penalty, > 0, in place of mu.
      server_learning_rate: `[]` eta of `delta_selected`, > 0, or None for |S|/N, the
        only one whose stationary points are the problem's; Gong et al. take 1, then
        0.5.
      local: local solver: epochs (`SGD`, `Optax`), or `ToTolerance` with the schedule
        below.
      eps_decay: `[]` factor in [0, 1) of the schedule `eps_i <- eps_decay eps_i`, from
        `eps_i = ||alpha_i grad f_i(w^0)||^2`, for `ToTolerance`; a solve ends when
        `||alpha_i (grad f_i + mu_i (theta - w + p_i))||^2 <= eps_i`, and the solver's
        own tolerance is a floor.
      server_mode: `mean_all` (Zhou and Li) or `delta_selected` (Gong et al.), which
        keeps one model per client less.
      weighting: alpha_i `uniform` (1/N) or by `examples`.
    """

    mu: Any = struct.traced_field(
        default=None, above=0, search=(0.001, 10.0), unless=("rho",)
    )
    rho: Any = struct.traced_field(
        default=None, above=0, unsearched="given in place of `mu`"
    )
    server_learning_rate: Any = struct.traced_field(
        default=None, above=0, unsearched="of `delta_selected` only"
    )
    local: core.Solver = local.SGD()
    eps_decay: Any = struct.traced_field(
        default=0.95, at_least=0, below=1, unsearched="of `ToTolerance` only"
    )
    server_mode: Literal["mean_all", "delta_selected"] = "mean_all"
    weighting: Literal["uniform", "examples"] = "uniform"

    def __post_init__(self):
        checks.alternatives(mu=self.mu, rho=self.rho)
        if self.server_mode == "mean_all" and self.server_learning_rate is not None:
            raise checks.InputError(
                "Expected server_mode='delta_selected' with a server_learning_rate, "
                "got 'mean_all', which has none."
            )

    @property
    def aggregate_over(self) -> str:
        """All clients' messages, or the members' changes."""
        return "all" if self.server_mode == "mean_all" else "cohort"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean: it minimizes the Lagrangian in w for any alpha."""
        return aggregators.Mean()

    def penalty(self, num_clients: int) -> core.Scalar:
        """Returns the penalty rho `[]` beside `alpha_i f_i`."""
        if self.rho is not None:
            return self.rho
        return (0.1 if self.mu is None else self.mu) / num_clients

    def pull(self, alpha: jax.Array, ratio: jax.Array) -> jax.Array:
        """Returns `mu_i = rho / alpha_i`, the weight of the pull to `w - p_i`.

        Args:
          alpha: `[]` or `[N]` client weights, sum 1.
          ratio: like `alpha`, `1 / (N alpha_i)`, 0 for clients without examples.

        Returns:
          Like `alpha`; finite also where alpha is 0.
        """
        if self.rho is not None:
            return self.rho / jnp.where(alpha > 0, alpha, 1)
        return self.penalty(1) * ratio

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Starts from equal models and zero duals."""
        params = model.init(key)
        alpha = common.problem_weight(self.weighting, population, data, params)
        some = jnp.where(alpha > 0, alpha, 1)
        eps = common.first_residual(model, self.local, alpha, params, data)
        state = FedADMMClient(
            theta=params,
            p=jax.tree.map(jnp.zeros_like, params),
            alpha=alpha,
            ratio=jnp.where(alpha > 0, 1 / (population.num_clients * some), 0),
            eps=eps,
        )
        return params, state, params if self.server_mode == "mean_all" else None

    def reference(self, server: core.ServerState):
        """Returns the server's model; changes compare with none."""
        if self.server_mode == "mean_all":
            return server
        return jax.tree.map(jnp.zeros_like, server)

    def client_update(
        self, view: ClientView, down: Downlink, client: FedADMMClient, model: Model
    ):
        """Updates one client's local copy and dual."""
        w = down.shared
        pull = self.pull(client.alpha, client.ratio)
        objective = common.proximal_objective(model, pull)
        options, eps = {}, client.eps
        if isinstance(self.local, local.ToTolerance):
            # eps_i bounds the gradient of alpha_i f_i; the solver works on f_i.
            eps = self.eps_decay * client.eps
            square = jnp.where(client.alpha > 0, client.alpha**2, 1)
            options = {"tolerance": jnp.maximum(eps / square, self.local.tolerance)}
        # theta_i ~= argmin f_i(theta) + mu_i/2 ||theta - (w - p_i)||^2, from w.
        center = optax.tree.sub(w, client.p)
        theta, _, info = self.local.solve(view, objective, w, center, **options)
        p = common.dual_update(client.p, theta, w)
        # u_i, or Delta_i: the last u_i follows from the state before this round.
        message = optax.tree.add(theta, p)
        if self.server_mode == "delta_selected":
            sent = optax.tree.add(client.theta, client.p)
            message = optax.tree.sub(message, sent)
        new = dataclasses.replace(client, theta=theta, p=p, eps=eps)
        return new, view.upload(message), info.report(unconverged=~info.converged)

    def server_update(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Returns the mean of all messages, or a step along the mean change."""
        if self.server_mode == "mean_all":
            return aggregate
        eta = self.server_learning_rate
        if eta is None:  # what was not received did not change
            eta = (uploads.weight > 0).sum() / ctx.num_clients
        return common.stepped(server, aggregate, eta)

    def parameters(self, server: core.ServerState, client: FedADMMClient):
        """Returns theta_i and the global model w, to which theta_i tends."""
        return {"personal": client.theta, "global": server}

    def diagnostics(self, state: core.State, model: Model, federation: core.Federation):
        """Returns Lagrangian, objective, residuals and distances.

        Args:
          state: state after a round.
          model: the model.
          federation: data of N clients.

        Returns:
          `lagrangian`, `sum alpha_i f_i(theta_i) + <pi_i, theta_i - w> + rho/2
          ||theta_i - w||^2`; `objective`, `sum alpha_i f_i(w)`; `residual_theta`, the
          largest `||grad f_i(theta_i) + mu_i p_i||`; `dual_sum`, `||sum pi_i||`, which
          is the objective's gradient at w where the two other residuals are 0;
          `consensus_distance`, the root mean square of `||theta_i - w||`.
        """
        w, rows = state.server, state.clients
        plain = local.DataLoss(model)

        def of_client(client: FedADMMClient, data: core.ClientData):
            loss, gradient = local.full_value_and_gradient(
                plain, client.theta, None, data
            )
            # Stationarity of the local problem with the dual p_i after its step.
            pull = self.pull(client.alpha, client.ratio)
            residual = optax.tree.add_scale(gradient, pull, client.p)
            return {
                "loss": loss,
                "loss_at_w": local.full_value_and_gradient(plain, w, None, data)[0],
                "residual": optax.tree.norm(residual, squared=True),
                "copy": common.half_squared_distance(client.theta, w),
                "dual": optax.tree.vdot(client.p, optax.tree.sub(client.theta, w)),
            }

        parts = common.map_everyone(of_client, rows, federation)
        count = federation.num_clients
        rho = self.penalty(count)
        # pi_i = rho p_i, so that rho multiplies both terms of the Lagrangian.
        split = (rows.alpha * parts["loss"]).sum()
        duals = client_rows.weighted_sum(rows.p, jnp.full(count, rho))
        return {
            "lagrangian": split + rho * (parts["dual"] + parts["copy"]).sum(),
            "objective": (rows.alpha * parts["loss_at_w"]).sum(),
            "residual_theta": jnp.sqrt(parts["residual"].max()),
            "dual_sum": optax.tree.norm(duals),
            "consensus_distance": jnp.sqrt(2 * parts["copy"].mean()),
        }
