"""FedAMP and HeurFedAMP: each client is pulled towards a mixture of similar models.

Problem: `min_W sum_i F_i(w_i) + lam sum_{i<j} A(||w_i - w_j||^2)` with
`A(x) = 1 - exp(-x / sigma)`. One round, for the cohort of m clients:

    xi_ij = alpha_k A'(||w_i - w_j||^2) = alpha_k exp(-||w_i - w_j||^2 / sigma) / sigma
    xi_ii = 1 - sum_{j != i} xi_ij
    u_i   = sum_j xi_ij w_j             a gradient step on A; alpha_k absorbs a factor 2
    w_i  ~= argmin F_i(w) + lam / (2 alpha_k) ||w - u_i||^2

HeurFedAMP replaces the weights, and keeps the rest, by

    xi_ij = (1 - xi_ii) softmax over j != i of (sharpness cos(w_i, w_j))

| symbol | field | shape |
|---|---|---|
| w_i | `clients`, `messages` | `[N, *P]` |
| w^0, the common first model | `server` | `[*P]` |
| sharpness (also sigma there), xi_ii | `sharpness`, `self_weight` | `[]` |

The server mixes received models. Without a global model, aggregators have no effect.

Limits: sigma -> inf with alpha / sigma = 1/m gives the plain mean; alpha -> 0 freezes
all models (u_i = w_i with an infinite proximal weight); lam = 0 with
`start="own"` is Local; sharpness = 0 with self weight 1/m is the plain mean.

Reference: Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized Cross-Silo Federated
Learning on Non-IID Data". Deviations: the proximal term is squared and carries a
gradient, as in the paper's text. sigma must be comparable with the squared distances,
or all weights are equal or zero: by default (`scale_free`) sigma is the median squared
distance of the cohort's pairs and alpha = pull sigma / (m - 1). Equal models have
sigma = 0, and lam / alpha would freeze them for ever: the proximal weight is then lam.
"""

import abc
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, local
from fedjax_pfl.algorithms import common, similarity
from fedjax_pfl.core import ClientView, Downlink, Model, checks, struct

__all__ = ["FedAMP", "HeurFedAMP"]

_SCALED = "follows the models' distances (`scale_free`)"


@struct.pytree_dataclass
class _Attentive(similarity.Mixing):
    """Mixes models, then solves a proximal problem about the mixture; abstract.

    Attributes:
      lam: `[]` weight of the attention term, at least 0.
      local: local solver of the proximal problem.
      start: local work starts at the `received` mixture or at the client's `own` model.
    """

    lam: Any = struct.traced_field(default=1.0, at_least=0, search=(0.001, 10.0))
    local: core.Solver = local.SGD()
    start: Literal["received", "own"] = "received"

    @abc.abstractmethod
    def proximal_weight(self, round: jax.Array) -> core.Scalar:
        """Returns the weight `[]` of half the squared distance to the mixture."""

    def client_update(
        self, view: ClientView, down: Downlink, client: core.ClientState, model: Model
    ):
        """Solves the proximal problem about the received mixture."""
        # w_i ~= argmin F_i(w) + weight/2 ||w - u_i||^2.
        weight = self.proximal_weight(view.round)
        objective = common.proximal_objective(model, weight)
        start = down.per_client if self.start == "received" else client
        theta, _, info = self.local.solve(view, objective, start, down.per_client)
        return theta, view.upload(theta), info.report()


