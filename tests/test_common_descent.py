"""Rows, directions and protected moves: published numbers and definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fedjax_pfl import common_descent
from fedjax_pfl.common_descent import protection

DEMO = np.array([[1, -0.3, 0], [-1, 1, -0.2], [-1, -1, 1]])
DEMO_LOSSES = np.array([1.0, 2.0, 3.0])


@functools.partial(jax.jit, static_argnames="fields")
def make(gradients, losses, present, history=None, used=None, *, fields):
    fair = common_descent.fairness(losses, present)
    given = dict(fields)
    return common_descent.make_rows(gradients, present, fair, history, used, **given)


find = jax.jit(common_descent.common_descent)
move = jax.jit(common_descent.protected_moves, static_argnames=("protection", "length"))
protect = jax.jit(protection.protected_coefficients, static_argnames="protection")


def rows_of(gradients, losses, *, dtype=jnp.float64, present=None, **fields):
    """Rows of one leaf."""
    present = jnp.ones(len(losses), bool) if present is None else jnp.asarray(present)
    given = {"theta": jnp.asarray(gradients, dtype)}
    losses = jnp.asarray(losses, dtype)
    more = [fields.pop(name, None) for name in ("history", "used")]
    return make(given, losses, present, *more, fields=tuple(fields.items()))


def matrix(rows):
    """The scaled rows `[J, D]` in NumPy."""
    return np.asarray(rows.scales)[:, None] * np.asarray(rows.vectors["theta"])


def drawn(seed, clients=6, dim=9):
    """Gradients of very different sizes, with something in common, and losses."""
    rng = np.random.default_rng(seed)
    sizes = 10 ** rng.uniform(-2, 1, clients)
    gradients = rng.normal(size=(clients, dim)) + 0.8 * rng.normal(size=dim)
    return sizes[:, None] * gradients, rng.uniform(0.2, 3, clients)


def fair_value(losses):
    return -losses.sum() / (jnp.sqrt((losses**2).sum()) * np.sqrt(len(losses)))


@pytest.mark.parametrize("seed", range(3))
def test_slopes_of_fairness_are_its_derivatives(seed):
    losses = jnp.asarray(np.random.default_rng(seed).uniform(0.1, 5, 7))
    found = common_descent.fairness(losses)
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
    found = common_descent.fairness(jnp.asarray(losses)).slopes
    assert found.dtype == jnp.float32
    assert np.linalg.norm(found - exact) < 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "losses",
    [[2.0, 2.0, 2.0], [1.0, 0.0, 2.0], [1.0, -1.0, 2.0], [1.0, np.nan, 2.0], [3.0]],
)
def test_losses_without_an_angle_leave_the_fairness_row_out(losses):
    count = len(losses)
    gradients = np.random.default_rng(0).normal(size=(count, 5))
    rows = rows_of(gradients, losses)
    assert not rows.mask[-1]
    assert rows.mask[:-1].all()
    assert np.isfinite(matrix(rows)).all()
    with_row = find(rows)
    without = find(rows_of(gradients, losses, fair_row=False))
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
    rows = rows_of(DEMO, DEMO_LOSSES, **fields)
    found = find(rows, guard=0.0)
    np.testing.assert_allclose(found.weights[0], weights, atol=6e-7)
    vector = np.asarray(found.vector["theta"])
    np.testing.assert_allclose(vector / np.linalg.norm(vector), unit, atol=1e-6)
    np.testing.assert_allclose(found.norm, norm, rtol=2e-7)


def test_v1_scale_and_rescaling():
    rows = rows_of(DEMO, DEMO_LOSSES)
    np.testing.assert_allclose(rows.mu, 1.42828569, rtol=1e-8)
    found = find(rows)
    np.testing.assert_allclose(found.sigma, 4.62747545, rtol=1e-8)
    expected = (-0.04394376, -0.10822588, -0.24291196)
    np.testing.assert_allclose(found.vector["theta"], expected, atol=1e-8)
    assert not found.guarded
    assert not found.stationary


def test_v1_protected_directions():
    rows = rows_of(DEMO, DEMO_LOSSES)
    weights, norms = protect(rows)
    expected = [
        [1, 0.909033, 0.460592, 0],
        [1.062270, 1, 0.492051, 0],
        [1.906818, 1.743202, 1, 0],
    ]
    np.testing.assert_allclose(weights, expected, atol=6e-7)
    found = -np.asarray(weights) @ matrix(rows)
    expected = [
        (-0.07920287, -0.11880430, -0.19800717),
        (-0.04748201, -0.15827338, -0.20575540),
        (-0.04079835, -0.13599449, -0.47598071),
    ]
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_allclose(norms, np.linalg.norm(found, axis=1), rtol=1e-8)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("seed", range(4))
def test_p1_p2_every_row_descends_and_no_combination_is_shorter(seed, dtype):
    gradients, losses = drawn(seed)
    rows = rows_of(gradients, losses, dtype=dtype)
    found = find(rows, guard=0.0)
    tolerance = (1e-6 if dtype == jnp.float32 else 1e-14) * float(rows.mu) ** 2
    d = np.asarray(found.vector["theta"], np.float64) / float(found.sigma)
    products = matrix(rows).astype(np.float64) @ d
    assert (products <= -(float(found.norm) ** 2) + tolerance).all()
    np.testing.assert_allclose(found.products, float(found.sigma) * products, rtol=1e-3)
    assert found.worst < 0
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(len(rows.mask)), 50)
    shortest = np.linalg.norm(shares @ matrix(rows), axis=1).min()
    assert found.norm <= shortest
    mean = matrix(rows)[:-1].mean(axis=0)
    np.testing.assert_allclose(found.mean_norm, np.linalg.norm(mean), rtol=1e-5)
    np.testing.assert_allclose(found.sigma, found.mean_norm / found.norm, rtol=1e-5)
    assert found.sigma >= 1


def test_float32_agrees_with_float64():
    for seed in range(3):
        gradients, losses = drawn(seed)
        pair = [
            find(rows_of(gradients, losses, dtype=dtype))
            for dtype in (jnp.float32, jnp.float64)
        ]
        small, exact = (
            np.asarray(x.vector["theta"], np.float64) / float(x.sigma) for x in pair
        )
        mu = float(rows_of(gradients, losses).mu)
        assert np.linalg.norm(small - exact) < 1e-3 * mu


def test_who_multiplies_its_gradient_changes_nothing_but_a_median():
    gradients, losses = drawn(0)
    sizes = np.linalg.norm(gradients, axis=1)
    plain = rows_of(gradients, losses)
    gradients[4] *= 100
    louder = rows_of(gradients, losses)
    others = np.delete(sizes, 4)
    assert others.min() <= louder.mu <= others.max()
    first, second = (
        np.asarray(find(rows).vector["theta"]) / rows.mu for rows in (plain, louder)
    )
    np.testing.assert_allclose(first, second, atol=1e-12)
    mean = rows_of(gradients, losses, scale="mean")
    assert mean.mu > others.max()


def test_a_row_twice_changes_nothing():
    gradients, losses = drawn(1)
    first = rows_of(gradients, losses)
    history = {"theta": jnp.asarray(gradients[:2])}
    twice = rows_of(gradients, losses, history=history, used=jnp.array([True, True]))
    assert twice.mask.shape[0] == first.mask.shape[0] + 2
    directions = [find(rows) for rows in (first, twice)]
    one, two = (found.vector["theta"] for found in directions)
    np.testing.assert_allclose(one, two, atol=1e-9)


def test_who_is_left_out_is_as_if_not_there():
    gradients, losses = drawn(2)
    poisoned = gradients.copy()
    poisoned[3], poisoned[5] = np.nan, 1e-9
    present = np.array([True, True, True, False, True, True])
    found = rows_of(poisoned, losses, present=present)
    np.testing.assert_array_equal(found.mask[:-1], [1, 1, 1, 0, 1, 0])
    d = find(found)
    # A stationary client's loss counts in the fairness objective, its row does not.
    stays = np.array([0, 1, 2, 4])
    fair = common_descent.fairness(jnp.asarray(losses), jnp.asarray(present))
    kept = common_descent.Fairness(
        value=fair.value, slopes=fair.slopes[stays], sine=fair.sine, usable=fair.usable
    )
    expected = common_descent.make_rows(
        {"theta": jnp.asarray(gradients[stays])}, jnp.ones(4, bool), kept
    )
    same = find(expected)
    np.testing.assert_allclose(d.vector["theta"], same.vector["theta"], atol=1e-12)
    assert d.sigma >= 1


def test_without_any_row_the_result_is_stationary():
    rows = rows_of(np.ones((3, 4)), [1.0, 2.0, 3.0], present=np.zeros(3, bool))
    found = find(rows)
    assert found.stationary
    assert found.sigma == 1
    np.testing.assert_array_equal(found.vector["theta"], 0)
    moves, _ = move(rows, gamma=0.5)
    np.testing.assert_array_equal(moves["theta"], 0)


V2 = np.array([[1.0, 1.0], [2.0, 0.0], [3.0, 2.0]])
V2_LOSSES = [2.0, 3.0, 7.5]


def test_v2_the_guard_leaves_a_point_where_all_could_improve():
    rows = rows_of(V2, V2_LOSSES)
    stuck = find(rows, guard=0.0)
    assert stuck.stationary
    np.testing.assert_array_equal(stuck.vector["theta"], 0)
    assert (V2 @ [-1, -1] < 0).all()  # but this lowers every loss
    found = find(rows, guard=0.01)
    assert found.guarded
    assert not found.stationary
    without = find(rows_of(V2, V2_LOSSES, fair_row=False))
    np.testing.assert_allclose(found.vector["theta"], without.vector["theta"])
    assert (V2 @ np.asarray(found.vector["theta"]) < 0).all()


def test_two_equal_gradients_with_unequal_losses_are_stuck_without_the_guard():
    gradients = np.array([[1.0, 2.0], [1.0, 2.0]])
    fair = common_descent.fairness(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(
        gradients.T @ fair.slopes, -0.0632 * gradients[0], rtol=1e-3
    )
    rows = rows_of(gradients, [1.0, 2.0])
    assert find(rows, guard=0.0).stationary
    found = find(rows)
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
    return make(tree, losses, everyone, fields=tuple(fields.items()))


def test_layers_have_programs_of_their_own():
    gradients, losses = drawn(3)
    assert common_descent.layer_names(layered(gradients, losses).vectors) == [
        "body",
        "body",
        "head",
    ]
    rows = layered(gradients, losses, layerwise=True)
    whole = rows_of(gradients, losses)
    assert rows.gram.shape == (2, 7, 7)
    np.testing.assert_allclose(rows.whole, whole.gram[0], rtol=1e-12)
    found = find(rows, guard=0.0)
    q = matrix(whole)
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
    same = find(flat, guard=0.0)
    np.testing.assert_allclose(same.norm, find(whole, guard=0.0).norm, rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_protected_directions_are_projections_onto_the_cone(seed):
    gradients, losses = drawn(seed, clients=6, dim=9)
    rows = rows_of(gradients, losses)
    weights, norms = protect(rows)
    q = matrix(rows)
    for i in range(6):
        others = np.delete(np.arange(6), i)
        p = -np.asarray(weights[i]) @ q
        # An independent solver of the same projection.
        nu, _ = optimize.nnls(q[others].T, -q[i])
        np.testing.assert_allclose(p, -(q[i] + nu @ q[others]), atol=1e-7 * rows.mu)
        assert (q[others] @ p <= 1e-8 * rows.mu**2).all()
        np.testing.assert_allclose(q[i] @ p, -(norms[i] ** 2), rtol=1e-7)
        found = np.asarray(weights[i])[others]
        np.testing.assert_allclose(found * (q[others] @ p), 0, atol=1e-7 * rows.mu**2)


def test_conflict_is_linear_in_gamma_and_the_end_is_the_own_gradient():
    gradients, losses = drawn(4, clients=6, dim=9)
    rows = rows_of(gradients, losses)
    q = matrix(rows)
    for gamma in (0.0, 0.3, 1.0):
        moves, report = move(rows, gamma=gamma, length="raw")
        u = (
            np.asarray(moves["theta"])
            * (rows.mu / np.linalg.norm(gradients, axis=1))[:, None]
        )
        for i in range(6):
            others = np.delete(np.arange(6), i)
            bound = gamma * np.maximum(0, -q[others] @ q[i])
            assert (q[others] @ u[i] <= bound + 1e-8 * rows.mu**2).all()
            worst = (q[others] @ u[i]).max() / (rows.mu * np.linalg.norm(u[i]))
            np.testing.assert_allclose(report["conflict"][i], worst, atol=1e-7)
    own, _ = move(rows, gamma=1.0)
    np.testing.assert_allclose(own["theta"], -gradients, rtol=1e-12)


def test_lengths_of_moves():
    gradients, losses = drawn(4, clients=6, dim=9)
    rows = rows_of(gradients, losses)
    sizes = np.linalg.norm(gradients, axis=1)
    _, protected = protect(rows)
    assert (np.asarray(protected) > 0.1 * rows.mu).all()  # nothing is capped
    for length, expected in (
        ("own", sizes),
        ("mean", np.full(6, 0.7)),
        ("raw", sizes * protected / rows.mu),
    ):
        moves, _ = move(rows, length=length, mean_norm=0.7)
        found = np.linalg.norm(moves["theta"], axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_where_nothing_is_protected_a_client_stays_and_short_moves_are_capped():
    opposed = np.array([[1.0, 0.0], [-1.0, 0.0]])
    moves, report = move(rows_of(opposed, [1.0, 2.0]))
    np.testing.assert_array_equal(moves["theta"], 0)
    np.testing.assert_array_equal(report["protected_norm"], 0)
    angle = 0.02  # p is 50 times shorter than the gradient
    nearly = np.array([[1.0, 0.0], [-np.cos(angle), np.sin(angle)]])
    moves, report = move(rows_of(nearly, [1.0, 2.0]))
    np.testing.assert_allclose(report["protected_norm"], np.sin(angle), rtol=1e-6)
    lengths = np.linalg.norm(moves["theta"], axis=1)
    np.testing.assert_allclose(lengths, 10 * np.sin(angle), rtol=1e-6)


def test_orthogonal_protection_leaves_the_others_where_they_are():
    gradients, losses = drawn(5, clients=4, dim=9)
    gradients[3] = gradients[2]  # dependent rows
    rows = rows_of(gradients, losses)
    weights, _ = protect(rows, protection="orthogonal")
    q = matrix(rows)
    for i in range(2):
        others = np.delete(np.arange(4), i)
        basis, _ = np.linalg.qr(q[others[:-1]].T)
        expected = -(q[i] - basis @ (basis.T @ q[i]))
        found = -np.asarray(weights[i]) @ q
        np.testing.assert_allclose(found, expected, atol=1e-6 * rows.mu)
    np.testing.assert_array_equal(weights[2:], 0)  # another one has the same row


@pytest.mark.parametrize("history", ["window", "last_round", "none"])
def test_absent_clients_are_those_within_the_window(history):
    rng = np.random.default_rng(0)
    for _ in range(20):
        count, size, number = 12, int(rng.integers(1, 13)), int(rng.integers(0, 9))
        last = rng.integers(-1, number, count) if number else np.full(count, -1)
        cohort = np.sort(rng.choice(count, size, replace=False))
        rows, used = common_descent.absent(
            jnp.asarray(last, jnp.int32),
            jnp.asarray(cohort, jnp.int32),
            jnp.asarray(number, jnp.int32),
            history=history,
            cap=100,
        )
        seen = (last >= 0).sum()
        window = seen // size if seen > size else 0
        window = {"window": window, "last_round": 1, "none": -1}[history]
        expected = [
            j
            for j in range(count)
            if j not in cohort and last[j] >= 0 and number - last[j] <= window
        ]
        assert sorted(np.asarray(rows)[np.asarray(used)]) == expected
        assert len(rows) == (0 if history == "none" else count - size)


def test_a_cap_keeps_those_heard_last():
    last = jnp.array([5, 1, 4, 3, -1, 5], jnp.int32)
    cohort, number = jnp.array([0], jnp.int32), jnp.array(6)
    rows, used = common_descent.absent(last, cohort, number, cap=3)
    assert used.all()
    assert set(np.asarray(rows).tolist()) == {5, 2, 3}
