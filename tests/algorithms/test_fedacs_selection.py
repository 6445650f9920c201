"""FedACS: the threshold, and when it leaves a client alone."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from fedjax_pfl.algorithms import FedACS, fedacs
from tests.lanes import wide

_threshold = jax.jit(fedacs.selection_threshold)
_weights = jax.jit(lambda algorithm, *given: algorithm.cohort_weights(None, *given))


@strategies.composite
def symmetric_matrices(draw):
    """Matrices in [-1, 1] with a diagonal of ones, with ties, as cosines are."""
    count = draw(strategies.sampled_from([2, 5]))  # of one program each
    values = strategies.sampled_from([-0.7, -0.1, 0.0, 0.3, 1 / 3, 0.9, 1.0])
    pairs = np.triu_indices(count, 1)
    drawn = draw(strategies.lists(values, min_size=len(pairs[0]), max_size=10))
    matrix = np.zeros((count, count))
    matrix[pairs] = drawn[: len(pairs[0])]
    return matrix + matrix.T + np.eye(count)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(symmetric_matrices(), strategies.floats(0, 0.999))
def test_threshold_is_the_interpolated_quantile(matrix, quantile):
    found = _threshold(jnp.asarray(matrix), quantile)
    expected = np.quantile(matrix, quantile)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    count = len(matrix)
    if quantile >= 1 - 1 / (count - 1) + 1e-12:
        assert not (matrix[~np.eye(count, dtype=bool)] > found).any()


@pytest.mark.parametrize("count", [3, *map(wide, (4, 10, 31))])
def test_quantiles_that_select_nobody_else_are_warned_of(count):
    """The bound is sharp: below it, and with distinct cosines, somebody is selected."""
    limit = 1 - 1 / (count - 1)
    rng = np.random.default_rng(0)
    matrix = 3 * rng.normal(size=20) + rng.normal(size=(count, 20))
    first, models = {"theta": matrix[0]}, {"theta": jnp.asarray(matrix)}
    for quantile, alone in ((limit - 1e-9, False), (limit + 1e-9, True)):
        algorithm = FedACS(pick_quantile=quantile)
        weights, info = _weights(algorithm, first, models)
        assert (info["neighbours"] == 1) == alone
        assert (np.asarray(weights) == np.eye(count)).all() == alone
    FedACS(pick_quantile=limit - 1e-9).check_cohort(count)  # or the warning fails
    with pytest.warns(UserWarning, match=rf"K={count} .* FedACS is Local"):
        algorithm.check_cohort(count)
