"""Ditto: FedAvg, and a personal model near the global one (Li et al. 2021).

Problem: `w* = argmin_w sum_i (n_i / n) f_i(w)`, and for every client i
`min_{v_i} f_i(v_i) + lam/2 ||v_i - w*||^2`. Round t, a member i (Algorithm 1):

    theta_i <- local SGD on f_i from w^t                              global part
    v_i     <- v_i - eta (grad f_i(v_i) + lam (v_i - w^t))            personal part
    w^{t+1}  = sum_S n_i theta_i / sum_S n_i

The anchor is w^t as received, not theta_i. v_i waits while i is not selected. Both
parts use the same key: with equal batch sizes they walk the SAME minibatches in the
same order, as the authors' code does, and neither reads the other, so it does not
matter which comes first. A budget of work caps each part; stragglers' messages count.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| v_i | `clients.v` | `[N, *P]` |
| own network, never reloaded (`unsynced` only) | `clients.w_local` | `[N, *P]` |
| theta_i | message | `[*P]` per member |

Limits: w is FedAvg's with the same keys; at lam = 0 v_i is that of Local; as
lam -> inf the minimizer v_i tends to w^t. Steps need `eta (L + lam) < 2` for
L-smooth f_i, so that a large lam wants a small step in `personal`.

Reference: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021. Deviations from the authors' code: the mean is weighted by
examples (theirs: plain, and clients drawn by examples; `aggregator=Mean()` gives the
plain mean); the message is theta_i, not its change; lam is one number (theirs may pick
one per client on validation data). PFLlib's lam is 0 by default, which is Local.

`unsynced` exists only to explain published numbers: the code that accompanies FLAME
creates the network of Ditto's global part once and never loads w^t into it. There, per
epoch of the personal part, `local.epochs` steps of ONE random minibatch each move the
client's own network, with momentum from zero in every epoch; the personal part's anchor
is w^t in the first epoch and that network afterwards; the network is the message. Its
settings: momentum 0.5 in `local`, no weight decay, plain mean over all clients, absent
ones with their last message, `local.epochs` and `personal.epochs` both H.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct
from fedjax_pfl.local import minibatch_scan

__all__ = ["Ditto"]

_DataLoss = local.DataLoss  # the class has a field `local`
_DRIFT = 2**30  # beyond all epoch numbers, which the personal part folds into its key


@struct.pytree_dataclass
class DittoClient:
    """State of one client; see the module's table."""

    v: core.Params
    w_local: core.Params = None


