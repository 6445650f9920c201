"""Per-FedAvg: a start from which one gradient step adapts (Fallah et al. 2020).

Problem: `min_w sum_i (n_i / n) F_i(w)` with `F_i(w) = f_i(w - a grad f_i(w))`, whose
gradient is `(I - a Hess f_i(w)) grad f_i(w - a grad f_i(w))`. A member takes tau local
steps from the received w, each with three independent batches D, D', D'':

    wt = w - a grad f_i(w; D)
    g  = grad f_i(wt; D')
    h  = 0                                                       `first_order`
       = [grad f_i(w + e g; D'') - grad f_i(w - e g; D'')] / (2 e)   `finite_difference`
       = Hess f_i(w; D'') g                                      `exact`
    w <- w - b (g - a h)

and the server takes the weighted mean. At evaluation a client adapts w by `adapt_steps`
gradient steps of size a over all of its training examples.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| w after tau steps | message | `[*P]` per member |

Batches: every D, D', D'' is a fresh uniform subset of `min(batch_size, n_i)` of the
client's examples, independent of the others. So examples RECUR between the three
batches of a step: small clients could not fill three disjoint ones (50 examples, 20 per
batch), and one rule serves clients of all sizes. A client with at most `batch_size`
examples uses all of them three times: its gradients are exact, but those of a training
set adapted to and judged on the same examples. Limits: a = 0 is FedAvg with tau such
batches; all three kinds of h agree there; on quadratics `finite_difference` is `exact`.

Reference: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020. Deviations: the
difference is `e = difference / ||g||` (paper: e itself), so that the perturbation has
one size whatever the gradient's, which float32 needs; `exact` is not in the paper; the
mean is weighted by examples (theirs: uniform, which `aggregator=Mean()` gives).
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct
from fedjax_pfl.local import minibatch_scan

__all__ = ["PerFedAvg", "difference_product", "hessian_product"]


Gradient = Callable[[Any], Any]


def hessian_product(
    gradient: Gradient, params: core.Params, direction: core.Tree
) -> core.Params:
    """Returns the Hessian times a direction `[*P]`, forward over reverse."""
    return jax.jvp(gradient, (params,), (direction,))[1]


def difference_product(
    gradient: Gradient,
    params: core.Params,
    direction: core.Tree,
    difference: core.Scalar,
) -> core.Params:
    """Approximates the product `[*P]` from two gradients; zeros give zeros."""
    norm = jnp.sqrt(sum(jnp.sum(d * d) for d in jax.tree.leaves(direction)))
    # e = difference / ||g||: one size of perturbation, whatever the gradient's.
    size = difference / jnp.where(norm > 0, norm, 1)
    ahead = gradient(common.stepped(params, direction, size))
    behind = gradient(common.stepped(params, direction, -size))
    return jax.tree.map(lambda p, m: (p - m) / (2 * size), ahead, behind)


@struct.pytree_dataclass
class PerFedAvg(base.SingleExchange):
    """Personalized federated averaging (MAML over clients).

    Attributes:
      inner_learning_rate: `[]` a, at least 0: of the step that adapts.
      learning_rate: `[]` b, > 0: of the local steps.
      difference: `[]` norm of the perturbation of `finite_difference`, > 0.
      num_steps: tau, local steps per round. A straggler's budget of epochs caps them:
        each step counts as one epoch.
      batch_size: examples in each of the three batches.
      hessian: `first_order`, `finite_difference` or `exact`.
      adapt_steps: steps of size a, over all training examples, before the personal
        model is evaluated.
    """

    inner_learning_rate: Any = struct.traced_field(
        default=0.01, at_least=0, search=(0.001, 3.0)
    )
    learning_rate: Any = struct.traced_field(
        default=0.001, above=0, search=(0.001, 3.0)
    )
    difference: Any = struct.traced_field(
        default=1e-3, above=0, unsearched="of a difference quotient"
    )
    num_steps: int = struct.static_field(default=10, at_least=1)
    batch_size: int = struct.static_field(default=20, at_least=1)
    hessian: Literal["first_order", "finite_difference", "exact"] = "first_order"
    adapt_steps: int = struct.static_field(default=1, at_least=1)

    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"

    def first(self, params: core.Params):
        """Starts the server from one network; clients have no state."""
        return params, None, None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Takes local steps on the client's meta objective."""
        plain = local.DataLoss(model)
        gradient = jax.grad(plain, argnums=1)
        with_statistics = jax.grad(plain.with_statistics, argnums=1, has_aux=True)
        a = self.inner_learning_rate

        def step(step_key: core.Key, carry: core.Tree, batches: tuple[core.Batch, ...]):
            w, running = carry
            # Numbers below 3 belong to the batches' own draws.
            keys = [jax.random.fold_in(step_key, 3 + i) for i in range(len(batches))]
            batches = tuple(batch.with_statistics(running) for batch in batches)
            # wt = w - a grad f_i(w; D), and g = grad f_i(wt; D').
            inner = gradient(keys[0], w, batches[0], None)
            adapted = common.stepped(w, inner, -a)
            g, running = with_statistics(keys[1], adapted, batches[1], None)
            if self.hessian == "first_order":
                return common.stepped(w, g, -self.learning_rate), running

            def third(v: core.Params) -> core.Params:
                return gradient(keys[2], v, batches[2], None)

            # w <- w - b (g - a h), with h about Hess f_i(w; D'') g.
            if self.hessian == "exact":
                h = hessian_product(third, w, g)
            else:
                h = difference_product(third, w, g, self.difference)
            direction = common.stepped(g, h, -a)
            return common.stepped(w, direction, -self.learning_rate), running

        parts = 2 if self.hessian == "first_order" else 3
        (w, running), info = local.local_scan(
            view,
            step,
            (down.shared, view.data.statistics),
            batch_size=self.batch_size,
            epochs=self.num_steps,
            batches_per_step=parts,
            sampler=minibatch_scan.independent_batch,
            epoch_steps=1,
            dtype=minibatch_scan.params_dtype(down.shared),
        )
        # The third batch costs two gradients, or a product that costs as much.
        evaluations = info.num_examples // parts * (2 if parts == 2 else 4)
        report = core.Report(
            values={"gradient_evaluations": evaluations},
            steps=info.num_steps,
            statistics=running,
        )
        return client, view.upload(w), report

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the global model adapted to the client, and as it is."""
        objective = local.DataLoss(model)
        adapted = server
        for _ in range(self.adapt_steps):
            _, gradient = local.full_value_and_gradient(
                objective, adapted, None, view.data
            )
            adapted = common.stepped(adapted, gradient, -self.inner_learning_rate)
        networks = {"personal": adapted, "global": server}
        return base.model_predictors(view, model, networks)
