"""FedRep: a common representation under heads that are trained first (Collins 2021).

Problem: `min_{b, h_1..h_N} sum_i (n_i / n) f_i(b, h_i)`, as in FedPer, but in turns.
Round t, a member i (Algorithm 1):

    h_i <- tau_h epochs of SGD on f_i(b^t, .), from its own h_i   the body is fixed
    b_i <- tau_b epochs of SGD on f_i(., h_i), from b^t           the head is fixed
    b^{t+1} = sum_S n_i b_i / sum_S n_i

Only the part in training is differentiated, decayed, or remembered by a momentum. A
budget of work caps each part; the parts walk different minibatches. h_i waits while i
is not selected.

| symbol | field | shape |
|---|---|---|
| b | `server` | `[*P]` of the body's leaves, None in place of the head's |
| h_i | `clients` | `[N, *P]` of the head's leaves, None in place of the body's |
| b_i | message | `[*P]` per member, like `server` |
| tau_h, tau_b | epochs of `head_local` and `local` | |

All heads start from the one drawn network. Published tables also judge a global model,
the latest body under the mean of the heads. No client ever uses it, and heads are what
FedRep does not send, so it exists only with `send_heads`: then messages and `server`
are whole models and the server's head is the aggregate of the cohort's. It costs the
floats of a head per member and upload, and attacks and rules that look at whole
messages see the heads; with a mean, bodies and own heads are what they are without it.

Limits: a head whose training does not move it (a step size near 0) leaves FedAvg of the
body under a fixed head; one client is alternating minimization; where minimal heads are
found exactly, the body descends on `sum_i (n_i / n) min_h f_i(b, h)`.

Reference: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations
for Personalized Federated Learning", ICML 2021. Deviations from the authors' code: the
final training of all heads is a predictor (`fine_tune`), because it changes nothing in
the training; `weight_decay` concerns biases as well. FedPG's tables come from code
whose head is the last bias alone, trained for one epoch: `head="head/bias$"` with one
epoch in `head_local`, and `send_heads` for its global model.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct, tree_paths

__all__ = ["FedRep"]


@struct.pytree_dataclass
class FedRep(base.PersonalHead):
    """Federated representation learning.

    Attributes:
      head: regular expression searched in the names of parameters (`head/kernel`);
        what it finds stays with the clients. Some must be found, and some left over.
      head_local: local solver of the head, which comes first, or None for the same as
        `local`. The authors take ten epochs for the head, one or five for the body.
      local: local solver of the body.
      send_heads: whether heads are sent too, for a predictor `global` with their mean.
      fine_tune: local solver run on the client's head before evaluation, under the
        latest body, or None; adds the predictor `fine-tuned`.
    """

    head_local: core.Solver = None
    send_heads: bool = struct.static_field(default=False)
    fine_tune: core.Solver = None

    released = "the body, and heads where they are sent"

    @property
    def server_is_model(self) -> bool:
        """Clients start from the body; a mean of heads is no model of theirs."""
        return not self.send_heads

    def first(self, params: core.Params):
        """Keeps the body at the server and the head at every client."""
        head, body = tree_paths.head_and_body(params, self.head)
        return params if self.send_heads else body, head, None

    def down(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
        messages: core.Message,
    ):
        """Returns the body."""
        return core.Downlink(shared=tree_paths.split(server, self.head)[1])

    def known(self, server: core.ServerState, down: core.Downlink):
        """Returns the body; no client knows the others' heads."""
        # A transform acts on differences to this point, so that heads are sent whole.
        point = self.reference(server)
        if self.send_heads:
            head, body = tree_paths.split(server, self.head)
            point = tree_paths.join(jax.tree.map(jnp.zeros_like, head), body)
        return core.Downlink(shared=point)

    def _train(
        self,
        solver: core.Solver,
        view: ClientView,
        model: Model,
        part: core.Params,
        fixed: core.Params,
    ):
        """Trains one part of the model, and reports the work."""
        objective = local.DataLoss(model, network=tree_paths.join)
        part, _, info = solver.solve(view, objective, part, fixed)
        return part, info

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains the head under the received body, then the body under that head."""
        # Keys of their own: the parts walk different minibatches.
        for_head, for_body = (
            dataclasses.replace(view, key=key) for key in jax.random.split(view.key)
        )
        solver = self.local if self.head_local is None else self.head_local
        head, head_info = self._train(solver, for_head, model, client, down.shared)
        for_body = common.after(for_body, head_info)
        body, body_info = self._train(self.local, for_body, model, down.shared, head)
        message = tree_paths.join(head, body) if self.send_heads else body
        return head, view.upload(message), head_info.then(body_info).report()

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the latest body under the own, the tuned and the mean head."""
        mean, body = tree_paths.split(server, self.head)
        heads = {"personal": client}
        if self.send_heads:
            heads["global"] = mean
        networks = {name: tree_paths.join(head, body) for name, head in heads.items()}
        if self.fine_tune is not None:
            tuned, info = self._train(self.fine_tune, view, model, client, body)
            network = local.whole(view, tree_paths.join(tuned, body), info)
            networks["fine-tuned"] = network
        return base.model_predictors(view, model, networks)
