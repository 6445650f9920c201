"""What this machine can do, measured: seconds of the work that `counting` finds.

Large operations (products, convolutions, gathers, sorts, random numbers, reductions)
are measured one by one, with the shapes that they have in the program, inside a loop
as there. Everything else is bytes moved, at the rate of arrays of that size.
"""

import functools
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import counting, liveness

__all__ = ["Machine", "cores"]

_MOST_BYTES = 2**28  # larger operations are not measured
_ENOUGH = 0.9  # share of the work that is measured
_MOST_ITEMS = 10
_SECONDS = 0.003  # of one measurement
_MOST_TIMES = 2**20
_CARRIED = ("scatter",)  # write into their first operand


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Machine:
    """Rates of the default device; each is measured when it is first asked for."""

    def __init__(self):
        """Has measured nothing yet."""
        self._items: dict[Any, tuple[float, float]] = {}

    @functools.cached_property
    def _passes(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes moved by an element-wise operation, and its seconds."""
        sizes = [2**12, 2**16, 2**20, 2**23, 2**26]
        seconds = []
        for size in sizes:
            x = jnp.ones(size // 8, jnp.float32)  # read and written
            seconds.append(_seconds(lambda x: (x * 0.5 + 1.0,), (x,), carried=True)[0])
        return np.asarray(sizes, float), np.asarray(seconds)

    @functools.cached_property
    def step(self) -> float:
        """Seconds of a loop's step that does nothing."""
        return _seconds(lambda x: (x * 3 + 1,), (jnp.int32(1),), carried=True)[0]

    @functools.cached_property
    def _hard(self) -> float:
        """Seconds of an exponential."""
        x = jnp.ones(2**15, jnp.float32)
        found = _seconds(lambda x: (jnp.exp(-x),), (x,), carried=True)[0]
        return max(found - self.moving(2 * x.nbytes), 0.0) / x.size

    @functools.cached_property
    def flops(self) -> float:
        """Floating point operations per second of a large product of matrices."""
        return self._product(1024)

    @functools.cached_property
    def small_flops(self) -> float:
        """Those of a small product."""
        return self._product(32)

    @property
    def bandwidth(self) -> float:
        """Bytes read and written per second in an array that fits no cache."""
        sizes, seconds = self._passes
        return float(sizes[-1] / seconds[-1])

    def _product(self, size: int) -> float:
        x = jnp.full((size, size), 1 / size, jnp.float32)
        return 2 * size**3 / _seconds(lambda x: (x @ x,), (x,), carried=True)[0]

    def moving(self, size: float) -> float:
        """Seconds of an element-wise operation that moves so many bytes."""
        sizes, seconds = self._passes
        if size > sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        return float(np.interp(size, sizes, seconds))

    def seconds(self, count: counting.Count) -> dict[str, float]:
        """Seconds of a program, by kind of work.

        Args:
          count: of the program.

        Returns:
          Seconds by kind, the largest first.
        """
        found: dict[str, float] = {}
        self._measure(count.items.items())
        ratios = self._ratios(count)
        for key, (item, times) in count.items.items():
            each, threads = self._items.get(key, (None, 1.0))
            if each is None:
                each = self._guess(item, ratios.get(item.kind, 1.0))
            each *= _shared(item.devices, threads)
            found[item.kind] = found.get(item.kind, 0.0) + times * each
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def _guess(self, item: counting.Item, ratio: float) -> float:
        """Seconds of something that was not measured itself."""
        if item.kind == "loops":
            return self.step
        if item.hard:
            return item.hard * self._hard
        if item.op is None:
            return self.moving(item.bytes)
        return ratio * self._floor(item)

    def _floor(self, item: counting.Item) -> float:
        """Seconds of an operation at the machine's full rates."""
        return item.flops / self.flops + self.moving(item.bytes)

    def _ratios(self, count: counting.Count) -> dict[str, float]:
        """By kind: how much longer measured operations took than at full rates."""
        sums: dict[str, list[float]] = {}
        for key, (item, times) in count.items.items():
            if key in self._items:
                took = sums.setdefault(item.kind, [0.0, 0.0])
                took[0] += times * self._items[key][0]
                took[1] += times * self._floor(item)
        return {kind: took / floor for kind, (took, floor) in sums.items()}

    def _measure(self, items: Iterable[tuple[Any, tuple[counting.Item, float]]]):
        """Measures the operations that make up most of a program."""
        own = [(i.weight * n, k, i) for k, (i, n) in items if i.op is not None]
        own.sort(key=lambda entry: -entry[0])
        left = (1 - _ENOUGH) * sum(weight for weight, _, _ in own)
        total = sum(weight for weight, _, _ in own)
        for weight, key, item in own[:_MOST_ITEMS]:
            if total <= left:
                break
            total -= weight
            size = sum(_size(a) for a in _measured_operands(item))
            if key not in self._items and size <= _MOST_BYTES:
                self._items[key] = _seconds_of(item)


def _shared(devices: int, threads: float) -> float:
    """How much longer something takes where devices of a CPU do it together."""
    if devices == 1 or jax.default_backend() != "cpu":
        return 1.0
    return max(1.0, devices * threads / cores())


def _size(aval: Any) -> int:
    """Bytes of an operand; keys by their words."""
    return math.prod(aval.shape) * aval.dtype.itemsize


def _example(aval: Any, highest: int) -> jax.Array:
    """Some operand; whole numbers below a bound, as indices are."""
    shape, dtype = aval.shape, aval.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        words = jnp.ones((*shape, 2), jnp.uint32)
        return jax.random.wrap_key_data(words, impl="threefry2x32")
    rng = np.random.default_rng(0)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(rng.random(shape, np.float32), dtype)
    if dtype == jnp.bool_:
        return jnp.ones(shape, dtype)
    top = min(highest, np.iinfo(dtype).max)
    return jnp.asarray(rng.integers(0, top, shape, dtype))


def _measured_operands(item: counting.Item) -> tuple[Any, ...]:
    """Operands; of a table that is read or written here and there, the first rows."""
    assert item.op is not None
    table, *others = item.operands
    axis = _indexed_axis(item.op, table)
    if axis is None or _size(table) <= _MOST_BYTES // 4:
        return item.operands
    rows = _MOST_BYTES // 4 * table.shape[axis] // _size(table)
    shape = (*table.shape[:axis], max(rows, 1), *table.shape[axis + 1 :])
    return jax.ShapeDtypeStruct(shape, table.dtype), *others


def _indexed_axis(op: liveness.Op, table: Any) -> int | None:
    """The axis of a table along which single rows are read or written, if any is."""
    numbers: Any = op.params.get("dimension_numbers")
    if op.name == "gather":
        indexed, single = numbers.start_index_map, numbers.collapsed_slice_dims
    elif op.name.startswith(_CARRIED):
        indexed, single = (
            numbers.scatter_dims_to_operand_dims,
            numbers.inserted_window_dims,
        )
    else:
        return None
    axes = [int(axis) for axis in indexed if axis in single]
    return max(axes, key=lambda axis: table.shape[axis], default=None)


def _seconds_of(item: counting.Item) -> tuple[float, float]:
    """Seconds of one operation, and the cores that it kept busy."""
    op = item.op
    assert op is not None
    if op.name == "dot_general":
        return _seconds_of_product(op, item.operands)
    given = _measured_operands(item)
    axis = _indexed_axis(op, given[0])
    is_indexed = op.name == "gather" or op.name.startswith(_CARRIED)
    highest = 1 if is_indexed else 2**31 - 1
    if axis is not None:
        highest = max(given[0].shape[axis], 1)
    operands = tuple(_example(aval, highest) for aval in given)

    def step(*operands: Any) -> tuple[Any, ...]:
        found = op.primitive.bind(*operands, **op.params)
        return tuple(found) if op.primitive.multiple_results else (found,)

    return _seconds(step, operands, carried=op.name.startswith(_CARRIED))


def _seconds_of_product(
    op: liveness.Op, operands: tuple[Any, ...]
) -> tuple[float, float]:
    """Seconds of a product in the layout that suits it, which compilers give it."""
    lanes, rows, depth, columns, *_ = counting.product_shape(op, operands)
    shapes = ((lanes, rows, depth), (lanes, depth, columns))
    given = (
        _example(jax.ShapeDtypeStruct(shape, operand.dtype), 1)
        for shape, operand in zip(shapes, operands, strict=True)
    )
    params = op.params | {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))}
    params |= {"out_sharding": None} if "out_sharding" in params else {}

    def step(*operands: Any) -> tuple[Any, ...]:
        return (op.primitive.bind(*operands, **params),)

    return _seconds(step, tuple(given), carried=False)


