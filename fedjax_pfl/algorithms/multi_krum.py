"""Multi-Krum: FedAvg with a mean of the messages nearest to most others.

Problem: `min_w (1 / |H|) sum_{i in H} f_i(w)` over the unknown honest clients
H. Round: members start from `w^t` and train locally, as in FedAvg; of the n
messages v_i, f of them assumed malicious, with the scores

    s_i = sum over the n - f - 2 nearest v_j, j != i, of ||v_i - v_j||^2,

`w^{t+1}` is the plain mean of the n - f messages of lowest score (`aggregators.krum`).

| symbol | field | shape |
|---|---|---|
| w | `server` | `[*P]` |
| v_i | message | `[*P]` per member |
| f | `num_malicious` or `malicious_fraction` | `[]` |

The guarantee of Krum, 2 f + 3 <= n, is not demanded here, since published comparisons
run the method with 50 % and 80 % of malicious clients: there a score has one neighbor,
attackers that send nearly the same win, and nothing is promised.

Limits: with f = 0 everything is selected and it is FedAvg with a uniform mean that
keeps stragglers.

Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent". Deviations: f is a rounded share of the cohort, as
the number of malicious clients is, where releases round down; `official` is the helper
in FLAME's release, whose distances are not squared and which keeps five messages. As no
rule can tell a straggler from others, their messages count.
"""

from typing import Any

from fedjax_pfl import aggregators, core
from fedjax_pfl.algorithms import global_model
from fedjax_pfl.core import struct

__all__ = ["MultiKrum"]


@struct.pytree_dataclass
class MultiKrum(global_model.GlobalModel):
    """Federated averaging of the messages that multi-Krum selects.

    Before anything is traced, f >= K is refused.

    Attributes:
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the cohort, rounded; or None. Without
        either f is the largest with 2 f + 3 <= n.
      num_selected: static, messages that are averaged, None for n - f.
      squared: static, whether distances are squared.
      guarantee: static, whether 2 f + 3 <= K is demanded.
    """

    num_malicious: float | None = struct.traced_field(
        default=None, at_least=0, unsearched="an assumption about attackers"
    )
    malicious_fraction: float | None = struct.static_field(
        default=None, at_least=0, at_most=1
    )
    num_selected: int | None = struct.static_field(default=None, at_least=1)
    squared: bool = struct.static_field(default=True)
    guarantee: bool = struct.static_field(default=False)

    def __post_init__(self):
        self.default_aggregator()  # which checks the fields

    @classmethod
    def official(cls, **fields: Any) -> "MultiKrum":
        """Builds the helper of FLAME's release: unsquared distances, five messages."""
        return cls(**{"squared": False, "num_selected": 5, **fields})

    def default_aggregator(self) -> core.Aggregator:
        """Returns multi-Krum."""
        return aggregators.Krum(
            num_malicious=self.num_malicious,
            malicious_fraction=self.malicious_fraction,
            num_selected=self.num_selected,
            squared=self.squared,
            guarantee=self.guarantee,
        )
