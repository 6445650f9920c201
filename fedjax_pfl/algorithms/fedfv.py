"""FedFV: federated fair averaging, which takes conflicts out of clients' gradients.

Problem: small losses of all clients, evenly. Clients train as in FedAvg and send their
change `g_i = w - w_i`, and the loss `L_i = f_i(w)` of the model that they received. At
the server, with n messages in the order of ascending losses (Algorithms 1 to 3):

    internal   members that are not among the alpha n of the largest losses: for each
               g_j in this order, j != i,
               g'_i <- g'_i - (g_j . g'_i) / |g_j|^2 g_j    if g_j . g'_i < 0
    mean       g = mean of g'_i
    external   for k = tau, ..., 1, with h the sum of the last gradients of those absent
               who were last heard in round t - k and for whom g . g_last < 0,
               g <- g - (g . h) / |h|^2 h                   if g . h < 0
    step       w <- w - |mean of g_i| / |g| g

Projections are onto the original g_j, from the running g'_i. The members with the
largest losses, ranks `ceil((n - 1) (1 - alpha))` and above, keep theirs; with alpha = 0
no member does. Everything internal is a product of coefficients `[K, K]` with the Gram
matrix of the messages.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| g_i | message, and `messages`, those of absent clients | `[N, *P]` |
| L_i | `aux`, which no attack replaces | `[]` per member |
| round of the last received message, -1 for never | `clients.last_round` | `[N]` |
| w_i, if kept | `clients.local` | `[N, *P]` |

Messages are changes, so that attacks about the received model and about the message
are the same, and stored ones remain gradients when w moves on. Dropped messages take no
part and leave the stored ones as they are.

Limits: without conflicts it is FedAvg with a uniform mean that keeps stragglers; so it
is at alpha = 1 with tau = 0. If the projections leave g = 0, w rests.

Reference: Wang, Fan, Qi, Wen, Wang, Yu, "Federated Learning with Fair Averaging".
Deviation: the authors' code counts k from tau - 1 down to 0 after it has stored the
round's own gradients, so that with tau = 1 it looks at no absent client; here it is as
in the paper. Another aggregator takes the place of the mean of the g'_i.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import global_model
from fedjax_pfl.core import ClientView, Downlink, Model, client_rows, struct
from fedjax_pfl.round.exchange import Exchange

__all__ = ["FedFV", "common_descent_violation", "mixtures_without_conflict"]

_ROUNDED = 1e-4  # a rank's bound above a whole number by less than this is that number


@struct.pytree_dataclass
class FedFVClient:
    """State of one client; see the module's table."""

    last_round: Any
    local: core.ClientState


def mixtures_without_conflict(
    products: jax.Array, losses: jax.Array, received: jax.Array, alpha: core.Scalar
) -> tuple[jax.Array, jax.Array]:
    """Returns `C [K, K]`, `g' = C g` without conflicts, and the projections' count."""
    members = jnp.arange(products.shape[0])
    # Ranks by losses: from ceil((n - 1) (1 - alpha)) on, gradients stay.
    order = jnp.argsort(jnp.where(received, losses, jnp.inf))
    rank = jnp.zeros_like(members).at[order].set(members)
    bound = (received.sum() - 1) * (1 - jnp.asarray(alpha, products.dtype))
    keeps = (rank >= jnp.ceil(bound - _ROUNDED)) & (jnp.asarray(alpha) > 0)

    def project(position: jax.Array, state: core.Tree):
        mixed, count = state
        j = order[position]
        # g_j . g'_i of all i at once; g'_i <- g'_i - (g_j . g'_i) / |g_j|^2 g_j changes
        # column j of the coefficients only.
        along = client_rows.dot(mixed, products[:, j])
        conflict = (along < 0) & ~keeps & (members != j)
        square = jnp.where(products[j, j] > 0, products[j, j], 1)
        share = jnp.where(conflict, along / square, 0)
        return mixed.at[:, j].add(-share), count + conflict.sum(dtype=jnp.int32)

    start = jnp.eye(len(members), dtype=products.dtype), jnp.zeros((), jnp.int32)
    return lax.fori_loop(0, len(members), project, start)


def common_descent_violation(
    gradients: core.Message, direction: core.Params, received: jax.Array
) -> jax.Array:
    """Returns the largest cosine `[]` of a step with gradients; above 0 one rises."""
    along = client_rows.products(gradients, direction)
    # A gradient of norm 0 counts as orthogonal; without rows the result is -1.
    scale = jax.vmap(optax.tree.norm)(gradients) * optax.tree.norm(direction)
    cosines = along / jnp.where(scale > 0, scale, 1)
    return jnp.where(received, cosines, -1).max()


