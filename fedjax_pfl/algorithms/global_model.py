"""Methods that train one global model, with local models for comparisons."""

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["GlobalModel"]


@struct.pytree_dataclass
class GlobalModel(base.SingleExchange):
    """A method with one model as server state; abstract.

    Attributes:
      local: local solver.
      keeps_local: whether clients keep the model that they trained last, which is then
        their `personal` predictor; else they have no state.
    """

    local: core.Solver = local.SGD()
    keeps_local: bool = struct.static_field(default=False)

    def kept(self, theta: core.Params) -> core.ClientState:
        """Returns what ONE client keeps of its model `theta [*P]`: this or None."""
        # Its model before aggregation, for comparisons with personal models. No hook
        # reads it in the training, and no attack replaces it.
        return theta if self.keeps_local else None

    def first(self, params: core.Params):
        """Starts the server, and clients that keep models, from one network."""
        return params, self.kept(params), None

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received model."""
        theta, _, info = self.local.solve(view, local.DataLoss(model), down.shared)
        return self.kept(theta), view.upload(theta), info.report()

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the global model, and the local one if it is kept."""
        return {"global": server} | ({"personal": client} if self.keeps_local else {})
