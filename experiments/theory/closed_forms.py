"""Closed forms and conditions for comparison with simulations.

Shapes: m clients, d features or D parameters. NumPy in float64, without tracing.

Federated linear regression
---------------------------

Client i observes `y_i = X_i t_i + z_i` with `X_i [N, d]` and noise of variance sigma^2,
and minimizes `f_i(theta) = |X_i theta - y_i|^2 / (2 N)`. With least-squares estimates
`that_i` and `A_i = X_i^T X_i / N`, FLAME minimizes over `theta_i` and w

    sum_i alpha_i (f_i(theta_i) + lam/2 |theta_i - w|^2).

In the isotropic case `A_i = b I` the estimates are `that_i ~ N(t_i, v I)`,
`v = sigma^2 / (b N)`. Losses are expected over training noise and an independent test
noise, and averaged over (benign) clients.

Reference: Zhu et al., "On ADMM in Heterogeneous Federated Learning: Personalization,
Robustness, and Fairness". If a formula differs from the printed one (optimum for
general A_i, personal loss at the optimum, losses and thresholds under sign flipping,
fairness, iota), the printed one contradicts a direct computation.

Mixing of models by similarities
--------------------------------

FedACS's objective is `F(W) + lam R(W)`, `R(W) = 1/4 sum_ij s_ij |w_i - w_j|^2` with
frozen similarities s. Rounds alternate `U = W - alpha grad R(W)` and
`W = U - beta grad F(U)`.

Reference: Chen, Li, Shen, "Personalized Federated Learning with Attention-based Client
Selection". The paper prints R without 1/4 and the gradient `w_i - sum_j s_ij w_j`,
which is the gradient only of R above, and only for symmetric s with rows of sum 1.
"""

import dataclasses
import functools
import math

import numpy as np

from fedjax_pfl.core import checks

__all__ = [
    "OneRound",
    "PaperConditions",
    "Regression",
    "convergence_factors",
    "descent_factors",
    "doubly_stochastic",
    "incremental_bound",
    "mixing_gradient",
    "paper_conditions",
    "regression_optimum",
    "round_matrix",
    "shrinkage",
    "smallest_kappa",
]

_SINKHORN_STEPS = 500


