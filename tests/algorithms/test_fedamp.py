"""FedAMP and HeurFedAMP: weights against loops, limits, proximal step, fixed points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import FedAMP, HeurFedAMP
from fedjax_pfl.algorithms.similarity import cosines, median_distance, squared_distances
from tests import problems
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-11, "atol": 1e-11}  # sums of some ten terms of order one
FIXED = {"scale_free": False, "alpha": 1.0, "sigma": 8.0}


def as_models(matrix, dtype=None):
    """A tree of two leaves whose rows, flattened, are those of `matrix [n, 20]`."""
    x = np.asarray(matrix, float if dtype is None else dtype)
    return {"a": x[:, :12].reshape(-1, 3, 4), "b": x[:, 12:]}


def random_matrix(seed=0, common=1.0, count=7):
    rng = np.random.default_rng(seed)
    return common * rng.normal(size=20) + 0.4 * rng.normal(size=(count, 20))


@jax.jit
def compiled_weights(algorithm, models, number=0):
    return algorithm.cohort_weights(jnp.asarray(number), None, models)


def weights_of(algorithm, matrix, dtype=None):
    weights, info = compiled_weights(algorithm, as_models(matrix, dtype))
    return np.asarray(weights), {name: float(value) for name, value in info.items()}


def naive_amp(matrix, alpha, sigma):
    """Weights by loops over pairs."""
    n = len(matrix)
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                square = ((matrix[i] - matrix[j]) ** 2).sum()
                weights[i, j] = alpha * np.exp(-square / sigma) / sigma
        weights[i, i] = 1 - weights[i].sum()
    return weights


def median_square(matrix):
    pairs = [((a - b) ** 2).sum() for i, a in enumerate(matrix) for b in matrix[:i]]
    return np.median(pairs)


def naive_heur(matrix, sharpness, self_weight):
    n = len(matrix)
    weights = np.zeros((n, n))
    for i, a in enumerate(matrix):
        scores = np.zeros(n)
        for j, b in enumerate(matrix):
            if i != j:
                cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                scores[j] = np.exp(sharpness * cosine)
        weights[i] = (1 - self_weight) * scores / scores.sum()
        weights[i, i] = self_weight
    return weights


@pytest.mark.parametrize("count", [2, 5, 7])
def test_weights_equal_a_double_loop(count):
    matrix = random_matrix(count=count)
    weights, info = weights_of(FedAMP(**FIXED), matrix)
    expected = naive_amp(matrix, 1.0, 8.0)
    np.testing.assert_allclose(weights, expected, **CLOSE)
    np.testing.assert_allclose(info["self_weight"], np.diagonal(expected).mean())
    sigma = median_square(matrix)
    weights, info = weights_of(FedAMP(), matrix)
    expected = naive_amp(matrix, 0.5 * sigma / (count - 1), sigma)
    np.testing.assert_allclose(weights, expected, **CLOSE)
    np.testing.assert_allclose(info["sigma"], sigma)
    np.testing.assert_allclose(info["alpha"], 0.5 * sigma / (count - 1))
    assert info["convex"] == 1
    weights, _ = weights_of(HeurFedAMP(sharpness=6.0), matrix)
    expected = naive_heur(matrix, 6.0, 1 / count)
    np.testing.assert_allclose(weights, expected, **CLOSE)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAMP(),
        FedAMP(**FIXED),
        FedAMP(scale_free=False, alpha=50.0, sigma=8.0),
        HeurFedAMP(),
        HeurFedAMP(sharpness=1e5, self_weight=0.0),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_rows_are_convex_whatever_the_models(algorithm, dtype):
    settings = [
        random_matrix(),
        0 * random_matrix(),
        np.tile(random_matrix()[:1], (7, 1)),
        np.tile(random_matrix(count=2), (4, 1))[:7],
        1e6 * random_matrix(),
        random_matrix(count=1),
    ]
    algorithm = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), algorithm)
    for matrix in settings:
        weights, info = weights_of(algorithm, matrix, dtype=dtype)
        assert (weights >= 0).all()
        np.testing.assert_allclose(
            weights.sum(axis=1), 1, rtol=20 * jnp.finfo(dtype).eps
        )
        assert np.isfinite(list(info.values())).all()


def test_steps_that_are_too_long_are_cut_and_reported():
    matrix = random_matrix()
    weights, info = weights_of(FedAMP(scale_free=False, alpha=50.0, sigma=8.0), matrix)
    expected = naive_amp(matrix, 50.0, 8.0)
    assert info["convex"] == 0
    assert (np.diagonal(expected) < 0).any()
    for row, whole in zip(weights, expected, strict=True):
        off = np.where(whole == whole.min(), 0, whole) if whole.min() < 0 else whole
        np.testing.assert_allclose(row, off / off.sum(), **CLOSE)
    algorithm = FedAMP(scale_free=False, alpha=2.0, sigma=8.0)
    algorithm.check_cohort(5)
    with pytest.raises(fp.InputError, match="sigma with alpha=2.0 and K=6 clients"):
        algorithm.check_cohort(6)
    FedAMP(alpha=2.0, sigma=8.0).check_cohort(6)


def test_large_sigma_and_sharpness_0_give_the_mean():
    matrix = random_matrix()
    even = np.full((7, 7), 1 / 7)
    weights, info = weights_of(
        FedAMP(scale_free=False, alpha=1e9 / 7, sigma=1e9), matrix
    )
    np.testing.assert_allclose(weights, even, atol=1e-7)  # distances of 10 over sigma
    assert info["convex"] == 1
    weights, _ = weights_of(HeurFedAMP(sharpness=0.0), matrix)
    np.testing.assert_allclose(weights, even, **CLOSE)


def test_self_weight_is_exact_and_the_softmax_excludes_self():
    matrix = random_matrix()
    weights, _ = weights_of(HeurFedAMP(self_weight=0.3), matrix)
    np.testing.assert_array_equal(np.diagonal(weights), 0.3)
    # A very sharp softmax gives everything to the most similar OTHER client.
    weights, _ = weights_of(HeurFedAMP(sharpness=1e5, self_weight=0.3), matrix)
    similarity = np.array(jax.jit(cosines)(as_models(matrix)))
    np.fill_diagonal(similarity, -1)
    nearest = np.eye(7)[similarity.argmax(axis=1)]
    np.testing.assert_allclose(weights, 0.3 * np.eye(7) + 0.7 * nearest, **CLOSE)
    # Whether and how much a model resembles itself changes nothing.
    moved, _ = weights_of(
        HeurFedAMP(self_weight=0.3), matrix * np.r_[9, np.ones(6)][:, None]
    )
    original, _ = weights_of(HeurFedAMP(self_weight=0.3), matrix)
    np.testing.assert_allclose(moved, original, **CLOSE)


def test_scale_free_weights_ignore_scale_and_place():
    matrix = random_matrix()
    weights, _ = weights_of(FedAMP(), matrix)
    moved, _ = weights_of(FedAMP(), 1e-4 * matrix + 3.0)
    np.testing.assert_allclose(moved, weights, rtol=1e-8)  # 1e4^2 roundings at most


def test_small_distances_of_large_models_survive_float32():
    """Products of centered rows: without centering all digits would cancel."""
    matrix = np.asarray(30 + 1e-3 * random_matrix(common=0.0), np.float32)
    found = jax.jit(squared_distances)(as_models(matrix, np.float32))
    exact = matrix.astype(np.float64)
    expected = np.square(exact[:, None] - exact[None]).sum(axis=2)
    # The mean is rounded to 30 * 2^-24, against differences of 1e-3; and cancels.
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    gram = matrix @ matrix.T
    squares = np.diagonal(gram)
    plain = squares[:, None] + squares[None] - 2 * gram
    assert np.abs(plain - expected).max() > np.median(expected)


@pytest.mark.parametrize(
    "values", [[3.0], [3.0, 1.0, 2.0], [1.0, 5.0, 2.0, 8.0, 9.0, 4.0]]
)
def test_median_counts_every_pair_once(values):
    count = {1: 2, 3: 3, 6: 4}[len(values)]
    distances = np.zeros((count, count))
    distances[np.triu_indices(count, 1)] = values
    found = median_distance(jnp.asarray(distances + distances.T))
    np.testing.assert_allclose(found, np.median(values))


def test_the_server_step_decays_in_periods():
    algorithm = FedAMP(alpha=2.0, alpha_decay=0.1, decay_every=30)
    rounds = np.array([0, 29, 30, 59, 60, 299, 300])
    found = [float(algorithm.step(jnp.asarray(k))) for k in rounds]
    np.testing.assert_allclose(found, 2 * 0.1 ** np.array([0, 0, 1, 1, 2, 9, 10]))


@pytest.mark.parametrize(
    ("kind", "fields", "proximal"),
    [
        wide(FedAMP, {"start": "own"}, lambda k: 0.7),
        (
            FedAMP,
            FIXED | {"alpha_decay": 0.5, "decay_every": 2},
            lambda k: 0.7 / 0.5 ** (k // 2),
        ),
        (HeurFedAMP, {"alpha": 2.0}, lambda k: 0.35),
    ],
)
def test_rounds_solve_the_proximal_problem(kind, fields, proximal):
    problem = problems.waves()
    solver = problems.full_gradient_steps(2)
    algorithm = kind(lam=0.7, local=solver, **fields)
    whole = process(algorithm, 4)
    states, infos, _ = problems.run(whole, problem, 5)
    for number in range(5):
        before, after = states.clients["theta"][number : number + 2]
        cohort = infos.cohort[number]
        models = {"theta": before[cohort]}
        weights, _ = compiled_weights(algorithm, models, number)
        mixtures = np.asarray(weights) @ before[cohort]
        for i, u in zip(cohort, mixtures, strict=True):
            first = u if algorithm.start == "received" else before[i]
            expected = problem.descend(i, first, u, proximal(number), 2)
            np.testing.assert_allclose(after[i], expected, **CLOSE)
            if number > 2:  # and the term is not lost
                alone = problem.descend(i, first, u, 0.0, 2)
                assert np.abs(alone - after[i]).max() > 1e-4
        absent = np.setdiff1d(np.arange(6), cohort)
        np.testing.assert_array_equal(after[absent], before[absent])


def test_fixed_points_are_stationary():
    """grad F_i(w_i) + lam sum_j A'(||w_i - w_j||^2) (w_i - w_j) = 0."""
    problem, lam, alpha, sigma = problems.random_quadratics(), 0.8, 0.3, 3.0
    algorithm = FedAMP(
        lam=lam,
        scale_free=False,
        alpha=alpha,
        alpha_decay=1.0,
        sigma=sigma,
        local=problems.exact_step(problem, lam / alpha),
    )
    states, _, _ = problems.run(process(algorithm), problem, 400)
    w = states.clients["theta"][-1]
    difference = w[:, None] - w[None]
    slope = np.exp(-np.square(difference).sum(axis=2) / sigma) / sigma
    pull = (slope[:, :, None] * difference).sum(axis=1)
    assert np.abs(pull).max() > 0.05
    np.testing.assert_allclose(problem.gradients(w) + lam * pull, 0, atol=1e-9)


@pytest.mark.wide
def test_scale_free_fixed_points_weigh_half_the_mean_attraction():
    problem, lam = problems.random_quadratics(), 0.8
    algorithm = FedAMP(lam=lam, local=problems.exact_step(problem, lam))
    states, infos, _ = problems.run(process(algorithm), problem, 400)
    assert infos.server["sigma"][0] == 0  # equal models: and yet they moved
    w = states.clients["theta"][-1]
    difference = w[:, None] - w[None]
    slope = np.exp(-np.square(difference).sum(axis=2) / median_square(w))
    pull = (slope[:, :, None] * difference).sum(axis=1) / (2 * 5)
    np.testing.assert_allclose(problem.gradients(w) + lam * pull, 0, atol=1e-9)