@struct.pytree_dataclass
class FedFV(global_model.GlobalModel):
    """Federated fair averaging.

    Attributes:
      alpha: `[]` share of the cohort that keeps its gradients, in [0, 1].
      tau: static, how many past rounds' absent clients count, at least 0. With 0 the
        server keeps no gradients.
    """

    alpha: Any = struct.traced_field(
        default=0.1, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    tau: int = struct.static_field(default=1, at_least=0)
    chooses: ClassVar[str] = "the order of clients by their losses"

    @property
    def reads(self) -> str:
        """Absent clients' gradients, unless tau is 0."""
        return "all" if self.tau else "cohort"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean, as in the paper."""
        return aggregators.Mean()

    def first(self, params: core.Params):
        """Draws one network; gradients are zero before the first messages."""
        local_params = self.kept(params)
        if not self.tau:
            return params, FedFVClient(last_round=None, local=local_params), None
        client = FedFVClient(last_round=jnp.full((), -1, jnp.int32), local=local_params)
        return params, client, self.reference(params)

    def reference(self, server: core.ServerState):
        """Returns zeros: messages are changes."""
        return jax.tree.map(jnp.zeros_like, server)

    def client_update(
        self, view: ClientView, down: Downlink, client: FedFVClient, model: Model
    ):
        """Evaluates the received model's loss, and trains from it."""
        w = down.shared
        objective = local.DataLoss(model)
        loss = local.full_value(objective, w, None, view.data)
        theta, _, info = self.local.solve(view, objective, w)
        upload = view.upload(optax.tree.sub(w, theta), aux=loss)
        client = dataclasses.replace(client, local=self.kept(theta))
        return client, upload, info.report(loss=loss)

    def round(self, state: core.State, exchange: Exchange):
        """Runs one exchange, with all projections between upload and step."""
        ctx, w = exchange.ctx, state.server
        state, rows, received, info = exchange.train(state, core.Downlink(shared=w))
        # All internal projections are products with the Gram matrix: models are mixed
        # once, whatever their number.
        arrived, gradients = received.weight > 0, received.message
        products = client_rows.gram(gradients)
        mixed, conflicts = mixtures_without_conflict(
            products, received.aux, arrived, self.alpha
        )
        resolved = dataclasses.replace(
            received, message=client_rows.mix(gradients, mixed)
        )
        g, aggregator_info = exchange.aggregate(state, resolved, self.reference(w))
        if self.tau and ctx.cohort.shape[0] < ctx.num_clients:
            g = self._without_external_conflict(g, state, ctx)
        # Projections shorten the direction; the step has the plain mean's length again.
        length = optax.tree.norm(g)
        plain = client_rows.weighted_mean(gradients, arrived.astype(length.dtype))
        scale = optax.tree.norm(plain) / jnp.where(length > 0, length, 1)
        step = jax.tree.map(lambda x: -(scale * x).astype(x.dtype), g)
        report = {
            "conflicts": conflicts,
            "violation": common_descent_violation(gradients, step, arrived),
        }
        if self.tau:
            last = jnp.where(arrived, ctx.round, rows.last_round)
            rows = dataclasses.replace(rows, last_round=last)
        state = dataclasses.replace(
            state,
            server=optax.tree.add(w, step),
            clients=exchange.put(state.clients, rows),
        )
        return state, exchange.info(
            info,
            aggregator_info,
            report,
            bytes_up=exchange.bytes_up(received.message)
            + client_rows.num_bytes(received.aux),
            bytes_down=client_rows.num_bytes(w) * ctx.cohort.shape[0],
        )

    def _without_external_conflict(
        self, g: core.Params, state: core.State, ctx: core.RoundContext
    ):
        """Projects `g [*P]` off the sums of conflicting gradients of absent clients."""
        # Members of this round are not absent, whenever they were heard before.
        heard = state.clients.last_round.at[ctx.cohort].set(-1)

        def project(number: jax.Array, g: core.Params):
            # k = tau, ..., 1: the oldest round first.
            past = ctx.round - (self.tau - number)
            conflicting = (heard == past) & (past >= 0)
            conflicting &= client_rows.products(state.rows["messages"], g) < 0
            dtype = jnp.result_type(*jax.tree.leaves(g))
            h = client_rows.weighted_sum(
                state.rows["messages"], conflicting.astype(dtype)
            )
            along = jnp.asarray(optax.tree.vdot(g, h))
            square = optax.tree.norm(h, squared=True)
            share = jnp.where(along < 0, along / jnp.where(square > 0, square, 1), 0)
            return jax.tree.map(lambda x, y: x - (share * y).astype(x.dtype), g, h)

        return lax.fori_loop(0, self.tau, project, g)

    def parameters(self, server: core.ServerState, client: FedFVClient):
        """Returns the global model, and the local one if it is kept."""
        return super().parameters(server, client.local)
