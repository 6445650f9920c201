"""FedNova: an average of local changes per step of each client (Wang et al. 2020).

Problem: `min_w sum_i p_i f_i(w)`, `p_i = n_i / n`. Clients with more local steps pull
FedAvg's model towards their own minimizers, so that its limit minimizes another sum.
Here each change is divided by the sum of the weights that local steps give to their
gradients. Round t, a member i with tau_i steps, `y_i - w^t = -eta sum_k a_ik g_ik`:

    y_i     <- local SGD on f_i from w^t
    a_i      = sum_k a_ik = tau_i                            SGD
             = [tau_i - m (1 - m^tau_i) / (1 - m)] / (1 - m) with momentum m
    u_i      = w^t + (y_i - w^t) / a_i                       the upload
    w^{t+1}  = w^t + tau_eff sum_S p_i (u_i - w^t)
    tau_eff  = sum_S p_i a_i,   p_i = n_i / sum_S n_i

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| u_i | message | `[*P]` per member |
| a_i | `aux`, which no attack replaces | `[]` per member |

The message is the model after one step of mean length, so that aggregators and attacks
compare models, as in FedAvg. Stragglers' messages count. A client without a step sends
w^t with `a_i = 0`. With `remainder="scaled"` a short step counts as its part of one;
together with momentum it is refused, as are solvers other than SGD and schedules of
steps: their a_i is not the sum above. `weighting="uniform"` takes `p_i = 1 / |S|`.

Limits: with equal a_i it is FedAvg that keeps stragglers. As `eta -> 0` its fixed point
on quadratics tends to the minimizer of the problem; with unequal a_i FedAvg's does not.

Reference: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem
in Heterogeneous Federated Optimization", NeurIPS 2020. Weight decay of the local solver
counts as a part of f_i. Deviations from the authors' code: no proximal term in the
local steps, and no momentum at the server (`server_optimizer` has it); the local
momentum is `v <- m v + g` from zero in every round, theirs without dampening.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import global_model
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct

__all__ = ["FedNova", "gradient_weight"]


def gradient_weight(num_steps: core.Scalar, momentum: core.Scalar) -> core.Scalar:
    """Returns a_i, the sum of the weights of the gradients of tau_i local steps."""
    if momentum is None:
        return num_steps
    # sum_{k=1}^{tau} (1 - m^k) / (1 - m).
    decay = 1 - momentum
    return (num_steps - momentum * (1 - momentum**num_steps) / decay) / decay


@struct.pytree_dataclass
class FedNova(global_model.GlobalModel):
    """Federated averaging of normalized changes.

    Attributes:
      weighting: p_i by `examples` or `uniform`.
      local: `SGD`, with or without momentum.
    """

    weighting: Literal["examples", "uniform"] = "examples"

    layered = ("local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, which the messages are steps from

    def __post_init__(self):
        solver = self.local
        if not isinstance(solver, local.SGD):
            name = type(solver).__name__
            raise checks.InputError(
                "Expected FedNova's local solver to be SGD, which has known weights of"
                f" gradients, got {name}."
            )
        if solver.momentum is not None and solver.remainder == "scaled":
            raise checks.InputError(
                "Expected FedNova's local solver with momentum to take whole steps, got"
                " remainder='scaled'."
            )

    def default_aggregator(self) -> core.Aggregator:
        """Returns the weighted or uniform mean."""
        if self.weighting == "uniform":
            return aggregators.Mean()
        return aggregators.WeightedMean()

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model, and sends the mean step."""
        self.local.rate(view.round)  # refuses schedules of steps
        w = down.shared
        y, _, info = self.local.solve(view, local.DataLoss(model), w)
        dtype = jnp.result_type(*jax.tree.leaves(w))
        # A short step counts as its part of one.
        if self.local.remainder == "scaled":
            num_steps = info.num_examples.astype(dtype) / self.local.batch_size
        else:
            num_steps = info.num_steps.astype(dtype)
        weight = gradient_weight(num_steps, self.local.momentum)
        # u_i = w + (y_i - w) / a_i; a client without a step sends w.
        some = jnp.where(weight > 0, weight, 1)
        message = jax.tree.map(lambda a, b: a + (b - a) / some, w, y)
        return self.kept(y), view.upload(message, aux=weight), info.report()

    def server_update(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Takes tau_eff mean steps."""
        shares = uploads.weight
        if self.weighting == "uniform":
            shares = (shares > 0).astype(shares.dtype)
        steps = jnp.where(shares > 0, uploads.aux, 0)
        total = shares.sum()
        # tau_eff = sum_S p_i a_i, of received messages.
        length = (shares * steps).sum() / jnp.where(total > 0, total, 1)
        return jax.tree.map(
            lambda w, u: (w + length * (u - w)).astype(w.dtype), server, aggregate
        )