@struct.pytree_dataclass
class FedAMP(_Attentive):
    """Federated attentive message passing.

    Attributes:
      lam: `[]` weight of the attention term, at least 0; the proximal weight is
        `lam / alpha_k`, or lam itself if `scale_free`. Local steps must be below
        2 / (smoothness + proximal weight).
      alpha: `[]` first server step alpha_0, > 0, unless `scale_free`.
      alpha_decay: `[]` factor of the server step in (0, 1], unless `scale_free`.
      decay_every: `[]` rounds between two decays, a whole number of at least 1.
      sigma: `[]` squared distance at which attention falls by e, > 0, unless
        `scale_free`. `alpha (K - 1) <= sigma` keeps mixtures convex; if a traced
        value breaks that, rows are scaled down to sum 1 and `convex` reports 0.
      scale_free: sigma and alpha follow the distances of the cohort's models.
      pull: `[]` `alpha (K - 1) / sigma` in (0, 1], if `scale_free`: the share of the
        others in the mixture of K equal models; None for a half.
    """

    alpha: Any = struct.traced_field(default=1e4, above=0, unsearched=_SCALED)
    alpha_decay: Any = struct.traced_field(
        default=0.1, above=0, at_most=1, unsearched=_SCALED
    )
    decay_every: Any = struct.traced_field(default=30, at_least=1, unsearched=_SCALED)
    sigma: Any = struct.traced_field(default=1e6, above=0, unsearched=_SCALED)
    scale_free: bool = struct.static_field(default=True)
    pull: Any = struct.traced_field(
        default=None, above=0, at_most=1, search=(0.05, 1.0), unless=()
    )

    def check_cohort(self, size: int) -> None:
        """Refuses a step with which mixtures need not be convex; before tracing.

        Args:
          size: K, clients per round.

        Raises:
          InputError: if `alpha (K - 1) > sigma`.
        """
        if not self.scale_free:
            name = f"sigma with alpha={self.alpha} and K={size} clients per round"
            checks.number(name, self.sigma, at_least=self.alpha * (size - 1))

    def step(self, round: jax.Array) -> jax.Array:
        """Returns the step of round k, `alpha alpha_decay^floor(k / decay_every)`."""
        periods = round // jnp.asarray(self.decay_every).astype(jnp.int32)
        return self.alpha * jnp.asarray(self.alpha_decay) ** periods

    def proximal_weight(self, round: jax.Array) -> core.Scalar:
        """Returns `lam / alpha_k`, or lam."""
        return self.lam if self.scale_free else self.lam / self.step(round)

    def cohort_weights(
        self, round: jax.Array, server: core.ServerState, models: core.Message
    ):
        """Returns convex weights xi of the cohort's models.

        Args:
          round: `int32[]` round number k.
          server: unused.
          models: pytree of `[K, *P]`.

        Returns:
          `[K, K]`, rows of sum 1, and a report: `sigma`, `alpha`, mean `self_weight`,
          and whether the step was `convex` (1) or had to be cut (0).
        """
        distances = similarity.squared_distances(models)
        count, dtype = distances.shape[0], distances.dtype
        if self.scale_free:
            # xi_ij = share exp(-||w_i - w_j||^2 / sigma) with share = alpha_k / sigma.
            sigma = similarity.median_distance(distances)
            pull = 0.5 if self.pull is None else self.pull
            share = jnp.asarray(pull / max(count - 1, 1), dtype)
        else:
            sigma = jnp.asarray(self.sigma, dtype)
            share = self.step(round) / sigma
        # Equal models have sigma = 0: then A'(0) is 1 and A' of the others is 0.
        is_apart = sigma > 0
        near = jnp.exp(-distances / jnp.where(is_apart, sigma, 1))
        near = jnp.where(is_apart, near, (distances == 0).astype(dtype))
        diagonal = jnp.eye(count, dtype=bool)
        pull = jnp.where(diagonal, 0, share * near)
        total = pull.sum(axis=1)
        # Weights of the others above 1 in sum would leave xi_ii negative.
        pull = pull / jnp.maximum(total, 1)[:, None]
        self_weights = jnp.maximum(1 - pull.sum(axis=1), 0)
        rounding = 1 + count * jnp.finfo(dtype).eps
        return jnp.where(diagonal, self_weights[:, None], pull), {
            "sigma": sigma,
            "alpha": share * sigma,
            "self_weight": self_weights.mean(),
            "convex": (total <= rounding).all(),
        }


@struct.pytree_dataclass
class HeurFedAMP(_Attentive):
    """FedAMP with the softmax of cosines as weights.

    Attributes:
      lam: `[]` weight of the attention term, at least 0; the proximal weight is
        `lam / alpha`. Local steps must be below 2 / (smoothness + proximal weight).
      alpha: `[]` server step, > 0.
      sharpness: `[]` factor of the cosines, at least 0.
      self_weight: `[]` xi_ii in [0, 1], or None for 1/K in a cohort of K clients.
    """

    alpha: Any = struct.traced_field(
        default=1.0, above=0, unsearched="only `lam / alpha` counts"
    )
    sharpness: Any = struct.traced_field(default=25.0, at_least=0, search=(0.3, 300.0))
    self_weight: Any = struct.traced_field(
        default=None, at_least=0, at_most=1, search=(0.0, 1.0, False), unless=()
    )

    def proximal_weight(self, round: jax.Array) -> core.Scalar:
        """Returns `lam / alpha`."""
        return self.lam / self.alpha

    def cohort_weights(
        self, round: jax.Array, server: core.ServerState, models: core.Message
    ):
        """Returns convex weights xi of the cohort's models; one client keeps its own.

        Args:
          round: unused.
          server: unused.
          models: pytree of `[K, *P]`.

        Returns:
          `[K, K]`, rows of sum 1, and the smallest and largest cosine.
        """
        similarities = similarity.cosines(models)
        count = similarities.shape[0]
        eye = jnp.eye(count, dtype=bool)
        logits = jnp.where(eye, -jnp.inf, self.sharpness * similarities)
        report = similarity.cosine_range(similarities)
        if count == 1:
            return jnp.ones_like(similarities), report
        # xi_ij = (1 - xi_ii) softmax_j; the diagonal of -inf is left out of it.
        part = 1 / count if self.self_weight is None else self.self_weight
        return jnp.where(eye, part, (1 - part) * jax.nn.softmax(logits, axis=1)), report
