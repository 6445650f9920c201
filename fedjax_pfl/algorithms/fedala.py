"""FedALA: each client learns how much of the global model it takes (Zhang et al. 2023).

Problem: `min sum_i (n_i / n) f_i(theta_i)`. Round t, a member i, with its last model
theta_i and weights W_i in [0, 1], one per parameter of the adapted (higher) layers:

    m(W)     = W w^t + (1 - W) theta_i        in the adapted layers, else w^t
    W_i     <- clip(W_i - eta dW f_i(m(W_i); batch), 0, 1), epochs over a share s of
               the client's examples, which is drawn in every round
    theta_i <- local steps on f_i from m(W_i)                          the upload
    w^{t+1}  = sum_S n_i theta_i / sum_S n_i

W_i starts at one and is kept between rounds. It is learned for one epoch a round; the
first time for at most `start_epochs` epochs, until the standard deviation of the last
ten epochs' mean losses is below `threshold`. If the received model is the client's own,
as in the first round, no weights are learned. Before evaluation a client learns W_i
from its present value in the same way for the latest w, and `personal` is m(W_i).

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| theta_i | `clients.theta` | `[N, *P]` |
| W_i | `clients.weights` | `[N, *P]` of the adapted leaves, None in other places |
| rounds in which W_i was learned | `clients.learned` | `int32[N]` |
| theta_i | message | `[*P]` per member |

Epochs of W_i take batches of the local solver's size, in an order of their own, in
training mode, with the running statistics and personal parameters of the round's start;
their gradients are counted. A budget of work caps each part. Stragglers' partial work
counts.

Limits: at eta = 0 it is FedAvg that keeps stragglers. With W_i = 0 at eta = 0 it is
FedPer with the adapted layers for a head, with messages that contain the head.

Reference: Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation
for Personalized Federated Learning", AAAI 2023. It adds `(w - theta_i) W_i` to
theta_i, which is the same. Deviations from the authors' code: `start_epochs` bounds the
first learning; its end is judged by epochs' mean losses, theirs by the last batch's;
the share of examples is a random subset, theirs a random stretch of them.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct, tree_paths
from fedjax_pfl.local import minibatch_scan

__all__ = ["FedALA"]

_WEIGHTS = 2**30  # beyond all epoch numbers, which the training folds into its key
_WINDOW = 10  # losses, of which a small deviation ends the first learning


@struct.pytree_dataclass
class FedALAClient:
    """State of one client; see the module's table."""

    theta: core.Params
    weights: core.Tree
    learned: jax.Array


@struct.pytree_dataclass
class _Learning:
    """Weights while they are learned."""

    weights: core.Tree  # [*P] of the adapted leaves
    losses: jax.Array  # [10] mean losses of the last epochs, the latest one last
    epochs: jax.Array  # int32[] finished epochs
    loss: jax.Array  # [] sum of losses of this epoch's examples
    count: jax.Array  # [] number of these examples
    seen: jax.Array  # int32[] examples of all steps that moved the weights
    steps: jax.Array  # int32[] number of these steps
    done: jax.Array  # bool[] whether the losses have settled


