"""FedROD: a generic head for all classes, a personal one on top (Chen & Chao 2022).

Features `z = phi(x)`, a generic head a and a personal head b_i. On one batch of client
i, with n_{i,c} of its training examples in class c,

    generic loss    CE(a(z) + log n_{i,c}, y)               moves phi and a
    personal loss   CE(a(z) + b_i(z), y), phi and a fixed   moves b_i

and the server averages phi and a, `sum_S n_i (.) / sum_S n_i`. The first loss, balanced
softmax, asks every client for a classifier of equally frequent classes; the second one
for its own frequencies. `a(z)` predicts globally, `a(z) + b_i(z)` personally.

A linear last layer makes `a(z) + b_i(z)` the output of ONE network whose head is the
sum of the two: the personal loss is the model's own at `(phi, a + b_i)`, differentiated
in b_i alone, and no model has to show its features. Whatever `head` finds must enter
the outputs linearly, as the `head` of every network here does; otherwise the method is
defined by the summed parameters. Both losses see the same batch and the same dropout,
and one pass through the body serves both where the compiler sees it.

With `hyper_width` b_i is not learned by each client but comes from a network that all
learn by the personal loss, `b_i = H(n_i / sum_c n_{i,c})`, so that clients who never
took part have one as well. H has one hidden layer; its last layer starts at zero.

| symbol | field | shape |
|---|---|---|
| (phi, a) | `server.network` | `[*P]` |
| parameters of H (`hyper_width` only) | `server.hyper` | `[*P]` |
| b_i (without `hyper_width`) | `clients` | `[N, *P]` of the head's leaves, from zero |
| (phi, a) and H after training | message | like `server` |

A class that a client has not seen has `log 0`; its logit is a constant far below all
others, with gradient zero, which is the limit. A client of one class therefore sends
the network it received, and classes that no client has together are never compared:
with two classes per client, the generic head can be worse than FedAvg's. Labels are
those trained on, poisoned or not. Limits: where
every client has equally many examples of each class, `server.network` is FedAvg's;
before b_i has moved, both predictors are equal.

Reference: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for
Image Classification", ICLR 2022. Deviations: b_i starts at zero where published code
copies a, so that no client starts from doubled logits; one learning rate for all parts.
FedPG's tables come from code in which only the bias of b_i learns and its kernel is a
copy of a's; `head="head/bias$"` personalizes the bias alone, without the copy.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_pfl import core, local, models
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import (
    ClientView,
    Downlink,
    Model,
    client_rows,
    held,
    statistics,
    struct,
    tree_paths,
)

__all__ = ["FedROD", "balanced"]

_ABSENT = -1e9  # logit of a class without examples; finite, or 0 * inf is NaN


@struct.pytree_dataclass
class RodServer:
    """Models that clients start from and send; see the module's table."""

    network: core.Params
    hyper: core.Params = None


def balanced(logits: jax.Array, counts: jax.Array) -> jax.Array:
    """Returns logits `[B, C]` plus log counts `[C]`: the loss is balanced softmax."""
    # log 0 is the limit of a constant far below, with gradient zero.
    present = (counts > 0)[None]
    logs = jnp.log(jnp.maximum(counts, 1))[None]
    return jnp.where(present, logits + logs, jnp.asarray(_ABSENT, logits.dtype))


def _sum(params: core.Params, head: core.Params) -> core.Params:
    """Adds a second head to the parameters' own."""
    return jax.tree.map(lambda x, b: x if b is None else x + b, params, head)


