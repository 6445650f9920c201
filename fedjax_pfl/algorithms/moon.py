"""MOON: local steps with a contrast between models' features (Li, He, Song 2021).

Problem: `min_w sum_i (n_i / n) f_i(w)`. A member i keeps its features near those of the
received network w^t and away from the features of its last network v_i. With features
`z = phi_w(x)`, `z_g = phi_{w^t}(x)`, `z_p = phi_{v_i}(x)` and cosines sim,

    l_con(w; x) = -log e^{sim(z, z_g)/T} / (e^{sim(z, z_g)/T} + e^{sim(z, z_p)/T})
    w_i        <- local steps on f_i(w) + mu mean_x l_con(w; x), from w^t
    v_i        <- w_i
    w^{t+1}     = sum_S n_i w_i / sum_S n_i

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| v_i | `clients` | `[N, *P]` |
| w_i | message | `[*P]` per member |
| T | `temperature` | `[]` |

Features are the inputs of the head, the last layer, flattened; a model must have one
(every network here and of flax, not a linear model). Networks w^t and v_i are frozen
and run in evaluation mode, with the running statistics that the client received and its
present personal parameters. The cosine with a vector of zeros is 0. They cost two more
passes forward per step, which counts of gradients leave out. Stragglers' partial work
counts.

Limits: at mu = 0, and as T -> inf, it is FedAvg that keeps stragglers; so is a client's
first round, if it received the first network: with v_i = w^t, l_con is log 2.

Reference: Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021. Deviations
from the authors' code: features are those of the network itself, without the projection
head of two layers that theirs adds before the last layer; a client keeps one network
(theirs: a buffer, of one by default), the first one until it takes part.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms import common, global_model
from fedjax_pfl.core import ClientView, Downlink, Model, held, struct

__all__ = ["MOON", "contrast"]


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the cosines `[B]` of rows `[B, D]`; 0 with a row of zeros."""
    square = (a * a).sum(axis=1) * (b * b).sum(axis=1)
    some = square > 0
    norm = jnp.sqrt(jnp.where(some, square, 1))
    return jnp.where(some, (a * b).sum(axis=1) / norm, 0)


def contrast(
    features: jax.Array, near: jax.Array, far: jax.Array, temperature: core.Scalar
) -> jax.Array:
    """Returns the losses l_con `[B]` of features `[B, D]`; log 2 at near = far."""
    gap = _cosine(features, far) - _cosine(features, near)
    # -log e^a / (e^a + e^b) = softplus(b - a), which does not overflow.
    return jax.nn.softplus(gap / temperature)


@struct.pytree_dataclass
class MOON(global_model.GlobalModel):
    """Model-contrastive federated learning.

    Attributes:
      mu: `[]` weight of the contrast, at least 0.
      temperature: `[]` T, > 0.
      keeps_local: whether the network that a client trained last, which it keeps in any
        case, is its `personal` predictor.
    """

    mu: Any = struct.traced_field(default=1.0, at_least=0, search=(0.01, 10.0))
    temperature: Any = struct.traced_field(default=0.5, above=0, search=(0.1, 10.0))

    layered = ("local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network, which is every client's last one."""
        common.check_features("MOON, which compares their outputs", model)
        params = model.init(key)
        return params, params, None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received network, by both losses."""

        def term(z: jax.Array, batch: core.Batch, networks: tuple[Any, Any]):
            # The networks compared with are frozen, with present personal parameters.
            personal = core.Constants.of(batch.constants).personal
            still = batch.with_personal(held.held(personal))
            still = still.with_statistics(view.data.statistics)
            near, far = (common.featured(model, w, still, None)[0] for w in networks)
            return contrast(z, near, far, self.temperature)

        objective = common.FeatureLoss(model, self.mu, term)
        frozen = (down.shared, client)
        w, _, info = self.local.solve(view, objective, down.shared, frozen)
        return w, view.upload(w), info.report()
