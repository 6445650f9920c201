"""kNN-Per: a global network with neighbors of the client's own (Marfoq et al. 2022).

The network is FedAvg's: members train from w^t, and `w^{t+1} = sum_S n_i w_i / sum_S
n_i`. At evaluation a client keeps the features and labels of its training examples,
`(z_j, y_j)` with `z_j = phi_w(x_j)` in R^D. For an input x with features z and its k
nearest neighbors N(x),

    p_knn(c | x)  ~  sum_{j in N(x), y_j = c} exp(-||z - z_j||^2 / (D scale))
    p(c | x)       = lam p_knn(c | x) + (1 - lam) p_w(c | x)

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| w_i | message | `[*P]` per member |
| k | `num_neighbors` | static |

Features are the inputs of the head, the last layer, flattened, in evaluation mode; a
model of classes must have one (every network here and of flax, not a linear model).
Neighbors do not enter the training, and clients keep no state between evaluations. All
training examples of a client are in its store, with the labels that it trains on.
Outputs of the personal model are logarithms of probabilities, at least the smallest
normal number. With fewer than k examples all are neighbors; without any the network
decides alone. Stragglers' partial work counts. New clients have a personal model at
once.

Limits: at lam = 0 the personal model is the global one, FedAvg's if that keeps
stragglers; at lam = 1 and k = 1 it is the nearest neighbor's label; as scale -> inf
neighbors count alike.

Reference: Marfoq, Neglia, Vidal, Kameni, "Personalized Federated Learning through Local
Memorization", ICML 2022. The authors' code has squared distances over D, as here; the
paper has distances. Deviations: one lam for all clients, or one for each in
`per_client`, where theirs chooses each client's on its validation examples; the store
has no capacity; its search is exact.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["KNNPer", "neighbor_shares"]

_AT_ONCE = 16  # queries, whose differences to all examples are in memory together


def neighbor_shares(
    queries: jax.Array,  # [B, D]
    features: jax.Array,  # [M, D] of the examples
    labels: jax.Array,  # int[M]
    present: jax.Array,  # bool[M] which are examples and not padding
    *,
    num_neighbors: int,
    num_classes: int,
    scale: core.Scalar,
) -> jax.Array:
    """Returns the shares `[B, C]` of classes among nearest neighbors, p_knn."""
    count = min(num_neighbors, features.shape[0])
    one_hot = jax.nn.one_hot(labels, num_classes, dtype=features.dtype)

    def shares(query: jax.Array) -> jax.Array:
        # ||z - z_j||^2 / (D scale).
        gaps = ((features - query[None]) ** 2).mean(axis=1) / scale
        near, places = lax.top_k(jnp.where(present, -gaps, -jnp.inf), count)
        real = present[places]
        # The nearest one is the largest exponent, without which all may underflow.
        weight = jnp.where(real, jnp.exp(jnp.where(real, near - near[0], 0)), 0)
        total = weight.sum()
        # Without examples the shares are zeros.
        return weight @ one_hot[places] / jnp.where(total > 0, total, 1)

    return lax.map(shares, queries, batch_size=_AT_ONCE)


@struct.pytree_dataclass
class KNNPer(base.SingleExchange):
    """Federated averaging with local memorization.

    Attributes:
      lam: `[]` weight of the neighbors, in [0, 1].
      scale: `[]` mean squared difference of features over which a neighbor's weight
        falls by e, > 0.
      num_neighbors: k, at least 1.
      local: local solver.
    """

    lam: Any = struct.traced_field(
        default=0.5, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    scale: Any = struct.traced_field(default=1.0, above=0, search=(0.01, 10.0))
    num_neighbors: int = struct.static_field(default=10, at_least=1)
    local: core.Solver = local.SGD()

    layered = ("local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"
    uploads_through = "local"
    chooses: ClassVar[str] = "the nearest neighbors"

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network; clients have no state."""
        common.check_classes("kNN-Per, whose neighbors have them", model)
        common.check_features("kNN-Per, which compares their outputs", model)
        return model.init(key), None, None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model."""
        w, _, info = self.local.solve(view, local.DataLoss(model), down.shared)
        return client, view.upload(w), info.report()

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Any,
    ):
        """Returns the global network, alone and with the client's neighbors."""
        constants = view.data.constants
        features, labels, weight = common.stored_features(model, server, view.data)
        store = {
            "network": server,
            "features": features,
            "labels": labels,
            "present": weight > 0,
        }

        def mixed(params: core.Params, x: jax.Array) -> jax.Array:
            z, logits, _ = model.featured(params["network"], x, constants=constants)
            shares = neighbor_shares(
                *(z, params["features"], params["labels"], params["present"]),
                num_neighbors=self.num_neighbors,
                num_classes=logits.shape[1],
                scale=self.scale,
            )
            # A client without examples has no neighbors: its network decides alone.
            lam = jnp.where(params["present"].any(), self.lam, 0).astype(z.dtype)
            mix = base.mixture(shares, jax.nn.softmax(logits), lam)
            # Log probabilities serve as logits; log 0 would be infinite.
            return jnp.log(jnp.maximum(mix, jnp.finfo(mix.dtype).tiny))

        return {
            "global": base.model_predictor(model, server, constants),
            "personal": core.Predictor(mixed, store),
        }
