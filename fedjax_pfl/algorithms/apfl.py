"""APFL: every client mixes a model of its own with the global one (Deng et al. 2020).

Problem: `w* = argmin_w sum_i (n_i / n) f_i(w)`, and for every client i
`min_{v_i, alpha_i} f_i(vbar_i)` with `vbar_i = alpha_i v_i + (1 - alpha_i) w*`. A local
step of a member, from `w_i = w^t` and its own `v_i`, `alpha_i`, with ONE batch for all
gradients, each taken at the begin of the step (Algorithm 1):

    w_i     <- w_i - eta grad f_i(w_i)
    v_i     <- v_i - eta alpha_i grad f_i(vbar_i)
    s_i      = <v_i - w_i, grad f_i(vbar_i)> + d alpha_i          d = alpha_decay
    alpha_i <- clip(alpha_i - eta_alpha s_i, 0, 1)

with the last line in the first local step of a round only, where `adaptive`, and
`w^{t+1} = sum_S n_i w_i / sum_S n_i`. v_i and alpha_i wait while i is not selected.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| v_i, alpha_i | `clients.v`, `clients.alpha` | `[N, *P]`, `[N]` |
| w_i | message | `[*P]` per member |

Limits, for fixed alpha_i: at 0 v_i rests and w is FedAvg's; at 1 v_i is local training;
w is FedAvg's in any case.

Reference: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning",
arXiv:2003.13461. Deviations from the authors' software, each a switch: it adds
0.02 alpha_i to the gradient of alpha_i (`alpha_decay`, here 0, as in the paper) and
mixes the networks' outputs (`mix="outputs"`). The paper's eta falls with the round;
here it is constant. Weight decay acts on w_i and on v_i as if each had its own SGD.

A saved personal model is the mixed network or, with `mix="outputs"`, `own` (v_i),
`global` (w) and `alpha`.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, held, statistics, struct

__all__ = ["APFL"]


@struct.pytree_dataclass
class ApflClient:
    """State of one client; see the module's table."""

    v: core.Params
    alpha: jax.Array


