"""SplitGP: a network cut in two, personal before the cut (Han et al. 2023).

Client i has the layers phi_i up to a cut and a classifier kappa_i on their output; the
server has the layers theta behind it. Round t, a member i, with g = `exit_weight`,
lambda = `self_weight` and p_i = n_i / sum_S n_i:

    (phi_i, kappa_i, theta_i) <- local SGD, from (phi_i, kappa_i, theta^t), on
                g CE(kappa_i(phi_i(x)), y) + (1 - g) CE(theta_i(phi_i(x)), y)
    theta^{t+1} = sum_S p_i theta_i,   (phi, kappa)^{t+1} = sum_S p_i (phi_i, kappa_i)
    (phi_i, kappa_i) <- lambda (phi_i, kappa_i) + (1 - lambda) (phi, kappa)^{t+1}

The last line ends the round, for its members alone: they mix what they trained, which
no attack touches, with the means that the server sends, which are made of received
messages. Absent clients' parts rest, while theta moves on without them; the paper has
everyone take part. A member downloads as much as a whole model: theta before, the
means after its training.

A client answers by itself if it is sure: with kappa_i(phi_i(x)) where the entropy of
its softmax is at most `threshold`, else with theta(phi_i(x)).

| symbol | field | shape |
|---|---|---|
| mean phi, kappa, and theta | `server` | `[*P]` of the network, and `exit` for kappa |
| phi_i, kappa_i | `clients` | `[N, *P]`, None in place of theta's leaves |
| phi_i, kappa_i, theta_i | message | `[*P]` per member, like `server` |

Limits: at g = 0 and lambda = 0, with everyone in every round, the network is FedAvg's;
at g = 1 theta rests; at lambda = 1 phi_i is learned alone. A threshold of 0 always asks
the server (but for entropies that round to 0), one from log C on never does. With the
cut before the head, theta is the head alone.

Its saved models are parameters of `fedjax_pfl.models.EarlyExit`, of the
network with the cut at `exit_after`.

Reference: Han, Kim, Choi, Brinton, Moon, "SplitGP: Achieving Both Generalization and
Personalization in Federated Learning", INFOCOM 2023. The paper trains theta_i at the
server, from features that clients send; the steps are the same, and traffic is counted
for models here. Deviation of FedPG's tables: they come from code with two networks that
share all but the predictor, and test the one with the global head.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local, models
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct, tree_paths

__all__ = ["SplitGP", "routed"]


def routed(early: jax.Array, late: jax.Array, threshold: core.Scalar) -> jax.Array:
    """Takes early logits `[B, C]` with an entropy up to a threshold, else late ones."""
    logs = jax.nn.log_softmax(early)
    entropy = -(jnp.exp(logs) * logs).sum(axis=1, keepdims=True)
    return jnp.where(entropy <= threshold, early, late)


@struct.pytree_dataclass
class SplitGP(base.SingleExchange):
    """Split training of a personal client side and a common server side.

    Attributes:
      exit_after: layers of the network on the client's side, at least 1; they are
        counted before the head, convolutions with their pools.
      exit_weight: `[]` g, weight of the loss of the client's classifier, in [0, 1].
      self_weight: `[]` lambda, share of its own part that a client keeps, in [0, 1].
      threshold: `[]` largest entropy, in nats, with which a client answers by itself,
        at least 0.
      local: local solver, run on everything together.
    """

    exit_after: int = struct.static_field(default=1, at_least=1)
    exit_weight: Any = struct.traced_field(
        default=0.5, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    self_weight: Any = struct.traced_field(
        default=0.2, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    threshold: Any = struct.traced_field(default=0.2, at_least=0, search=(0.05, 1.0))
    local: core.Solver = local.SGD()
    chooses: ClassVar[str] = "which examples a client answers by itself"

    def _exits(self, model: Any) -> models.EarlyExit:
        """Adds a classifier at the cut to the model."""
        return models.EarlyExit(network=model, exit_after=self.exit_after)

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network and classifier; clients get the part before the cut."""
        common.check_classes("SplitGP, which compares their entropy", model)
        exits = self._exits(model)
        params = exits.init(key)
        return params, tree_paths.split(params, exits.front)[0], None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains the own part under the received one, by both losses."""
        exits = self._exits(model)

        def objective(
            key: core.Key, params: core.Params, batch: core.Batch, context: core.Tree
        ):
            # g CE(kappa_i(phi_i(x)), y) + (1 - g) CE(theta_i(phi_i(x)), y).
            early, late = exits.apply(params, batch.x, key=key)
            return base.mixture(
                model.loss(early, batch), model.loss(late, batch), self.exit_weight
            )

        start = tree_paths.join(client, down.shared)
        theta, _, info = self.local.solve(view, objective, start, None)
        front, _ = tree_paths.split(theta, exits.front)
        return front, view.upload(theta), info.report()

    def finish(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
    ):
        """Mixes the members' own parts with the mean."""
        # Clients have None in place of theta, which they do not keep.
        means = jax.tree.map(
            lambda part, mean: None if part is None else mean[None],
            *(clients, server),
            is_leaf=lambda node: node is None,
        )
        # (phi_i, kappa_i) <- lambda (phi_i, kappa_i) + (1 - lambda) (phi, kappa)^{t+1}.
        return base.mixture(clients, means, self.self_weight)

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the own part with the latest rest, and the means' network."""
        exits = self._exits(model)
        params = tree_paths.join(client, server)

        def chosen(params: core.Params, x: jax.Array):
            return routed(*exits.apply(params, x), self.threshold)

        def last(params: core.Params, x: jax.Array):
            return exits.apply(params, x)[1]

        return {
            "personal": core.Predictor(chosen, params),
            "global": core.Predictor(last, server),
        }
