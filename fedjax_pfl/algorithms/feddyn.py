"""FedDyn: dynamic regularization by a dual variable per client (Acar et al. 2021).

Problem: `min_w sum_i q_i f_i(w)`, q_i = 1/N or by examples. Every client has a linear
term that makes stationary points of all local problems agree with one of the sum, so
that long local training is no longer biased. Round t, a member i (Algorithm 1):

    theta_i  ~= argmin f_i(v) - <g_i, v> + alpha_i/2 ||v - w^t||^2    started at w^t
    g_i      <- g_i - alpha_i (theta_i - w^t)
    h        <- h - (1/N) sum_S alpha_i (theta_i - w^t)
    w^{t+1}   = mean_S theta_i - h / alpha,   alpha_i = alpha / (N q_i)

Here the duals are scaled, `p_i = -g_i / alpha_i` and `p = -h / alpha`, both from zero:

    theta_i  ~= argmin f_i(v) + alpha_i/2 ||v - (w^t - p_i)||^2
    p_i      <- p_i + theta_i - w^t                                   the change of g_i
    p        <- p + (|S| / N) (mean_S theta_i - w^t)
    w^{t+1}   = mean_S theta_i + p

| symbol | field | shape |
|---|---|---|
| w, p | `server.model`, `server.dual` | `[*P]` |
| p_i | `clients.dual` | `[N, *P]` |
| 1 / (N q_i) (`weighting="examples"` only) | `clients.ratio` | `[N]` |
| theta_i | message | `[*P]` per member |

If all messages arrive, p is the mean of all p_i, whoever takes part. |S| counts the
messages that were received; a lost one is missing in p from then on. A round without a
message leaves the server's state. A client without a step keeps p_i. The mean is
uniform for both weightings: alpha_i alone weighs the clients.

Limits: at a fixed point theta_i = w, `grad f_i(w) = -alpha_i p_i` and `sum p_i = 0`: it
is a stationary point of the problem, also with one local step or a hundred, however the
clients differ. With all clients in every round it is `FedADMM` with `mu = alpha`
(uniform weights), with the same local steps. The first round goes twice as far as
FedProx with `mu = alpha` and uniform weights; at alpha = 0 local steps are FedAvg's, no
dual acts on them, and p adds the changes of all rounds up, which need not converge.
Steps need `learning_rate (L + alpha_i) < 2` for L-smooth f_i.

Reference: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning
Based on Dynamic Regularization", ICLR 2021. The paper has q_i = 1/N; the authors' code
divides alpha by the client's share of examples, as `weighting="examples"` does. Their
tables judge the mean of the cohort's theta_i, which no client receives; here `global`
is w. Their code clips gradients (`local.clip_norm`) and counts weight decay as a part
of f_i, as here.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["FedDyn"]


@struct.pytree_dataclass
class FedDynServer:
    """State of the server; see the module's table."""

    model: core.Params
    dual: core.Params


@struct.pytree_dataclass
class FedDynClient:
    """State of one client; see the module's table."""

    dual: core.Params
    ratio: Any = None


@struct.pytree_dataclass
class FedDyn(base.SingleExchange):
    """Federated learning with dynamic regularization.

    Attributes:
      alpha: `[]` weight of the regularizer, at least 0.
      weighting: q_i `uniform` (1/N, the paper) or by `examples`.
      local: local solver.
    """

    alpha: Any = struct.traced_field(default=0.1, at_least=0, search=(0.001, 10.0))
    weighting: Literal["uniform", "examples"] = "uniform"
    local: core.Solver = local.SGD()

    released = "the global model"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean; the problem's weights are in alpha_i."""
        return aggregators.Mean()

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network; all duals are zero."""
        params, ratio = model.init(key), None
        if self.weighting == "examples":
            share = common.problem_weight("examples", population, data, params)
            some = jnp.where(share > 0, share, 1)
            ratio = jnp.where(share > 0, 1 / (population.num_clients * some), 0)
        zeros = optax.tree.zeros_like(params)
        server = FedDynServer(model=params, dual=zeros)
        return server, FedDynClient(dual=zeros, ratio=ratio), None

    def reference(self, server: FedDynServer):
        """Returns the server's model."""
        return server.model

    def down(
        self,
        ctx: core.RoundContext,
        server: FedDynServer,
        clients: core.ClientState,
        messages: core.Message,
    ):
        """Returns the server's model."""
        return core.Downlink(shared=server.model)

    def client_update(
        self, view: ClientView, down: Downlink, client: FedDynClient, model: Model
    ):
        """Trains near the received model minus the dual, and updates the dual."""
        w = down.shared
        # alpha_i = alpha / (N q_i).
        alpha = self.alpha if client.ratio is None else self.alpha * client.ratio
        objective = common.proximal_objective(model, alpha)
        # The linear term <g_i, v> moves the center: g_i = -alpha_i p_i.
        center = optax.tree.sub(w, client.dual)
        theta, _, info = self.local.solve(view, objective, w, center)
        dual = common.dual_update(client.dual, theta, w)
        state = dataclasses.replace(client, dual=dual)
        return state, view.upload(theta), info.report()

    def server_update(
        self,
        ctx: core.RoundContext,
        server: FedDynServer,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Moves the dual by the mean change, and adds it to the mean model."""
        # |S|, unless the server divides by an expected number of participants.
        received = (uploads.weight > 0).sum()
        count = received if ctx.expected is None else ctx.expected
        change = optax.tree.sub(aggregate, server.model)
        dual = common.stepped(server.dual, change, count / ctx.num_clients)
        # w^{t+1} = mean + p. A round without a message leaves the state.
        new = FedDynServer(model=optax.tree.add(aggregate, dual), dual=dual)
        return jax.tree.map(lambda a, b: jnp.where(received > 0, a, b), new, server)

    def parameters(self, server: FedDynServer, client: FedDynClient):
        """Returns the global model w."""
        return {"global": server.model}
