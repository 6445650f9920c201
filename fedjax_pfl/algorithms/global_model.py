"""Methods that train one global model: its start, and what clients keep.

Such a method has no personal models. Comparisons with methods that have some take what
a member trained in a round for its own model: the local model before aggregation, from
the last round in which the client took part, and the first network if there was none.
It is client state, so that it costs one model per client, and nothing reads it in the
training: rounds are bit-identical with and without. What an attack replaces is the
message, not this.
"""

from typing import Any

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base

__all__ = ["GlobalModel"]


class GlobalModel(base.SingleExchange):
    """A method whose server state is one model; abstract.

    Attributes:
      local: local solver.
      keeps_local: static, whether clients keep the model that they trained last, which
        is then their `personal` predictor; else they have no state.
    """

    local: Any
    keeps_local: bool

    def kept(self, theta: Any) -> Any:
        """Returns what ONE client keeps of its model `theta [*P]`: this or None."""
        return theta if self.keeps_local else None

    def init(self, key, model, population, data):
        """Draws one network, for the server and for clients that keep models."""
        params = model.init(key)
        return params, self.kept(params), None

    def client_update(self, key, round, work, down, client, model, data):
        """Trains from the received model."""
        theta, _, info = self.local.solve(
            key, work, local.DataLoss(model), down.shared, None, data
        )
        upload = core.Upload(message=theta, weight=base.example_weight(data, theta))
        return self.kept(theta), upload, info.report()

    def parameters(self, server, client):
        """Returns the global model, and the local one where it is kept."""
        return {"global": server} | ({"personal": client} if self.keeps_local else {})
