"""FedACS: weights against double loops in NumPy, guards, limits, attacks, clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.algorithms import FedACS
from fedjax_pfl.core import client_rows
from tests import problems
from tests.lanes import wide
from tests.setups import process

QUANTILES = [0.0, 0.5, 0.9, 1 - 1 / 7, 0.99]
CLOSE = {"rtol": 1e-11, "atol": 1e-11}  # sums of 20 terms; a small row sum in keep


def as_models(matrix, dtype=None):
    """A tree of three leaves whose rows, flattened, are those of `matrix [n, 20]`."""
    x = np.asarray(matrix, float if dtype is None else dtype)
    return {"a": x[:, :12].reshape(-1, 3, 4), "b": (x[:, 12], x[:, 13:])}


def as_matrix(tree):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)


def random_matrix(seed=0, common=0.0, count=7):
    rng = np.random.default_rng(seed)
    return common * rng.normal(size=20) + rng.normal(size=(count, 20))


@jax.jit
def compiled_weights(algorithm, first, models):
    return algorithm.cohort_weights(None, first, models)


@jax.jit
def compiled_down(algorithm, ctx, first, models):
    return algorithm.down(ctx, first, None, models)


def first_row(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def naive(matrix, quantile, negative="clip", mixing=1.0):
    """Weights, threshold and number of neighbours by loops over pairs."""
    n = len(matrix)
    similarity = np.eye(n)
    for i in range(n):
        for j in range(i):
            norms = np.linalg.norm(matrix[i]) * np.linalg.norm(matrix[j])
            similarity[i, j] = similarity[j, i] = matrix[i] @ matrix[j] / norms
    delta = np.quantile(similarity, quantile)
    weights = np.zeros((n, n))
    neighbours = 0
    for i in range(n):
        total = 0.0
        for j in range(n):
            chosen = similarity[i, j] > delta or i == j
            if chosen and (similarity[i, j] > 0 or negative == "keep"):
                weights[i, j] = similarity[i, j]
                total += similarity[i, j]
                neighbours += 1
        weights[i] /= total
    return (1 - mixing) * np.eye(n) + mixing * weights, delta, neighbours / n


@pytest.mark.parametrize("quantile", QUANTILES)
@pytest.mark.parametrize(
    ("negative", "common", "mixing"),
    [("clip", 2.0, 1.0), ("clip", 0.0, 0.3), ("keep", 0.0, 1.0)],
)
def test_weights_equal_a_double_loop(quantile, negative, common, mixing):
    matrix = random_matrix(common=common)
    models = as_models(matrix)
    algorithm = FedACS(pick_quantile=quantile, negative=negative, mixing=mixing)
    weights, info = compiled_weights(algorithm, first_row(models), models)
    expected, delta, neighbours = naive(matrix, quantile, negative, mixing)
    np.testing.assert_allclose(weights, expected, **CLOSE)
    np.testing.assert_allclose(info["threshold"], delta, **CLOSE)
    np.testing.assert_allclose(info["neighbours"], neighbours)
    np.testing.assert_allclose(weights.sum(axis=1), 1, **CLOSE)
    cosines = np.corrcoef(np.c_[matrix, -matrix])[~np.eye(7, dtype=bool)]
    np.testing.assert_allclose(info["smallest_cosine"], cosines.min())
    np.testing.assert_allclose(info["largest_cosine"], cosines.max())


@pytest.mark.parametrize("quantile", QUANTILES)
def test_the_downlink_is_the_mixture_of_the_cohort(quantile):
    matrix, cohort = random_matrix(common=1.0, count=9), np.array([8, 1, 5, 2])
    models = as_models(matrix)
    ctx = context(cohort, 9)
    algorithm = FedACS(pick_quantile=quantile)
    members = client_rows.take(models, jnp.asarray(cohort))
    down = compiled_down(algorithm, ctx, first_row(models), members)
    expected = naive(matrix[cohort], quantile)[0]
    np.testing.assert_allclose(
        as_matrix(down.per_client), expected @ matrix[cohort], rtol=1e-12, atol=1e-12
    )
    share = np.where(expected > 0, expected, 1)
    entropy = -(expected * np.log(share)).sum(axis=1).mean()
    np.testing.assert_allclose(down.info["entropy"], entropy, atol=1e-12)
    assert down.shared is None


def context(cohort, num_clients):
    return core.RoundContext(
        key=jax.random.key(0),
        round=jnp.asarray(0),
        cohort=jnp.asarray(cohort, jnp.int32),
        num_clients=num_clients,
    )


@pytest.mark.parametrize("dtype", [jnp.float32, wide(jnp.float64)])
@pytest.mark.parametrize("similarity", ["parameters", "update"])
@pytest.mark.parametrize("quantile", QUANTILES)
def test_identical_models_stay_as_they_are(quantile, similarity, dtype):
    models = as_models(np.tile(random_matrix()[:1], (7, 1)), dtype)
    algorithm = FedACS(pick_quantile=quantile, similarity=similarity)
    down = compiled_down(algorithm, context(np.arange(7), 7), first_row(models), models)
    np.testing.assert_allclose(
        as_matrix(down.per_client), as_matrix(models), rtol=8 * jnp.finfo(dtype).eps
    )
    assert all(np.isfinite(value) for value in down.info.values())


@pytest.mark.parametrize("negative", ["clip", "keep"])
@pytest.mark.parametrize("quantile", QUANTILES)
def test_no_row_is_empty(quantile, negative):
    for seed in range(5):
        models = as_models(random_matrix(seed, common=2.0))
        algorithm = FedACS(pick_quantile=quantile, negative=negative)
        weights, _ = compiled_weights(algorithm, first_row(models), models)
        assert (np.diagonal(weights) > 0).all()


def test_a_zero_model_and_a_single_client_keep_their_own():
    matrix = random_matrix(common=2.0)
    matrix[3] = 0
    models = as_models(matrix)
    weights, _ = compiled_weights(FedACS(pick_quantile=0.0), first_row(models), models)
    np.testing.assert_array_equal(weights[3], np.eye(7)[3])
    np.testing.assert_array_equal(weights[:3, 3], 0)
    alone = as_models(matrix[:1])
    weights, info = compiled_weights(FedACS(), first_row(alone), alone)
    np.testing.assert_array_equal(weights, [[1.0]])
    assert info["neighbours"] == 1


def test_two_clusters_do_not_mix():
    centers = random_matrix(1, count=2)
    cluster = np.array([0, 1, 1, 0, 0, 1, 0])
    matrix = centers[cluster] + 0.1 * random_matrix(2)
    # 4^2 + 3^2 of 49 entries are within clusters.
    models = as_models(matrix)
    weights, info = compiled_weights(
        FedACS(pick_quantile=0.5), first_row(models), models
    )
    same = cluster[:, None] == cluster[None]
    assert (np.asarray(weights)[~same] == 0).all()
    assert info["neighbours"] > 3


def test_permuted_clients_get_permuted_weights_and_scales_do_not_count():
    matrix, order = random_matrix(common=1.0), np.array([3, 0, 6, 5, 1, 2, 4])

    def weights_of(matrix):
        models = as_models(matrix)
        return compiled_weights(FedACS(pick_quantile=0.6), first_row(models), models)[0]

    weights = np.asarray(weights_of(matrix))
    permuted = weights_of(matrix[order])
    np.testing.assert_allclose(permuted, weights[np.ix_(order, order)], **CLOSE)
    scaled = matrix * np.where(np.arange(7) == 2, 1e3, 1)[:, None]
    np.testing.assert_allclose(weights_of(scaled), weights, **CLOSE)


def test_negative_cosines():
    # All cosines of different clients are negative: clipped, nobody has neighbours.
    simplex = np.zeros((7, 20))
    simplex[:, :7] = np.eye(7) - 1 / 7
    models = as_models(simplex + 1e-3 * random_matrix())
    clipped, _ = compiled_weights(FedACS(pick_quantile=0.0), first_row(models), models)
    np.testing.assert_array_equal(clipped, np.eye(7))
    # Cosines are about -1/6, so that rows of S sum to almost 0, by which the literal
    # formula divides; only the lowest pair is dropped at quantile 0.
    kept, _ = compiled_weights(
        FedACS(pick_quantile=0.0, negative="keep"), first_row(models), models
    )
    assert np.abs(kept).max() > 5
    np.testing.assert_allclose(kept.sum(axis=1), 1, rtol=1e-9)
    # Where the sum vanishes, the own model is kept: 1 - 1/2 - 1/2 = 0 in three rows;
    # the pair of cosine -1 is the threshold.
    matrix = np.zeros((5, 20))
    turns = 2 * np.pi * np.arange(3) / 3
    matrix[:3, 0], matrix[:3, 1] = np.cos(turns), np.sin(turns)
    matrix[3:, 2] = [1, -1]
    models = as_models(matrix)
    weights, info = compiled_weights(
        FedACS(pick_quantile=0.0, negative="keep"), first_row(models), models
    )
    assert info["threshold"] == -1
    np.testing.assert_allclose(weights, np.eye(5), atol=1e-15)


def test_updates_tell_apart_what_parameters_do_not():
    """Clusters of small updates of one large model, in float32."""
    cluster = np.arange(8) % 2
    first = 10 * random_matrix(3, count=1)[0]
    directions = random_matrix(4, count=2)
    updates = 1e-2 * (directions[cluster] + 0.3 * random_matrix(5, count=8))
    models = as_models(first + updates, jnp.float32)
    start = first_row(as_models(first[None], jnp.float32))
    algorithm = FedACS(pick_quantile=0.5, similarity="update")
    weights, info = compiled_weights(algorithm, start, models)
    same = cluster[:, None] == cluster[None]
    assert (np.asarray(weights)[~same] == 0).all()
    assert info["largest_cosine"] - info["smallest_cosine"] > 0.5
    _, info = compiled_weights(FedACS(pick_quantile=0.5), start, models)
    assert 0 < info["largest_cosine"] - info["smallest_cosine"] < 1e-5


def test_highest_precision_is_asked_for():
    models = as_models(random_matrix(), jnp.float32)

    def mixtures(models):
        return FedACS().down(context(np.arange(7), 7), first_row(models), None, models)

    with jax.default_matmul_precision("bfloat16"):
        text = jax.jit(mixtures).lower(models).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2 * len(jax.tree.leaves(models))
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


PARTIAL = fp.UniformCohort(size=4)


def test_rounds_follow_the_equations_and_spare_absent_clients():
    problem = problems.waves()
    whole = fp.FederatedProcess(
        algorithm=FedACS(
            pick_quantile=0.4, mixing=0.7, local=problems.full_gradient_steps(2)
        ),
        participation=PARTIAL,
    )
    states, infos, _ = problems.run(whole, problem, 8)
    for number in range(8):
        before, after = states.clients["theta"][number : number + 2]
        cohort = infos.cohort[number]
        weights = naive(before[cohort], 0.4, mixing=0.7)[0]
        mixtures = weights @ before[cohort]
        for i, start in zip(cohort, mixtures, strict=True):
            expected = problem.descend(i, start, 0, 0, 2)
            np.testing.assert_allclose(after[i], expected, rtol=1e-9, atol=1e-9)
        absent = np.setdiff1d(np.arange(6), cohort)
        np.testing.assert_array_equal(after[absent], before[absent])
        np.testing.assert_array_equal(
            states.rows["messages"]["theta"][number + 1], after
        )


@pytest.mark.wide
def test_clusters_find_each_other():
    """16 clients in 4 clusters; by chance 3 of 15 others are of the own cluster."""
    spec = fp.FederationSpec("clustered_classes", "by_client", num_clients=16)
    federation = spec.build()
    solver = fp.SGD(learning_rate=0.1, epochs=5, batch_size=10)
    result = fp.simulate(
        jax.random.key(0, impl="threefry2x32"),
        process(FedACS(pick_quantile=0.8, similarity="update", local=solver)),
        fp.MLP(widths=(16,)),
        federation,
        6,
        eval_every=6,
        progress=False,
    )
    own = result.groups[0].own_cluster[0]
    assert np.isnan(own[0]).all()  # nobody has moved: nobody is selected
    assert np.nanmean(own[1]) > 0.9
