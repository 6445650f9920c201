"""FedProx: FedAvg with a pull of the local work to the server's model (Li et al. 2020).

Problem: `min_w sum_i (n_i / n) f_i(w)`. Round: members start from `w^t` and take local
epochs on `f_i(v) + mu/2 ||v - w^t||^2`,

    v <- v - e (grad f_i(v) + mu (v - w^t)),

and `w^{t+1} = sum_S n_i v_i / sum_S n_i`. Stragglers' partial solutions count, which is
what sets the method apart from FedAvg in its experiments.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| v_i | message | `[*P]` per member |

Limits: at mu = 0 it is FedAvg that keeps stragglers. Steps need `e (L + mu) < 2` for
L-smooth f_i.

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
Heterogeneous Networks". Deviation: members are drawn uniformly and weighted by
examples, as in the authors' experiments, not drawn by examples and averaged evenly, as
in the analysis; `aggregator=Mean()` gives the plain mean.
"""

from typing import Any

import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms import common, global_model
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["FedProx"]


@struct.pytree_dataclass
class FedProx(global_model.GlobalModel):
    """Federated averaging with a proximal term.

    Attributes:
      mu: `[]` weight of the proximal term, at least 0.
    """

    mu: Any = struct.traced_field(default=1.0, at_least=0, search=(0.001, 10.0))

    layered = ("mu", "local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"
    uploads_through = "local"

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model, and near it."""
        w = down.shared
        # f_i(v) + mu/2 ||v - w^t||^2, with w^t as context.
        objective = common.proximal_objective(model, self.mu)
        v, _, info = self.local.solve(view, objective, w, w)
        distance = jnp.sqrt(2 * common.half_squared_distance(v, w))
        return self.kept(v), view.upload(v), info.report(drift=distance)
