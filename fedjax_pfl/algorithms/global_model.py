"""What methods share that train one global model: its start, and what clients keep.

Such a method has no personal models. Comparisons with methods that have some take what
a member trained in a round for its own model: the local model before aggregation, from
the last round in which the client took part, and the first network if there was none.
It is client state, so that it costs one model per client, and nothing reads it in the
training: rounds are bit-identical with and without. What an attack replaces is the
message, not this.
"""

from typing import Any

from fedjax_pfl.algorithms import base

__all__ = ["GlobalModel"]


class GlobalModel(base.SingleExchange):
    """A method whose server state is one model; abstract.

    Attributes:
      keeps_local: static, whether clients keep the model that they trained last, which
        is then their `personal` predictor; else they have no state.
    """

    keeps_local: bool

    def kept(self, theta: Any) -> Any:
        """State of ONE client that has trained `theta [*P]`: this or None."""
        return theta if self.keeps_local else None

    def init(self, key, model, population, data):
        """One drawn network at the server, and with the clients that keep models."""
        del population, data
        params = model.init(key)
        return params, self.kept(params), None

    def predictors(self, key, round, server, client, model, data):
        """The global model, and the local one where it is kept."""
        del key, round
        found = {"global": base.model_predictor(model, server, data.constants)}
        if self.keeps_local:
            found["personal"] = base.model_predictor(model, client, data.constants)
        return found
