"""The number that is differentiated: how it is named, and what it is of losses."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import fedjax_pfl as fp
from fedjax_pfl.engine.derivatives.objective import WORST_DECILE, Objective
from tests import problems

TAIL = Objective(over=WORST_DECILE)
EPS = np.finfo(float).eps


SIZE = 35  # clients of one compiled program, of whom any number counts


@functools.partial(jax.jit, static_argnames="objective")
def _compiled(objective, losses, rows, counted):
    return jax.value_and_grad(objective.of)(losses, rows, counted)


def measured(objective, losses, rows=None, counted=None):
    """Value and slopes of some clients; others have NaN, and do not count."""
    count = len(losses)
    rows = np.arange(count) if rows is None else rows
    counted = np.ones(count, bool) if counted is None else counted
    rest = (0, SIZE - count)
    value, slopes = _compiled(
        objective,
        np.pad(np.asarray(losses, float), rest, constant_values=np.nan),
        np.pad(np.asarray(rows, np.int32), rest, constant_values=SIZE),
        np.pad(counted, rest),
    )
    assert not slopes[count:].any()
    return float(value), np.asarray(slopes[:count])


def tail(losses):
    return measured(TAIL, losses)[0]


def worst_tenth(losses):
    """The mean of the worst tenth, in which one of ten clients may count in part."""
    left, total = len(losses) / 10, 0.0
    for loss in sorted(losses, reverse=True):
        share = min(left, 1.0)
        total, left = total + share * loss, left - share
    return total / (len(losses) / 10)


def smoothed(losses):
    """The minimum that defines the objective, found by SciPy; and its smoothing."""
    losses = np.asarray(losses)
    s = losses.std() / 10

    def value(t):
        above = s * np.logaddexp(0, (losses - t) / s)
        return t + above.sum() / (len(losses) / 10)

    ends = losses.min() - 40 * s, losses.max() + 40 * s
    return optimize.minimize_scalar(value, bounds=ends, options={"xatol": 0}).fun, s


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("validation",), Objective()),
        (("train", "loss"), Objective(data="train")),
        (("loss", "personal"), Objective(model="personal")),
        (
            ("train", "loss", "fine-tuned", "worst_decile"),
            Objective("train", "loss", "fine-tuned", "worst_decile"),
        ),
        (
            ("validation", "sharpe", "client=12", "global"),
            Objective("validation", "sharpe", "global", 12),
        ),
        (("mean", "annualized_return"), Objective(metric="annualized_return")),
    ],
)
def test_parts_may_come_in_any_order(parts, expected):
    for order in itertools.permutations(parts):
        assert Objective.parse(":".join(order)) == expected
    assert Objective.parse(str(expected)) == expected
    assert Objective.parse(expected) is expected


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.integers(1, SIZE).flatmap(
        lambda n: st.lists(st.integers(-300, 300), min_size=n, max_size=n)
    )
)
def test_the_worst_tenth_is_smoothed_by_no_more_than_said(hundredths):
    """Of any losses, equal ones included."""
    losses = np.array(hundredths) / 100
    value = tail(losses)
    exact, s = worst_tenth(losses), losses.std() / 10
    rounding = SIZE * EPS * (1 + abs(losses).max())
    assert exact - rounding <= value <= exact + 7 * s + rounding


@pytest.mark.parametrize("count", [2, 7, 10, 25])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_the_worst_tenth_is_the_minimum_that_defines_it(count, scale):
    losses = scale * np.random.default_rng(count).lognormal(size=count)
    expected, s = smoothed(losses)
    np.testing.assert_allclose(tail(losses), expected, rtol=1e-12)
    assert expected - worst_tenth(losses) <= 10 * math.log(2) * s


@pytest.mark.parametrize("count", [2, 7, 10, 25])
def test_slopes_of_the_worst_tenth_are_those_of_differences(count):
    """The smoothing moves with the losses, and its slopes are among them."""
    losses = np.random.default_rng(count).lognormal(size=count)
    step = EPS ** (1 / 3)
    differences = [
        (tail(losses + step * unit) - tail(losses - step * unit)) / (2 * step)
        for unit in np.eye(count)
    ]
    slopes = measured(TAIL, losses)[1]
    # Third derivatives are of the size of 1 / s^2.
    noise = 100 * step**2 / (losses.std() / 10) ** 2
    np.testing.assert_allclose(slopes, differences, rtol=0, atol=noise)
    # f(x + c) = f(x) + c and f(c x) = c f(x).
    np.testing.assert_allclose(slopes.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(slopes @ losses, tail(losses), rtol=1e-12)


def test_the_worst_of_returns_are_the_smallest():
    returns = np.random.default_rng(0).normal(size=20)
    of_returns = Objective(metric="sharpe", over=WORST_DECILE)
    assert of_returns.sign == -1 and TAIL.sign == 1
    worst = measured(of_returns, returns)[0]
    np.testing.assert_allclose(worst, -tail(-returns))
    assert worst <= np.sort(returns)[:2].mean()


@pytest.mark.parametrize("over", ["mean", WORST_DECILE, 3])
def test_clients_that_do_not_count_leave_no_trace(over):
    """Neither in the value nor in the slopes, whatever they have."""
    objective = Objective(over=over)
    losses = np.array([0.3, np.nan, 0.9, 0.5, np.inf, 1e300, 0.4])
    counted = np.array([1, 0, 1, 1, 0, 0, 1], bool)
    rows = np.array([6, 5, 4, 3, 2, 1, 0], np.int32)
    value, slopes = measured(objective, losses, rows, counted)
    kept = measured(objective, losses[counted], rows[counted])
    np.testing.assert_allclose(value, kept[0], rtol=4 * EPS)
    np.testing.assert_array_equal(slopes[~counted], 0)
    np.testing.assert_allclose(slopes[counted], kept[1], rtol=1e-12)
    if over == 3:
        assert value == losses[3] and slopes.tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_the_mean_of_clients_is_that_of_the_honest_ones_with_examples():
    """Derivatives of the two clients who count are averaged; others are as if away."""
    problem = problems.quadratics([[1.0, 0.0], [0.0, 3.0], [-2.0, 1.0], [5.0, 5.0]])
    counts = problem.federation.validation.num_examples.at[1].set(0)
    federation = dataclasses.replace(
        problem.federation,
        validation=dataclasses.replace(
            problem.federation.validation, num_examples=counts
        ),
        malicious=jnp.array([False, False, False, True]),
    )
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=problems.full_gradient_steps(2))
    )
    field = "algorithm.local.learning_rate"

    def found(over):
        result = fp.hypergradients(
            *(jax.random.key(0), process, problem.model, federation, field, 2),
            objective=f"validation:global{over}",
            evaluate_on="validation",
            progress=False,
        )
        return np.array([result.value[0], result.derivatives[field][0]])

    first, third = found(":client=0"), found(":client=2")
    np.testing.assert_allclose(found(""), (first + third) / 2, rtol=1e-12)
    # Of two clients, the worst tenth is nearly the worse of them.
    worst = found(":worst_decile")
    gap = abs(first[0] - third[0]) / 2
    assert 0 <= worst[0] - max(first[0], third[0]) <= 7 * gap / 10


def test_equal_losses_have_the_slope_of_their_mean():
    counted = np.array([True, True, False])
    value, slopes = measured(TAIL, [2.0, 2.0, 9.0], counted=counted)
    np.testing.assert_allclose(value, 2.0)
    np.testing.assert_allclose(slopes, [0.5, 0.5, 0.0])
