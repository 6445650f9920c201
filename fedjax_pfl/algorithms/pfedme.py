"""pFedMe: gradient descent on Moreau envelopes (Dinh, Tran, Nguyen 2020).

Problem: `min_w sum_i (n_i / n) F_i(w)` with the Moreau envelope
`F_i(w) = min_theta f_i(theta) + lam/2 ||theta - w||^2`, whose gradient is
`lam (w - theta_i(w))`. Round t, a member i starts from `w_i = w^t` and R times draws
one batch D and does (Algorithm 1)

    theta_i <- theta_i - eta_p (grad f_i(theta_i; D) + lam (theta_i - w_i))  K_in times
    w_i     <- w_i - eta lam (w_i - theta_i)

and `w^{t+1} = (1 - beta) w^t + beta sum_S n_i w_i / sum_S n_i`.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| theta_i, the personal model | `clients` | `[N, *P]` |
| w_i after R steps | message | `[*P]` per member |
| R, K_in | `num_steps`, `inner_steps` | |
| eta, eta_p | `learning_rate`, `inner_learning_rate` | `[]` |
| theta_i's solver, where not K_in steps on one batch | `inner` | |
| beta | `server_learning_rate` | `[]` |

theta_i starts where it ended, in the same round and in the client's last one. Every D
is a fresh uniform subset of `min(batch_size, n_i)` examples, the same for all K_in
inner steps. Stability, for L-smooth f_i: `eta_p (L + lam) < 2` and `eta lam <= 1`.
Limits: with full batches, R = 1, beta = 1, eta lam = 1, all clients taking part and the
plain mean, it is FLAME at kappa = 1 with the received prox center and K_in local steps.

Reference: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes",
NeurIPS 2020. Deviations from the authors' code, with reasons: only members train
(there all clients do, N/K times the work, and the cohort is drawn afterwards); theta_i
is kept from the last round, so that state persists (there it restarts at w^t, which is
`start="received"`); no L2 term in the inner gradient, as in the paper (there 0.001,
`weight_decay`); the personal model is theta_i (there the stored parameters alias the
network, which holds w_i when it is evaluated). The mean is weighted by examples, as in
that code; the paper's is plain (`aggregator=Mean()`).

The code that accompanies FLAME compares with another pFedMe, `PFedMe.official`: before
each step of w_i theta_i takes a whole epoch of minibatches (`inner`), with momentum 0.5
from zero in every round and an L2 term; lam = 1, a mean over all clients, absent ones
with their last w_i (`aggregate_over="all"`). One epoch at eta lam = 1 is FLAME's
release at kappa = 1, to rounding where the mean is plain; its
grid for eta, {0.01, 0.05, 0.1, 0.2, 0.5}, leaves this value out.
"""

import dataclasses
from typing import Any, Literal

import jax
from jax import lax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct
from fedjax_pfl.local import minibatch_scan

__all__ = ["PFedMe"]


