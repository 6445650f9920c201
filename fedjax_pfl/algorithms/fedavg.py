"""FedAvg: the mean of models trained locally from the server's (McMahan et al. 2017).

Problem: `min_w sum_i (n_i / n) f_i(w)`. Round: members start from `w^t`, take local
epochs of SGD, and `w^{t+1} = sum_S n_i theta_i / sum_S n_i`.

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| theta_i | message | `[*P]` per member |

Limits: one client gives plain SGD; identical clients with full batches give SGD on one.
Deviation: the fine-tuned global model, which other papers call a personalized baseline,
is a predictor here (`fine_tune`), because it changes nothing in the training.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, common, global_model
from fedjax_pfl.core import checks, client_rows, struct

__all__ = ["Centralized", "FedAvg", "Local"]


@struct.pytree_dataclass
class FedAvg(global_model.GlobalModel):
    """Federated averaging.

    Attributes:
      local: local solver.
      weighting: `examples` (weights n_i) or `uniform`.
      drop_stragglers: whether stragglers' messages are dropped (the published rule).
      fine_tune: local solver run from the global model before evaluation, on the
        client's training data, or None; adds the predictor `fine-tuned`.
      keeps_local: whether clients keep the model that they trained last, which is then
        the predictor `personal`; see `global_model`.
    """

    local: Any = local.SGD()
    weighting: str = struct.static_field(default="examples")
    drop_stragglers: bool = struct.static_field(default=True)
    fine_tune: Any = None
    keeps_local: bool = struct.static_field(default=False)

    def __post_init__(self):
        checks.known(self.weighting, ("examples", "uniform"), "weighting")
        checks.boolean("keeps_local", self.keeps_local)

    def default_aggregator(self) -> core.Aggregator:
        """Returns the weighted or uniform mean."""
        if self.weighting == "uniform":
            return aggregators.Mean()
        return aggregators.WeightedMean()

    server_is_model = True  # clients start from w, their models are averaged into it

    def client_update(self, key, round, work, down, client, model, data):
        """Trains from the received model; stragglers' messages may be dropped."""
        client, upload, report = super().client_update(
            key, round, work, down, client, model, data
        )
        if self.drop_stragglers:
            weight = jnp.where(work.straggler, 0, upload.weight)
            upload = dataclasses.replace(upload, weight=weight)
        return client, upload, report

    def predictors(self, key, round, server, client, model, data):
        """Returns the global model and, if asked for, its tuned and the local one."""
        found = super().predictors(key, round, server, client, model, data)
        if self.fine_tune is not None:
            tuned, _, _ = self.fine_tune.solve(
                key, common.unlimited(round), local.DataLoss(model), server, None, data
            )
            found["fine-tuned"] = base.model_predictor(model, tuned, data.constants)
        return found


@struct.pytree_dataclass
class Local(base.SingleExchange):
    """Every client alone, from the common initial network; nothing is sent.

    Attributes:
      local: local solver.
    """

    local: Any = local.SGD()

    aggregates = False  # nothing is sent

    def init(self, key, model, population, data):
        """Draws one network, copied to all clients."""
        return None, model.init(key), None

    def client_update(self, key, round, work, down, client, model, data):
        """Trains from the client's own model."""
        objective = local.DataLoss(model)
        theta, _, info = self.local.solve(key, work, objective, client, None, data)
        upload = core.Upload(message=None, weight=base.example_weight(data, theta))
        return theta, upload, info.report()

    def parameters(self, server, client):
        """Returns the client's own model."""
        return {"personal": client}


@struct.pytree_dataclass
class Centralized(base.SingleExchange):
    """One server that holds everybody's training data: the bound without federation.

    Every round trains on the union of all clients' examples, whoever takes part;
    nothing is uploaded, so attacks on messages do not act (poisoned labels do).

    Attributes:
      local: local solver, run on the union.
    """

    local: Any = local.SGD()

    aggregates = False  # nothing is sent

    def init(self, key, model, population, data):
        """Draws one network."""
        if data.noise_scale is not None:
            raise checks.InputError(
                "Centralized training cannot pool clients with feature noise of "
                "their own."
            )
        return model.init(key), None, None

    reads = "all"  # trains on all clients' examples, whoever takes part

    def round(self, state, link):
        """Trains on the union of all clients' examples."""
        data = _union(link.federation.train)
        server, _, info = self.local.solve(
            link.ctx.key,
            common.unlimited(link.ctx.round),
            local.DataLoss(link.model),
            state.server,
            None,
            data,
        )
        state = dataclasses.replace(state, server=server)
        report = {"gradient_evaluations": info.num_examples[None]}
        return state, link.info(report, {}, floats_up=0, floats_down=0)

    def parameters(self, server, client):
        """Returns the trained model."""
        return {"global": server}


def _union(data: core.ClientData) -> core.ClientData:
    """Joins all clients' examples into one client; padding goes to the end."""
    slots = data.index.shape[1]
    real = jnp.arange(slots)[None, :] < data.num_examples[:, None]
    order = jnp.argsort(~real.reshape(-1), stable=True)
    fields = client_rows.take(
        jax.tree.map(lambda leaf: leaf.reshape(-1), (data.index, data.labels)), order
    )
    return data.with_rows(
        {
            "index": fields[0],
            "labels": fields[1],
            "num_examples": data.num_examples.sum(),
            "client_id": jnp.zeros((), jnp.int32),
        }
    )
