"""Compressions: moments, contractions, oracles in NumPy, and bits counted by hand."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedjax_pfl.core import checks
from fedjax_pfl.messages import (
    QSGD,
    BandedNoise,
    ClipNorm,
    Encoding,
    GaussianNoise,
    LowRank,
    RandomK,
    SignScale,
    TopK,
)

KEY = jax.random.key(7, impl="threefry2x32")
DRAWS = 4000


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(6, 5)), "b": rng.normal(size=4)}


def fitted(transform, x, draws=DRAWS):
    """Many independent compressions of one message."""
    keys = jax.random.split(KEY, draws)
    return jax.jit(jax.vmap(lambda key: transform.fit(key, x)))(keys)


fitted_once = jax.jit(lambda transform, x: transform.fit(KEY, x))


def vector(x):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(x)])


def test_rounding_to_levels_is_unbiased_with_the_variance_of_bernoullis():
    x, s = tree(), 3
    drawn = fitted(QSGD(levels=s), jax.tree.map(jnp.asarray, x))
    for name, values in x.items():
        norm = np.sqrt((values**2).sum())
        level = s * np.abs(values) / norm
        share = level - np.floor(level)
        deviation = norm / s * np.sqrt(share * (1 - share))
        samples = np.asarray(drawn[name])
        # Every draw is one of the two levels around the number.
        steps = np.abs(samples) * s / norm
        low = np.floor(level)
        assert (np.isclose(steps, low) | np.isclose(steps, low + 1)).all()
        assert (np.sign(samples) * np.sign(values) >= 0).all()
        error = samples.mean(axis=0) - values
        # Thirty-four normal numbers exceed 5 deviations with probability 2e-5.
        assert (np.abs(error) <= 5 * deviation / np.sqrt(DRAWS) + 1e-12).all()
        total = ((samples - values) ** 2).sum(axis=tuple(range(1, samples.ndim)))
        expected = (deviation**2).sum()
        assert total.mean() == pytest.approx(
            expected, abs=5 * total.std() / np.sqrt(DRAWS)
        )
        size = values.size
        bound = min(size / s**2, np.sqrt(size) / s) * norm**2
        assert expected <= bound * (1 + 1e-12)


def _scaled(x, scale):
    """A tree in float32 at a scale whose square float32 does not hold."""
    return jax.tree.map(lambda values: jnp.asarray(values * scale, jnp.float32), x)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_rounding_to_levels_is_unbiased_at_every_scale(scale):
    x, s = tree(), 3
    drawn = fitted(QSGD(levels=s), _scaled(x, scale))
    for name, values in x.items():
        error = np.asarray(drawn[name], np.float64).mean(axis=0) / scale - values
        norm = np.sqrt((values**2).sum())
        # A level deviates by 1/2 at most; 5 deviations, as above.
        assert (np.abs(error) <= 5 * norm / s / 2 / np.sqrt(DRAWS)).all()


@pytest.mark.parametrize("scale", [2.0**124, 2.0**-100])
@pytest.mark.parametrize(
    "transform", [QSGD(levels=3), SignScale(), LowRank(rank=2)], ids=str
)
def test_compressions_do_not_depend_on_the_scale(transform, scale):
    x = _scaled({"w": tree()["w"], "v": np.zeros(3)}, 1)
    expected, sent = (fitted_once(transform, y) for y in (x, _scaled(x, scale)))
    for name in x:
        np.testing.assert_array_equal(sent[name], expected[name] * scale)


@pytest.mark.parametrize("levels", [1, 7, 65_535])
def test_levels_never_exceed_their_number(levels):
    """A single number has the highest level; every draw keeps it."""
    x = jnp.asarray(np.append(np.zeros(3), 1), jnp.float32)
    sent = fitted(QSGD(levels=levels), x, 200_000)
    np.testing.assert_array_equal(sent, np.tile(x, (200_000, 1)))


def test_random_places_are_unbiased_or_contract():
    x = tree(1)
    flat = vector(x)
    size, kept = flat.size, 8
    for feedback, scale in ((False, size / kept), (True, 1.0)):
        transform = RandomK(fraction=kept / size, error_feedback=feedback)
        drawn = fitted(transform, jax.tree.map(jnp.asarray, x))
        samples = np.concatenate(
            [np.asarray(leaf).reshape(DRAWS, -1) for leaf in jax.tree.leaves(drawn)], 1
        )
        assert ((samples != 0).sum(axis=1) == kept).all()
        share = kept / size
        mean = scale * share * flat
        deviation = scale * np.abs(flat) * np.sqrt(share * (1 - share))
        error = np.abs(samples.mean(axis=0) - mean)
        assert (error <= 5 * deviation / np.sqrt(DRAWS)).all()
        left = ((samples - flat) ** 2).sum(axis=1)
        expected = ((scale - 1) ** 2 * share + 1 - share) * (flat**2).sum()
        deviation = left.std() / np.sqrt(DRAWS)
        assert left.mean() == pytest.approx(expected, abs=5 * deviation)


NUMBERS = st.floats(-1e3, 1e3, allow_subnormal=False) | st.sampled_from(
    [0.0, 1.0, -1.0]
)


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    arrays.arrays(np.float64, 12, elements=NUMBERS), st.sampled_from((1, 5, 12))
)
def test_the_largest_numbers_are_kept_and_the_rest_contracts(x, kept):
    sent = np.asarray(fitted_once(TopK(fraction=kept / 12), x))
    order = np.lexsort((np.arange(12), -np.abs(x)))  # of equal numbers the first
    expected = np.zeros(12)
    expected[order[:kept]] = x[order[:kept]]
    np.testing.assert_array_equal(sent, expected)
    left = ((x - sent) ** 2).sum()
    assert left <= (1 - kept / 12) * (x**2).sum() * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_short_floats_are_ordered_as_well(dtype):
    x = jnp.asarray(np.random.default_rng(3).normal(size=200), dtype)
    sent = np.asarray(fitted_once(TopK(fraction=0.1), x), np.float32)
    values = np.abs(np.asarray(x, np.float32))
    assert (sent != 0).sum() == 20
    assert values[sent != 0].min() >= values[sent == 0].max()


def test_signs_have_the_mean_of_absolute_values():
    x = tree(2)
    sent = fitted_once(SignScale(), x)
    for name, values in x.items():
        size = np.abs(values).mean()
        np.testing.assert_allclose(sent[name], np.sign(values) * size, rtol=1e-14)
        left = ((values - np.asarray(sent[name])) ** 2).sum()
        total = (values**2).sum()
        share = np.abs(values).sum() ** 2 / (values.size * total)
        assert left == pytest.approx((1 - share) * total)
    np.testing.assert_array_equal(fitted_once(SignScale(), np.zeros(3)), np.zeros(3))


def test_matrices_of_low_rank_are_exact_and_others_are_projected():
    rng = np.random.default_rng(4)
    thin = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 30))
    x = {"thin": thin, "flat": rng.normal(size=50)}
    sent = fitted_once(LowRank(rank=2), x)
    np.testing.assert_allclose(sent["thin"], thin, atol=1e-10)
    np.testing.assert_array_equal(sent["flat"], x["flat"])
    singular = np.r_[8.0, 4.0, 2.0, 0.1 * np.ones(17)]
    left, _ = np.linalg.qr(rng.normal(size=(40, 20)))
    right, _ = np.linalg.qr(rng.normal(size=(30, 20)))
    full = left * singular @ right.T
    sent = fitted_once(LowRank(rank=3), full.reshape(40, 5, 6))
    sent = np.asarray(sent).reshape(40, 30)
    assert np.linalg.matrix_rank(sent) == 3
    # A projection: what is left is orthogonal to what is sent, and nearly the best.
    assert np.abs(sent.T @ (full - sent)).max() < 1e-10
    best = (singular[3:] ** 2).sum()
    assert best <= ((full - sent) ** 2).sum() < 1.1 * best
    np.testing.assert_array_equal(fitted_once(LowRank(), np.zeros((20, 20))), 0)


FEEDBACK = [
    TopK(fraction=0.1, error_feedback=True),
    RandomK(fraction=0.2, error_feedback=True),
    QSGD(levels=2, error_feedback=True),
    SignScale(),
    LowRank(rank=1, error_feedback=True),
]


@pytest.mark.parametrize("transform", FEEDBACK, ids=lambda t: type(t).__name__)
def test_error_feedback_conserves_the_sum(transform):
    xs = [jax.tree.map(jnp.asarray, tree(seed)) for seed in range(6)]
    memory, total = transform.init(xs[0]), np.zeros(34)
    send = jax.jit(transform.send)
    assert not vector(memory).any()
    for number, x in enumerate(xs):
        sent, memory = send(jax.random.fold_in(KEY, number), memory, x)
        total += vector(sent)
    assert np.abs(vector(memory)).max() > 0.1
    np.testing.assert_allclose(
        total + vector(memory), sum(map(vector, xs)), rtol=0, atol=1e-12
    )


# A message of float32 [6, 5] and [4]: 34 numbers of 32 bits.
@pytest.mark.parametrize(
    ("transforms", "bits"),
    [
        ((), 34 * 32),
        ((TopK(fraction=0.5),), 17 * 32 + 17 * 6),  # places of 6 bits, as 2^5 < 34
        ((RandomK(fraction=0.5),), 17 * 32),
        ((QSGD(levels=1),), 34 * 2 + 2 * 32),
        ((QSGD(levels=7),), 34 * 4 + 2 * 32),
        ((QSGD(levels=8),), 34 * 5 + 2 * 32),
        ((TopK(fraction=0.5), QSGD(levels=3)), 17 * 3 + 17 * 6 + 2 * 32),
        ((SignScale(),), 34 + 2 * 32),
        ((LowRank(rank=2),), (2 * (6 + 5) + 4) * 32),
        ((LowRank(rank=3),), 34 * 32),  # 33 numbers in place of 30 are not worth it
    ],
)
def test_bits_are_those_of_the_documented_encoding(transforms, bits):
    shapes = {"w": (6, 5), "b": (4,)}
    message = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    encoding = Encoding.plain(message)
    for transform in transforms:
        encoding = transform.encoding(encoding)
    assert encoding.num_bytes == int(np.ceil(bits / 8))


def test_wrong_fields_are_sentences():
    for make, match in (
        (lambda: TopK(fraction=0.0), "fraction .* above 0 and at most 1, got 0.0"),
        (lambda: RandomK(fraction=1.5), "fraction .* at most 1, got 1.5"),
        (lambda: QSGD(levels=0), "levels .* at least 1, got 0"),
        (lambda: LowRank(rank=0), "rank .* at least 1, got 0"),
        (lambda: ClipNorm(norm=0.0), "norm .* above 0, got 0.0"),
        (lambda: ClipNorm(norm=-1.0), "norm .* above 0, got -1.0"),
        (lambda: GaussianNoise(delta=1.0), "delta .* above 0 and below 1, got 1.0"),
        (lambda: GaussianNoise(multiplier=-1.0), "multiplier .* at least 0, got -1.0"),
        (lambda: BandedNoise(bands=0), "bands .* at least 1, got 0"),
        (lambda: BandedNoise(rounds=0), "rounds .* at least 1, got 0"),
        (
            lambda: TopK(fraction=0.01).fit(None, jnp.ones(50)),
            "TopK to send at least one of the 50 numbers",
        ),
        (
            lambda: RandomK(fraction=0.01).fit(KEY, jnp.ones(50)),
            "RandomK to send at least one of the 50 numbers",
        ),
        (
            lambda: SignScale().encoding(
                TopK(fraction=0.5).encoding(Encoding.plain(jnp.ones(50)))
            ),
            "SignScale to see whole messages, .* drops 25 of 50 numbers",
        ),
    ):
        with pytest.raises(checks.InputError, match=match):
            make()