@struct.pytree_dataclass
class PFedMe(base.SingleExchange):
    """Personalized federated learning with Moreau envelopes.

    Attributes:
      lam: `[]` weight of half the squared distance to w_i, > 0.
      learning_rate: `[]` eta, > 0: of w_i; eta lam above 1 overshoots theta_i.
      inner_learning_rate: `[]` eta_p, > 0: of theta_i; must stay below
        2 / (smoothness + lam), or the inner steps diverge.
      server_learning_rate: `[]` beta, > 0; 1 takes the mean.
      weight_decay: `[]` L2 weight added to the inner gradient, at least 0.
      num_steps: R, batches and steps of w_i per round. A straggler's budget of epochs
        caps them: each step counts as one epoch.
      inner_steps: K_in, steps of theta_i on one batch.
      batch_size: B, at least 1.
      inner: solver of the proximal points, `SGD` or `Optax`, with one step of w_i after
        each of its epochs; or None for `num_steps` times `inner_steps` steps on one
        batch with `inner_learning_rate` and `weight_decay`, which it replaces.
      start: theta_i starts a round at the client's `own` last one or at the `received`
        w.
      aggregate_over: static, mean over the `cohort` or over `all` clients' last w_i,
        which are then in `state.rows["messages"]`.
    """

    lam: Any = struct.traced_field(default=15.0, above=0, search=(0.1, 50.0))
    learning_rate: Any = struct.traced_field(
        default=0.005, above=0, search=(0.003, 3.0)
    )
    inner_learning_rate: Any = struct.traced_field(
        default=0.1, above=0, search=(0.003, 3.0)
    )
    server_learning_rate: Any = struct.traced_field(
        default=1.0, above=0, search=(0.3, 10.0)
    )
    weight_decay: Any = struct.traced_field(
        default=0.0, at_least=0, unsearched="a property of the problem"
    )
    num_steps: int = struct.static_field(default=20, at_least=1)
    inner_steps: int = struct.static_field(default=5, at_least=1)
    batch_size: int = struct.static_field(default=20, at_least=1)
    inner: core.Solver = None
    start: Literal["own", "received"] = "own"
    aggregate_over: Literal["cohort", "all"] = "cohort"

    def __post_init__(self):
        if isinstance(self.inner, local.ToTolerance):
            raise checks.InputError(
                "Expected inner of PFedMe to be a solver in epochs, after each of which"
                f" w_i takes a step, got {self.inner!r}."
            )

    @classmethod
    def official(cls, **fields: Any) -> "PFedMe":
        """Builds FLAME's comparison; give `learning_rate`, and use `Mean()`."""
        defaults: dict[str, Any] = {"lam": 1.0, "learning_rate": 0.1}
        defaults |= {"inner": common.OFFICIAL, "aggregate_over": "all"}
        return cls(**(defaults | fields))

    server_is_model = True  # clients start from w, their copies are averaged into it
    released = "the global model"

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network for all clients."""
        params = model.init(key)
        return params, params, params if self.aggregate_over == "all" else None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Takes R steps down the envelope, each with an inexact inner solution."""
        w = down.shared
        start = client if self.start == "own" else w
        update = self._in_batches if self.inner is None else self._in_epochs
        w_local, theta, info = update(view, w, start, model)
        return theta, view.upload(w_local), info.report()

    def _outer_step(self, w_local: core.Params, theta: core.Params):
        """Takes one gradient step on the envelope."""
        rate = self.learning_rate * self.lam
        # w_i <- w_i - eta lam (w_i - theta_i), as grad F_i(w) = lam (w - theta_i(w)).
        return jax.tree.map(lambda w, t: w - rate * (w - t), w_local, theta)

    def _in_epochs(
        self, view: ClientView, w: core.Params, theta: core.Params, model: Model
    ):
        """Returns w_i, theta_i and the work; w_i takes a step after every epoch."""
        objective = common.proximal_objective(model, self.lam)

        # The solver's context is w_i, the center of the next epoch.
        def epoch_end(epoch: jax.Array, theta: core.Params, w_local: core.Params):
            return theta, self._outer_step(w_local, theta)

        theta, w_local, info = self.inner.solve(
            view, objective, theta, w, epoch_end=epoch_end
        )
        return w_local, theta, info

    def _in_batches(
        self, view: ClientView, w: core.Params, theta: core.Params, model: Model
    ):
        """Runs the published rule, like `_in_epochs`."""
        joint = local.Joint(local.DataLoss(model))
        gradient = jax.grad(joint.with_statistics, argnums=1, has_aux=True)

        def step(step_key: core.Key, carry: core.Tree, batches: tuple[core.Batch, ...]):
            w_local, *pair = carry

            def inner(number: jax.Array, state: tuple[Any, Any]):
                params, running = state
                # Number 0 belongs to the batch's own draw.
                inner_key = jax.random.fold_in(step_key, 1 + number)
                batch = batches[0].with_statistics(running)
                slopes, running = gradient(inner_key, params, batch, None)
                # What stays with the client has no center to be pulled to.
                centers = w_local, params[1]
                return jax.tree.map(self._inner_step, params, slopes, centers), running

            params, running = lax.fori_loop(0, self.inner_steps, inner, tuple(pair))
            return self._outer_step(w_local, params[0]), params, running

        extras = view.data.personal, view.data.statistics
        (w_local, (theta, personal), running), info = local.local_scan(
            view,
            step,
            (w, (theta, extras[0]), extras[1]),
            batch_size=self.batch_size,
            epochs=self.num_steps,
            sampler=minibatch_scan.independent_batch,
            epoch_steps=1,
            dtype=minibatch_scan.params_dtype(w),
        )
        # Every batch serves K_in steps.
        counts = {
            "num_steps": self.inner_steps * info.num_steps,
            "num_examples": self.inner_steps * info.num_examples,
        }
        info = dataclasses.replace(info, carry=personal, statistics=running, **counts)
        return w_local, theta, info

    def _inner_step(self, theta: jax.Array, gradient: jax.Array, w_local: jax.Array):
        """Takes one gradient step on `f_i + lam/2 ||. - w_i||^2` in one leaf."""
        # theta_i <- theta_i - eta_p (grad f_i + lam (theta_i - w_i)), plus an L2 term.
        direction = gradient + self.lam * (theta - w_local) + self.weight_decay * theta
        return theta - self.inner_learning_rate * direction

    def server_update(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        aggregate: core.Message,
        uploads: core.Upload,
    ):
        """Returns `(1 - beta) w + beta mean`; exactly the mean at beta = 1."""
        return common.relaxed(server, aggregate, self.server_learning_rate)

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the personal model theta_i and the global model w."""
        return {"personal": client, "global": server}
