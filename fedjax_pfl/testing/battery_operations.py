"""Sums, sorts, indices, loops and functions, compared with NumPy in 64 bits."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import random

from fedjax_pfl.testing.battery_inputs import EPS, Comparison, normal, rng, run

__all__ = [
    "extremes_of_nan",
    "functions",
    "half_precision",
    "indexing",
    "integers",
    "loops",
    "random_bits",
    "reductions",
    "sorts",
]

_SHAPES = ((1,), (7,), (1023,), (100_003,), (37, 1001), (3, 5, 4097), (40_000, 3))


def _along(*shapes: tuple[int, ...]) -> Iterator[tuple[np.ndarray, int | None, int]]:
    """Yields normal numbers of these shapes, an axis or None, and its length."""
    for shape in shapes:
        x = normal(*shape)
        for axis in (None, *range(len(shape))):
            yield x, axis, x.size if axis is None else shape[axis]


def reductions() -> Iterator[Comparison]:
    """Yields sums, means, products and extremes along all axes."""
    for x, axis, terms in _along(*_SHAPES):
        where, exact = f"of {x.shape} along {axis}", x.astype(np.float64)
        total = exact.sum(axis)
        # Recursive sums of n terms are off by at most n EPS of all absolute values.
        bound = EPS * terms * np.abs(exact).sum(axis)
        yield f"sum {where}", run(jnp.sum, x, axis=axis), total, bound
        mean = run(jnp.mean, x, axis=axis)
        yield f"mean {where}", mean, total / terms, bound / terms
        for name in ("max", "min", "argmax", "argmin"):
            value = run(getattr(jnp, name), x, axis=axis)
            right = getattr(np, name)(x, axis).astype(value.dtype)
            yield f"{name} {where}", value, right, 0
    for x, axis, terms in _along((1,), (3001,), (513, 7)):
        x = 1 + x / 100
        right = np.prod(x.astype(np.float64), axis)
        bound = terms * EPS * np.abs(right)
        value = run(jnp.prod, x, axis=axis)
        yield f"product of {x.shape} along {axis}", value, right, bound
    count = rng().integers(-9, 9, size=(777, 131), dtype=np.int32)
    for axis in (None, 0, 1):
        total = run(jnp.sum, count, axis=axis)
        yield f"whole numbers along {axis}", total, count.sum(axis), 0
        some = run(lambda x, axis: (x > 7).any(axis), count, axis=axis)
        yield f"any along {axis}", some, (count > 7).any(axis), 0


def extremes_of_nan() -> Iterator[Comparison]:
    """Yields extremes of numbers with one NaN."""
    nan = np.float32(np.nan)

    def largest(x: jax.Array) -> jax.Array:
        return jnp.abs(x).max(initial=0)

    for size in (5, 1000, 4096, 100_003, 2**20):
        for place in (0, size // 3, size - 1):
            x = np.abs(normal(size))
            x[place] = nan
            yield f"max of {size}", run(jnp.max, x), nan, 0
            yield f"min of {size}", run(jnp.min, x), nan, 0
            yield f"largest absolute value of {size}", run(largest, x), nan, 0
            index = run(jnp.argmax, x)
            yield f"argmax of {size}", index, np.asarray(place, index.dtype), 0
    x = normal(300, 700)
    # NaN must win in every reduction: a maximum that hides it hides a divergence.
    x[17, 400] = nan
    for axis in (0, 1):
        yield f"max along {axis}", run(jnp.max, x, axis=axis), np.max(x, axis), 0


def sorts() -> Iterator[Comparison]:
    """Yields sorts of one and of several arrays."""
    for size in (1, 2, 63, 1000, 70_001):
        keys = rng().integers(2**32, size=size, dtype=np.uint32)
        value = run(lax.sort, keys, is_stable=False)
        yield f"{size} numbers", value, np.sort(keys), 0
        # Many equal keys show whether the sort is stable.
        few = (keys % 7).astype(np.uint32)
        order = np.argsort(few, kind="stable").astype(np.int32)
        place = np.arange(size, dtype=np.int32)
        _, pair_order = run(lambda a, b: lax.sort((a, b), num_keys=1), few, place)
        yield f"order of {size} numbers", pair_order, order, 0
        bits = rng().permutation(2**20)[:size].astype(np.uint32) << 11
        _, shuffled = run(lambda a, b: lax.sort((a, b), is_stable=False), bits, place)
        yield f"{size} shuffled", shuffled, np.argsort(bits), 0
    rows = normal(200, 101)
    rows[3, 5] = rows[4, 0] = np.nan
    yield "rows with NaN", run(jnp.sort, rows), np.sort(rows, axis=1), 0
    best, where = run(jax.vmap(lambda r: lax.top_k(r, 5)), rows[10:])
    right = np.sort(rows[10:], axis=1)[:, ::-1][:, :5]
    yield "five largest", best, right, 0
    taken = np.take_along_axis(rows[10:], np.asarray(where), axis=1)
    yield "places of the five largest", taken, right, 0


def indexing() -> Iterator[Comparison]:
    """Yields gathers and scatters, some with dropped rows."""
    table, rows = normal(5000, 17), rng().integers(5000, size=300)
    yield "gathered rows", run(lambda t, r: t[r], table, rows), table[rows], 0
    # Row 5000 does not exist: mode="drop" must leave it out, as padded places do.
    at = np.concatenate([rng().permutation(5000)[:200], np.full(9, 5000)])
    new = normal(209, 17)
    right = table.copy()
    right[at[:200]] = new[:200]
    written = run(lambda t, r, v: t.at[r].set(v, mode="drop"), table, at, new)
    yield "written rows", written, right, 0
    sums, sizes, subtotals = np.zeros((3, 12, 17))
    terms, group = table[rows].astype(np.float64), rows % 11
    # Group 11 is outside of the sums, too.
    outside = np.where(rows % 3 == 0, 11, group)
    np.add.at(sums, group, terms)
    np.add.at(sizes, group, np.abs(terms))
    np.add.at(subtotals, outside, terms)
    bound = 300 * EPS * sizes[:11]
    value = run(jax.ops.segment_sum, table[rows], group, num_segments=11)
    yield "sums by group", value, sums[:11], bound
    value = run(
        lambda v, r: jnp.zeros((11, 17)).at[r].add(v, mode="drop"), table[rows], outside
    )
    yield "dropped additions", value, subtotals[:11], bound
    slope = jax.grad(lambda t, r: (t[r] * jnp.arange(17.0)).sum())
    right = np.bincount(rows, minlength=5000)[:, None] * np.arange(17.0)
    yield "gradient of a gather", run(slope, table, rows), right, 0
    pool = rng().integers(256, size=(999, 28, 28), dtype=np.uint8)
    index = rng().integers(999, size=(40, 6))
    images = jnp.asarray(pool)
    take = jax.vmap(lambda i: images[i].astype(jnp.float32) / 255)
    right = pool[index] / 255
    yield "batches of images", run(take, index), right, 2 * EPS * right
    part = jax.vmap(lambda t, i: lax.dynamic_slice(t, (i,), (50,)))
    # One slice per client, as batches are taken from its series.
    starts = np.arange(17) * 290
    right = np.stack([table[s : s + 50, i] for i, s in enumerate(starts)])
    yield "slices per client", run(part, table.T, starts), right, 0


def loops() -> Iterator[Comparison]:
    """Yields loops of clients that stop at different times."""
    # Under vmap all lanes run until the slowest stops; ended lanes must keep their
    # values.
    counts = np.arange(50, dtype=np.int32) % 13

    zero = jnp.int32(0)

    def walk(count: jax.Array) -> jax.Array:
        step = lambda c: (c[0] + 1, c[1] + c[0])  # noqa: E731
        return lax.while_loop(lambda c: c[0] < count, step, (zero, zero))[1]

    right = (counts * (counts - 1) // 2).astype(np.int32)
    yield "while", run(jax.vmap(walk), counts), right, 0
    counted = jax.vmap(lambda n: lax.fori_loop(0, n, lambda i, s: s + i, zero))
    yield "counted", run(counted, counts), right, 0
    branch = jax.vmap(lambda n: lax.cond(n > 6, lambda: n * 2, lambda: n - 1))
    right = np.where(counts > 6, 2 * counts, counts - 1)
    yield "branches", run(branch, counts), right, 0
    x = normal(1000)
    exact = x.astype(np.float64)
    bound = 1000 * EPS * np.cumsum(np.abs(exact))
    yield "running sums", run(jnp.cumsum, x), np.cumsum(exact), bound
    table = np.arange(13 * 41).reshape(13, 41)
    for axis in (0, 1):
        value = run(jnp.cumsum, table, axis=axis)
        yield f"running sums along {axis}", value, np.cumsum(table, axis), 0
    _, value = run(lambda x: lax.scan(lambda c, v: (0.5 * c + v, c), 0.0, x), x)
    states = [0.0]
    for number in exact[:-1]:
        states.append(0.5 * states[-1] + number)
    yield "scan", value, np.asarray(states), 64 * EPS * np.abs(x).max()


def integers() -> Iterator[Comparison]:
    """Yields divisions; the cipher of `random_bits` adds, rotates and inverts bits."""
    number = np.arange(-500, 500, dtype=np.int32)
    yield "quotient", run(lambda n: n // 7, number), number // 7, 0
    yield "rest", run(lambda n: n % 7, number), number % 7, 0
    yield "ceiling", run(lambda n: -(-n // 7), number), -(-number // 7), 0


_ENCRYPTED = (  # key, counter, result: Random123's known answers of Threefry-2x32-20
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)


def _threefry(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> list[np.ndarray]:
    """Encrypts a counter with Threefry-2x32-20, in NumPy."""
    words = (*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for step in range(20):
        distance = np.uint32(
            ((13, 15, 26, 6), (17, 29, 16, 24))[step // 4 % 2][step % 4]
        )
        x = x + y
        y = ((y << distance) | (y >> (np.uint32(32) - distance))) ^ x
        if step % 4 == 3:
            number = step // 4 + 1
            x = x + words[number % 3]
            y = y + words[(number + 1) % 3] + np.uint32(number)
    return [x, y]


def random_bits() -> Iterator[Comparison]:
    """Yields the cipher of `jax.random`, by its published answers and in draws."""
    for key, counter, answer in _ENCRYPTED:
        key, counter, answer = np.asarray((key, counter, answer), np.uint32)
        yield "known answer", run(random.threefry_2x32, key, counter), answer, 0
    words = np.asarray([[2026, 11], [23, 0xFFFFFFFF]], np.uint32)
    keys = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    for count in (1, 7, 4099):
        # The cipher adds modulo 2^32.
        with np.errstate(over="ignore"):
            place = np.arange(count, dtype=np.uint32)
            blocks = [_threefry(key, np.zeros_like(place), place) for key in words]
        right = np.stack([x ^ y for x, y in blocks])
        with jax.threefry_partitionable(True):
            draw = jax.vmap(lambda k, n=count: jax.random.bits(k, (n,), jnp.uint32))
            yield f"{count} words", run(draw, keys), right, 0


def half_precision() -> Iterator[Comparison]:
    """Yields roundings to bfloat16 and float16."""
    odd = np.array([0, 1e-30, 3e38, -1, 65504, 1.5], np.float32)
    x = np.concatenate([normal(5000), odd])
    for dtype in (jnp.bfloat16, jnp.float16):
        with np.errstate(over="ignore"):
            right = x.astype(dtype).astype(np.float32)
        back = run(lambda x, to: x.astype(to).astype(jnp.float32), x, to=dtype)
        # XLA may keep the precision inside of a program: the value itself is right.
        value = np.where(back == x, right, back)
        yield jnp.dtype(dtype).name, value, right, 0
        stored = run(lax.convert_element_type, x, new_dtype=dtype).astype(jnp.float32)
        yield f"{jnp.dtype(dtype).name}, stored", stored, right, 0


def functions() -> Iterator[Comparison]:
    """Yields the functions that losses and activations are made of."""
    x = np.linspace(-20, 20, 40_001, dtype=np.float32)
    exact = x.astype(np.float64)
    functions = {
        "exp": (jnp.exp, np.exp(exact), 0),
        "tanh": (jnp.tanh, np.tanh(exact), EPS),
        "log1p of exp": (jax.nn.softplus, np.logaddexp(0, exact), EPS),
        "sigmoid": (jax.nn.sigmoid, 1 / (1 + np.exp(-exact)), EPS),
        "log": (lambda x: jnp.log(jnp.abs(x) + 1), np.log(np.abs(exact) + 1), EPS),
        "sqrt": (lambda x: jnp.sqrt(jnp.abs(x)), np.sqrt(np.abs(exact)), 0),
    }
    for name, (function, right, absolute) in functions.items():
        # Libraries promise a few units in the last place.
        bound = 16 * EPS * np.abs(right) + 16 * absolute
        yield name, run(function, x), right, bound
