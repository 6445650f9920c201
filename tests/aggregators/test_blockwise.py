"""A rule for every block of leaves: blocks are separate problems."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import recorder
from tests.aggregators import rules

MEDIANS = aggregators.Blockwise(
    patterns=("^head/", "bias", ""),
    parts=(
        aggregators.GeometricMedian(rho=0.5),
        aggregators.Mean(),
        aggregators.CoordinateMedian(rho=0.1),
    ),
)


def _messages(count=7):
    rng = np.random.default_rng(0)
    shapes = {
        "body": {"bias": (3,), "kernel": (2, 3)},
        "head": {"bias": (2,), "kernel": (3, 2)},
    }
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=(count, *shape))),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def _run(rule, messages, weights=None):
    count = jax.tree.leaves(messages)[0].shape[0]
    weights = jnp.ones(count) if weights is None else jnp.asarray(weights, float)
    reference = jax.tree.map(lambda x: jnp.full(x.shape[1:], 7.0), messages)
    return rules.run(rule, messages, weights, reference)


def _equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12), a, b)


def test_blocks_are_separate_problems():
    messages = _messages()
    out, info = _run(MEDIANS, messages, rules.WEIGHTS)
    head, found = _run(MEDIANS.parts[0], messages["head"], rules.WEIGHTS)
    _equal(out["head"], head)  # one block: one norm over kernel and bias
    _equal(info[0], found)
    mean, _ = _run(MEDIANS.parts[1], messages["body"]["bias"])
    _equal(out["body"]["bias"], mean)
    center, found = _run(MEDIANS.parts[2], messages["body"]["kernel"])
    _equal(out["body"]["kernel"], center)
    assert info[1] is None
    _equal(info[2], found)


def test_a_block_of_all_leaves_is_the_rule_itself():
    rule, messages = MEDIANS.parts[0], _messages()["head"]
    out, info = _run(aggregators.Blockwise(patterns=("",), parts=(rule,)), messages)
    expected, found = _run(rule, messages)
    _equal((out, info), (expected, (found,)))


def test_the_first_pattern_wins_and_order_matters():
    mean, median = aggregators.Mean(), aggregators.CoordinateMedian()
    messages = _messages()
    one = aggregators.Blockwise(patterns=("bias", "^head", ""), parts=(median,) * 3)
    other = dataclasses.replace(one, parts=(median, mean, median))
    a, b = _run(one, messages)[0], _run(other, messages)[0]
    _equal(a["head"]["bias"], b["head"]["bias"])
    assert not np.allclose(a["head"]["kernel"], b["head"]["kernel"])


def test_a_row_that_is_bad_anywhere_takes_no_part_in_any_block():
    messages = _messages()
    messages["head"]["bias"] = messages["head"]["bias"].at[2, 0].set(np.nan)
    bad, _ = _run(MEDIANS, messages)
    dropped, _ = _run(MEDIANS, messages, np.arange(7) != 2)
    _equal(bad, dropped)
    nothing, info = _run(MEDIANS, messages, np.arange(7) == 2)
    _equal(nothing, jax.tree.map(lambda x: np.full(x.shape[1:], 7.0), messages))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(info))


@pytest.mark.wide
def test_derivatives_pass_through_blocks():
    def total(messages):
        out, _ = MEDIANS(rules.KEY, messages, jnp.ones(7), nothing)
        return sum(leaf.sum() for leaf in jax.tree.leaves(out))

    messages = _messages()
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), messages)
    found = jax.jit(jax.grad(total))(messages)
    for leaf in jax.tree.leaves(found):
        np.testing.assert_allclose(leaf.sum(axis=0), 1, atol=1e-8)


def test_means_of_one_weighting_can_be_kept():
    def of(*parts):
        patterns = tuple("ab"[: len(parts)])
        return aggregators.Blockwise(patterns=patterns, parts=parts).incremental

    mean, weighted = aggregators.Mean(), aggregators.WeightedMean()
    assert of(mean, mean) == "uniform" and of(weighted, weighted) == "weighted"
    assert of(mean, weighted) is None and of(mean, aggregators.Krum()) is None


@pytest.mark.parametrize(
    ("patterns", "match"),
    [
        (("^head", "^hat", ""), "'\\^hat' does not; .* head/bias"),
        (("", "^head", "b"), "'\\^head' does not"),
        (("^head/b", "^head/k", "bias"), "do not: body/kernel"),
        (("^head", ""), "one part per pattern"),
        (("(", "^head", ""), "regular expressions, got '\\('"),
        (["^head", "b", ""], "to be a tuple, each part text"),
    ],
)
def test_wrong_patterns_are_named(patterns, match):
    with pytest.raises(checks.InputError, match=match):
        _run(aggregators.Blockwise(patterns=patterns, parts=MEDIANS.parts), _messages())


def test_parts_refuse_a_number_of_rows():
    rule = aggregators.Blockwise(
        patterns=("a", ""), parts=(fp.aggregators.Mean(), fp.Krum(num_malicious=3))
    )
    rule.check_cohort(9)
    with pytest.raises(checks.InputError, match="num_malicious of Krum"):
        rule.check_cohort(8)


def test_fields_of_parts_have_names():
    fields = dict(struct.named_fields(MEDIANS))
    assert fields["parts.0"] == "GeometricMedian" and fields["parts.2.rho"] == 0.1
    changed = struct.replace_field(MEDIANS, "parts.2.rho", 0.2)
    assert changed.parts[2].rho == 0.2 and changed.parts[:2] == MEDIANS.parts[:2]
    assert isinstance(changed.parts, tuple)


def test_a_history_has_the_reports_of_all_parts():
    _, info = _run(MEDIANS, _messages())
    stacked = jax.tree.map(lambda x: np.asarray(x).reshape(1, 1), info)
    names = set(recorder._named(stacked))
    assert {"aggregator_0_radius", "aggregator_2_fraction_clipped"} <= names
    assert "aggregator_0_smallest_eigenvalue" not in names
