"""Sums, sorts, indices, loops and functions, compared with NumPy in 64 bits."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import random

from fedjax_pfl.testing import battery_inputs as inputs

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


def reductions() -> Iterator[inputs.Comparison]:
    """Yields sums, means, products and extremes along all axes."""
    shapes = [(1,), (7,), (1023,), (100_003,), (37, 1001), (3, 5, 4097), (40_000, 3)]
    for shape in shapes:
        x = inputs.normal(*shape)
        exact = x.astype(np.float64)
        for axis in (None, *range(len(shape))):
            where = f"of {shape} along {axis}"
            terms = x.size if axis is None else shape[axis]
            total = exact.sum(axis)
            # Recursive sums of n terms are off by at most n EPS of all absolute values.
            bound = inputs.EPS * terms * np.abs(exact).sum(axis)
            for name in ("sum", "mean", "max", "min", "argmax", "argmin"):
                value = inputs.compiled(
                    lambda x, a=axis, n=name: getattr(jnp, n)(x, a)
                )(x)
                if name in ("sum", "mean"):
                    scale = 1 if name == "sum" else terms
                    yield f"{name} {where}", value, total / scale, bound / scale
                else:
                    right = getattr(np, name)(x, axis).astype(value.dtype)
                    yield f"{name} {where}", value, right, 0
    for shape in ((1,), (3001,), (513, 7)):
        x = 1 + inputs.normal(*shape) / 100
        for axis in (None, *range(len(shape))):
            right = np.prod(x.astype(np.float64), axis)
            terms = x.size if axis is None else shape[axis]
            program = inputs.compiled(lambda x, a=axis: jnp.prod(x, a))
            bound = terms * inputs.EPS * np.abs(right)
            yield f"product of {shape} along {axis}", program(x), right, bound
    count = inputs.rng().integers(-9, 9, size=(777, 131), dtype=np.int32)
    for axis in (None, 0, 1):
        program = inputs.compiled(lambda x, a=axis: (x.sum(a), (x > 7).any(a)))
        total, some = program(count)
        yield f"whole numbers along {axis}", total, count.sum(axis), 0
        yield f"any along {axis}", some, (count > 7).any(axis), 0


def extremes_of_nan() -> Iterator[inputs.Comparison]:
    """Yields extremes of numbers of which one is NaN."""
    nan = np.float32(np.nan)
    extremes = {
        "max": inputs.compiled(jnp.max),
        "min": inputs.compiled(jnp.min),
        "largest absolute value": inputs.compiled(lambda x: jnp.abs(x).max(initial=0)),
    }
    argmax = inputs.compiled(jnp.argmax)
    for size in (5, 1000, 4096, 100_003, 2**20):
        for place in (0, size // 3, size - 1):
            x = np.abs(inputs.normal(size))
            x[place] = nan
            for name, program in extremes.items():
                yield f"{name} of {size}", program(x), nan, 0
            first = argmax(x)
            yield f"argmax of {size}", first, np.asarray(place, first.dtype), 0
    x = inputs.normal(300, 700)
    x[17, 400] = nan
    for axis in (0, 1):
        program = inputs.compiled(lambda x, a=axis: jnp.max(x, a))
        yield f"max along {axis}", program(x), np.max(x, axis), 0


def sorts() -> Iterator[inputs.Comparison]:
    """Yields sorts of one and of several arrays."""
    for size in (1, 2, 63, 1000, 70_001):
        keys = inputs.rng().integers(2**32, size=size, dtype=np.uint32)
        program = inputs.compiled(lambda k: lax.sort(k, is_stable=False))
        yield f"{size} numbers", program(keys), np.sort(keys), 0
        few = (keys % 7).astype(np.uint32)
        order = np.argsort(few, kind="stable").astype(np.int32)
        place = np.arange(size, dtype=np.int32)
        both = inputs.compiled(lambda a, b: lax.sort((a, b), num_keys=1))(few, place)
        yield f"order of {size} numbers", both[1], order, 0
        bits = inputs.rng().permutation(2**20)[:size].astype(np.uint32) << 11
        shuffle = inputs.compiled(
            lambda k, v: lax.sort((k, v), num_keys=1, is_stable=False)[1]
        )
        yield f"{size} shuffled", shuffle(bits, place), np.argsort(bits), 0
    rows = inputs.normal(200, 101)
    rows[3, 5] = rows[4, 0] = np.nan
    yield "rows with NaN", inputs.compiled(jnp.sort)(rows), np.sort(rows, axis=1), 0
    best, where = inputs.compiled(jax.vmap(lambda r: lax.top_k(r, 5)))(rows[10:])
    right = np.sort(rows[10:], axis=1)[:, ::-1][:, :5]
    yield "five largest", best, right, 0
    taken = np.take_along_axis(rows[10:], np.asarray(where), axis=1)
    yield "places of the five largest", taken, right, 0


def indexing() -> Iterator[inputs.Comparison]:
    """Yields gathers and scatters, of which some are dropped."""
    table, rows = inputs.normal(5000, 17), inputs.rng().integers(5000, size=300)
    gather = inputs.compiled(lambda t, r: t[r])
    yield "gathered rows", gather(table, rows), table[rows], 0
    at = np.concatenate([inputs.rng().permutation(5000)[:200], np.full(9, 5000)])
    new = inputs.normal(209, 17)
    right = table.copy()
    right[at[:200]] = new[:200]
    drop = inputs.compiled(lambda t, r, v: t.at[r].set(v, mode="drop"))
    yield "written rows", drop(table, at, new), right, 0
    sums = np.zeros((11, 17))
    np.add.at(sums, rows % 11, table[rows].astype(np.float64))
    sizes = np.zeros((11, 17))
    np.add.at(sizes, rows % 11, np.abs(table[rows].astype(np.float64)))
    add = inputs.compiled(lambda v, r: jax.ops.segment_sum(v, r, 11))
    yield "sums by group", add(table[rows], rows % 11), sums, 300 * inputs.EPS * sizes
    lost = inputs.compiled(lambda v, r: jnp.zeros((11, 17)).at[r].add(v, mode="drop"))
    outside = np.where(rows % 3 == 0, 11, rows % 11)
    sums, inside = np.zeros((11, 17)), rows % 3 != 0
    np.add.at(sums, outside[inside], table[rows[inside]].astype(np.float64))
    bound = 300 * inputs.EPS * sizes
    yield "dropped additions", lost(table[rows], outside), sums, bound
    slope = jax.grad(lambda t, r: (t[r] * jnp.arange(17.0)).sum())
    right = np.bincount(rows, minlength=5000)[:, None] * np.arange(17.0)
    yield "gradient of a gather", inputs.compiled(slope)(table, rows), right, 0
    pool = inputs.rng().integers(256, size=(999, 28, 28), dtype=np.uint8)
    index = inputs.rng().integers(999, size=(40, 6))
    images = jnp.asarray(pool)
    take = inputs.compiled(jax.vmap(lambda i: images[i].astype(jnp.float32) / 255))
    right = pool[index] / 255
    yield "batches of images", take(index), right, 2 * inputs.EPS * right
    part = inputs.compiled(jax.vmap(lambda t, i: lax.dynamic_slice(t, (i,), (50,))))
    starts = np.arange(17) * 290
    right = np.stack([table[s : s + 50, i] for i, s in enumerate(starts)])
    yield "slices per client", part(table.T, starts), right, 0


def loops() -> Iterator[inputs.Comparison]:
    """Yields loops whose clients stop at different times."""
    counts = np.arange(50, dtype=np.int32) % 13

    def walk(count):
        return lax.while_loop(
            lambda c: c[0] < count,
            lambda c: (c[0] + 1, c[1] + c[0]),
            (jnp.int32(0), jnp.int32(0)),
        )[1]

    right = (counts * (counts - 1) // 2).astype(np.int32)
    yield "while", inputs.compiled(jax.vmap(walk))(counts), right, 0
    bounded = inputs.compiled(
        jax.vmap(lambda n: lax.fori_loop(0, n, lambda i, s: s + i, jnp.int32(0)))
    )
    yield "counted", bounded(counts), right, 0
    branch = inputs.compiled(
        jax.vmap(lambda n: lax.cond(n > 6, lambda: n * 2, lambda: n - 1))
    )
    yield "branches", branch(counts), np.where(counts > 6, 2 * counts, counts - 1), 0
    x = inputs.normal(1000)
    exact = x.astype(np.float64)
    bound = 1000 * inputs.EPS * np.cumsum(np.abs(exact))
    yield "running sums", inputs.compiled(jnp.cumsum)(x), np.cumsum(exact), bound
    table = np.arange(13 * 41).reshape(13, 41)
    running = inputs.compiled(lambda x: (jnp.cumsum(x, axis=0), jnp.cumsum(x, axis=1)))
    for axis, value in enumerate(running(table)):
        yield f"running sums along {axis}", value, np.cumsum(table, axis), 0
    step = inputs.compiled(lambda x: lax.scan(lambda c, v: (0.5 * c + v, c), 0.0, x)[1])
    states, state = [], 0.0
    for value in exact:
        states.append(state)
        state = 0.5 * state + value
    yield "scan", step(x), np.asarray(states), 64 * inputs.EPS * np.abs(x).max()


def integers() -> Iterator[inputs.Comparison]:
    """Yields additions, rotations and exclusive ors of 32 bits."""

    def cipher(x, y, one):
        for number in range(20):
            distance = 5 + number
            x = x + y * one(2654435761)
            y = ((y << one(distance)) | (y >> one(32 - distance))) ^ x
        return x ^ y

    x = inputs.rng().integers(2**32, size=(2, 30_001), dtype=np.uint32)
    with np.errstate(over="ignore"):
        right = cipher(x[0], x[1], np.uint32)
    program = inputs.compiled(lambda x: cipher(x[0], x[1], jnp.uint32))
    yield "cipher", program(x), right, 0
    number = np.arange(-500, 500, dtype=np.int32)
    divide = inputs.compiled(lambda n: (n // 7, n % 7, -(-n // 7)))
    quotient, rest, ceiling = divide(number)
    yield "quotient", quotient, number // 7, 0
    yield "rest", rest, number % 7, 0
    yield "ceiling", ceiling, -(-number // 7), 0


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


def random_bits() -> Iterator[inputs.Comparison]:
    """Yields the cipher of `jax.random`, by its published answers and in draws."""
    for key, counter, answer in _ENCRYPTED:
        key, counter, answer = np.asarray((key, counter, answer), np.uint32)
        cipher = inputs.compiled(random.threefry_2x32)
        yield "known answer", cipher(key, counter), answer, 0
    words = np.asarray([[2026, 11], [23, 0xFFFFFFFF]], np.uint32)
    keys = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    for count in (1, 7, 4099):
        with np.errstate(over="ignore"):
            place = np.arange(count, dtype=np.uint32)
            blocks = [_threefry(key, np.zeros_like(place), place) for key in words]
        right = np.stack([x ^ y for x, y in blocks])
        with jax.threefry_partitionable(True):
            draw = inputs.compiled(
                jax.vmap(lambda k, n=count: jax.random.bits(k, (n,), jnp.uint32))
            )
            yield f"{count} words", draw(keys), right, 0


def half_precision() -> Iterator[inputs.Comparison]:
    """Yields roundings to bfloat16 and float16."""
    x = np.concatenate(
        [inputs.normal(5000), np.array([0, 1e-30, 3e38, -1, 65504, 1.5], np.float32)]
    )
    for dtype in (jnp.bfloat16, jnp.float16):
        with np.errstate(over="ignore"):
            right = x.astype(dtype).astype(np.float32)
        there = inputs.compiled(lambda x, d=dtype: x.astype(d).astype(jnp.float32))
        # XLA may keep the precision inside of a program: the value itself is right.
        value = np.asarray(there(x))
        value = np.where(value == x, right, value)
        yield jnp.dtype(dtype).name, value, right, 0
        stored = inputs.compiled(lambda x, d=dtype: x.astype(d))(x)
        yield f"{jnp.dtype(dtype).name}, stored", stored.astype(jnp.float32), right, 0


def functions() -> Iterator[inputs.Comparison]:
    """Yields the functions that losses and activations are made of."""
    x = np.linspace(-20, 20, 40_001, dtype=np.float32)
    exact = x.astype(np.float64)
    functions = {
        "exp": (jnp.exp, np.exp(exact), 0),
        "tanh": (jnp.tanh, np.tanh(exact), inputs.EPS),
        "log1p of exp": (jax.nn.softplus, np.logaddexp(0, exact), inputs.EPS),
        "sigmoid": (jax.nn.sigmoid, 1 / (1 + np.exp(-exact)), inputs.EPS),
        "log": (
            lambda x: jnp.log(jnp.abs(x) + 1),
            np.log(np.abs(exact) + 1),
            inputs.EPS,
        ),
        "sqrt": (lambda x: jnp.sqrt(jnp.abs(x)), np.sqrt(np.abs(exact)), 0),
    }
    for name, (function, right, absolute) in functions.items():
        # Libraries promise a few units in the last place.
        bound = 16 * inputs.EPS * np.abs(right) + 16 * absolute
        yield name, inputs.compiled(function)(x), right, bound
