"""The generator: published answers, independence of shape and vmap, statistics.

The statistical tests are of a fixed seed. Each statistic is compared with a bound that
a true random source exceeds with a probability below 1e-6 (so all together below 1e-4).
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_pfl import core
from fedjax_pfl.core import randomness
from fedjax_pfl.local import minibatch_scan

KEY = core.seed_key(5)
RARE = 1e-6

# Known answers that Random123 publishes for 13 rounds: counter, key, result.
KNOWN = [
    ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0xFD36D048, 0x2D17272C)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
]


def words(numbers):
    return tuple(jnp.uint32(number) for number in numbers)


@pytest.mark.parametrize("counter, key, answer", KNOWN)
def test_known_answers(counter, key, answer):
    found = randomness.threefry(words(key), words(counter))
    assert tuple(int(word) for word in found) == answer


def test_a_prefix_does_not_depend_on_how_much_is_drawn():
    few, many = (jax.random.bits(KEY, (n,), jnp.uint32) for n in (7, 1000))
    np.testing.assert_array_equal(few, many[:7])


def test_vmap_draws_what_a_loop_draws():
    keys = jax.random.split(KEY, 5)

    def draw(key):
        return jax.random.normal(jax.random.fold_in(key, 3), (4, 2))

    mapped = jax.jit(jax.vmap(draw))(keys)
    for number in range(5):
        np.testing.assert_array_equal(mapped[number], draw(keys[number]))


@pytest.mark.parametrize("width", [8, 16, 32])
def test_narrow_numbers_are_the_high_bits(width):
    full = np.asarray(jax.random.bits(KEY, (100,), jnp.uint32))
    narrow = jax.random.bits(KEY, (100,), jnp.dtype(f"uint{width}"))
    np.testing.assert_array_equal(narrow, full >> (32 - width))


def test_uses_of_a_key_share_no_words():
    drawn = jax.random.bits(KEY, (1000,), jnp.uint32)
    folded = jax.jit(jax.vmap(lambda i: jax.random.fold_in(KEY, i)))(jnp.arange(1000))
    split = jax.random.split(KEY, 1000)
    kinds = [np.asarray(drawn)]
    kinds += [np.asarray(jax.random.key_data(keys))[:, 0] for keys in (folded, split)]
    for one, other in itertools.combinations(kinds, 2):
        # Two lists of 1000 random words share 0.00023 words on average.
        assert not set(one.tolist()) & set(other.tolist())


def test_a_key_of_any_generator_becomes_one_of_ours():
    ours = core.new_key(jax.random.key_data(jax.random.key(7, impl="threefry2x32")))
    np.testing.assert_array_equal(
        jax.random.key_data(ours), jax.random.key_data(core.seed_key(7))
    )
    wide = jax.random.split(jax.random.key(7, impl="rbg"), 3)
    data = np.asarray(jax.random.key_data(core.new_key(jax.random.key_data(wide))))
    assert data.shape == (3, 2) and len(np.unique(data, axis=0)) == 3


def chi_square(counts, expected):
    """Probability of counts as uneven as these."""
    counts = np.asarray(counts, np.float64).reshape(-1)
    expected = np.broadcast_to(np.asarray(expected, np.float64), counts.shape)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return stats.chi2.sf(statistic, len(counts) - 1)


SOURCES = {
    "one key": lambda: jax.random.bits(KEY, (2**18,), jnp.uint32),
    "seeds": lambda: jax.vmap(
        lambda i: jax.random.bits(core.new_key(jnp.stack([jnp.uint32(0), i])), ())
    )(jnp.arange(2**18, dtype=jnp.uint32)),
    "clients": lambda: jax.vmap(
        lambda i: jax.random.bits(jax.random.fold_in(KEY, i), ())
    )(jnp.arange(2**18)),
    "rounds and clients": lambda: jax.vmap(
        lambda i: jax.random.bits(
            jax.random.fold_in(
                core.stream_key(KEY, core.Stream.CLIENT, i // 512), i % 512
            ),
            (),
        )
    )(jnp.arange(2**18)).reshape(-1),
}


@pytest.fixture(scope="module", params=SOURCES)
def source(request):
    return np.asarray(jax.jit(SOURCES[request.param])()).astype(np.uint32)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform(source, shift):
    counts = np.bincount(source >> shift & 255, minlength=256)
    assert chi_square(counts, len(source) / 256) > RARE


@pytest.mark.parametrize("shift", [0, 12, 28])
@pytest.mark.parametrize("lag", [1, 2, 512])
def test_nibbles_of_neighbors_are_independent(source, shift, lag):
    nibbles = source >> shift & 15
    pairs = nibbles[:-lag] * 16 + nibbles[lag:]
    counts = np.bincount(pairs, minlength=256)
    assert chi_square(counts, len(pairs) / 256) > RARE


def test_number_of_repeated_words_is_that_of_birthdays(source):
    # Poisson with mean n^2 / 2^33 = 8.
    repeated = len(source) - len(np.unique(source))
    mean = len(source) ** 2 / 2**33
    assert stats.poisson.cdf(repeated, mean) > RARE
    assert stats.poisson.sf(repeated - 1, mean) > RARE


def test_a_flipped_bit_of_key_or_counter_flips_half_of_all_bits():
    rng = np.random.default_rng(0)
    inputs = rng.integers(2**32, size=(4, 4096), dtype=np.uint32)

    @jax.jit
    def cipher(inputs):
        a, b, x, y = inputs
        return jnp.stack(randomness.threefry((a, b), (x, y)))

    before = np.asarray(cipher(inputs))
    # 64 output bits for each of 128 input bits, 8192 comparisons.
    bound = stats.norm.isf(RARE / 2 / (128 * 64)) * 0.5 / math.sqrt(4096)
    for word, bit in itertools.product(range(4), range(32)):
        flipped = inputs.copy()
        flipped[word] ^= np.uint32(1 << bit)
        change = before ^ np.asarray(cipher(flipped))
        for out, number in itertools.product(range(2), range(32)):
            share = (change[out] >> number & 1).mean()
            assert abs(share - 0.5) < bound


def orders(keys, count, slots):
    """Shuffles `[len(keys), count]` as local work makes them."""
    data = core.ClientData(
        x=jnp.zeros((1, 1)),
        y=jnp.zeros(1, jnp.int32),
        scale=jnp.ones(()),
        shift=jnp.zeros(()),
        index=jnp.zeros(slots, jnp.int32),
        num_examples=jnp.int32(count),
        client_id=jnp.int32(0),
    )
    one = jax.vmap(lambda key: minibatch_scan._shuffled_positions(key, data, slots))
    return np.asarray(jax.jit(one)(keys))[:, :count]


def member_keys(num_rounds, num_clients):
    """Keys as rounds and clients have them, `[R * N]`."""
    i = jnp.arange(num_rounds * num_clients)

    def key(i):
        round_key = core.stream_key(KEY, core.Stream.CLIENT, i // num_clients)
        return jax.random.fold_in(round_key, i % num_clients)

    return jax.jit(jax.vmap(key))(i)


@pytest.fixture(scope="module")
def shuffles():
    """Orders of 12 examples, of 200 rounds and 100 clients, `[200, 100, 12]`."""
    found = orders(member_keys(200, 100), 12, 16)
    return found.reshape(200, 100, 12)


def test_a_shuffle_visits_every_example_once(shuffles):
    np.testing.assert_array_equal(
        np.sort(shuffles, axis=-1), np.broadcast_to(np.arange(12), shuffles.shape)
    )


def test_a_shuffle_does_not_depend_on_padding():
    keys = member_keys(3, 5)
    np.testing.assert_array_equal(orders(keys, 12, 16), orders(keys, 12, 150))


def test_every_example_is_as_often_at_every_position(shuffles):
    flat = shuffles.reshape(-1, 12)
    counts = np.zeros((12, 12))
    np.add.at(counts, (np.arange(12)[None, :], flat), 1)
    # Rows and columns sum to a constant: (12 - 1)^2 degrees of freedom, and the
    # statistic of a permutation matrix is 12 / 11 of a table's of free counts.
    expected = len(flat) / 12
    statistic = ((counts - expected) ** 2 / expected).sum() * 11 / 12
    assert stats.chi2.sf(statistic, 121) > RARE


def test_every_pair_is_as_often_in_either_order_and_side_by_side(shuffles):
    flat = shuffles.reshape(-1, 12)
    place = np.argsort(flat, axis=1)
    bound = stats.norm.isf(RARE / 2 / 66) * 0.5 / math.sqrt(len(flat))
    for i, j in itertools.combinations(range(12), 2):
        assert abs((place[:, i] < place[:, j]).mean() - 0.5) < bound
    following = flat[:, :-1] * 12 + flat[:, 1:]
    counts = np.bincount(following.reshape(-1), minlength=144).reshape(12, 12)
    pairs = counts[~np.eye(12, dtype=bool)]
    expected = following.size / 132
    bound = stats.norm.isf(RARE / 2 / 132) * math.sqrt(expected)
    assert np.abs(pairs - expected).max() < bound


def test_all_orders_of_five_are_as_frequent():
    found = orders(member_keys(300, 100), 5, 8)
    number = found @ (5 ** np.arange(5))
    _, counts = np.unique(number, return_counts=True)
    assert len(counts) == 120
    assert chi_square(counts, 30000 / 120) > RARE


@pytest.mark.parametrize("axis", [0, 1], ids=["rounds", "clients"])
def test_shuffles_of_neighboring_rounds_and_clients_are_independent(shuffles, axis):
    before = np.take(shuffles, range(shuffles.shape[axis] - 1), axis).reshape(-1, 12)
    after = np.take(shuffles, range(1, shuffles.shape[axis]), axis).reshape(-1, 12)
    # The number of fixed points between independent permutations has mean 1 and
    # variance 1; positions of one example are uncorrelated.
    fixed = (before == after).sum(axis=1)
    bound = stats.norm.isf(RARE / 2) / math.sqrt(len(fixed))
    assert abs(fixed.mean() - 1) < bound
    place = [np.argsort(flat, axis=1)[:, 0] for flat in (before, after)]
    counts = np.bincount(place[0] * 12 + place[1], minlength=144)
    assert chi_square(counts, len(before) / 144) > RARE
