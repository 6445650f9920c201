"""Krum and multi-Krum against NumPy, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from tests import problems
from tests.aggregators import robust_oracles, rules
from tests.engine import faults
from tests.lanes import wide


@pytest.mark.parametrize(
    ("count", "squared", "choices"),
    [(1, True, (1,)), (2, True, (None,)), (5, False, (1, 2)), (13, True, (1, 3, None))],
)
def test_scores_and_selections_against_numpy(count, squared, choices):
    rows = rules.random_rows(count, 6, seed=count)
    for f in (None, 0, 1, 4):
        taken = max((count - 3) // 2, 0) if f is None else f
        expected = robust_oracles.krum_scores(rows, taken, squared)
        for selected in choices:
            given = None if f is None else jnp.asarray(float(f))
            rule = fp.Krum(num_malicious=given, num_selected=selected, squared=squared)
            out, info = rules.matrix(rows, rule=rule)
            np.testing.assert_allclose(info.scores[:count], expected, rtol=1e-10)
            kept = max(count - taken, 1) if selected is None else selected
            best = robust_oracles.smallest(expected, kept)
            assert info.row == np.argmin(expected)
            np.testing.assert_array_equal(np.flatnonzero(info.selected), best)
            np.testing.assert_allclose(out, rows[best].mean(axis=0), rtol=1e-12)


def test_the_number_of_neighbors_may_be_that_of_byzfl():
    """n - f - 1 of them: as if one row less were malicious."""
    rows = rules.random_rows(9)
    rule = fp.Krum(num_malicious=3, neighbors="byzfl")
    _, info = rules.unpadded(rows, rule=rule)
    expected = robust_oracles.krum_scores(rows, 2)
    np.testing.assert_allclose(info.scores, expected, rtol=1e-10)


def test_one_selected_row_is_returned_to_the_last_bit():
    rows = rules.random_rows(9).astype(np.float32)
    out, info = rules.unpadded(rows, name="krum", dtype=np.float32)
    np.testing.assert_array_equal(out, rows[info.row])


def test_rows_of_several_blocks():
    """Gram matrices and sums are formed in blocks of columns, the last one shorter."""
    rows = rules.random_rows(100, 9001) + 3
    _, info = rules.unpadded(rows, name="krum")
    np.testing.assert_allclose(
        info.scores, robust_oracles.krum_scores(rows, 48), rtol=1e-10
    )
    out, found = rules.unpadded(rows, name="geometric_median")
    pull = (rows - out) / np.linalg.norm(rows - out, axis=1)[:, None]
    assert found.converged and np.linalg.norm(pull.mean(axis=0)) < 1e-9


@pytest.mark.parametrize("bad", [np.nan, *map(wide, (np.inf, 1.0))])
def test_rows_that_take_no_part_do_not_count(bad):
    rows = rules.random_rows(9)
    use = np.array([0, 1, 2, 4, 5, 6, 8])
    rows[[3, 7]] = bad
    weights = np.where(np.isin(np.arange(9), use) | ~np.isfinite(bad), 2.0, 0.0)
    for f in (0.0, 1.0):
        rule = fp.Krum(num_malicious=jnp.asarray(f), num_selected=None)
        out, info = rules.matrix(rows, weights, rule=rule)
        alone, inner = rules.matrix(rows[use], rule=rule)
        np.testing.assert_allclose(info.scores[use], inner.scores[:7], rtol=1e-12)
        np.testing.assert_array_equal(info.scores[np.array([3, 7])], -1)
        assert info.row == use[inner.row] and info.selected.sum() == 7 - f
        np.testing.assert_allclose(out, alone, rtol=1e-12)


def test_rows_that_tie_are_selected_together():
    rows = np.outer([5.0, 0, 1, 1, 0, 9], np.ones(4))  # rows 1 to 4 have score 0
    for order in ([0, 1, 2, 3, 4, 5], [1, 0, 4, 5, 2, 3], [5, 3, 2, 1, 0, 4]):
        out, info = rules.unpadded(rows[order], rule=fp.Krum(num_malicious=3))
        scores = robust_oracles.krum_scores(rows[order], 3)
        np.testing.assert_allclose(info.scores, scores, atol=1e-12)
        assert info.row == np.argmin(scores)
        np.testing.assert_array_equal(info.selected, scores == 0)
        np.testing.assert_array_equal(out, 0.5)


@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("size", [0.0, 1e5, 1e38, *map(wide, (1e3, 1e12))])
def test_float32_scores_are_those_of_honest_rows(offset, size):
    """Neither a common offset nor outliers may cost digits of honest distances."""
    for first, sign in ((0, 1.0), (7, -1.0)):
        rows = rules.random_rows(11, 300, seed=4)
        bad = slice(first, first + 4)
        rows = rows + offset
        if size:
            rows[bad] = sign * size * (1 + rules.random_rows(4, 300, seed=5) / 10)
        rows = rows.astype(np.float32)
        out, info = rules.unpadded(rows, name="krum", dtype=np.float32)
        expected = robust_oracles.krum_scores(rows, 4)
        honest = np.delete(np.arange(11), np.arange(11)[bad]) if size else np.arange(11)
        np.testing.assert_allclose(info.scores[honest], expected[honest], rtol=1e-4)
        assert info.row == np.argmin(expected)
        np.testing.assert_array_equal(out, rows[info.row])


def test_a_center_among_the_outliers_is_left():
    """The row of median length, about which distances are formed first, is an enemy."""
    honest = rules.random_rows(7, 50) * 1e-3 + 1
    enemies = -np.ones((4, 50)) * np.array([0.999, 1, 1, 1.001])[:, None]
    for rows in (np.concatenate([honest, enemies]), np.concatenate([enemies, honest])):
        rows = rows.astype(np.float32)
        _, info = rules.unpadded(rows, rule=fp.Krum(num_malicious=4), dtype=np.float32)
        expected = robust_oracles.krum_scores(rows, 4)
        np.testing.assert_allclose(info.scores.min(), expected.min(), rtol=1e-4)
        assert info.row == np.argmin(expected)


def test_without_a_number_as_many_are_malicious_as_may_be():
    rows = rules.random_rows(9)
    for count in (9, 8, 5, 3):
        _, info = rules.unpadded(rows, np.arange(9) < count, name="krum")
        expected = robust_oracles.krum_scores(rows[:count], (count - 3) // 2)
        np.testing.assert_allclose(info.scores[:count], expected, rtol=1e-10)


def test_numbers_that_just_fit_the_cohort_are_accepted():
    for size in (7, 8):
        fp.Krum(num_malicious=2, num_selected=7).check_cohort(size)
    fp.Krum().check_cohort(3)


def _grid(**parts):
    spec = fp.FederationSpec(
        dataset=data.Quadratic(dim=3), partition="by_client", num_clients=8
    )
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=problems.full_gradient_steps(1, 0.5)), **parts
    )
    axes = {"aggregator.num_malicious": [0, 2]}
    model = fp.models.Quadratic()
    return fp.grid(rules.KEY, process, model, spec, axes, 3, progress=False).groups[0]


@pytest.mark.wide
def test_a_grid_refuses_before_training_and_records_the_row():
    rows = _grid(aggregator=fp.Krum()).per_round["aggregator_row"]
    assert rows.shape == (2, 3) and (rows >= 0).all() and (rows < 8).all()
    with pytest.raises(fp.InputError, match="got 2 with K=6 messages per round"):
        _grid(aggregator=fp.Krum(), participation=fp.UniformCohort(size=6))


def test_messages_of_all_clients_count_where_all_are_aggregated():
    process = fp.FederatedProcess(
        algorithm=fp.Flame(lam=1.0, kappa=2.0, local=fp.SGD(learning_rate=0.1)),
        aggregator=fp.Krum(num_malicious=2),
    )
    assert process.algorithm.aggregate_over == "all"
    process.check_cohort(3, faults.NUM_CLIENTS)
    with pytest.raises(fp.InputError, match="K=6 messages"):
        process.check_cohort(3, 6)
