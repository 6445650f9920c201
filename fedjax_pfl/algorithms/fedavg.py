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
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.algorithms import base, global_model
from fedjax_pfl.core import (
    ClientView,
    Downlink,
    Model,
    checks,
    client_rows,
    struct,
)
from fedjax_pfl.round.exchange import Exchange

__all__ = ["Centralized", "FedAvg", "Local"]


@struct.pytree_dataclass
class FedAvg(global_model.GlobalModel):
    """Federated averaging.

    Attributes:
      weighting: `examples` (weights n_i) or `uniform`.
      drop_stragglers: whether stragglers' messages are dropped (the published rule).
      fine_tune: local solver run from the global model before evaluation, on the
        client's training data, or None; adds the predictor `fine-tuned`.
    """

    weighting: Literal["examples", "uniform"] = "examples"
    drop_stragglers: bool = struct.static_field(default=True)
    fine_tune: core.Solver = None

    def default_aggregator(self) -> core.Aggregator:
        """Returns the weighted or uniform mean."""
        if self.weighting == "uniform":
            return aggregators.Mean()
        return aggregators.WeightedMean()

    layered = ("local.learning_rate", "local.weight_decay")
    server_is_model = True  # clients start from w, their models are averaged into it
    released = "the global model"
    uploads_through = "local"

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model; stragglers' messages may be dropped."""
        client, upload, report = super().client_update(view, down, client, model)
        if self.drop_stragglers:
            # A message of weight 0 takes no part in the mean.
            weight = jnp.where(view.work.straggler, 0, upload.weight)
            upload = dataclasses.replace(upload, weight=weight)
        return client, upload, report

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the global model and, if asked for, its tuned and the local one."""
        networks = self.parameters(server, client)
        if self.fine_tune is not None:
            tuned, _, info = self.fine_tune.solve(view, local.DataLoss(model), server)
            networks["fine-tuned"] = local.whole(view, tuned, info)
        return base.model_predictors(view, model, networks)


@struct.pytree_dataclass
class Local(base.SingleExchange):
    """Every client alone, from the common initial network, without messages.

    Attributes:
      local: local solver.
    """

    local: core.Solver = local.SGD()

    aggregates = False  # nothing is sent
    shares_statistics = False
    uploads_through = "local"

    def first(self, params: core.Params):
        """Copies one network to all clients."""
        return None, params, None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the client's own model."""
        theta, _, info = self.local.solve(view, local.DataLoss(model), client)
        return theta, view.upload(None), info.report()

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the client's own model."""
        return {"personal": client}


@struct.pytree_dataclass
class Centralized(base.SingleExchange):
    """One server with all clients' training data: the bound without federation.

    Every round trains on the union of all clients' examples, whoever takes part;
    nothing is uploaded, so attacks on messages do not act (poisoned labels do).

    Attributes:
      local: local solver, run on the union.
    """

    local: core.Solver = local.SGD()

    aggregates = False  # nothing is sent

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Draws one network."""
        if data.noise_scale is not None:
            raise checks.InputError(
                "Centralized training cannot pool clients with feature noise of "
                "their own."
            )
        if data.personal is not None or model.local_statistics:
            raise checks.InputError(
                "Expected a model without personal parameters or local statistics for"
                " Centralized, whose training has one client."
            )
        return model.init(key), None, None

    reads = "all"  # trains on all clients' examples, whoever takes part

    def round(self, state: core.State, exchange: Exchange):
        """Trains on the union of all clients' examples."""
        data, loss = _union(exchange.federation.train), local.DataLoss(exchange.model)
        view = core.ClientView(
            key=exchange.ctx.key, round=exchange.ctx.round, data=data
        )
        server, _, info = self.local.solve(view, loss, state.server)
        state = dataclasses.replace(state, server=server)
        counts = {
            "gradient_evaluations": info.num_examples,
            "client_steps": info.num_steps,
        }
        totals = core.Report(values=counts, statistics=info.statistics)
        # Reports have rows of a cohort; here it has one.
        report = jax.tree.map(lambda leaf: leaf[None], totals)
        return state, exchange.info(report, {}, bytes_up=0, bytes_down=0)

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the trained model."""
        return {"global": server}


def _union(data: core.ClientData) -> core.ClientData:
    """Joins all clients' examples into one client; padding goes to the end."""
    slots = data.index.shape[1]
    real = jnp.arange(slots)[None, :] < data.num_examples[:, None]
    # A stable sort moves padding only: examples keep the order of clients.
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