@struct.pytree_dataclass
class FedROD(base.PersonalHead):
    """Federated robust decoupling.

    Attributes:
      head: regular expression searched in the names of parameters (`head/kernel`); what
        it finds is the head. Some must be found, and some left over.
      hyper_width: hidden units of the network that makes the personal heads, at least
        1, or None for a head per client.
      local: local solver, run on body and both heads together.
    """

    hyper_width: int | None = struct.static_field(default=None, at_least=1)

    server_is_model = True  # clients start from the network, their copies are averaged

    def _hyper(self, head: core.Params, counts: jax.Array) -> models.MLP:
        """Builds the network from the shares of classes to a head's parameters."""
        assert self.hyper_width is not None
        return models.MLP(
            widths=(self.hyper_width,),
            input_shape=counts.shape,
            num_classes=client_rows.size(head),
        )

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network; personal heads, or the last layer of H, are zero."""
        common.check_classes("FedROD, whose loss counts them", model)
        params = model.init(key)
        head, _ = tree_paths.head_and_body(params, self.head)
        if self.hyper_width is None:
            return RodServer(network=params), jax.tree.map(jnp.zeros_like, head), None
        hyper = self._hyper(head, _counts(model, params, data))
        # With a last layer of zeros all clients start without a personal head.
        drawn = hyper.init(jax.random.fold_in(key, 1))
        drawn |= {"head": jax.tree.map(jnp.zeros_like, drawn["head"])}
        return RodServer(network=params, hyper=drawn), None, None

    def _added(
        self, network: core.Params, part: core.Params, counts: jax.Array
    ) -> core.Params:
        """Adds the personal head to the network; `part` is b_i or H's parameters."""
        if self.hyper_width is None:
            return _sum(network, part)
        head, _ = tree_paths.split(network, self.head)
        # b_i = H(n_i / sum_c n_{i,c}), as one vector of the head's numbers.
        share = counts / jnp.maximum(counts.sum(), 1)
        vector = self._hyper(head, counts).apply(part, share[None])[0]
        return _sum(network, ravel_pytree(head)[1](vector))

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains the network by one loss, and the own part by the other."""
        counts = _counts(model, down.shared.network, view.data)

        def personal(point: core.Tree, context: core.Tree):
            network, part = point
            # Held: the personal loss moves b_i alone, not phi and a.
            return self._added(held.held(network), part, counts)

        def generic(outputs: jax.Array, batch: core.Batch):
            return model.loss(balanced(outputs, counts), batch)

        # CE(a(z) + log n_i) in phi and a plus CE(a(z) + b_i(z)) in b_i: one gradient.
        objective = _Decoupled(local.DataLoss(model, network=personal), generic)
        hyper = self.hyper_width is not None
        start = (down.shared.network, down.shared.hyper if hyper else client)
        (network, part), _, info = self.local.solve(view, objective, start, None)
        message = RodServer(network=network, hyper=part if hyper else None)
        return None if hyper else part, view.upload(message), info.report()

    def predictors(
        self,
        view: ClientView,
        server: RodServer,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the latest network with the personal head added, and as it is."""
        part = client if self.hyper_width is None else server.hyper
        counts = _counts(model, server.network, view.data)
        personal = self._added(server.network, part, counts)
        networks = {"personal": personal, "global": server.network}
        return base.model_predictors(view, model, networks)


@dataclasses.dataclass(frozen=True)
class _Decoupled(local.StatefulLoss):
    """Sum of the generic loss, of the network as it is, and of the personal one."""

    personal: local.DataLoss  # of the network with b_i; moves running statistics
    # `(logits, batch) -> []`
    generic: Callable[[jax.Array, core.Batch], jax.Array]

    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ):
        """Returns the value of a batch, and the statistics after it."""
        value, new_carry = self.personal.step(key, params, batch, context, carry)
        logits, _ = statistics.forward(self.personal.model, params[0], batch, key)
        return self.generic(logits, batch) + value, new_carry


def _counts(model: core.Model, params: core.Params, data: core.ClientData) -> jax.Array:
    """Counts ONE client's training examples per output of the model `[C]`."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    batch = data.gather(jnp.zeros(1, jnp.int32), jnp.ones(1, dtype))
    # The number of outputs follows from shapes alone.
    outputs = jax.eval_shape(
        lambda x: model.apply(params, x, constants=data.constants), batch.x
    )
    return common.class_counts(data, outputs.shape[-1], dtype)
