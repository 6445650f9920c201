"""The rule for verdicts against tests of SciPy and a plain Holm's method."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cards import verdicts
from fedjax_pfl.results import paired


def interval(differences):
    values = pd.Series(np.asarray(differences, float))
    return paired.interval(values, 0 * values)


def judge(differences, delta=0.0, tolerance=0.0):
    """Verdict on a single claim."""
    rule = verdicts.Rule(delta=delta, tolerance=tolerance)
    (word,) = verdicts.verdicts([interval(differences)], rule, [True])
    return word


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_method_by_its_definition(values):
    """The k-th smallest is multiplied by n - k + 1, and never below an earlier one."""
    corrected = paired.holm(values)
    for value, found in zip(values, corrected, strict=True):
        smaller = [v for v in values if v <= value]
        expected = max(
            sorted(values)[k] * (len(values) - k) for k in range(len(smaller))
        )
        assert found == pytest.approx(min(expected, 1.0))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-3, 3), min_size=5, max_size=9), st.floats(0.1, 3.0))
def test_one_claim_is_judged_by_two_tests(differences, delta):
    gaps = np.array(differences)
    if gaps.std() < 1e-3:
        return
    apart = scipy.stats.ttest_1samp(gaps, 0).pvalue
    outside = max(
        scipy.stats.ttest_1samp(gaps, -delta, alternative="greater").pvalue,
        scipy.stats.ttest_1samp(gaps, delta, alternative="less").pvalue,
    )
    if min(abs(apart - 0.05), abs(outside - 0.05)) < 1e-6:
        return
    expected = "undecided"
    if outside < 0.05:
        expected = "equal"
    elif apart < 0.05:
        expected = "holds" if gaps.mean() > 0 else "does not hold"
    assert judge(gaps, delta) == expected


def test_fewer_than_five_pairs_decide_nothing():
    far = [10.0, 10.1, 10.2, 10.1]
    assert judge(far) == "undecided" and judge([*far, 10.0]) == "holds"
    assert judge([*far, np.nan]) == "undecided"
    assert judge([], delta=1.0) == "undecided"


def test_what_a_repetition_may_change_is_not_decided():
    gaps = [0.10, 0.11, 0.12, 0.10, 0.11]
    assert judge(gaps) == "holds"
    assert judge(gaps, tolerance=0.2) == "undecided"
    assert judge(gaps, delta=0.3, tolerance=0.2) == "equal"


def test_equal_pairs_need_no_spread():
    assert judge([0.0] * 5, delta=0.1) == "equal" and judge([0.0] * 5) == "undecided"
    assert judge([1.0] * 5) == "holds" and judge([-1.0] * 5) == "does not hold"


def test_runs_below_the_scale_never_hold():
    gaps = [interval([5.0, 5.1, 5.2, 5.0, 5.1])] * 2
    words = verdicts.verdicts(gaps, verdicts.Rule(), [False, True])
    assert words == ["not comparable", "holds"]


def test_more_claims_make_a_verdict_harder():
    """Of many null claims some look significant alone, and none in the table."""
    rng = np.random.default_rng(0)
    draws = [rng.normal(size=6) for _ in range(60)]
    alone = [judge(draw) for draw in draws]
    assert sum(word != "undecided" for word in alone) >= 1
    together = verdicts.verdicts(
        [interval(draw) for draw in draws], verdicts.Rule(), [True] * len(draws)
    )
    assert set(together) == {"undecided"}


def test_the_order_of_claims_does_not_matter():
    rng = np.random.default_rng(0)
    gaps = [interval(rng.normal(shift, 1, size=6)) for shift in (0, 1, 3, -3)]
    words = verdicts.verdicts(gaps, verdicts.Rule(delta=2.0), [True] * 4)
    for order in itertools.permutations(range(4)):
        mixed = verdicts.verdicts(
            [gaps[k] for k in order], verdicts.Rule(delta=2.0), [True] * 4
        )
        assert mixed == [words[k] for k in order]
