"""FedMGDA+: a server step along which, as far as allowed, all members descend.

Problem: `min_w (f_1(w), ..., f_N(w))`, Pareto stationary points of all losses at once.
Round: members start from `w^t`, train locally to w_i, and

    g_i     = (w^t - w_i) / ||w^t - w_i||
    lam     = argmin ||sum_i lam_i g_i||^2   over sum(lam) = 1 and
              max(0, n_i / n - eps) <= lam_i <= min(1, n_i / n + eps)
    w^{t+1} = w^t - e sum_i lam_i g_i

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| w_i | message; with `keeps_local` also `clients` | `[*P]` per member |
| eps | `eps` | `[]` |
| e | `server_learning_rate` | `[]` |

The message is the model itself, so that attacks act about w as with FedAvg; the server
takes differences and lengths. A round moves w by at most e, whatever is sent.

Limits: eps = 0 is FedAvg of normalized updates, eps = 1 multiple gradient descent, with
steps that descend for every member; eps = 0 and e = 1 without normalization is FedAvg
that keeps what stragglers send.

Reference: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective
Optimization", IEEE Transactions on Network Science and Engineering 2022. Deviations:
members are weighted by examples where the paper has equal weights; updates below 1e-6
take no part, since they have no direction; a public version of the quadratic program
has the sign of the lower bounds wrong.
"""

from fedjax_pfl import aggregators, core
from fedjax_pfl.algorithms import global_model
from fedjax_pfl.core import struct

__all__ = ["FedMGDA"]


@struct.pytree_dataclass
class FedMGDA(global_model.GlobalModel):
    """Federated multiple gradient descent.

    Its rule is an aggregator, `aggregators.CommonDescent`; another one in its place
    makes the method FedAvg with that rule. The step has length at most e per round, so
    e decides how near a training comes: published comparisons take 1, or the clients'
    learning rate.

    Attributes:
      eps: `[]` in [0, 1], how far weights may be from the shares of the examples.
      server_learning_rate: `[]` e > 0.
      normalize: static, whether updates are brought to length 1; False is FedMGDA.
    """

    eps: float = struct.traced_field(
        default=0.1, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    server_learning_rate: float = struct.traced_field(
        default=1.0, above=0, search=(0.1, 10.0)
    )
    normalize: bool = struct.static_field(default=True)

    def default_aggregator(self) -> core.Aggregator:
        """Returns a step of common descent."""
        return aggregators.CommonDescent(
            eps=self.eps,
            learning_rate=self.server_learning_rate,
            normalize=self.normalize,
        )
