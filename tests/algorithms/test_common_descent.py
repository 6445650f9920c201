"""Rows and directions of common descent: published numbers and definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms import common_descent
from tests import gradients as gradients_
from tests.lanes import wide

fairness = jax.jit(common_descent.fairness)


@jax.jit
def fair_value(losses):
    return -losses.sum() / (jnp.sqrt((losses**2).sum()) * np.sqrt(len(losses)))


@pytest.mark.parametrize("seed", range(3))
def test_slopes_of_fairness_are_its_derivatives(seed):
    losses = jnp.asarray(np.random.default_rng(seed).uniform(0.1, 5, 7))
    found = fairness(losses)
    np.testing.assert_allclose(found.value, fair_value(losses), rtol=1e-14)
    np.testing.assert_allclose(found.slopes, jax.grad(fair_value)(losses), atol=1e-15)
    size = jnp.linalg.norm(losses)
    assert abs(found.slopes @ losses) < 1e-15
    assert found.slopes.sum() < 0
    np.testing.assert_allclose(jnp.linalg.norm(found.slopes), found.sine / size)
    above = losses > size**2 / losses.sum()
    np.testing.assert_array_equal(found.slopes > 0, above)


def test_nearly_equal_losses_keep_their_digits_in_float32():
    # The printed form, a difference of nearly equal vectors, is 1e-4 off here.
    rng = np.random.default_rng(0)
    losses = (2 * (1 + 1e-3 * rng.normal(size=10))).astype(np.float32)
    exact = jax.grad(fair_value)(jnp.asarray(losses, jnp.float64))
    # Not compiled: the old emitters, with which tests compile, fuse digits away.
    found = common_descent.fairness(jnp.asarray(losses)).slopes
    assert found.dtype == jnp.float32
    assert np.linalg.norm(found - exact) < 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "losses",
    [[2.0, 2.0, 2.0], [1.0, 0.0, 2.0], [1.0, -1.0, 2.0], [1.0, np.nan, 2.0]]
    + [wide([3.0])],
)
def test_losses_without_an_angle_leave_the_fairness_row_out(losses):
    count = len(losses)
    gradients = np.random.default_rng(0).normal(size=(count, 3))
    rows = gradients_.rows_of(gradients, losses)
    assert not rows.mask[-1]
    assert rows.mask[:-1].all()
    assert np.isfinite(gradients_.matrix(rows)).all()
    with_row = gradients_.find(rows)
    without = gradients_.find(gradients_.rows_of(gradients, losses, fair_row=False))
    np.testing.assert_array_equal(with_row.vector["theta"], without.vector["theta"])
    if count == 1:
        np.testing.assert_allclose(with_row.vector["theta"], -gradients[0], rtol=1e-12)


AUTHORS = {"normalize": "none", "scale": "mean", "fair_from": "raw"}
PUBLISHED = (-0.18749549, -0.42471595, -0.88569848)


@pytest.mark.parametrize(
    ("fields", "weights", "unit", "norm"),
    [
        (AUTHORS, (0.527539, 0.271792, 0, 0.200669), PUBLISHED, 0.06008080),
        (
            AUTHORS | {"fair_row": False},
            (0.511045, 0.343986, 0.144969, 0),
            (-0.241323, -0.499290, -0.832150),
            0.09153645,
        ),
        (
            {},
            (0.465130, 0.272590, 0, 0.262280),
            (-0.163034, -0.401525, -0.901220),
            0.05824706,
        ),
        (
            {"fair_row": False},
            (0.417284, 0.384922, 0.197794, 0),
            (-0.222936, -0.493514, -0.840680),
            0.10244217,
        ),
    ],
)
def test_v1_the_authors_direction_demo(fields, weights, unit, norm):
    rows = gradients_.rows_of(gradients_.DEMO, gradients_.DEMO_LOSSES, **fields)
    found = gradients_.find(rows, guard=0.0)
    np.testing.assert_allclose(found.weights[0], weights, atol=6e-7)
    vector = np.asarray(found.vector["theta"])
    np.testing.assert_allclose(vector / np.linalg.norm(vector), unit, atol=1e-6)
    np.testing.assert_allclose(found.norm, norm, rtol=2e-7)


def test_v1_scale_and_rescaling():
    rows = gradients_.rows_of(gradients_.DEMO, gradients_.DEMO_LOSSES)
    np.testing.assert_allclose(rows.mu, 1.42828569, rtol=1e-8)
    found = gradients_.find(rows)
    np.testing.assert_allclose(found.sigma, 4.62747545, rtol=1e-8)
    expected = (-0.04394376, -0.10822588, -0.24291196)
    np.testing.assert_allclose(found.vector["theta"], expected, atol=1e-8)
    assert not found.guarded
    assert not found.stationary


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("seed", [0, *map(wide, (1, 2, 3))])
def test_p1_p2_every_row_descends_and_no_combination_is_shorter(seed, dtype):
    gradients, losses = gradients_.drawn(seed)
    rows = gradients_.rows_of(gradients, losses, dtype=dtype)
    found = gradients_.find(rows, guard=0.0)
    tolerance = (1e-6 if dtype == jnp.float32 else 1e-14) * float(rows.mu) ** 2
    d = np.asarray(found.vector["theta"], np.float64) / float(found.sigma)
    products = gradients_.matrix(rows).astype(np.float64) @ d
    assert (products <= -(float(found.norm) ** 2) + tolerance).all()
    np.testing.assert_allclose(found.products, float(found.sigma) * products, rtol=1e-3)
    assert found.worst < 0
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(len(rows.mask)), 50)
    shortest = np.linalg.norm(shares @ gradients_.matrix(rows), axis=1).min()
    assert found.norm <= shortest
    mean = gradients_.matrix(rows)[:-1].mean(axis=0)
    np.testing.assert_allclose(found.mean_norm, np.linalg.norm(mean), rtol=1e-5)
    np.testing.assert_allclose(found.sigma, found.mean_norm / found.norm, rtol=1e-5)
    assert found.sigma >= 1


@pytest.mark.wide
def test_float32_agrees_with_float64():
    for seed in range(3):
        gradients, losses = gradients_.drawn(seed)
        pair = [
            gradients_.find(gradients_.rows_of(gradients, losses, dtype=dtype))
            for dtype in (jnp.float32, jnp.float64)
        ]
        small, exact = (
            np.asarray(x.vector["theta"], np.float64) / float(x.sigma) for x in pair
        )
        mu = float(gradients_.rows_of(gradients, losses).mu)
        assert np.linalg.norm(small - exact) < 1e-3 * mu


@pytest.mark.wide
def test_who_multiplies_its_gradient_changes_nothing_but_a_median():
    gradients, losses = gradients_.drawn(0)
    sizes = np.linalg.norm(gradients, axis=1)
    plain = gradients_.rows_of(gradients, losses)
    gradients = gradients.copy()  # JAX may have taken the memory of the first ones
    gradients[4] *= 100
    louder = gradients_.rows_of(gradients, losses)
    others = np.delete(sizes, 4)
    assert others.min() <= louder.mu <= others.max()
    first, second = (
        np.asarray(gradients_.find(rows).vector["theta"]) / rows.mu
        for rows in (plain, louder)
    )
    np.testing.assert_allclose(first, second, atol=1e-12)
    mean = gradients_.rows_of(gradients, losses, scale="mean")
    assert mean.mu > others.max()


@pytest.mark.wide
def test_a_row_twice_changes_nothing():
    gradients, losses = gradients_.drawn(1)
    first = gradients_.rows_of(gradients, losses)
    history = {"theta": jnp.asarray(gradients[:2])}
    twice = gradients_.rows_of(
        gradients, losses, history=history, used=jnp.array([True, True])
    )
    assert twice.mask.shape[0] == first.mask.shape[0] + 2
    directions = [gradients_.find(rows) for rows in (first, twice)]
    one, two = (found.vector["theta"] for found in directions)
    np.testing.assert_allclose(one, two, atol=1e-9)


@pytest.mark.wide
def test_who_is_left_out_is_as_if_not_there():
    gradients, losses = gradients_.drawn(2)
    poisoned = gradients.copy()
    poisoned[3], poisoned[5] = np.nan, 1e-9
    present = np.array([True, True, True, False, True, True])
    found = gradients_.rows_of(poisoned, losses, present=present)
    np.testing.assert_array_equal(found.mask[:-1], [1, 1, 1, 0, 1, 0])
    d = gradients_.find(found)
    # A stationary client's loss counts in the fairness objective, its row does not.
    stays = np.array([0, 1, 2, 4])
    fair = common_descent.fairness(jnp.asarray(losses), jnp.asarray(present))
    kept = common_descent.Fairness(
        value=fair.value, slopes=fair.slopes[stays], sine=fair.sine, usable=fair.usable
    )
    expected = common_descent.make_rows(
        {"theta": jnp.asarray(gradients[stays])}, jnp.ones(4, bool), kept
    )
    same = gradients_.find(expected)
    np.testing.assert_allclose(d.vector["theta"], same.vector["theta"], atol=1e-12)
    assert d.sigma >= 1


def test_without_any_row_the_result_is_stationary():
    rows = gradients_.rows_of(
        np.ones((3, 3)), [1.0, 2.0, 3.0], present=np.zeros(3, bool)
    )
    found = gradients_.find(rows)
    assert found.stationary
    assert found.sigma == 1
    np.testing.assert_array_equal(found.vector["theta"], 0)
    moves, _ = gradients_.move(rows, gamma=0.5)
    np.testing.assert_array_equal(moves["theta"], 0)


V2 = np.array([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [3.0, 2.0, 0.0]])
V2_LOSSES = [2.0, 3.0, 7.5]


def test_v2_the_guard_leaves_a_point_where_all_could_improve():
    rows = gradients_.rows_of(V2, V2_LOSSES)
    stuck = gradients_.find(rows, guard=0.0)
    assert stuck.stationary
    np.testing.assert_array_equal(stuck.vector["theta"], 0)
    assert (V2 @ [-1, -1, 0] < 0).all()  # but this lowers every loss
    found = gradients_.find(rows, guard=0.01)
    assert found.guarded
    assert not found.stationary
    without = gradients_.find(gradients_.rows_of(V2, V2_LOSSES, fair_row=False))
    np.testing.assert_allclose(found.vector["theta"], without.vector["theta"])
    assert (V2 @ np.asarray(found.vector["theta"]) < 0).all()


@pytest.mark.wide
def test_two_equal_gradients_with_unequal_losses_are_stuck_without_the_guard():
    gradients = np.array([[1.0, 2.0], [1.0, 2.0]])
    fair = common_descent.fairness(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(
        gradients.T @ fair.slopes, -0.0632 * gradients[0], rtol=1e-3
    )
    rows = gradients_.rows_of(gradients, [1.0, 2.0])
    assert gradients_.find(rows, guard=0.0).stationary
    found = gradients_.find(rows)
    np.testing.assert_allclose(found.vector["theta"], -gradients[0], rtol=1e-9)


def layered(gradients, losses, **fields):
    tree = {
        "body": {
            "kernel": gradients[:, :4].reshape(-1, 2, 2),
            "bias": gradients[:, 4:5],
        },
        "head": {"kernel": gradients[:, 5:]},
    }
    tree, losses = jax.tree.map(jnp.asarray, (tree, losses))
    everyone = jnp.ones(len(losses), bool)
    return gradients_.make(tree, losses, everyone, fields=tuple(fields.items()))


@pytest.mark.wide
def test_layers_have_programs_of_their_own():
    gradients, losses = gradients_.drawn(3)
    assert common_descent.layer_names(layered(gradients, losses).vectors) == [
        "body",
        "body",
        "head",
    ]
    rows = layered(gradients, losses, layerwise=True)
    whole = gradients_.rows_of(gradients, losses)
    assert rows.gram.shape == (2, 7, 7)
    np.testing.assert_allclose(rows.whole, whole.gram[0], rtol=1e-12)
    found = gradients_.find(rows, guard=0.0)
    q = gradients_.matrix(whole)
    parts = [q[:, :5], q[:, 5:]]
    for part, weights in zip(parts, np.asarray(found.weights), strict=True):
        shortest = weights @ part
        assert (part @ shortest >= shortest @ shortest - 1e-12).all()
    d = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(found.vector[name])])
        for name in ("body", "head")
    ]
    expected = [-w @ p for w, p in zip(np.asarray(found.weights), parts, strict=True)]
    # Leaves are in alphabetical order: the bias comes before the kernel.
    expected[0] = np.roll(expected[0], 1)
    for one, other in zip(d, expected, strict=True):
        np.testing.assert_allclose(one / float(found.sigma), other, atol=1e-12)
    assert found.worst < 0
    assert found.sigma >= 1
    flat = layered(gradients, losses)
    same = gradients_.find(flat, guard=0.0)
    np.testing.assert_allclose(
        same.norm, gradients_.find(whole, guard=0.0).norm, rtol=1e-10
    )
