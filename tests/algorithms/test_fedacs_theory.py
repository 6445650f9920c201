"""FedACS: the convergence statement with frozen weights, and its fixed points.

Objective `F_lam(W) = sum_i F_i(w_i) + lam R(W)`, `R = 1/4 sum_ij s_ij ||w_i - w_j||^2`
with S symmetric and doubly stochastic: grad R = (I - S) W. Scheme: `U = W - alpha_k
grad R(W)`, `W <- U - beta_k grad F(U)`. These parts are NumPy in float64.
"""

import dataclasses

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import FedACS
from tests import problems

CLIENTS, DIM = 5, 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Quadratics `F_i = (w - t_i)' H_i (w - t_i) / 2` and frozen weights."""

    curvature: np.ndarray
    targets: np.ndarray
    similarity: np.ndarray

    def value(self, w):
        gap = w - self.targets
        return 0.5 * np.einsum("id,ide,ie->", gap, self.curvature, gap)

    def gradient(self, w):
        return np.einsum("ide,ie->id", self.curvature, w - self.targets)

    def attraction(self, w):
        """R by its definition, a sum over pairs."""
        pairs = np.square(w[:, None] - w[None]).sum(axis=2)
        return 0.25 * (self.similarity * pairs).sum()

    def attraction_gradient(self, w):
        return w - self.similarity @ w

    def optimum(self, lam):
        """Minimizer of F_lam, from its linear optimality conditions."""
        system = lam * np.einsum(
            "ij,de->idje", np.eye(CLIENTS) - self.similarity, np.eye(DIM)
        )
        for i in range(CLIENTS):
            system[i, :, i] += self.curvature[i]
        right = np.einsum("ide,ie->id", self.curvature, self.targets)
        size = CLIENTS * DIM
        found = np.linalg.solve(system.reshape(size, size), right.reshape(-1))
        return found.reshape(CLIENTS, DIM)


def frozen(seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(CLIENTS, DIM, DIM))
    weights = rng.uniform(0.1, 1, size=(CLIENTS, CLIENTS))
    weights = weights + weights.T
    for _ in range(500):  # Sinkhorn, symmetric
        scale = 1 / np.sqrt(weights.sum(axis=1))
        weights = scale[:, None] * weights * scale[None]
    return Frozen(
        curvature=np.einsum("ide,ife->idf", roots, roots) / DIM,
        targets=rng.normal(size=(CLIENTS, DIM)),
        similarity=weights,
    )


def differences(fn, w, step=1e-5):
    """Central differences, exact for quadratics up to rounding."""
    found = np.zeros_like(w)
    for index in np.ndindex(w.shape):
        shift = np.zeros_like(w)
        shift[index] = step
        found[index] = (fn(w + shift) - fn(w - shift)) / (2 * step)
    return found


def test_gradient_of_the_attraction():
    problem, w = frozen(), np.random.default_rng(1).normal(size=(CLIENTS, DIM))
    np.testing.assert_allclose(problem.similarity.sum(axis=1), 1, atol=1e-12)
    found = differences(problem.attraction, w)
    np.testing.assert_allclose(found, problem.attraction_gradient(w), atol=1e-8)
    # Rows of sum 1 alone are not enough: eq. 4's weights are not symmetric.
    rows = np.random.default_rng(2).uniform(size=(CLIENTS, CLIENTS)) ** 3
    rows = dataclasses.replace(
        problem, similarity=rows / rows.sum(axis=1, keepdims=True)
    )
    gap = differences(rows.attraction, w) - rows.attraction_gradient(w)
    assert np.abs(gap).max() > 0.1


@pytest.mark.parametrize("lam", [0.5, 2.0])
def test_the_bound_holds_and_gradients_vanish_with_the_number_of_rounds(lam):
    problem = frozen()
    smooth = np.linalg.eigvalsh(problem.curvature).max()
    pull = np.linalg.norm(np.eye(CLIENTS) - problem.similarity, 2)
    lipschitz = max(smooth, lam * pull)

    def total(w):
        return problem.value(w) + lam * problem.attraction(w)

    best = total(problem.optimum(lam))
    last = []
    for rounds in (10, 100, 1000):
        w = np.zeros((CLIENTS, DIM))
        first, bound, squares = total(w), 0.0, []
        for _ in range(rounds + 1):
            of_f, of_r = problem.gradient(w), problem.attraction_gradient(w)
            squares.append(np.square(of_f + lam * of_r).sum())
            u = w - lam / np.sqrt(rounds) * of_r
            norms = map(np.linalg.norm, (of_f, problem.gradient(u), lam * of_r))
            bound = max(bound, *norms)
            w = u - problem.gradient(u) / np.sqrt(rounds)
        promised = 6 * (first - best + 16 * lipschitz * bound**2) / np.sqrt(rounds)
        assert min(squares) <= promised + 3 * bound**2 / rounds
        assert min(squares) < squares[0]
        last.append(squares[-1])
    # An incremental method has a bias of the order of its step 1/sqrt(K): its square
    # falls like 1/K.
    assert last[1] < last[0] / 4 and last[2] < last[1] / 4


@pytest.mark.parametrize("mixing", [1.0, 0.4])
def test_fixed_points_have_weight_a_over_beta(mixing):
    """Section 2.2: grad F(U) + (a/beta) (I - A) W = 0, and W is not stationary."""
    problem, beta = problems.random_quadratics(), 0.05
    solver = problems.full_gradient_steps(1, beta)
    algorithm = FedACS(pick_quantile=0.4, mixing=mixing, local=solver)
    process = fp.FederatedProcess(algorithm=algorithm)
    states, infos, _ = problems.run(process, problem, 1500)
    models = states.clients["theta"]
    np.testing.assert_allclose(models[-1], models[-2], atol=1e-10)
    weights, _ = algorithm.cohort_weights(
        None, {"theta": models[0, 0]}, {"theta": models[-1]}
    )
    w, mixture = models[-1], np.asarray(weights) @ models[-1]
    # W minus the mixture is a (I - A) W.
    pull = (w - mixture) / beta
    np.testing.assert_allclose(problem.gradients(mixture) + pull, 0, atol=1e-8)
    assert np.abs(problem.gradients(w) + pull).max() > 1e-3
    assert infos.server["neighbours"][-1] > 1


def test_without_local_steps_connected_clients_agree():
    rng = np.random.default_rng(0)
    models = 2 + rng.normal(size=(6, 4))
    algorithm = FedACS(pick_quantile=0.2)
    spreads = [np.ptp(models, axis=0).max()]
    for _ in range(30):
        weights, _ = algorithm.cohort_weights(
            None, {"theta": models[0]}, {"theta": models}
        )
        models = np.asarray(weights) @ models
        spreads.append(np.ptp(models, axis=0).max())
    assert (np.diff(spreads) <= 1e-15).all()
    assert spreads[-1] < 1e-6