@struct.pytree_dataclass
class APFL(base.SingleExchange):
    """Adaptive personalized federated learning.

    Attributes:
      alpha: `[]` first mixing weight of the own model, in [0, 1].
      adaptive: whether the clients learn their alpha_i.
      alpha_learning_rate: `[]` its step size eta_alpha, > 0, or None for the local
        solver's.
      alpha_decay: `[]` d, at least 0; pulls alpha_i to 0.
      mix: `parameters` (the paper) or `outputs` of the two networks, which is the same
        for linear models.
      local: `SGD` without momentum; its learning rate is eta.
    """

    alpha: Any = struct.traced_field(
        default=0.5, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    adaptive: bool = struct.static_field(default=True)
    alpha_learning_rate: Any = struct.traced_field(
        default=None, above=0, unsearched="follows the local learning rate"
    )
    alpha_decay: Any = struct.traced_field(
        default=0.0, at_least=0, unsearched="zero in the paper"
    )
    mix: Literal["parameters", "outputs"] = "parameters"
    local: core.Solver = local.SGD()

    def __post_init__(self):
        common.check_plain_sgd("APFL", self.local)

    server_is_model = True  # clients start from w, their copies are averaged into it
    released = "the global model"

    def first(self, params: core.Params):
        """Draws one network for all clients, which mix it with the first alpha."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        alpha = jnp.asarray(self.alpha, dtype)
        return params, ApflClient(v=params, alpha=alpha), None

    def down(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
        messages: core.Message,
    ):
        """Returns the global model; the mean of the cohort's alpha is only reported."""
        return core.Downlink(shared=server, info={"mean_alpha": clients.alpha.mean()})

    def _mixed(
        self,
        apply: Callable[[Any], Any],
        v: core.Params,
        w: core.Params,
        alpha: core.Scalar,
    ):
        """Returns the mixed model's outputs, from a network's `params -> outputs`."""
        if self.mix == "parameters":
            return apply(base.mixture(v, w, alpha))
        # Running statistics, if `apply` returns them, are mixed like the outputs.
        return base.mixture(apply(v), apply(w), alpha)

    def _descend(self, params: core.Params, gradient: core.Params, rate: core.Scalar):
        """Takes one plain step of the local solver."""
        decay = self.local.weight_decay
        return jax.tree.map(lambda x, g: x - rate * (g + decay * x), params, gradient)

    def client_update(
        self, view: ClientView, down: Downlink, client: ApflClient, model: Model
    ):
        """Simultaneous steps of the local copy, the own model and the mixing weight."""
        plain = local.DataLoss(model)
        rate = self.alpha_learning_rate
        rate = self.local.rate(view.round) if rate is None else rate

        def losses(
            step_key: core.Key,
            w: core.Params,
            v: core.Params,
            alpha: core.Scalar,
            own: core.Tree,
            batch: core.Batch,
        ):
            # What stays with the client belongs to the mixed model.
            common = batch.with_personal(held.held(own))
            batch = batch.with_personal(own)

            def apply(params: core.Params):
                return statistics.forward(model, params, batch, step_key)

            # w learns from its own loss only, so both gradients come in one pass.
            outputs, running = self._mixed(apply, v, held.held(w), alpha)
            value = plain(step_key, w, common, None) + model.loss(outputs, batch)
            return value, running

        # By the chain rule the derivative in alpha is <v_i - w_i, grad f_i(vbar_i)>.
        slopes = jax.grad(losses, argnums=(1, 2, 3, 4), has_aux=True)

        def step(step_key: core.Key, carry: core.Tree, batches: tuple[core.Batch, ...]):
            w, v, alpha, own, running, is_first = carry
            batch = batches[0].with_statistics(running)
            (for_w, for_v, for_alpha, for_own), running = slopes(
                step_key, w, v, alpha, own, batch
            )
            # Algorithm 1: gradients are of the step's start; no update sees another.
            step_rate = self.local.rate(view.round) * self.local.share(batches[0])
            w, v, own = (
                self._descend(*pair, step_rate)
                for pair in ((w, for_w), (v, for_v), (own, for_own))
            )
            if self.adaptive:
                # s_i, and alpha_i <- clip(alpha_i - eta_alpha s_i, 0, 1), in the first
                # local step of a round only.
                slope = for_alpha + self.alpha_decay * alpha
                target = jnp.clip(alpha - rate * slope, 0, 1)
                alpha = jnp.where(is_first, target, alpha)
            return w, v, alpha, own, running, jnp.zeros((), bool)

        extras, start = (view.data.personal, view.data.statistics), jnp.ones((), bool)
        state = (down.shared, client.v, client.alpha, *extras, start)
        (w, v, alpha, own, running, _), info = self.local.scan(
            view, step, state, dtype=client.alpha.dtype
        )
        report = core.Report(
            values={
                # Gradients at w_i and at vbar_i.
                "gradient_evaluations": 2 * info.num_examples,
                "client_steps": info.num_steps,
            },
            carry=own,
            statistics=running,
        )
        return ApflClient(v=v, alpha=alpha), view.upload(w), report

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: ApflClient,
        model: Model,
    ):
        """Returns the own model mixed with the latest global one, and that one."""
        if self.mix == "parameters":
            mixed = base.mixture(client.v, server, client.alpha)
            networks = {"global": server, "personal": mixed}
            return base.model_predictors(view, model, networks)
        shared = base.model_predictor(model, server, view.data.constants)

        def mixture(parts: core.Tree, x: jax.Array):
            def apply(params: core.Params):
                return shared.apply(params, x)

            return self._mixed(apply, parts["own"], parts["global"], parts["alpha"])

        # No single network has the mixed outputs: a saved model is made of both.
        parts = {"own": client.v, "global": server, "alpha": client.alpha}
        return {"global": shared, "personal": core.Predictor(mixture, parts)}
