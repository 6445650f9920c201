"""FedFomo: every client mixes the models that improve its own validation loss.

Problem: `min sum_i L_i(theta_i)`, each on the client's own distribution. A client holds
out the last fifth of its training examples, V_i, and trains on the others. In a round a
member downloads M models theta_n of other clients, as the server last received them,
and weighs them and its own trained model, n = i, against theta', the model that its
last training started from (equations 4 to 6):

    w_n     = (L_Vi(theta') - L_Vi(theta_n)) / |theta_n - theta'|
    theta' <- theta' + sum_n max(0, w_n) (theta_n - theta') / sum_n max(0, w_n)
    theta_i = local epochs from theta'

If no weight is positive theta' becomes theta_i: training goes on. The server sends
the models of largest affinity, `P[i, n] <- P[i, n] + w_n`, but with probability epsilon
fills each of the M slots with one drawn evenly from the rest.

| symbol | field | shape |
|---|---|---|
| theta_i, the evaluated model | `clients.theta`, message | `[N, *P]` |
| theta' | `clients.start` | `[N, *P]` |
| P, a row per client | `clients.affinity` | `[N, N]` |
| mean of the last received models, for comparison | `server` | `[*P]` |

Downloaded models are received messages, so that attacks reach the clients that download
them; a client without a message so far counts with the first network. Equal affinities,
as in the first round, are ordered at random. A model with a non-finite loss or distance
has weight 0, as has one that equals theta' to rounding, such as all in the first round.
If one model has a positive weight, theta' becomes exactly that model.

Limits: with M = 0, or alone, a client mixes theta' and its own model only.

Reference: Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized Federated Learning with
First Order Model Optimization". Deviations: the own model is a candidate without being
downloaded, so that its affinity, 1 at first in the paper, decides nothing and stays 0;
distances are Euclidean, as in the paper, where the authors' code takes sums of absolute
values unless told otherwise.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import ClientView, Downlink, Model, checks, client_rows, struct
from fedjax_pfl.round.exchange import Exchange

__all__ = ["FedFomo", "choose", "hold_out"]

_CHOICE = 2**30  # beyond all epoch numbers, which the local solver folds into its key
_ROUNDING = 8.0  # eps of a model's length that equal models may be apart


@struct.pytree_dataclass
class FedFomoClient:
    """State of one client; see the module's table."""

    theta: core.Params
    start: core.Params
    affinity: Any


