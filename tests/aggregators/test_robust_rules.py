"""Trimmed means, MeaMed, Bulyan, clipping, mixing and bucketing against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.aggregators import (
    Bucketing,
    Bulyan,
    CenteredClipping,
    MeaMed,
    ModularMean,
    NearestNeighborMixing,
    NormClipping,
)
from fedjax_pfl.command import presets
from fedjax_pfl.command.presets import experiment
from fedjax_pfl.numerics import sorting
from tests.aggregators import robust_oracles, rules
from tests.lanes import wide

ROWS, SIZE = 13, 5  # of all inputs: rows that are not used are masked, and hold NaN
REFERENCE = np.linspace(-0.5, 0.5, SIZE)
RULES = {  # rule with f, its oracle, and how many rows f needs
    "trimmed_mean": (fp.TrimmedMean, robust_oracles.trimmed_mean, 2, 1),
    "meamed": (MeaMed, robust_oracles.meamed, 2, 1),
    "bulyan": (Bulyan, robust_oracles.bulyan, 4, 3),
    "bulyan, one shot": (
        lambda **f: Bulyan(one_shot=True, **f),
        lambda rows, f: robust_oracles.bulyan(rows, f, one_shot=True),
        4,
        3,
    ),
    "centered_clipping": (
        lambda **f: CenteredClipping(tau=1.3, num_iterations=3),
        lambda rows, f: robust_oracles.centered_clipping(rows, REFERENCE, 1.3, 3),
        1,
        1,
    ),
    "norm_clipping": (
        NormClipping,
        lambda rows, f: robust_oracles.norm_clipping(rows, REFERENCE, f),
        2,
        1,
    ),
    "nearest_neighbor_mixing": (
        lambda **f: NearestNeighborMixing(rule=fp.aggregators.Mean(), **f),
        lambda rows, f: _mean_of_mixed(rows, f),
        2,
        1,
    ),
}
each_rule = pytest.mark.parametrize("name", RULES)


def _mean_of_mixed(rows, f):
    mixed, margin = robust_oracles.nearest_neighbor_mixing(rows, f)
    return mixed.mean(axis=0), margin


@jax.jit
def _run(rule, rows, weights, reference):
    return rule(rules.KEY, rows, weights, reference)[0]


def _masked(rows, count, rng, dtype):
    """Rows at random places among `ROWS`, the others NaN or of weight 0."""
    use = np.sort(rng.permutation(ROWS)[:count])
    full = np.full((ROWS, SIZE), np.nan)
    weights = rng.integers(0, 3, ROWS).astype(float)
    dropped = np.setdiff1d(np.arange(ROWS), use)[::2]
    full[dropped], weights[dropped] = 1e30, 0
    full[use], weights[use] = rows, 1 + rng.integers(0, 3, count)
    return jnp.asarray(full, dtype), jnp.asarray(weights, dtype)


def _inputs(factor, margin, rng):
    """Rows of every number and kind, with several f."""
    for count in range(1, ROWS + 1):
        most = (count - margin) // factor
        for f in sorted({0, most // 2, most} - set(range(-ROWS, 0))):
            if factor * f + margin > count:
                continue
            rows = rng.normal(size=(count, SIZE))
            yield rows, f
            yield rows.round(), f  # with ties
            yield rows[rng.integers(0, count, count)], f  # with duplicates
            yield 3 + 1e3 * rows[::-1], f


@each_rule
def test_against_the_definition(name):
    make, oracle, factor, margin = RULES[name]
    rng, checked = np.random.default_rng(len(name)), 0
    for rows, f in _inputs(factor, margin, rng):
        expected, margin_found = oracle(rows, f)
        if margin_found < 1e-12:
            continue
        rule = make(num_malicious=jnp.asarray(float(f)))
        args = _masked(rows, len(rows), rng, float)
        found = _run(rule, *args, jnp.asarray(REFERENCE))
        scale = np.abs(rows).max() + 1
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * scale)
        checked += 1
    assert checked >= 15


@each_rule
def test_float32_rows_with_a_common_offset(name):
    make, oracle, factor, margin = RULES[name]
    rng = np.random.default_rng(7)
    for seed in range(4):
        rows = (rules.random_rows(ROWS, SIZE, seed) + 1000).astype(np.float32)
        f = (ROWS - margin) // factor
        reference = (REFERENCE + 1000).astype(np.float32)
        exact = rows.astype(float) - reference.astype(float) + REFERENCE
        expected, margin_found = oracle(exact, f)
        if margin_found < 1e-5:
            continue
        rule = make(num_malicious=jnp.asarray(f, jnp.float32))
        args = _masked(rows, ROWS, rng, np.float32)
        found = np.asarray(_run(rule, *args, jnp.asarray(reference)), float)
        # The result's own rounding at 1000, and that of sums of few differences.
        atol = 4 * np.finfo(np.float32).eps * 1000
        shift = reference.astype(float) - REFERENCE
        np.testing.assert_allclose(found - shift, expected, rtol=0, atol=atol)


@each_rule
@pytest.mark.parametrize("size", [1e2, 1e15, 1e38])
def test_f_outliers_of_any_size_leave_the_honest_ball(name, size):
    make, _, factor, margin = RULES[name]
    if name == "nearest_neighbor_mixing":
        make = NearestNeighborMixing  # in front of a median
    f = min((ROWS - margin) // factor, (ROWS - 1) // 2)
    honest = rules.random_rows(ROWS - f, SIZE)
    radius = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    for sign in (np.ones(f), (-1.0) ** np.arange(f)):
        rows = np.concatenate([sign[:, None] * size * np.ones((f, SIZE)), honest])
        rule = make(num_malicious=jnp.asarray(f, jnp.float32))
        args = jnp.asarray(rows, jnp.float32), jnp.ones(ROWS, jnp.float32)
        out = _run(rule, *args, jnp.asarray(REFERENCE, jnp.float32))
        # Within the honest values of every coordinate; centered clipping moves by at
        # most 3 tau; clipped norms are those of honest rows.
        assert np.linalg.norm(out - honest.mean(axis=0)) <= 3 * 1.3 + 4 * radius


@pytest.mark.parametrize("name", ["centered_clipping", "norm_clipping"])
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_clipping_scales_with_its_length_and_moves_with_the_reference(name, scale):
    rows, start = jnp.asarray(rules.random_rows(ROWS, SIZE)), jnp.asarray(REFERENCE)
    ones = jnp.ones(ROWS)

    def make(size):
        if name == "norm_clipping":
            return NormClipping(max_norm=jnp.asarray(1.5 * size))
        return CenteredClipping(tau=jnp.asarray(1.5 * size))

    one = _run(make(1.0), rows, ones, start)
    other = _run(make(scale), rows * scale, ones, start * scale)
    np.testing.assert_allclose(other, one * scale, rtol=1e-12, atol=1e-13 * scale)
    moved = _run(make(1.0), rows + 100, ones, start + 100)
    np.testing.assert_allclose(moved - 100, one, atol=1e-12)


def test_fixed_norms_against_numpy():
    rows = rules.random_rows(ROWS, SIZE)
    rule = NormClipping(max_norm=jnp.asarray(2.0))
    found, info = rule(rules.KEY, jnp.asarray(rows), jnp.ones(ROWS), jnp.zeros(SIZE))
    norm = np.linalg.norm(rows, axis=1)
    expected = (rows * np.minimum(1, 2 / norm)[:, None]).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-14)
    assert np.isclose(info.fraction_clipped, np.mean(norm > 2)) and info.max_norm == 2


@pytest.mark.parametrize("dtype", [np.float32, wide(np.float64)])
def test_every_mixed_row_against_numpy(dtype):
    rng = np.random.default_rng(3)
    for count, f in ((13, 6), (12, 3), (9, 0), (1, 0)):
        rows = rng.normal(size=(count, SIZE)).astype(dtype)
        expected, margin = robust_oracles.nearest_neighbor_mixing(rows.astype(float), f)
        assert margin > 1e-5
        full, weights = _masked(rows, count, rng, dtype)
        rule = NearestNeighborMixing(num_malicious=jnp.asarray(f, dtype))
        found = np.asarray(jax.jit(rule.mix)(full, weights))
        use = np.asarray(weights > 0) & np.isfinite(full).all(axis=1)
        atol = 30 * np.finfo(dtype).eps
        np.testing.assert_allclose(found[use], expected, rtol=0, atol=atol)
        np.testing.assert_array_equal(found[~use], full[~use])


@pytest.mark.parametrize(("count", "size"), [(13, 2), (9, 4), (1, 3), (6, 1)])
def test_buckets_hold_every_row_in_use_once(count, size):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, SIZE))
    full, weights = _masked(rows, count, rng, float)
    key = jax.random.key(size)
    found, masses = jax.jit(Bucketing(size=size).mix)(key, full, weights)
    use = np.asarray(weights > 0) & np.isfinite(full).all(axis=1)
    order = np.asarray(jax.random.permutation(key, ROWS))
    order = order[use[order]]
    buckets = [order[k : k + size] for k in range(0, count, size)]
    expected = [np.asarray(full)[bucket].mean(axis=0) for bucket in buckets]
    np.testing.assert_allclose(found[: len(buckets)], expected, atol=1e-14)
    mass = [np.asarray(weights)[bucket].sum() for bucket in buckets]
    np.testing.assert_allclose(masses[: len(buckets)], mass)
    assert (masses[len(buckets) :] == 0).all() and len(found) == -(-ROWS // size)


def test_another_key_draws_other_buckets():
    rows = jnp.asarray(rules.random_rows(ROWS, SIZE))
    found = [
        Bucketing().mix(jax.random.key(seed), rows, jnp.ones(ROWS))[0]
        for seed in range(2)
    ]
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_means_of_ranks_in_several_blocks_and_of_huge_values():
    rows = np.random.default_rng(1).normal(size=(30, 999))
    rows = np.clip(rows * 1e38, -3e38, 3e38).astype(np.float32)
    found = jax.jit(sorting.mean_of_ranks)(rows, 3, 27)
    expected = np.sort(rows.astype(float), axis=0)[3:27].mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e32)
    center = np.median(rows.astype(float), axis=0).astype(np.float32)
    found = jax.jit(sorting.mean_of_nearest)(rows, np.ones(30, bool), center, 20)
    nearest = np.argsort(np.abs(rows.astype(float) - center), axis=0)[:20]
    expected = np.take_along_axis(rows.astype(float), nearest, axis=0).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e32)


def test_a_fraction_is_rounded_as_the_malicious_clients_are():
    rows = np.linspace(0, 1, 50)[:, None] ** 3
    for fraction in (0.15, 0.29, 0.45, 0.05):
        f = round(fraction * 50)  # 0.15 of 50 are 8, 0.05 of 50 are 2
        rule = fp.TrimmedMean(malicious_fraction=fraction)
        found = _run(rule, rows, np.ones(50), np.zeros(1))
        np.testing.assert_allclose(found, rows[f : 50 - f].mean(axis=0), rtol=1e-12)
        rule.check_cohort(50)


@pytest.mark.parametrize(
    ("rule", "size", "match"),
    [
        (Bulyan(num_malicious=2), 10, "Bulyan .* 4 f . 3 <= K, got 2 with K=10"),
        (fp.TrimmedMean(num_malicious=3), 6, "TrimmedMean .* 2 f . 1 <= K, got 3"),
        (MeaMed(malicious_fraction=0.5), 6, "fraction of MeaMed .* so f=3"),
        (NormClipping(num_malicious=0.5), 6, "whole number f .* got 0.5"),
        (NearestNeighborMixing(num_malicious=3), 5, "2 f . 1 <= K, got 3 with K=5"),
        (Bucketing(rule=fp.Krum()), 4, "Krum .* got 0 with K=2"),
        (fp.Krum(num_malicious=6, guarantee=False), 6, "Krum .* f < K, got 6 with K=6"),
        (fp.Krum(num_malicious=2), 6, "2 f .* 3 <= K, got 2 with K=6"),
        (fp.Krum(num_malicious=0.5), 9, "whole number f .* got 0.5 with K=9"),
        (fp.Krum(), 2, "got 0 with K=2"),
        (fp.Krum(num_selected=8), 7, "num_selected with K=7 messages"),
        (ModularMean(), 70_000, "at most 65,535 clients"),
    ],
)
def test_numbers_outside_the_guarantee_are_refused(rule, size, match):
    with pytest.raises(fp.InputError, match=match):
        rule.check_cohort(size)


def test_krum_without_its_guarantee():
    """With f = n - 1 a score has one neighbor, and the two nearest rows tie."""
    rows = rules.random_rows(6, SIZE)
    rule = fp.Krum(num_malicious=5, num_selected=None, guarantee=False)
    rule.check_cohort(6)
    _, info = jax.jit(rule)(rules.KEY, rows, np.ones(6), np.zeros(SIZE))
    square = ((rows[:, None] - rows[None]) ** 2).sum(axis=2) + 1e9 * np.eye(6)
    np.testing.assert_allclose(info.scores, square.min(axis=1), rtol=1e-12)
    nearest = np.flatnonzero(square.min(axis=1) == square.min())
    assert len(nearest) == 2 and info.row == nearest[0]
    np.testing.assert_array_equal(np.flatnonzero(info.selected), nearest)


def test_a_rule_behind_another_is_set_from_the_command_line():
    start = presets.PRESETS["quadratic"]()
    settings = ["aggregator.rule.num_selected=3", "aggregator=bucketing"]
    settings += ["aggregator.rule=krum", "aggregator.rule.malicious_fraction=0.1"]
    found = experiment.apply_settings(start, settings).grids[0].process.aggregator
    krum = fp.Krum(num_selected=3, malicious_fraction=0.1)
    assert found == Bucketing(rule=krum, size=2)
    both = [*settings, "aggregator.rule.num_malicious=1"]
    with pytest.raises(fp.InputError, match="got both"):
        experiment.apply_settings(start, both)
