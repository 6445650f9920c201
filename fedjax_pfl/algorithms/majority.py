"""The majority class: every client predicts its own most frequent label, always.

No training and no messages: the bar for methods if clients have few classes. The
outputs are logarithms of smoothed frequencies, `log((n_c + 1) / (n + C))`, so that the
loss is finite for labels that a client has not seen; ties go to the lower class. A
saved model of a client has these `logits [C]`.

| symbol | field | shape |
|---|---|---|
| n_c | examples of class c among the client's training examples | `[C]` |
"""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms import base, common
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["Majority"]


@struct.pytree_dataclass
class Majority(base.SingleExchange):
    """The most frequent label of every client; a bound from below, not a method."""

    aggregates = False  # nothing is sent
    shares_statistics = False

    def init(
        self,
        key: core.Key,
        model: Model,
        population: core.Population,
        data: core.ClientData,
    ):
        """Starts without a state; refuses models without classes."""
        common.check_classes("Majority", model)
        return None, None, None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Does no work."""
        none = jnp.zeros((), jnp.int32)
        report = core.Report(
            values={"gradient_evaluations": none, "client_steps": none},
            carry=view.data.personal,
            statistics=view.data.statistics,
        )
        return client, view.upload(None), report

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the smoothed frequencies, whatever the input."""
        counts = common.class_counts(
            view.data, model.num_classes or 0, jnp.zeros(()).dtype
        )
        # Argmax takes the first of equal entries: ties go to the lower class.
        logits = jnp.log((counts + 1) / (counts + 1).sum())
        return {"personal": core.Predictor(_repeated, {"logits": logits})}


def _repeated(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Repeats the logits for every input."""
    return jnp.broadcast_to(params["logits"], (len(x), len(params["logits"])))
