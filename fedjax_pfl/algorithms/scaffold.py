"""SCAFFOLD: local steps corrected by control variates (Karimireddy et al. 2020).

Problem: `min_x (1/N) sum_i f_i(x)`. Local steps of FedAvg drift to each client's own
minimizer; here they follow `grad f_i` minus an estimate c_i of it plus an estimate c of
the mean gradient. Round, a member i with K_i steps from `y_i = x` (Algorithm 1):

    y_i  <- y_i - eta (grad f_i(y_i) - c_i + c)                        eq. (3)
    c_i+  = c_i - c + (x - y_i) / (K_i eta)     `difference`, option II, eq. (4)
          = grad f_i(x), all examples           `refresh`, option I
    u_i   = (y_i - x, c_i+ - c_i)                                      the upload
    x    <- x + eta_g mean_S (y_i - x)                                 eq. (5)
    c    <- c + |S| / N mean_S (c_i+ - c_i)

| symbol | field | shape |
|---|---|---|
| x, c | `server.model`, `server.control` | `[*P]` |
| c_i | `clients` | `[N, *P]` |
| y_i - x, c_i+ - c_i | message `{"model", "control"}` | `[*P]` per member |

c and all c_i start at zero, and then c is the mean of c_i whoever takes part. K_i is
the client's own number of steps, stragglers included; a client without a step keeps
c_i. The mean is uniform; another aggregator sees both parts of a message as one vector,
as does an attack. |S| counts the messages that were received. With `WeightedMean` the
problem is the weighted one, and c follows the clients' own estimates only where all
take part. Limits: a single full-batch step of all clients is gradient descent once c is
the mean of c_i; both options agree there; with c = c_i = 0 kept, it is FedAvg.

Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning", ICML 2020. Weight decay of the local
solver counts as a part of f_i. No deviation from the algorithm is known.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["Scaffold"]


@struct.pytree_dataclass
class ScaffoldServer:
    """State of the server; see the module's table."""

    model: core.Params
    control: core.Params


@struct.pytree_dataclass
class Scaffold(base.SingleExchange):
    """Stochastic controlled averaging.

    Attributes:
      server_learning_rate: `[]` eta_g, > 0.
      option: how a client renews c_i: `difference` (II, no extra work) or `refresh` (I,
        one more pass over its examples).
      local: `SGD` without momentum; its learning rate is eta.
    """

    server_learning_rate: Any = struct.traced_field(
        default=1.0, above=0, search=(0.1, 10.0)
    )
    option: Literal["refresh", "difference"] = "difference"
    local: core.Solver = local.SGD()

    def __post_init__(self):
        common.check_plain_sgd("Scaffold", self.local)

    released = "the global model and the control variate"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean, as in the paper."""
        return aggregators.Mean()

    def first(self, params: core.Params):
        """Starts from one network; control variates are zero."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ScaffoldServer(model=params, control=zeros), zeros, None

    def reference(self, server: ScaffoldServer):
        """Returns zeros: messages are changes."""
        zeros = jax.tree.map(jnp.zeros_like, server.model)
        return {"model": zeros, "control": zeros}

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Takes corrected local steps, and renews the control variate."""
        x, control = down.shared.model, down.shared.control
        plain = local.DataLoss(model)
        correction = optax.tree.sub(control, client)

        # Equation (3): a linear term with gradient c - c_i corrects the local steps.
        objective = plain.plus(lambda y, shift: optax.tree.vdot(shift, y))
        y, _, info = self.local.solve(view, objective, x, correction)
        if self.option == "difference":
            # c_i+ = c_i - c + (x - y_i) / (K_i eta), equation (4): no extra gradients.
            scale = self.local.rate_sum(info, view.round)
            new = jax.tree.map(lambda a, b, d: (a - b) / scale - d, x, y, correction)
        else:
            # c_i+ = grad f_i(x), with the weight decay that local steps follow.
            _, gradient = local.full_value_and_gradient(plain, x, None, view.data)
            decay = self.local.weight_decay
            new = jax.tree.map(lambda g, a: g + decay * a, gradient, x)
            seen = info.num_examples + view.data.num_examples
            info = dataclasses.replace(info, num_examples=seen)
        worked = info.num_steps > 0
        # K_i = 0 would divide by zero: such a client keeps c_i.
        new = optax.tree.where(worked, new, client)
        message = {
            "model": optax.tree.sub(y, x),
            "control": optax.tree.sub(new, client),
        }
        return new, view.upload(message), info.report()

    def server_update(
        self,
        ctx: core.RoundContext,
        server: ScaffoldServer,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Steps along the mean changes; c counts the absent as unchanged."""
        # |S|, unless the server divides by an expected number of participants.
        count = (uploads.weight > 0).sum() if ctx.expected is None else ctx.expected
        share = count / ctx.num_clients
        step = common.stepped
        return ScaffoldServer(
            # Equation (5); c <- c + |S| / N mean_S (c_i+ - c_i).
            model=step(server.model, aggregate["model"], self.server_learning_rate),
            control=step(server.control, aggregate["control"], share),
        )

    def parameters(self, server: ScaffoldServer, client: core.ClientState):
        """Returns the global model x."""
        return {"global": server.model}
