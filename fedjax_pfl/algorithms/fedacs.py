"""FedACS: each client starts from the models most similar to its own (attention).

Motivation: `min_W sum_i F_i(w_i) + lam sum_ij s_ij ||w_i - w_j||^2` with similarities
s_ij. Definition: one round for the cohort P of m clients, on their last models,

    S_ij  = <w_i, w_j> / (||w_i|| ||w_j||)                       i, j in P
    delta = pick_quantile-quantile of all m^2 entries of S, interpolated
    a_ij  = S_ij where S_ij > delta or i = j, else 0
    u_i   = sum_j a_ij w_j / sum_j a_ij                          (4)
    w_i   = local steps on F_i, started at (1 - a) w_i + a u_i   (5)

| symbol | field | shape |
|---|---|---|
| w_i | `clients`, `messages` | `[N, *P]` |
| w^0, the common first model | `server` | `[*P]` |
| p (pq) | `pick_quantile` | `[]` |
| a | `mixing` | `[]` |

The server mixes the models it received; clients outside the cohort keep theirs. There
is no global model and no aggregate: an aggregator has no effect.

Limits: a = 0 is Local; so is `pick_quantile >= 1 - 1/(m - 1)`, because cosines come in
equal pairs and then delta is at least the largest of them. Fixed points satisfy
`grad F(U) + (a / beta) (I - A) W = 0` for local gradient steps of size beta: a / beta
plays the role of lam.

Reference: Chen, Li, Shen, "Personalized Federated Learning with Attention-based Client
Selection". Deviations, where the paper is silent or fails: a client always selects
itself, because equal models have no entry above delta (0/0); negative weights are
clipped, because the sum of a row could vanish (`negative="keep"` keeps them, and a
client its own model where the sum is below 1e-6); `similarity="update"` compares
`w_i - w^0`, because models that share w^0 have cosines near 1 whatever they learned;
a < 1 keeps a part of the own model.
"""

import warnings
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms.similarity import Mixing, cosine_range, cosines
from fedjax_pfl.core import ClientView, Downlink, Model, struct

__all__ = ["FedACS", "selection_threshold"]

_Negative = Annotated[Literal["clip", "keep"], "treatment of negative cosines"]
_SMALLEST_SUM = 1e-6  # of a row's weights, below which a client keeps its own model


def selection_threshold(similarities: jax.Array, quantile: core.Scalar) -> jax.Array:
    """Interpolates a quantile `[]` in [0, 1] of all entries of a matrix `[K, K]`."""
    ordered = jnp.sort(similarities.reshape(-1))
    last = ordered.shape[0] - 1
    position = jnp.asarray(quantile, ordered.dtype) * last
    below = jnp.clip(jnp.floor(position).astype(jnp.int32), 0, last)
    low, high = ordered[below], ordered[jnp.minimum(below + 1, last)]
    value = low + (position - below.astype(position.dtype)) * (high - low)
    # Between equal entries exactly these: no pair exceeds a threshold made of itself.
    return jnp.minimum(value, high)


@struct.pytree_dataclass
class FedACS(Mixing):
    """Federated attention-based client selection.

    Attributes:
      pick_quantile: `[]` in [0, 1), paper's p: the share of pairs that are too
        different, so that about `(1 - p) m` models are mixed; a traced value outside
        acts like the nearer end.
      mixing: `[]` a in [0, 1], the weight of the mixture against the own model.
      local: local solver, started at the mixture.
      similarity: cosines of `parameters` (the paper) or of the `update` from the common
        first model.
      negative: negative cosines above the threshold `clip` to 0, or `keep`.
    """

    pick_quantile: Any = struct.traced_field(
        default=0.8, at_least=0, below=1, search=(0.0, 0.95, False)
    )
    mixing: Any = struct.traced_field(
        default=1.0, at_least=0, at_most=1, search=(0.0, 1.0, False)
    )
    local: core.Solver = local.SGD()
    similarity: Literal["parameters", "update"] = "parameters"
    negative: _Negative = "clip"
    chooses: ClassVar[str] = "which clients are similar"

    def check_cohort(self, size: int) -> None:
        """Warns of a quantile with which no client selects another; before tracing.

        Args:
          size: K, clients per round.
        """
        limit = 1 - 1 / max(size - 1, 1)
        if self.pick_quantile >= limit:
            warnings.warn(
                f"With K={size} clients per round and pick_quantile="
                f"{float(self.pick_quantile):g}, at least 1 - 1/(K - 1) = {limit:g}, "
                "no client selects another one and FedACS is Local.",
                stacklevel=2,
            )

    def cohort_weights(
        self, round: jax.Array, server: core.ServerState, models: core.Message
    ):
        """Returns the weights with which one cohort's clients mix, equation (4).

        Args:
          round: unused.
          server: pytree of `[*P]`, the common first model.
          models: pytree of `[K, *P]`.

        Returns:
          `[K, K]` with rows of sum 1 (`(1 - a) I + a A`), and a report: `threshold`,
          `neighbours` (models mixed per client, its own included),
          `smallest_cosine` and `largest_cosine` of different clients.
        """
        compared = models
        if self.similarity == "update":
            compared = jax.tree.map(lambda x, w: x - w[None], models, server)
        similarities = cosines(compared)
        diagonal = jnp.eye(similarities.shape[0], dtype=bool)
        threshold = selection_threshold(similarities, self.pick_quantile)
        # a_ij of equation (4). A client selects itself: of equal models no entry is
        # above delta, and 0/0 would follow.
        attention = jnp.where((similarities > threshold) | diagonal, similarities, 0)
        if self.negative == "clip":
            attention = jnp.maximum(attention, 0)
        total = attention.sum(axis=1, keepdims=True)
        # With `negative="keep"` weights can cancel: such a client keeps its own model.
        alone = jnp.abs(total) < _SMALLEST_SUM
        identity = diagonal.astype(attention.dtype)
        attention = jnp.where(alone, identity, attention / jnp.where(alone, 1, total))
        report = {
            "threshold": threshold,
            "neighbours": (attention != 0).sum(axis=1).astype(threshold.dtype).mean(),
            **cosine_range(similarities),
        }
        # (1 - a) w_i + a u_i of equation (5) is one mixture.
        return (1 - self.mixing) * identity + self.mixing * attention, report

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Trains from the received mixture, equation (5)."""
        theta, _, info = self.local.solve(view, local.DataLoss(model), down.per_client)
        return theta, view.upload(theta), info.report()