@struct.pytree_dataclass
class FedALA(base.SingleExchange):
    """Federated averaging with adaptive local aggregation.

    Attributes:
      adapted: regular expression searched in the names of parameters (`head/kernel`);
        its parameters have weights, the others are the global model's. It must find
        some.
      weight_learning_rate: `[]` eta, at least 0.
      sample_fraction: `[]` s in (0, 1], share of the examples by which weights are
        learned in a round, to the nearest whole number, at least one.
      threshold: `[]` standard deviation of ten losses at which the first learning ends,
        at least 0.
      start_epochs: epochs of the first learning, at most; at least 1.
      local: local solver, with a `batch_size`.
    """

    adapted: str = struct.static_field(default="^head/")
    weight_learning_rate: Any = struct.traced_field(
        default=1.0, at_least=0, search=(0.01, 10.0)
    )
    sample_fraction: Any = struct.traced_field(
        default=0.8, above=0, at_most=1, unsearched="saves work"
    )
    threshold: Any = struct.traced_field(
        default=0.1, at_least=0, unsearched="an accuracy"
    )
    start_epochs: int = struct.static_field(default=20, at_least=1)
    local: core.Solver = local.SGD()

    server_is_model = True  # clients' models are averaged into w
    released = "the global model"
    chooses: ClassVar[str] = "when the first learning of weights ends"

    def __post_init__(self):
        tree_paths.check_pattern("adapted", self.adapted)

    def first(self, params: core.Params):
        """Starts all clients from one network, with weights of one."""
        part, _ = tree_paths.split(params, self.adapted)
        if not jax.tree.leaves(part):
            raise checks.InputError(
                f"Expected adapted={self.adapted!r} to match some of the model's"
                f" parameters: {', '.join(tree_paths.by_name(params))}."
            )
        state = FedALAClient(
            theta=params,
            weights=jax.tree.map(jnp.ones_like, part),
            learned=jnp.zeros((), jnp.int32),
        )
        return params, state, None

    def _merged(
        self, w: core.Params, theta: core.Params, weights: core.Tree
    ) -> core.Params:
        """Returns m(W); exactly w at weights of one."""
        part, body = tree_paths.split(w, self.adapted)
        own, _ = tree_paths.split(theta, self.adapted)
        mix = jax.tree.map(lambda a, g, t: a * g + (1 - a) * t, weights, part, own)
        return tree_paths.join(mix, body)

    def _learned(
        self, view: ClientView, w: core.Params, client: FedALAClient, model: Model
    ) -> tuple[Any, FedALAClient, minibatch_scan.LocalInfo]:
        """Learns the weights for a received model: m(W), client state and work."""
        dtype = minibatch_scan.params_dtype(w)
        pairs = jax.tree.map(lambda a, b: (a != b).any(), w, client.theta)
        differs = jnp.stack(jax.tree.leaves(pairs)).any()
        # Of equal models every mixture is the same: there are no weights to learn.
        epochs = jnp.where(client.learned > 0, 1, self.start_epochs)
        epochs = jnp.where(differs, epochs, 0).astype(jnp.int32)
        work = dataclasses.replace(
            view.work, epochs=jnp.minimum(view.work.epochs, epochs)
        )
        key = jax.random.fold_in(view.key, _WEIGHTS)
        data = _subset(key, view.data, self.sample_fraction)
        view = dataclasses.replace(view, key=key, data=data, work=work)
        loss = local.DataLoss(model)

        def value(weights: core.Tree, step_key: core.Key, batch: core.Batch):
            return loss(step_key, self._merged(w, client.theta, weights), batch, None)

        def step(key: core.Key, state: _Learning, batches: tuple[core.Batch, ...]):
            batch = batches[0]
            size = batch.weight.sum()
            # W_i <- clip(W_i - eta dW f_i(m(W_i); batch), 0, 1).
            now, slope = jax.value_and_grad(value)(state.weights, key, batch)
            weights = jax.tree.map(
                lambda a, g: jnp.clip(a - self.weight_learning_rate * g, 0, 1),
                *(state.weights, slope),
            )
            new = dataclasses.replace(
                state,
                weights=weights,
                loss=state.loss + size * now,
                count=state.count + size,
                seen=state.seen + size.astype(jnp.int32),
                steps=state.steps + 1,
            )
            # A client of a vmap cannot leave the scan: its later steps are discarded.
            return jax.tree.map(lambda a, b: jnp.where(state.done, b, a), new, state)

        def epoch_end(epoch: jax.Array, state: _Learning):
            mean = state.loss / jnp.where(state.count > 0, state.count, 1)
            losses = jnp.append(state.losses[1:], mean)
            finished = state.epochs + 1
            # The window begins with zeros, which are no losses.
            settled = (finished > _WINDOW) & (losses.std() < self.threshold)
            return dataclasses.replace(
                state,
                losses=losses,
                epochs=finished,
                loss=jnp.zeros((), dtype),
                count=jnp.zeros((), dtype),
                done=state.done | settled,
            )

        zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
        start = _Learning(
            weights=client.weights,
            losses=jnp.zeros(_WINDOW, dtype),
            epochs=none,
            loss=zero,
            count=zero,
            seen=none,
            steps=none,
            done=jnp.zeros((), bool),
        )
        end, info = local.local_scan(
            view,
            step,
            start,
            batch_size=self.local.batch_size,
            epochs=self.start_epochs,
            epoch_end=epoch_end,
            dtype=dtype,
        )
        # Discarded steps are no work of the client.
        info = dataclasses.replace(info, num_steps=end.steps, num_examples=end.seen)
        state = dataclasses.replace(
            client, weights=end.weights, learned=client.learned + (end.steps > 0)
        )
        return self._merged(w, client.theta, end.weights), state, info

    def client_update(
        self, view: ClientView, down: Downlink, client: FedALAClient, model: Model
    ):
        """Learns the weights, and trains from the merged model."""
        if view.carry is not None:
            raise checks.InputError(
                "Expected a model of single examples with FedALA, which learns weights"
                " by batches of them, got one of series."
            )
        merged, client, learning = self._learned(view, down.shared, client, model)
        theta, _, info = self.local.solve(view, local.DataLoss(model), merged)
        state = dataclasses.replace(client, theta=theta)
        return state, view.upload(theta), learning.then(info).report()

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: FedALAClient,
        model: Model,
    ):
        """Returns the merged model for the latest global one, and that one."""
        merged, _, _ = self._learned(view, server, client, model)
        networks = {"personal": merged, "global": server}
        return base.model_predictors(view, model, networks)


def _subset(
    key: core.Key, data: core.ClientData, fraction: core.Scalar
) -> core.ClientData:
    """Draws a share of ONE client's examples, in random order, at least one."""
    slots = data.index.shape[0]
    positions, _ = minibatch_scan.independent_batch(key, data, slots)
    count = jnp.round(fraction * data.num_examples).astype(jnp.int32)
    # At least one example, but none of a client without any.
    count = jnp.clip(count, jnp.minimum(1, data.num_examples), data.num_examples)
    labels = None if data.labels is None else data.labels[positions]
    return dataclasses.replace(
        data, index=data.index[positions], labels=labels, num_examples=count
    )