def _touched(operand: jax.Array, number: jax.Array) -> jax.Array:
    """Writes one of an operand's elements into its first place.

    What changes in a loop is not computed before it.
    """
    if not operand.ndim:
        return lax.optimization_barrier((operand, number))[0]
    first = [jnp.zeros_like(number)] * operand.ndim
    some = [number, *first[1:]]
    element = lax.dynamic_slice(operand, some, (1,) * operand.ndim)
    return lax.dynamic_update_slice(operand, element, first)


def _seconds(
    step: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...], *, carried: bool
) -> tuple[float, float]:
    """Seconds of a step inside a compiled loop, and the cores that it kept busy.

    Args:
      step: the operation.
      operands: its operands.
      carried: whether the results are the first operands of the next step; else an
        operand changes a little.
    """
    smallest = min(range(len(operands)), key=lambda n: operands[n].nbytes)
    made = jax.eval_shape(step, *operands)
    results = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), made)

    def body(carry: Any) -> Any:
        left, operands, results = carry
        found = step(*operands)
        if carried:
            return left - 1, (*found, *operands[len(found) :]), results
        operands = list(operands)
        operands[smallest] = _touched(operands[smallest], left)
        return left - 1, tuple(operands), found

    def unfinished(carry: Any) -> jax.Array:
        return carry[0] > 0

    on_host = jax.default_backend() == "cpu"

    def run(times: int) -> tuple[float, float]:
        start, busy = time.perf_counter(), time.process_time()
        # Outside a compiled function, a loop is a program of its own.
        start_at = (jnp.int32(times), operands, results)
        done = lax.while_loop(unfinished, body, start_at)
        jax.block_until_ready(done)
        took, busy = time.perf_counter() - start, time.process_time() - busy
        # Less than all of one core was at work while others had it.
        return min(took, busy) if on_host else took, busy

    run(0)
    base, times = min(run(0)[0] for _ in range(3)), 1
    while True:
        took, busy = min(run(times) for _ in range(3))  # others use the machine too
        if took - base >= _SECONDS or times >= _MOST_TIMES:
            break
        grown = times * _SECONDS / max(took - base, _SECONDS / 16)
        times = max(2 * times, int(1.3 * grown))
    return max(took - base, 1e-9) / times, max(busy / took, 1.0)
