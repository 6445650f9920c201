"""Shortest combinations of rows: hard cases, bounds, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.core import checks
from fedjax_pfl.numerics import quadratic_programs
from tests.numerics import qp_filled as qp
from tests.numerics import qp_oracles

# Hard cases.


def test_copies_of_rows_do_not_matter():
    rows = qp_oracles.families(11, np.random.default_rng(4))["common"]
    copies = np.vstack([rows, rows[:7], rows[:3]])
    for dtype, atol in ((np.float32, 1e-4), (np.float64, 1e-12)):
        one, several = (qp.shortest(r, dtype)[1] for r in (rows, copies))
        np.testing.assert_allclose(several, one, atol=atol)


def test_zeros_in_place_of_a_masked_row_make_everything_zero():
    rows = qp_oracles.families(5, np.random.default_rng(5))["common"]
    padded = np.vstack([rows, np.zeros((1, rows.shape[1]))])
    assert float(qp.shortest(rows)[2].value) > 0.1
    assert float(qp.shortest(padded)[2].value) <= 1e-14


def test_the_shortest_of_badly_scaled_rows_has_all_weight():
    x = qp.shortest(np.diag([1e-3, 1.0, 1e2]), np.float32)[0]
    np.testing.assert_allclose(x, [1, 0, 0], atol=2e-5)


def test_a_single_row_and_rows_of_zeros():
    x, _, solution = qp.shortest([[3.0, 4.0]])
    assert x.tolist() == [1.0] and float(solution.value) == pytest.approx(25)
    solution = qp.shortest(np.zeros((3, 2)))[2]
    np.testing.assert_allclose(solution.x[:3], 1 / 3, rtol=1e-14)
    assert float(solution.value) == float(solution.gap) == 0


def test_units_do_not_matter():
    rows = qp_oracles.families(11, np.random.default_rng(6))["opposed"]
    share = np.full(11, 1 / 11)
    bounds = np.maximum(0, share - 0.05), share + 0.05
    for unit in (2.0**-40, 2.0**40):
        np.testing.assert_array_equal(
            qp.shortest(unit * rows, np.float32)[0],
            qp.shortest(rows, np.float32)[0],
        )
        np.testing.assert_array_equal(
            qp.in_box(unit * rows, *bounds, np.float32)[0],
            qp.in_box(rows, *bounds, np.float32)[0],
        )
        np.testing.assert_array_equal(
            qp.protected(rows, unit * rows[0], np.float32)[1],
            unit * qp.protected(rows, rows[0], np.float32)[1],
        )


def test_permuted_rows_have_permuted_weights():
    rng = np.random.default_rng(7)
    rows, order = qp_oracles.families(21, rng)["common"], rng.permutation(21)
    permuted = qp.shortest(rows[order])[0]
    np.testing.assert_allclose(permuted, qp.shortest(rows)[0][order], atol=1e-9)
    bounds = qp_oracles.box_of(21)
    permuted = qp.in_box(rows[order], *(bound[order] for bound in bounds))[0]
    np.testing.assert_allclose(permuted, qp.in_box(rows, *bounds)[0][order], atol=1e-9)


def test_problems_under_vmap_are_solved_as_one_by_one():
    rng = np.random.default_rng(8)
    rows = np.stack(list(qp_oracles.families(21, rng).values())[2:]).astype(np.float32)
    grams = np.einsum("njd,nkd->njk", rows, rows)
    masks = rng.random(grams.shape[:2]) < 0.8
    found = jax.jit(jax.vmap(quadratic_programs.minimum_norm))(grams, masks)
    for gram, mask, x in zip(grams, masks, found.x, strict=True):
        kept = np.flatnonzero(mask)
        filled_up = np.full((qp.SIZE, qp.SIZE), np.nan, np.float32)
        filled_up[: len(kept), : len(kept)] = gram[np.ix_(kept, kept)]
        alone = qp.MINIMUM(filled_up, np.arange(qp.SIZE) < len(kept)).x[: len(kept)]
        assert (np.asarray(x)[~mask] == 0).all()
        difference = np.asarray(x)[mask] - np.asarray(alone)
        square = difference @ gram[np.ix_(kept, kept)] @ difference
        assert square <= 4e-6 * np.diagonal(gram).mean()  # 2 gap each


# Boxes.


def test_bounds_are_kept_and_certified():
    for size in (2, 11, 66):
        rng = np.random.default_rng(size)
        for name, rows in qp_oracles.families(size, rng).items():
            share = rng.dirichlet(np.ones(size))
            for eps in (1e-4, 0.1, 1.0):
                lower, upper = np.maximum(0, share - eps), np.minimum(1, share + eps)
                for dtype in qp.DTYPES:
                    x, solution = qp.in_box(rows, lower, upper, dtype)
                    rounding = 8 * np.finfo(dtype).eps
                    assert (lower - rounding <= x).all(), (name, eps)
                    assert (x <= upper + rounding).all(), (name, eps)
                    assert abs(x.sum() - 1) <= rounding, (name, eps)
                    x = np.clip(x, lower, upper)
                    gap = qp_oracles.gap_of(rows, x, lower, upper)
                    allowed = 3 * qp.PRECISION[dtype] * qp.mean_square(rows)
                    assert gap <= allowed and float(solution.gap) <= allowed


def test_bounds_that_do_not_bind_do_not_matter():
    rows = qp_oracles.families(11, np.random.default_rng(9))["common"]
    for upper in (np.ones(11), np.full(11, np.inf)):
        found = qp.in_box(rows, np.zeros(11), upper)[0]
        np.testing.assert_allclose(found, qp.shortest(rows)[0], atol=1e-9)


@pytest.mark.parametrize("dtype", qp.DTYPES)
def test_bounds_that_leave_one_point(dtype):
    rows = qp_oracles.families(4, np.random.default_rng(10))["normal"]
    share = np.array([0.1, 0.2, 0.3, 0.4])
    for lower, upper in ((share, np.ones(4)), (share, share), (np.zeros(4), share)):
        x, solution = qp.in_box(rows, lower, upper, dtype)
        np.testing.assert_allclose(x, share, atol=8 * np.finfo(dtype).eps)
        assert float(solution.gap) == 0
    one = qp.in_box(rows[:1], np.zeros(1), np.ones(1), dtype)[0]
    assert one.tolist() == [1.0]


def test_bounds_nearly_without_room():
    rows = qp_oracles.families(11, np.random.default_rng(11))["opposed"]
    share = np.full(11, 1 / 11)
    for lower, upper in (
        (share * (1 - 1e-5), np.ones(11)),
        (np.zeros(11), share * (1 + 1e-5)),
        (share * (1 - 1e-5), share * (1 + 1e-5)),
    ):
        x, _ = qp.in_box(rows, lower, upper)
        assert qp_oracles.gap_of(rows, np.clip(x, lower, upper), lower, upper) <= 1e-12
        assert abs(x.sum() - 1) <= 1e-14


def test_bounds_without_any_point_are_not_certified():
    rows = np.eye(3)
    for lower, upper in (
        (np.full(3, 0.5), np.ones(3)),
        (np.zeros(3), np.full(3, 0.2)),
        (np.full(3, 0.2), np.array([0.1, 1.0, 1.0])),
    ):
        assert float(qp.in_box(rows, lower, upper)[1].gap) == np.inf


# Nothing, and what is not a number.


@pytest.mark.parametrize("dtype", qp.DTYPES)
def test_without_rows_there_are_no_weights(dtype):
    gram, none = np.full((qp.SIZE, qp.SIZE), np.nan, dtype), np.zeros(qp.SIZE, bool)
    for solution, value in (
        (qp.MINIMUM(gram, none), 0),
        (qp.BOX(gram, gram[0], gram[0], none), 0),
        (qp.CONE(gram, gram[0], dtype(3), none), 3),
    ):
        assert (np.asarray(solution.x) == 0).all()
        assert float(solution.value) == value
        assert float(solution.gap) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
    rows = qp_oracles.families(11, np.random.default_rng(12))["normal"]
    gram, mask = qp.filled(rows)
    broken = gram.copy()
    broken[2, 3] = broken[3, 2] = bad
    vector, share = qp.longer(rows @ rows[0]), qp.longer(np.full(11, 1 / 11))
    broken_vector = np.where(np.arange(qp.SIZE) == 2, bad, vector)
    for solution in (
        qp.MINIMUM(broken, mask),
        qp.BOX(broken, 0.5 * share, 2 * share, mask),
        qp.CONE(broken, vector, 1.0, mask),
        qp.CONE(gram, broken_vector, 1.0, mask),
        qp.CONE(gram, vector, bad, mask),
    ):
        for leaf in jax.tree.leaves(solution):
            assert np.isnan(leaf).all()


def test_shapes_that_do_not_fit_are_refused():
    gram = jnp.eye(3)
    for wrong in (
        lambda: quadratic_programs.minimum_norm(jnp.ones((3, 2))),
        lambda: quadratic_programs.minimum_norm(jnp.ones(3)),
        lambda: quadratic_programs.minimum_norm(jnp.ones((0, 0))),
        lambda: quadratic_programs.minimum_norm(gram, jnp.ones(2, bool)),
        lambda: quadratic_programs.minimum_norm(gram, max_iterations=0),
        lambda: quadratic_programs.box_minimum_norm(gram, jnp.zeros(2), jnp.ones(3)),
        lambda: quadratic_programs.box_minimum_norm(gram, jnp.zeros(3), jnp.ones(())),
        lambda: quadratic_programs.cone(gram, jnp.ones(4), 1.0),
        lambda: quadratic_programs.cone(gram, jnp.ones(3), jnp.ones(1)),
    ):
        with pytest.raises(checks.InputError, match="Expected .* got"):
            wrong()