@struct.pytree_dataclass
class Ditto(base.SingleExchange):
    """Personal models pulled towards the global model of FedAvg.

    Attributes:
      lam: `[]` weight of the pull, at least 0.
      local: local solver of the global part.
      personal: local solver of the personal part, or None for the same as `local`.
      unsynced: whether the global part repeats a bug of a published comparison, which
        never reloads its network; only to explain those numbers, see the module. Both
        solvers are then `SGD`.
      aggregate_over: static, mean over the `cohort` or over `all` clients' last
        messages.
    """

    lam: Any = struct.traced_field(default=1.0, at_least=0, search=(0.001, 10.0))
    local: core.Solver = local.SGD()
    personal: core.Solver = None
    unsynced: bool = struct.static_field(default=False)
    aggregate_over: Literal["cohort", "all"] = "cohort"

    def __post_init__(self):
        for solver in (self.local, self._personal()):
            if self.unsynced and not isinstance(solver, local.SGD):
                raise checks.InputError(
                    "Expected both solvers of Ditto to be SGD where unsynced is true, "
                    f"as in the code it repeats, got {solver!r}."
                )

    @classmethod
    def official(cls, **fields: Any) -> "Ditto":
        """FLAME's comparison: never synchronized; give `local`, and use `Mean()`."""
        drift = dataclasses.replace(
            common.OFFICIAL, learning_rate=0.1, weight_decay=0.0
        )
        defaults: dict[str, Any] = {"local": drift, "unsynced": True}
        defaults |= {"personal": common.OFFICIAL, "aggregate_over": "all"}
        return cls(**(defaults | fields))

    def _personal(self) -> core.Solver:
        """Returns the solver of the personal part."""
        return self.local if self.personal is None else self.personal

    released = "the global model"
    uploads_through = "local"

    @property
    def server_is_model(self) -> bool:
        """As in FedAvg, unless clients never load it."""
        return not self.unsynced

    @property
    def layered(self) -> tuple[str, ...]:
        """Fields of layers, unless the published bug takes steps of its own."""
        solvers = () if self.unsynced else ("local", "personal")
        rates = [f"{s}.{f}" for s in solvers for f in ("learning_rate", "weight_decay")]
        return ("lam", *rates)

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network for all clients."""
        params = model.init(key)
        w_local = params if self.unsynced else None
        message = params if self.aggregate_over == "all" else None
        return params, DittoClient(v=params, w_local=w_local), message

    def _anchored(self, plain: _DataLoss):
        """Returns `f_i + lam/2 ||. - anchor||^2`, with the anchor in the context."""

        def pull(v: core.Params, context: core.Tree):
            return common.pull(self.lam, v, context["anchor"])

        return plain.plus(pull)

    def client_update(
        self, view: ClientView, down: Downlink, client: DittoClient, model: Model
    ):
        """Trains both parts, from the received model and from the client's own."""
        plain = local.DataLoss(model)
        update = self._drift if self.unsynced else self._train
        new, message, info = update(view, plain, down.shared, client)
        return new, view.upload(message), info.report()

    def _train(
        self,
        view: ClientView,
        plain: _DataLoss,
        w: core.Params,
        client: DittoClient,
    ):
        """Runs the method: new client state, message and work."""
        # Both parts get the same key: with equal batch sizes, the same minibatches.
        theta, _, shared = self.local.solve(view, plain, w, None)
        v, _, info = self._personal().solve(
            view, self._anchored(plain), client.v, {"anchor": w}
        )
        return DittoClient(v=v), theta, shared.then(info)

    def _drift(
        self,
        view: ClientView,
        plain: _DataLoss,
        w: core.Params,
        client: DittoClient,
    ):
        """Repeats the published bug, like `_train`."""

        def epoch_end(epoch: jax.Array, v: core.Params, context: core.Tree):
            key = jax.random.fold_in(jax.random.fold_in(view.key, _DRIFT), epoch)
            w_local, seen = self._single_batches(
                dataclasses.replace(view, key=key, work=core.Budget.unlimited()),
                plain,
                context["w_local"],
                epoch,
            )
            seen = context["seen"] + seen
            return v, {"anchor": w_local, "w_local": w_local, "seen": seen}

        # The anchor of v is w^t in the first epoch, the drifting network afterwards.
        start = {"anchor": w, "w_local": client.w_local, "seen": jnp.int32(0)}
        v, context, info = self._personal().solve(
            view, self._anchored(plain), client.v, start, epoch_end=epoch_end
        )
        w_local = context["w_local"]
        seen = context["seen"] + info.num_examples
        info = dataclasses.replace(info, num_examples=seen)
        return DittoClient(v=v, w_local=w_local), w_local, info

    def _single_batches(
        self,
        view: ClientView,
        plain: _DataLoss,
        params: core.Params,
        epoch: jax.Array,
    ):
        """Takes momentum steps of one random minibatch each, and counts examples."""
        solver = self.local

        # Of a given `local.order`, with an epoch per step, the first batch is taken.
        def order(view: ClientView, step: jax.Array) -> jax.Array:
            return solver.order(view, epoch * solver.epochs + step)

        drawn = solver.order is None
        momentum = 0.0 if solver.momentum is None else solver.momentum
        rate = solver.rate(view.round)

        def step(step_key: core.Key, carry: core.Tree, batches: tuple[core.Batch, ...]):
            x, memory = carry
            gradient = jax.grad(plain, argnums=1)(step_key, x, batches[0], None)
            gradient = solver.clipped(gradient)
            memory = jax.tree.map(
                lambda m, g, p: momentum * m + g + solver.weight_decay * p,
                memory,
                gradient,
                x,
            )
            x = jax.tree.map(lambda p, m: p - rate * m, x, memory)
            return x, memory

        # Epochs of one step: every minibatch is drawn from all examples.
        (params, _), info = local.local_scan(
            view,
            step,
            (params, jax.tree.map(jnp.zeros_like, params)),
            batch_size=solver.batch_size,
            epochs=solver.epochs,
            sampler=_any_minibatch if drawn else None,
            epoch_steps=1,
            order=None if drawn else order,
            remainder="full",
            dtype=minibatch_scan.params_dtype(params),
        )
        return params, info.num_examples

    def parameters(self, server: core.ServerState, client: DittoClient):
        """Returns the personal model v_i and the global model w."""
        return {"personal": client.v, "global": server}


def _any_minibatch(
    key: core.Key, data: core.ClientData, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Samples a minibatch of a fresh epoch: positions `int32[B]`, weights `bool[B]`."""
    order_key, number_key = jax.random.split(key)
    positions, weight = minibatch_scan.independent_batch(order_key, data, batch_size)
    # Every minibatch has the same probability; the last may be shorter, padded.
    count = jnp.maximum(-(-data.num_examples // batch_size), 1)
    number = jax.random.randint(number_key, (), 0, count)
    left = data.num_examples - number * batch_size
    return positions, weight & (jnp.arange(batch_size) < left)
