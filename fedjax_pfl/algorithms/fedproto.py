"""FedProto: prototypes of classes are exchanged, networks stay (Tan et al. 2022).

Problem: every client i has a network theta_i of its own. The features of a class c
should have a common mean C_c in all networks. With features `z = phi_i(x)` in R^D, a
member i takes

    theta_i <- local steps on f_i(theta) + lam mean_{(x, y)} ||z - C_y||^2 / D
    C_ic     = mean of z over its n_ic examples of class c, at the new theta_i
    u_i      = (s_i, r_i),  s_ic = n_ic C_ic / n_i,  r_ic = n_ic / n_i       the upload
    C_c     <- sum_S n_i s_ic / sum_S n_i r_ic = sum_S n_ic C_ic / sum_S n_ic

from its own theta_i. The term leaves out examples of classes without a prototype. A
class that no member of the cohort has keeps its prototype.

| symbol | field | shape |
|---|---|---|
| C | `server.prototypes` | `[C, D]` |
| whether C_c is known | `server.known` | `[C]`, 0 or 1 |
| theta_i | `clients` | `[N, *P]`, all from one network |
| s_i, r_i | message `{"sums", "shares"}` | `[C, D]` and `[C]` per member |

Messages are sums over examples, so that a mean weighted by examples of both parts gives
prototypes that are means over all members' examples; other rules, and attacks, act on
the two parts. Features are the inputs of the head, the last layer, flattened; a model
of classes must have one (every network here and of flax, not a linear model). Examples
count with the labels that are trained on. Prototypes of a message are made in
evaluation mode, in one more pass forward, which counts of gradients leave out.

`personal` is the client's network. `prototypes` answers with the class of the nearest
prototype: its logits are `-||z - C_c||^2`, far below all others without a prototype.
Before the first round no prototype is known, and all its logits are equal.

Limits: at lam = 0, and in the first round, networks are those of `Local`. Clients that
never took part have the first network.

Reference: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype
Learning across Heterogeneous Clients", AAAI 2022. Deviations: the paper's mean
divides by the number of clients with the class once more, the authors' code takes the
plain mean of members' prototypes; they exchange prototypes of the last epoch's batches,
in training mode, where these are of the trained network. The squared distance is over D
as in their code. All clients have one architecture here, which the exchange does not
need.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["FedProto", "nearest_prototype"]

_UNKNOWN = -1e9  # logit of a class without a prototype; finite, or 0 * inf is NaN


@struct.pytree_dataclass
class FedProtoServer:
    """State of the server; see the module's table."""

    prototypes: jax.Array
    known: jax.Array


def nearest_prototype(
    features: jax.Array, prototypes: jax.Array, known: jax.Array
) -> jax.Array:
    """Returns logits `[B, C]`, negative squared distances to prototypes `[C, D]`."""
    gaps = features[:, None, :] - prototypes[None, :, :]
    distances = (gaps**2).sum(axis=2)
    # A class without a prototype is never the nearest one.
    return jnp.where((known > 0)[None, :], -distances, _UNKNOWN)


@struct.pytree_dataclass
class FedProto(base.SingleExchange):
    """Federated prototype learning.

    Attributes:
      lam: `[]` weight of the distance to prototypes, at least 0.
      local: local solver.
    """

    lam: Any = struct.traced_field(default=1.0, at_least=0, search=(0.01, 10.0))
    local: core.Solver = local.SGD()

    shares_statistics = False  # networks stay with their clients
    released = "the prototypes"

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network for all clients; no prototype is known."""
        common.check_classes("FedProto, whose prototypes have them", model)
        common.check_features("FedProto, which averages their outputs", model)
        params = model.init(key)
        dtype = jnp.result_type(*jax.tree.leaves(params))

        def run(data: core.ClientData):
            batch = data.gather(jnp.zeros(1, jnp.int32), jnp.ones(1, dtype))
            return common.featured(model, params, batch, None)[:2]

        # D and C follow from shapes alone: nothing is computed.
        features, logits = jax.eval_shape(run, data)
        classes = logits.shape[1]
        server = FedProtoServer(
            prototypes=jnp.zeros((classes, features.shape[1]), dtype),
            known=jnp.zeros(classes, dtype),
        )
        return server, params, None

    def reference(self, server: FedProtoServer):
        """Returns zeros: messages are sums."""
        return {
            "sums": jnp.zeros_like(server.prototypes),
            "shares": jnp.zeros_like(server.known),
        }

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains the client's network near the prototypes, and makes its own."""

        def term(z: jax.Array, batch: core.Batch, server: FedProtoServer):
            # ||z - C_y||^2 / D, left out for classes without a prototype.
            gaps = ((z - server.prototypes[batch.y]) ** 2).mean(axis=1)
            return jnp.where(server.known[batch.y] > 0, gaps, 0)

        objective = common.FeatureLoss(model, self.lam, term)
        theta, _, info = self.local.solve(view, objective, client, down.shared)
        data = common.after(view, info).data
        classes = down.shared.known.shape[0]
        return theta, view.upload(_sums(model, theta, data, classes)), info.report()

    def server_update(
        self,
        ctx: core.RoundContext,
        server: FedProtoServer,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Returns means of the members' features by class."""
        # C_c = sum_S n_i s_ic / sum_S n_i r_ic; classes that no member has keep theirs.
        shares = aggregate["shares"]
        new = shares > 0
        means = aggregate["sums"] / jnp.where(new, shares, 1)[:, None]
        return FedProtoServer(
            prototypes=jnp.where(new[:, None], means, server.prototypes),
            known=jnp.where(new, 1, server.known).astype(server.known.dtype),
        )

    def predictors(
        self,
        view: ClientView,
        server: FedProtoServer,
        client: core.ClientState,
        model: Any,
    ):
        """Returns the client's network, and its nearest prototypes."""
        constants = view.data.constants

        def nearest(params: core.Params, x: jax.Array) -> jax.Array:
            z, _, _ = model.featured(params["network"], x, constants=constants)
            return nearest_prototype(z, params["prototypes"], params["known"])

        parts = {"network": client, "prototypes": server.prototypes}
        parts["known"] = server.known
        return {
            "personal": base.model_predictor(model, client, constants),
            "prototypes": core.Predictor(nearest, parts),
        }


def _sums(
    model: Any, params: core.Params, data: core.ClientData, classes: int
) -> core.Message:
    """Returns ONE client's message: sums of features and shares by class."""
    features, labels, weight = common.stored_features(model, params, data)
    members = weight[:, None] * jax.nn.one_hot(labels, classes, dtype=weight.dtype)
    # Over n_i, by which the mean of messages weighs them again.
    count = jnp.maximum(data.num_examples, 1).astype(weight.dtype)
    return {
        "sums": members.T @ features / count,
        "shares": members.sum(axis=0) / count,
    }