def hold_out(
    data: core.ClientData, fraction: float
) -> tuple[core.ClientData, core.ClientData]:
    """Cuts the last examples off one client's training examples."""
    slots = data.index.shape[0]
    sizes = np.arange(slots + 1)
    # A table: 0.29 * 100 must count as 29 in any precision.
    held = np.floor(sizes * fraction + 1e-9).astype(np.int32)
    held = np.clip(held, np.minimum(1, sizes // 2), np.maximum(sizes - 1, 0))
    count = jnp.asarray(held, jnp.int32)[data.num_examples]
    num_train = data.num_examples - count
    positions = jnp.minimum(num_train + jnp.arange(max(held.max(), 1)), slots - 1)
    last = dataclasses.replace(
        data,
        index=data.index[positions],
        labels=jax.tree.map(lambda leaf: leaf[positions], data.labels),
        num_examples=count,
    )
    return dataclasses.replace(data, num_examples=num_train), last


def choose(
    key: core.Key,
    affinity: jax.Array,  # [N] of this client to all
    identities: jax.Array,  # int32[N] to which the draws belong
    own: jax.Array,  # int32[] row of this client, which is not sent to itself
    count: int,  # M, at most N - 1
    epsilon: core.Scalar,
) -> jax.Array:
    """Chooses `int32[M]` distinct clients with models that ONE client receives."""
    rows = jnp.arange(affinity.shape[0])
    for_slots, for_draws = jax.random.split(key)
    explored = (jax.random.uniform(for_slots, (count,)) < epsilon).sum()
    # A draw belongs to a client, not to a row, so that padding changes none.
    draws = jax.vmap(
        lambda i: jax.random.uniform(
            jax.random.fold_in(for_draws, i), dtype=jnp.float32
        )
    )(identities)
    order = jnp.lexsort((draws, -affinity, rows == own))  # the last key comes first
    greedy = jnp.zeros_like(rows, bool).at[order].set(rows < count - explored)
    # Greedy rows first, then explored ones by their draws in [0, 1).
    score = jnp.where(greedy, 2, jnp.where(rows == own, -1, draws))
    return lax.top_k(score, count)[1]


@struct.pytree_dataclass
class FedFomo(base.SingleExchange):
    """First order model optimization.

    Attributes:
      num_models: static, M, models that a member downloads, at least 0; if there are
        fewer other clients, all others.
      epsilon: `[]` probability in [0, 1] of exploring, in the first round.
      epsilon_decay: `[]` its decrease per round, at least 0, until it is 0.
      validation_fraction: static, share of the training examples that are held out, in
        (0, 1), rounded down, but at least one example of two.
      local: local solver, on the other examples.
    """

    num_models: int = struct.static_field(default=5, at_least=0)
    epsilon: Any = struct.traced_field(
        default=0.3, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    epsilon_decay: Any = struct.traced_field(
        default=0.05, at_least=0, search=(0.003, 0.3)
    )
    validation_fraction: float = struct.static_field(default=0.2, above=0, below=1)
    local: core.Solver = local.SGD()

    aggregate_over = "all"  # the global model is the mean of all clients' last models

    reads = "all"  # anybody's model may be sent to a member
    chooses: ClassVar[str] = "whose models a client receives"

    def default_aggregator(self) -> core.Aggregator:
        """Returns the uniform mean."""
        return aggregators.Mean()

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network, copied to all clients; all affinities are zero."""
        if isinstance(model, core.SequenceModel):
            raise checks.InputError(
                "Expected a model whose examples stand alone for FedFomo, which holds"
                f" some of them out, got {type(model).__name__}, a model of series."
            )
        params = model.init(key)
        dtype = jnp.result_type(*jax.tree.leaves(params))
        affinity = jnp.zeros((population.num_clients,), dtype)
        client = FedFomoClient(theta=params, start=params, affinity=affinity)
        return params, client, params

    def client_update(
        self, view: ClientView, down: Downlink, client: FedFomoClient, model: Model
    ):
        """Mixes the received models, and trains from the mixture.

        `down.shared` is a pair of all received models `[N, *P]` and identities `[N]`,
        `down.per_client` the row of this client. Only the models that the server sends
        are looked at.
        """
        models, identities = down.shared
        training, held = hold_out(view.data, self.validation_fraction)
        chosen = choose(
            jax.random.fold_in(view.key, _CHOICE),
            client.affinity,
            identities,
            down.per_client,
            min(self.num_models, len(identities) - 1),
            # Below 0, in late rounds, no slot explores.
            self.epsilon - self.epsilon_decay * view.round,
        )
        objective = local.DataLoss(model)
        mixed, gains, own_share = _mixture(objective, client, models, chosen, held)
        shorter = dataclasses.replace(view, data=training)
        theta, _, info = self.local.solve(shorter, objective, mixed, None)
        client = FedFomoClient(
            theta=theta, start=mixed, affinity=client.affinity.at[chosen].add(gains)
        )
        upload = view.upload(theta)
        report = info.report(
            loss_evaluations=(len(chosen) + 2) * held.num_examples,
            improving_models=(gains > 0).sum(dtype=jnp.int32),
            own_share=own_share,
        )
        return client, upload, report

    def known(self, server: core.ServerState, down: core.Downlink):
        """Returns zeros: the server knows no model that its client has."""
        return core.Downlink(shared=jax.tree.map(jnp.zeros_like, server))

    def round(self, state: core.State, exchange: Exchange):
        """Runs one exchange, in which members get some of all received models."""
        ctx, reference = exchange.ctx, self.reference(state.server)
        shared = (state.rows["messages"], exchange.federation.train.client_id)
        down = core.Downlink(shared=shared, per_client=ctx.cohort)
        state, rows, received, info = exchange.train(state, down)
        server, aggregator_info = exchange.aggregate(state, received, reference)
        state = dataclasses.replace(
            state, server=server, clients=exchange.put(state.clients, rows)
        )
        return state, exchange.info(
            info,
            aggregator_info,
            bytes_up=exchange.bytes_up(received.message),
            bytes_down=client_rows.num_bytes(received.message)
            * min(self.num_models, ctx.num_clients - 1),
        )

    def parameters(self, server: core.ServerState, client: FedFomoClient):
        """Returns the client's own model, and the mean of all."""
        return {"personal": client.theta, "global": server}


def _mixture(
    objective: local.Objective,
    client: FedFomoClient,
    models: core.Message,
    chosen: jax.Array,
    held: core.ClientData,
) -> tuple[Any, jax.Array, jax.Array]:
    """Mixes the model `[*P]` of ONE member; weights `[M]`, and its own share `[]`."""
    # w_n = (L(theta') - L(theta_n)) / |theta_n - theta'|, equations (4) to (6).
    loss = local.full_value(objective, client.start, None, held)
    rounding = _ROUNDING * jnp.finfo(loss.dtype).eps * optax.tree.norm(client.start)

    def weigh(candidate: core.Params) -> jax.Array:
        distance = optax.tree.norm(optax.tree.sub(candidate, client.start))
        gain = loss - local.full_value(objective, candidate, None, held)
        apart = distance > rounding  # else the quotient is one of rounding errors
        weight = gain / jnp.where(apart, distance, 1)
        return jnp.where(apart & jnp.isfinite(weight), weight, 0)

    def add(so_far: core.Tree, candidate: core.Params) -> tuple[Any, jax.Array]:
        mean, total = so_far
        weight = weigh(candidate)
        total = total + jnp.maximum(weight, 0)
        # A running mean, of which the first model is all; weight 0 may hold anything.
        part = jnp.where(weight > 0, weight / jnp.where(total > 0, total, 1), 0)
        mean = jax.tree.map(
            lambda m, x: jnp.where(
                part == 1,
                x,
                jnp.where(part > 0, m + (part * (x - m)).astype(m.dtype), m),
            ),
            mean,
            candidate,
        )
        return (mean, total), weight

    def add_row(so_far: core.Tree, row: jax.Array) -> tuple[Any, jax.Array]:
        return add(so_far, jax.tree.map(lambda leaf: leaf[row], models))

    # Without a positive weight the mean stays the own model.
    start, weight = add((client.theta, jnp.zeros_like(loss)), client.theta)
    # One downloaded model after the other is in memory.
    (mixed, total), weights = lax.scan(add_row, start, chosen)
    share = jnp.maximum(weight, 0) / jnp.where(total > 0, total, 1)
    return mixed, weights, jnp.where(total > 0, share, 1)
