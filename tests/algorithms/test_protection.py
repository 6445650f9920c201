"""Protected personal moves, and who stands in for absent clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fedjax_pfl.algorithms import common_descent
from tests import gradients as gradients_
from tests.lanes import wide


def test_v1_protected_directions():
    rows = gradients_.rows_of(gradients_.DEMO, gradients_.DEMO_LOSSES)
    weights, norms, _ = gradients_.protect(rows)
    expected = [
        [1, 0.909033, 0.460592, 0],
        [1.062270, 1, 0.492051, 0],
        [1.906818, 1.743202, 1, 0],
    ]
    np.testing.assert_allclose(weights, expected, atol=6e-7)
    found = -np.asarray(weights) @ gradients_.matrix(rows)
    expected = [
        (-0.07920287, -0.11880430, -0.19800717),
        (-0.04748201, -0.15827338, -0.20575540),
        (-0.04079835, -0.13599449, -0.47598071),
    ]
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_allclose(norms, np.linalg.norm(found, axis=1), rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_protected_directions_are_projections_onto_the_cone(seed):
    gradients, losses = gradients_.drawn(seed, clients=6, dim=9)
    rows = gradients_.rows_of(gradients, losses)
    weights, norms, _ = gradients_.protect(rows)
    q = gradients_.matrix(rows)
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


@pytest.mark.parametrize("dtype", [jnp.float32, wide(jnp.float64)])
def test_no_move_of_nearly_dependent_rows_raises_the_losses_of_others(dtype):
    """49 rows of 66 nearly in one plane; what float32 cannot protect does not move."""
    rng = np.random.default_rng(1)
    angle, off = rng.uniform(0, 2 * np.pi, 66), 1e-4 * rng.normal(size=(66, 64))
    off[:17] += rng.normal(size=(17, 64)) / 8
    gradients = np.column_stack([np.cos(angle), np.sin(angle), off])
    rows = gradients_.rows_of(gradients, np.ones(66), dtype=dtype)
    moves, report = gradients_.move(rows)
    u = np.asarray(moves["theta"], float)
    lengths = np.linalg.norm(u, axis=1)
    cosines = u @ (gradients / np.linalg.norm(gradients, axis=1)[:, None]).T
    np.fill_diagonal(cosines, -np.inf)
    tolerance = {jnp.float32: 1e-2, jnp.float64: 1e-10}[dtype]
    assert (cosines.max(axis=1) <= tolerance * lengths).all()
    still = lengths == 0
    assert still[np.asarray(report["unprotected"])].all() and not still[:17].all()
    assert not still.any() or dtype is jnp.float32


@pytest.mark.wide
def test_conflict_is_linear_in_gamma_and_the_end_is_the_own_gradient():
    gradients, losses = gradients_.drawn(4, clients=6, dim=9)
    rows = gradients_.rows_of(gradients, losses)
    q = gradients_.matrix(rows)
    for gamma in (0.0, 0.3, 1.0):
        moves, report = gradients_.move(rows, gamma=gamma, length="raw")
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
    own, _ = gradients_.move(rows, gamma=1.0)
    np.testing.assert_allclose(own["theta"], -gradients, rtol=1e-12)


@pytest.mark.wide
def test_lengths_of_moves():
    gradients, losses = gradients_.drawn(4, clients=6, dim=9)
    rows = gradients_.rows_of(gradients, losses)
    sizes = np.linalg.norm(gradients, axis=1)
    _, protected, _ = gradients_.protect(rows)
    assert (np.asarray(protected) > 0.1 * rows.mu).all()  # nothing is capped
    for length, expected in (
        ("own", sizes),
        ("mean", np.full(6, 0.7)),
        ("raw", sizes * protected / rows.mu),
    ):
        moves, _ = gradients_.move(rows, length=length, mean_norm=0.7)
        found = np.linalg.norm(moves["theta"], axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_where_nothing_is_protected_a_client_stays_and_short_moves_are_capped():
    opposed = np.array([[1.0, 0.0], [-1.0, 0.0]])
    moves, report = gradients_.move(gradients_.rows_of(opposed, [1.0, 2.0]))
    np.testing.assert_array_equal(moves["theta"], 0)
    np.testing.assert_array_equal(report["protected_norm"], 0)
    angle = 0.02  # p is 50 times shorter than the gradient
    nearly = np.array([[1.0, 0.0], [-np.cos(angle), np.sin(angle)]])
    moves, report = gradients_.move(gradients_.rows_of(nearly, [1.0, 2.0]))
    np.testing.assert_allclose(report["protected_norm"], np.sin(angle), rtol=1e-6)
    lengths = np.linalg.norm(moves["theta"], axis=1)
    np.testing.assert_allclose(lengths, 10 * np.sin(angle), rtol=1e-6)


def test_orthogonal_protection_leaves_the_others_where_they_are():
    gradients, losses = gradients_.drawn(5, clients=4, dim=9)
    gradients[3] = gradients[2]  # dependent rows
    rows = gradients_.rows_of(gradients, losses)
    weights, _, _ = gradients_.protect(rows, protection="orthogonal")
    q = gradients_.matrix(rows)
    for i in range(2):
        others = np.delete(np.arange(4), i)
        basis, _ = np.linalg.qr(q[others[:-1]].T)
        expected = -(q[i] - basis @ (basis.T @ q[i]))
        found = -np.asarray(weights[i]) @ q
        np.testing.assert_allclose(found, expected, atol=1e-6 * rows.mu)
    np.testing.assert_array_equal(weights[2:], 0)  # another one has the same row


absent = jax.jit(common_descent.absent, static_argnames=("history", "cap"))


@pytest.mark.parametrize("history", ["window", "last_round", "none"])
def test_absent_clients_are_those_within_the_window(history):
    rng = np.random.default_rng(0)
    for _ in range(20):
        count, size, number = 12, int(rng.choice([1, 5, 12])), int(rng.integers(0, 9))
        last = rng.integers(-1, number, count) if number else np.full(count, -1)
        cohort = np.sort(rng.choice(count, size, replace=False))
        given = (np.asarray(part, np.int32) for part in (last, cohort, number))
        rows, used = absent(*given, history=history, cap=100)
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
    rows, used = absent(last, cohort, number, cap=3)
    assert used.all()
    assert set(np.asarray(rows).tolist()) == {5, 2, 3}
