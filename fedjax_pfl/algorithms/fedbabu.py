"""FedBABU: a body trained under a fixed random head (Oh, Kim, Yun 2022).

Problem: `min_b sum_i (n_i / n) f_i(b, h)` in the body b alone, with a head h that is
drawn once and is the same for all. Round t, a member i:

    b_i     <- local SGD on f_i(., h) from b^t                    h is never trained
    b^{t+1}  = sum_S n_i b_i / sum_S n_i

Before evaluation a client fine-tunes (b^t, h) on its training examples: the whole
network, the head alone, or the body alone (`tuned_part`). The federation never sees the
result.

| symbol | field | shape |
|---|---|---|
| b | `server` | `[*P]` of the body's leaves, None in place of the head's |
| h | `clients`, the same in every row | `[N, *P]` of the head's leaves |
| b_i | message | `[*P]` per member, like `server` |

Only the body is differentiated, decayed and sent: attacks, aggregators and counts of
bytes see nothing of the head. Stragglers' partial work counts. Limits: without
fine-tuning it is FedAvg that keeps stragglers, of the model with a frozen head
(`ParameterRoles(frozen="^head/")`); if `fine_tune` moves no parameter, `fine-tuned` is
`global`.

Reference: Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022. It fine-tunes the whole network by default, as here, and
compares the head and the body alone. Deviation: fine-tuning takes epochs of any solver
(`fine_tune`); the paper's number of epochs is the default.
"""

from typing import Literal

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import base
from fedjax_pfl.core import ClientView, Downlink, Model, struct, tree_paths

__all__ = ["FedBABU"]


@struct.pytree_dataclass
class FedBABU(base.PersonalHead):
    """Federated averaging with body aggregation and body update.

    Attributes:
      head: regular expression searched in the names of parameters (`head/kernel`); the
        parameters that it finds stay as drawn. Some must be found, and some left over.
      local: local solver of the body.
      fine_tune: local solver run from the global network before evaluation, on the
        client's training data; makes the predictor `fine-tuned`.
      tuned_part: static, part of the network that it trains: `whole`, `head` or `body`.
    """

    fine_tune: core.Solver = local.SGD(epochs=5)
    tuned_part: Literal["whole", "head", "body"] = "whole"

    server_is_model = True  # clients start from the body, their copies are averaged
    released = "the body"
    uploads_through = "local"

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains the body under the head."""
        objective = local.DataLoss(model, network=tree_paths.join)
        body, _, info = self.local.solve(view, objective, down.shared, client)
        return client, view.upload(body), info.report()

    def predictors(
        self,
        view: ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: Model,
    ):
        """Returns the global network, and this network fine-tuned."""
        network = tree_paths.join(client, server)
        trained, fixed = {
            "whole": (network, None),
            "head": (client, server),
            "body": (server, client),
        }[self.tuned_part]
        # The whole network is trained without a fixed part to join.
        join = None if self.tuned_part == "whole" else tree_paths.join
        objective = local.DataLoss(model, network=join)
        tuned, _, info = self.fine_tune.solve(view, objective, trained, fixed)
        if join is not None:
            tuned = join(tuned, fixed)
        networks = {"global": network, "fine-tuned": local.whole(view, tuned, info)}
        return base.model_predictors(view, model, networks)
