"""FedSAM: FedAvg with sharpness-aware local steps (Qu et al., Caldarola et al. 2022).

Problem: `min_w sum_i (n_i / n) max_{||e|| <= rho} f_i(w + e)`, a model in a flat
neighborhood of every client's loss. A local step on a batch B, from `w = w^t`:

    g  = grad f_i(w; B)
    e  = rho g / ||g||             the maximizer, to first order in rho
    w <- w - eta grad f_i(w + e; B)

and `w^{t+1} = sum_S n_i w_i / sum_S n_i`. The norm is that of all shared parameters
together, and e counts as a constant. Both gradients see the same batch and the same
dropout. Stragglers' partial work counts.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| w_i after the local steps | message | `[*P]` per member |

A step costs two gradients, and reports count two. Momentum, weight decay and clipping
of the local solver act on the second gradient; with another solver, such as `Optax`, it
is the base optimizer. Personal parameters of a model descend at `w + e` and are not
perturbed. Running statistics follow the unperturbed model. Limits: at rho = 0 it is
FedAvg that keeps stragglers; for small rho a step descends on `f_i + rho ||grad f_i||`.
A batch with gradient zero has e = 0.

Reference: Qu, Li, Duan, Liu, Tang, Lu, "Generalized Federated Learning via Sharpness
Aware Minimization", ICML 2022; Caldarola, Caputo, Ciccone, "Improving Generalization in
Federated Learning by Seeking Flat Minima", ECCV 2022. Not here: the momentum of
MoFedSAM, the adaptive neighborhood of FedASAM and averages of weights over rounds
(SWA). The mean is weighted by examples; `aggregator=Mean()` gives the plain mean.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import common, global_model
from fedjax_pfl.core import ClientView, Downlink, Model, held, struct

__all__ = ["FedSAM", "ascent"]


def ascent(gradient: core.Tree, rho: core.Scalar) -> core.Params:
    """Returns the step `rho g / ||g||` `[*P]` along a gradient; zeros for zeros."""
    square = optax.tree.norm(gradient, squared=True)
    # One norm over all shared parameters.
    norm = jnp.sqrt(jnp.where(square > 0, square, 1))
    return jax.tree.map(lambda g: (rho / norm).astype(g.dtype) * g, gradient)


@struct.pytree_dataclass
class FedSAM(global_model.GlobalModel):
    """Federated averaging with sharpness-aware minimization.

    Attributes:
      rho: `[]` radius of the neighborhood, at least 0.
    """

    rho: Any = struct.traced_field(default=0.05, at_least=0, search=(0.001, 1.0))

    layered = ("local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"
    uploads_through = "local"

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model by gradients at perturbed points."""
        objective = _Perturbed(local.DataLoss(model), self.rho)
        w, _, info = self.local.solve(view, objective, down.shared)
        # A step costs two gradients.
        info = dataclasses.replace(info, num_examples=2 * info.num_examples)
        return self.kept(w), view.upload(w), info.report()


@dataclasses.dataclass(frozen=True)
class _Perturbed(local.StatefulLoss):
    """A loss at the point at distance rho along its own gradient."""

    loss: local.DataLoss
    rho: core.Scalar

    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and statistics of the unperturbed model."""
        slope = jax.grad(self.loss.with_statistics, argnums=1, has_aux=True)
        # Held, so that the outer gradient has no second derivatives.
        personal = held.held(core.Constants.of(batch.constants).personal)
        fixed = batch.with_personal(personal)
        gradient, running = slope(key, held.held(params), fixed, context)
        # w + e, with e a constant: the gradient there is the step's.
        point = common.stepped(params, ascent(gradient, self.rho), 1)
        return self.loss(key, point, batch, context), (carry, running)
