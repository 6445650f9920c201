"""Federated linear regression: optima, and one round from zero under attacks.

Problem: client i observes `y_i = X_i t_i + z_i` with `X_i [N, d]` and noise of variance
sigma^2, and minimizes `f_i(theta) = |X_i theta - y_i|^2 / (2 N)`. With least-squares
estimates `that_i` and `A_i = X_i^T X_i / N`, FLAME minimizes over `theta_i` and w

    sum_i alpha_i (f_i(theta_i) + lam/2 |theta_i - w|^2).

In the isotropic case `A_i = b I` the estimates are `that_i ~ N(t_i, v I)`,
`v = sigma^2 / (b N)`. Losses are expected over training noise and an independent test
noise, and averaged over (benign) clients.

Reference: Zhu et al., "On ADMM in Heterogeneous Federated Learning: Personalization,
Robustness, and Fairness". Where a formula differs from the printed one (optimum for
general A_i, personal loss at the optimum, losses and thresholds under sign flipping,
fairness), the printed one contradicts a direct computation.
"""

import dataclasses
import functools
import math

import numpy as np

from fedjax_pfl.core import checks

__all__ = [
    "OneRound",
    "Regression",
    "isotropic_optimum",
    "regression_optimum",
    "shrinkage",
]


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


def isotropic_optimum(
    curvature: np.ndarray | float, estimates: np.ndarray, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solves the regression problem for `A_i = b_i I` and equal client weights.

    With `c_i = b_i / (b_i + lam)`: `w = sum c_i that_i / sum c_i` `[d]` and
    `theta_i = c_i that_i + (1 - c_i) w` `[m, d]`; curvature is `[m]` or `[]`.
    """
    b = np.broadcast_to(np.asarray(curvature, float), estimates.shape[:1])[:, None]
    share = b / (b + lam)
    w = (share * estimates).sum(axis=0) / share.sum()
    return w, share * estimates + (1 - share) * w


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

    def loss_variances(self, q: float) -> tuple[float, float]:
        """Returns variances over clients of test losses of w and theta, one round.

        They are `b^2 / 4 V(q)` and `b^2 lam^4 / (4 (b + lam)^4) V(q)`.
        """
        b, lam = self.curvature, self.lam
        shared = b**2 / 4 * self.squared_distance_variance(q)
        return shared, (lam / (b + lam)) ** 4 * shared

    def is_fairer(self, q: float) -> bool:
        """Tells whether q < 1 makes losses no more uneven than q = 1.

        Iff `(1 + q) var(B) >= cov(G, B)`, `G_i = |t_i|^2`, `B_i = <tbar, t_i>`;
        so if all true parameters have one norm, but not for `t = 1, 2, 3`.
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
        """Returns traces of the variance of w: benign and malicious by q^2, a rest."""
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
        own = b**2 + 2 * b * q * lam / m  # theta and w share the client's own noise
        variance = own * v * d + lam**2 * (q**2 * benign + attack)
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
        own = self.problem.curvature * self.problem.estimate_variance * d / m
        return slope / bend, (lam * slope - own) / (lam * bend)

    def is_no_worse(self, q: float) -> tuple[bool, bool]:
        """Tells whether q < 1 is no worse than 1, `q >= 2 q* - 1`, for w and theta."""
        shared, personal = self.thresholds()
        return q >= 2 * shared - 1, q >= 2 * personal - 1