def regression_optimum(
    curvature: np.ndarray,
    estimates: np.ndarray,
    lam: float,
    alpha: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Solves the regression problem for any `A_i` and any client weights.

    With `B_i = (A_i + lam I)^-1`, the fixed point of FLAME for any kappa is

        w = (I - lam sum_i alpha_i B_i)^-1 sum_i alpha_i B_i A_i that_i
        theta_i = B_i (A_i that_i + lam w)

    Args:
      curvature: `[m, d, d]` matrices `A_i`, positive semidefinite, not all singular.
      estimates: `[m, d]` least-squares estimates `that_i`.
      lam: `[]` weight of the distance to w, > 0.
      alpha: `[m]` client weights of sum 1; 1/m by default.

    Returns:
      `[d]` w and `[m, d]` theta.
    """
    num_clients, num_features = estimates.shape
    weights = np.full(num_clients, 1 / num_clients) if alpha is None else alpha
    identity = np.eye(num_features)
    inverse = np.linalg.inv(curvature + lam * identity)
    moment = np.einsum("ijk,ik->ij", curvature, estimates)
    mixed = np.einsum("i,ijk,ik->j", weights, inverse, moment)
    system = identity - lam * np.einsum("i,ijk->jk", weights, inverse)
    w = np.linalg.solve(system, mixed)
    return w, np.einsum("ijk,ik->ij", inverse, moment + lam * w)


def shrinkage(curvature: float, lam: float, kappa: float) -> float:
    """Returns the factor q of one FLAME round from zero: uploads are `u_i = q that_i`.

    `q = 2 / (1 + kappa) * b / (b + lam)`, `kappa = rho / (lam alpha)`: below 1 for
    kappa >= 1. pFedMe and Ditto with exact inner solves have q = 1.

    Example:
      >>> round(shrinkage(2.0, 1.0, kappa=2.0), 4)
      0.4444
    """
    return 2 / (1 + kappa) * curvature / (curvature + lam)


@dataclasses.dataclass(frozen=True)
class Regression:
    """The isotropic problem `A_i = b I` with equal client weights.

    Attributes:
      params: `[m, d]` true parameters `t_i`.
      num_examples: N per client.
      noise_variance: sigma^2.
      curvature: b.
      lam: weight of the distance to w.
    """

    params: np.ndarray
    num_examples: int
    noise_variance: float
    curvature: float
    lam: float

    def __post_init__(self):
        checks.positive_int("num_examples", self.num_examples)
        checks.number("noise_variance", self.noise_variance, at_least=0)
        checks.number("curvature", self.curvature, above=0)
        checks.number("lam", self.lam, above=0)

    @property
    def estimate_variance(self) -> float:
        """Returns `v = sigma^2 / (b N)`, the variance of an estimate's coordinate."""
        return self.noise_variance / (self.curvature * self.num_examples)

    def optimum_losses(self) -> tuple[float, float]:
        """Returns expected test losses of w and theta at the optimum (`GM*`, `PM*`)."""
        m, d = self.params.shape
        b, lam = self.curvature, self.lam
        spread = np.square(self.params - self.params.mean(axis=0)).sum()
        noise = self.noise_variance * d / (2 * self.num_examples)
        share = (m * b**2 + 2 * b * lam + lam**2) / (m * (b + lam) ** 2)
        floor = self.noise_variance / 2
        shared = floor + noise / m + b / (2 * m) * spread
        bias = b * lam**2 / (2 * m * (b + lam) ** 2) * spread
        return float(shared), float(floor + share * noise + bias)

    def squared_distance_variance(self, q: float) -> float:
        """Returns `V(q)`, the variance over clients of `|q tbar - t_i|^2`."""
        difference = q * self.params.mean(axis=0) - self.params
        return float(np.square(difference).sum(axis=1).var())

    def is_fairer(self, q: float) -> bool:
        """Returns whether q < 1 makes losses no more uneven than q = 1.

        Iff `(1 + q) var(B) >= cov(G, B)`, `G_i = |t_i|^2`, `B_i = <tbar, t_i>`: true
        if all true parameters have one norm, but false for `t = 1, 2, 3`.
        """
        norms = np.square(self.params).sum(axis=1)
        products = self.params @ self.params.mean(axis=0)
        covariance = np.mean((norms - norms.mean()) * (products - products.mean()))
        return bool((1 + q) * products.var() >= covariance)


@dataclasses.dataclass(frozen=True)
class OneRound:
    """Single round from zero with uploads `q that_i`, under an attack.

    The server averages all m uploads; then every client solves for theta about the new
    w. Losses are means over benign clients.

    Attributes:
      problem: the regression problem.
      malicious: `bool[m]`, not all True; all False is no attack.
      attack: `same_value` (one draw of `N(0, gamma^2)` in every coordinate),
        `sign_flip` (the draw xi makes `-|xi| q that_i`) or `gaussian`.
      attack_variance: gamma^2.
    """

    problem: Regression
    malicious: np.ndarray
    attack: str = "gaussian"
    attack_variance: float = 0.1

    def __post_init__(self):
        checks.known(self.attack, ("same_value", "sign_flip", "gaussian"), "attack")
        checks.number("attack_variance", self.attack_variance, at_least=0)
        if np.all(self.malicious):
            raise checks.InputError(
                f"Expected at least one benign client, got malicious={self.malicious}."
            )

    @functools.cached_property
    def _benign(self) -> np.ndarray:
        """Returns the true parameters of benign clients."""
        return self.problem.params[~self.malicious]

    @functools.cached_property
    def _signal(self) -> np.ndarray:
        """Returns M, `[d]`: the mean of w is `q M`."""
        signal = self._benign.sum(axis=0)
        if self.attack == "sign_flip":
            factor = math.sqrt(2 / math.pi * self.attack_variance)
            signal = signal - factor * self.problem.params[self.malicious].sum(axis=0)
        return signal / len(self.malicious)

    @functools.cached_property
    def _noise(self) -> tuple[float, float, float]:
        """Returns traces of w's variance: benign, malicious (both by q^2), constant."""
        m, d = self.problem.params.shape
        v, gamma2 = self.problem.estimate_variance, self.attack_variance
        benign = len(self._benign) * v * d / m**2
        if self.attack != "sign_flip":
            return benign, 0.0, self.malicious.sum() * gamma2 * d / m**2
        norms = np.square(self.problem.params[self.malicious]).sum(axis=1)
        flipped = gamma2 * ((math.pi - 2) / math.pi * norms + d * v)
        return benign, float(flipped.sum()) / m**2, 0.0

    def losses(self, q: float) -> tuple[float, float]:
        """Returns expected mean test losses of w and theta over benign clients."""
        m, d = self.problem.params.shape
        b, lam = self.problem.curvature, self.problem.lam
        v, num_benign = self.problem.estimate_variance, len(self._benign)
        benign, scaled, fixed = self._noise
        attack = q**2 * scaled + fixed
        bias = np.square(q * self._signal - self._benign).sum() / num_benign
        floor = self.problem.noise_variance / 2
        weight = b**2 + 2 * b * q * lam / m  # noise that theta and w share
        variance = weight * v * d + lam**2 * (q**2 * benign + attack)
        shared = floor + b / 2 * (q**2 * benign + attack + bias)
        personal = floor + b / (2 * (b + lam) ** 2) * (variance + lam**2 * bias)
        return float(shared), float(personal)

    def thresholds(self) -> tuple[float, float]:
        """Returns the minimizers `q*` of the parabolas `GM(q)` and `PM(q)`."""
        m, d = self.problem.params.shape
        lam = self.problem.lam
        benign, scaled, _ = self._noise
        slope = float(self._benign.mean(axis=0) @ self._signal)
        bend = benign + scaled + float(self._signal @ self._signal)
        client_noise = self.problem.curvature * self.problem.estimate_variance * d / m
        return slope / bend, (lam * slope - client_noise) / (lam * bend)


def convergence_factors(kappa: float, ratio: float, center: str) -> tuple[float, float]:
    """Computes FLAME's error factors per round: `A_i = b I`, exact, all clients.

    The error of a coordinate splits into deviations from the mean, with state (x, y),
    and the mean, with state (x, y, w); x is that of `w_i`, y that of `kappa p`:

        deviation  x+ = (c - y) / (1 + kappa)               y+ = y + kappa x+
        mean       x+ = (c + kappa w - y) / (1 + kappa)     y+ = y + kappa (x+ - w)
                   w+ = x+ + y+ / kappa

    c is the error of theta: `x / (1 + h)` about the client's own center, 0 and
    `w / (1 + h)` about the received one.

    Args:
      kappa: `rho / (lam alpha)`, > 0.
      ratio: `h = b / lam`, > 0.
      center: `local` (prox center `w_i`) or `global` (the received w).

    Returns:
      Spectral radii of the deviations and of the mean; the larger one governs.

    Example:
      >>> [round(f, 4) for f in convergence_factors(2.0, 1.0, "local")]
      [0.4082, 0.8333]
    """
    checks.known(center, ("local", "global"), "prox center")
    pull = 1 / (1 + ratio)
    local, received = (pull, 0.0) if center == "local" else (0.0, pull)
    x = np.array([local, -1.0]) / (1 + kappa)
    deviation = np.stack([x, np.array([0.0, 1.0]) + kappa * x])
    x = np.array([local, -1.0, received + kappa]) / (1 + kappa)
    y = np.array([0.0, 1.0, -kappa]) + kappa * x
    mean = np.stack([x, y, x + y / kappa])
    radii = [float(np.abs(np.linalg.eigvals(a)).max()) for a in (deviation, mean)]
    return radii[0], radii[1]


def round_matrix(curvature: np.ndarray, lam: float, kappa: float) -> np.ndarray:
    """Returns FLAME's round on `b_i theta^2 / 2` as a matrix `[2 m + 1, 2 m + 1]`."""
    # States are `(w_1 .. w_m, kappa p_1 .. kappa p_m, w)` about the client's own prox
    # center; exact solves of all clients, as in `convergence_factors`.
    m = len(curvature)
    x, y, w = np.split(np.eye(2 * m + 1), [m, 2 * m])
    theta = (lam / (curvature + lam))[:, None] * x
    x = (theta + kappa * w - y) / (1 + kappa)
    y = y + kappa * (x - w)
    return np.concatenate([x, y, (x + y / kappa).mean(axis=0, keepdims=True)])


@dataclasses.dataclass(frozen=True)
class PaperConditions:
    """The paper's sufficient conditions for descent, per client (`[m]` arrays).

    Attributes:
      c1: `a^2 (1 + rho) / rho^2 < (a + rho) / 2`, with `a = lam alpha`.
      c2: `rho >= a`.
      c3: `c > 0`.
      c: `(1 - rho^2) / rho^2 a^2 - (L alpha + rho) / 2`.
      iota: `1 / (4 c (1 - ups))`, the Lyapunov weight that the criterion needs.
      printed_iota: `alpha^2 / (c (1 - ups))`; with it the claim fails.
      descent: `[]` D1, `min_i {rho / 2, (a + rho) / 2 - a^2 (1 + rho) / rho^2}`.
      relative_error: `[]` D2, as the proof of Lemma 2 yields it:
        `max_i max{4 (alpha L)^2 + 8 a^2 + 4 a^2 / rho^2,
        2 rho^2 + 2 + 4 a^2 (1 + 1 / rho^2)}`.
      printed_relative_error: `[]` the paper's D2,
        `4 a^2 (1 + 1 / rho^2) + 2 alpha^2 (L^2 + 2 lam^2) + 2 rho^2 + 2`.
    """

    c1: np.ndarray
    c2: np.ndarray
    c3: np.ndarray
    c: np.ndarray
    iota: np.ndarray
    printed_iota: np.ndarray
    descent: float
    relative_error: float
    printed_relative_error: float


def paper_conditions(
    alpha: np.ndarray, lam: float, rho: float, smoothness: float, decay: float = 0.5
) -> PaperConditions:
    """Evaluates C1 to C3 and the constants of the paper's descent lemma.

    All can hold only for `rho < (sqrt(17) - 3) / 4` and a narrow band of kappa.

    Args:
      alpha: `[m]` client weights.
      lam: weight of the distance to w.
      rho: penalty.
      smoothness: `[]` or `[m]` smoothness constants L of `f_i`.
      decay: factor ups in (0, 1) of the inexactness budget.

    Returns:
      The conditions; iota is defined only if c3 holds.
    """
    a = lam * alpha
    slack = (a + rho) / 2 - a**2 * (1 + rho) / rho**2
    c = (1 - rho**2) / rho**2 * a**2 - (smoothness * alpha + rho) / 2
    copies = 2 * rho**2 + 2 + 4 * a**2 * (1 + 1 / rho**2)
    steep = np.square(alpha * smoothness)
    personal = 4 * steep + 8 * a**2 + 4 * a**2 / rho**2
    return PaperConditions(
        c1=slack > 0,
        c2=rho >= a,
        c3=c > 0,
        c=c,
        iota=1 / (4 * c * (1 - decay)),
        printed_iota=alpha**2 / (c * (1 - decay)),
        descent=float(min(rho / 2, slack.min())),
        relative_error=float(np.maximum(copies, personal).max()),
        printed_relative_error=float((copies + 2 * steep + 4 * a**2).max()),
    )


def descent_factors(
    alpha: np.ndarray,
    lam: float,
    rho: float,
    smoothness: float,
    *,
    balance: float = 1.0,
    slack: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the descent of the augmented Lagrangian, for any participation.

    If both are positive for every client, the Lagrangian, plus `ups / (4 s (1 - ups))`
    times the budgets if `s > 0`, falls by at least their products with `|dw_i|^2`
    and `|dtheta_i|^2` of the selected clients:

        (a + rho) / 2 - a^2 / rho (1 + 1 / k)
        alpha (lam - L) / 2 - a^2 / rho (1 + k) - s

    Args:
      alpha: `[m]` client weights; `a = lam alpha`.
      lam: weight of the distance to w.
      rho: penalty.
      smoothness: `[]` or `[m]` L; 0 for convex losses, -mu for strongly convex ones.
      balance: `[]` or `[m]` k > 0, free.
      slack: `[]` or `[m]` s >= 0, free; 0 for exact solves.

    Returns:
      `[m]` factors of the clients' copies of w and of their personal parameters.
    """
    a = lam * alpha
    copies = (a + rho) / 2 - a**2 / rho * (1 + 1 / balance)
    personal = alpha * (lam - smoothness) / 2 - a**2 / rho * (1 + balance) - slack
    return copies, personal


def smallest_kappa(smoothness_ratio: float) -> float:
    """Returns the infimum of kappa with positive `descent_factors` for some k.

    With `g = 1 - L / lam`: the positive root of `g x^2 + (g - 2) x - 2 (1 + g) = 0`.

    Args:
      smoothness_ratio: `L / lam` < 1; 0 for convex losses, `-mu / lam` for strongly so.

    Returns:
      The bound on kappa. No kappa is enough for `L >= lam`, which is an error.

    Example:
      >>> round(smallest_kappa(0.0), 3)
      2.562
    """
    checks.number("smoothness_ratio", smoothness_ratio, below=1)
    g = 1 - smoothness_ratio
    return (2 - g + math.sqrt((g - 2) ** 2 + 8 * g * (1 + g))) / (2 * g)


def mixing_gradient(similarity: np.ndarray, models: np.ndarray) -> np.ndarray:
    """Returns the gradient of R for any s: `1/2 sum_j (s_ij + s_ji) (w_i - w_j)`.

    For symmetric s with rows of sum 1 it is `(I - S) W`.

    Args:
      similarity: `[m, m]` weights s.
      models: `[..., m, D]` models W.

    Returns:
      Like `models`.
    """
    weights = (similarity + similarity.T) / 2
    return weights.sum(axis=1)[:, None] * models - weights @ models


def doubly_stochastic(similarity: np.ndarray) -> np.ndarray:
    """Scales a positive symmetric matrix until rows and columns have sum 1.

    Args:
      similarity: `[m, m]` symmetric, positive.

    Returns:
      `[m, m]` of the form `D s D` with a diagonal D; symmetric.
    """
    scale = np.ones(len(similarity))
    for _ in range(_SINKHORN_STEPS):
        scale = np.sqrt(scale / (similarity @ scale))
    return scale[:, None] * similarity * scale


def incremental_bound(
    num_rounds: int, gap: float, smoothness: float, largest: float
) -> float:
    """Bounds `min_k |grad (F + lam R)(W^k)|^2`, k from 0 to K, for frozen s.

    For `beta = 1 / sqrt(K)` and `alpha = lam / sqrt(K)` it is

        6 (gap + 16 L B^2) / sqrt(K) + 3 B^2 / K

    Args:
      num_rounds: K.
      gap: start minus minimum of the objective.
      smoothness: L, a Lipschitz constant of `grad F` and of `lam grad R`.
      largest: B, a bound of `|grad F|` and of `lam |grad R|` along the run.

    Returns:
      The bound.

    Example:
      >>> incremental_bound(4, gap=1.0, smoothness=1.0, largest=1.0)
      51.75
    """
    squared = largest**2
    rate = 6 * (gap + 16 * smoothness * squared) / math.sqrt(num_rounds)
    return rate + 3 * squared / num_rounds
