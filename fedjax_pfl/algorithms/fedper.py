"""FedPer: a common body, and a head that stays with its client (Arivazhagan 2019).

Problem: `min_{b, h_1..h_N} sum_i (n_i / n) f_i(b, h_i)`. Round t, a member i:

    (b_i, h_i) <- local SGD on f_i, jointly, from (b^t, h_i)      body and head
    u_i         = b_i                                             the upload
    b^{t+1}     = sum_S n_i b_i / sum_S n_i

| symbol | field | shape |
|---|---|---|
| b | `server` | `[*P]` of the body's leaves, None in place of the head's |
| h_i | `clients` | `[N, *P]` of the head's leaves, None in place of the body's |
| b_i | message | `[*P]` per member, like `server` |

All heads start from the one drawn network, so the row of a client that was never
selected is that first head, and the server keeps no copy of it. Only bodies travel: an
attack replaces bodies, and aggregators see nothing of the heads. Limits: identical
clients with full batches have equal heads, and FedPer is FedAvg; where the clients'
gradients do not depend on the head, the body is FedAvg's; one client trains alone.

Reference: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with
Personalization Layers", arXiv:1912.00818. The authors have no public code.
"""

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import ClientView, Downlink, Model, struct, tree_paths

__all__ = ["FedPer"]


@struct.pytree_dataclass
class FedPer(base.PersonalHead):
    """Federated training with personalization layers.

    Attributes:
      head: regular expression searched in the names of parameters (`head/kernel`);
        what it finds stays with the clients. Some must be found, and some left over.
      local: local solver, run on body and head together.
    """

    server_is_model = True  # clients start from the body, their copies are averaged
    released = "the body"
    uploads_through = "local"

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains both parts; the body is sent."""
        start = tree_paths.join(client, down.shared)
        theta, _, info = self.local.solve(view, local.DataLoss(model), start)
        head, body = tree_paths.split(theta, self.head)
        return head, view.upload(body), info.report()

    def parameters(self, server: core.ServerState, client: core.ClientState):
        """Returns the latest body under the client's own head."""
        return {"personal": tree_paths.join(client, server)}
