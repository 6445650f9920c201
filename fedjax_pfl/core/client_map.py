"""The map over clients in four executions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, loops, sharding

__all__ = [
    "chunked",
    "lane_max",
    "map_chunks",
    "map_clients",
    "move_chunks",
    "move_clients",
]

_WHOLE = PartitionSpec()


@jax.custom_batching.custom_vmap
def lane_max(x: jax.Array) -> jax.Array:
    """Returns the maximum over all lanes of the vmaps around the call, for every lane.

    A loop bounded by it has one trip count per chunk of clients, so that its body runs
    without the selects that a bound of each lane's own would need.

    Args:
      x: `[]` value of this lane.

    Returns:
      `[]` value that does not depend on the lane; `x` itself outside vmap.
    """
    return x


@lane_max.def_vmap
def _lane_max_rule(axis_size: int, in_batched: list[bool], x: jax.Array):
    del axis_size
    return lane_max(jnp.max(x, axis=0) if in_batched[0] else x), False


def map_clients(
    fn: Callable[[Any, Any], Any],
    rows: Any,
    shared: Any,
    execution: sharding.Execution,
    work: jax.Array | None = None,
    *,
    shared_specs: Any = _WHOLE,
) -> Any:
    """Applies a function of one client to all clients.

    Args:
      fn: `(row, shared) -> output`, written for one client.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      execution: how; see `Execution`.
      work: `[K]` by which chunks are formed, where the execution wants that; more takes
        longer.
      shared_specs: see `move_clients`.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    return move_clients(
        _still(fn), None, rows, shared, execution, work, shared_specs=shared_specs
    )[1]


def move_clients(
    fn: Callable[[Any, Any, Any], tuple[Any, Any]],
    states: Any,
    rows: Any,
    shared: Any,
    execution: sharding.Execution,
    work: jax.Array | None = None,
    moves: jax.Array | None = None,
    alike: Any = None,
    *,
    summed: bool = False,
    shared_specs: Any = _WHOLE,
) -> tuple[Any, Any]:
    """Applies a function of one client to all clients, and gives each its new state.

    States go through a loop over chunks in one buffer: a chunk's are read, and the new
    ones written where they were.

    Args:
      fn: `(state, row, shared) -> (state, output)`, written for one client.
      states: pytree of `[K, ...]`, or None.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      execution: how; see `Execution`.
      work: see `map_clients`.
      moves: `bool[K]` which clients move; others keep their states, and their outputs
        are zeros in chunks where nobody moves, which take no time. None moves all.
      alike: pytree of `[K, ...]` whose rows are equal within every chunk, or None; then
        `fn` gets `(shared, row)`, of which what it computes is computed once per chunk.
      summed: whether outputs are pairs, of which the second parts are added up over
        all clients, chunk by chunk, and never held side by side; not with `moves`.
      shared_specs: how devices divide `shared`, a prefix of its tree; a call gets the
        part of its device. By default all devices have all of it.

    Returns:
      Pytrees of `[K, ...]` states and outputs; where they are `summed`, outputs are a
      pair of `[K, ...]` and of sums `[...]`.
    """
    if not execution.by_size:
        work = None
    fn = loops.recomputed(fn)
    count = jax.tree.leaves((states, rows))[0].shape[0]
    if execution.mode == "loop":
        pairs = []
        for number in range(count):
            state, row = client_rows.take((states, rows), jnp.asarray(number))
            pairs.append(fn(state, row, _with_row(shared, alike, number)))
        moved, outputs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs)
        if summed:
            outputs = _added(outputs, None)
        return _selected(moves, moved, states), outputs
    if execution.mode == "shard":

        def part(own: tuple[Any, ...], shared: Any) -> tuple[Any, Any]:
            is_real, states, rows, *others = own
            moved, outputs = move_chunks(
                fn,
                states,
                rows,
                shared,
                execution.chunk_size,
                *others,
                is_real=is_real,
                summed=summed,
            )
            if not summed:
                return (moved, outputs), None
            return (moved, outputs[0]), lax.psum(outputs[1], sharding.AXIS)

        split, whole = PartitionSpec(sharding.AXIS), _WHOLE
        given = (split, shared_specs)
        mapped = sharding.on_devices(part, execution, given, (split, whole))
        extra = -count % sharding.client_mesh(execution.num_devices).size
        is_real = jnp.arange(count + extra) < count if summed and extra else None
        padded = _pad_rows((states, rows, work, moves, alike), extra)
        own, sums = mapped((is_real, *padded), shared)
        moved, outputs = jax.tree.map(lambda leaf: leaf[:count], own)
        return moved, (outputs, sums) if summed else outputs
    chunk = execution.chunk_size if execution.mode == "chunk" else 0
    return move_chunks(
        fn, states, rows, shared, chunk, work, moves, alike, summed=summed
    )


def _added(outputs: tuple[Any, Any], is_own: jax.Array | None) -> tuple[Any, Any]:
    """Adds up the second parts of outputs `[C, ...]`, of the rows that count."""
    own, parts = outputs
    if is_own is not None:
        parts = client_rows.select_rows(
            is_own, parts, jax.tree.map(jnp.zeros_like, parts)
        )
    return own, jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)


def _still(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Makes a function of clients without states one of clients who have one."""
    return lambda state, row, shared: (state, fn(row, shared))


def _with_row(shared: Any, alike: Any, row: int) -> Any:
    """Puts a row of what is equal within a chunk beside what is shared by all."""
    if alike is None:
        return shared
    return shared, jax.tree.map(lambda leaf: leaf[row], alike)


def _selected(moves: jax.Array | None, new: Any, old: Any) -> Any:
    """Takes the new states of rows that move, and the old ones of others."""
    return new if moves is None else client_rows.select_rows(moves, new, old)


def _pad_rows(rows: Any, extra: int) -> Any:
    """Repeats the last row `extra` times, so that devices are full."""
    if not extra:
        return rows
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)]), rows
    )


def map_chunks(
    fn: Callable[[Any, Any], Any],
    rows: Any,
    shared: Any,
    chunk: int,
    work: jax.Array | None = None,
) -> Any:
    """Maps over vmapped chunks of rows, one compiled body for all of them.

    Args:
      fn: `(row, shared) -> output`, written for one row.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      chunk: most rows per chunk; 0 means all at once. Chunks are of one size, as small
        as their number allows, so that few rows of the last one are wasted.
      work: `[K]` by which chunks are formed, the most first; None takes rows in order.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    return move_chunks(_still(fn), None, rows, shared, chunk, work)[1]


def move_chunks(
    fn: Callable[[Any, Any, Any], tuple[Any, Any]],
    states: Any,
    rows: Any,
    shared: Any,
    chunk: int,
    work: jax.Array | None = None,
    moves: jax.Array | None = None,
    alike: Any = None,
    *,
    is_real: jax.Array | None = None,
    summed: bool = False,
) -> tuple[Any, Any]:
    """Moves states chunk by chunk; see `move_clients` and `map_chunks`.

    Args:
      fn: `(state, row, shared) -> (state, output)`, written for one row.
      states: pytree of `[K, ...]`, or None.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      chunk: most rows per chunk; 0 means all at once.
      work: `[K]` by which chunks are formed, or None.
      moves: `bool[K]` which rows move, or None.
      alike: pytree of `[K, ...]` whose rows are equal within every chunk, or None.
      is_real: `bool[K]` which rows have a part in sums; None for all.
      summed: whether the second parts of outputs are added up over all rows.

    Returns:
      Pytrees of `[K, ...]` states and outputs, or `(outputs, sums)`.
    """
    count = jax.tree.leaves((states, rows))[0].shape[0]
    if count == 1 or chunk == 0 or chunk >= count:
        shared = _with_row(shared, alike, 0)
        # A row alone has no client axis: plain products are faster than batched ones.
        if count == 1:
            state, row = jax.tree.map(lambda leaf: leaf[0], (states, rows))
            made = fn(state, row, shared)
            moved, output = jax.tree.map(lambda leaf: leaf[None], made)
        else:
            moved, output = jax.vmap(fn, in_axes=(0, 0, None))(states, rows, shared)
        if summed:
            output = _added(output, is_real)
        return _selected(moves, moved, states), output
    fn = jax.jit(fn, inline=True)  # traced once, not for its shapes and then again
    num_chunks = -(-count // chunk)
    chunk = -(-count // num_chunks)
    order = None if work is None else jnp.argsort(-work)
    if loops.is_reversible() and moves is None and alike is None:
        known = (states, rows, is_real)
        return _scanned(fn, known, shared, chunk, order, summed=summed)
    members, read, write = _access(count, chunk, order)
    busy_first, total = None, num_chunks
    # A chunk of one that does not move is left out, and has nothing to select.
    is_mixed = moves is not None and chunk > 1
    if moves is not None:
        rows_of, is_own = jax.vmap(members)(jnp.arange(num_chunks))
        busy = (moves[rows_of] & is_own).any(axis=1)
        busy_first, total = jnp.argsort(~busy), busy.sum()

    def run(own: tuple[Any, Any], own_moves: Any, counts: Any, shared: Any) -> Any:
        states, rows = own
        return move_chunks(
            fn,
            states,
            rows,
            shared,
            chunk=0,
            moves=own_moves,
            is_real=counts,
            summed=summed,
        )

    def step(turn: jax.Array, kept: Any) -> Any:
        held, sums = kept
        number = turn if busy_first is None else busy_first[turn]
        own = read((held[0], rows), number)
        own_moves = read(moves, number) if is_mixed else None
        counts = read(is_real, number)
        if summed and count % chunk:  # a row of two chunks counts once
            is_own = members(number)[1]
            counts = is_own if counts is None else counts & is_own
        inputs = (own, own_moves, counts, _with_row(shared, read(alike, number), 0))
        if not jax.tree.leaves(states):
            new = run(*inputs)
        else:
            # Always true, which XLA does not know: what a branch takes is read before
            # it, so that nothing reads the states while new ones are written among
            # them, and none of them is copied.
            new = lax.cond(turn >= 0, run, skip, *inputs)
        if summed:
            moved, (outputs, more) = new
            new, sums = (moved, outputs), jax.tree.map(jnp.add, sums, more)
        return write(held, new, number), sums

    row = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (states, rows)
    )
    shapes = jax.eval_shape(fn, *row, _with_row(shared, alike, 0))[1]
    shapes, parts = shapes if summed else (shapes, None)

    def zeros(like: Any, *rows: int) -> Any:
        return jax.tree.map(lambda s: jnp.zeros((*rows, *s.shape), s.dtype), like)

    def skip(own: Any, own_moves: Any, counts: Any, shared: Any) -> Any:
        outputs = zeros(shapes, chunk)
        return own[0], (outputs, zeros(parts)) if summed else outputs

    first = (states, zeros(shapes, count)), zeros(parts)
    (moved, outputs), sums = lax.fori_loop(0, total, step, first)
    return moved, (outputs, sums) if summed else outputs


def _scanned(
    fn: Callable[..., tuple[Any, Any]],
    known: tuple[Any, Any, jax.Array | None],
    shared: Any,
    chunk: int,
    order: jax.Array | None,
    *,
    summed: bool,
) -> tuple[Any, Any]:
    """Moves chunks of rows as a scan over stacks of them; see `move_chunks`.

    Going back, a loop that reads chunks from one buffer, and writes them to it, takes
    time for the whole buffer in every turn.
    """
    states, rows, is_real = known
    count = jax.tree.leaves((states, rows))[0].shape[0]
    counts = jnp.ones(count, bool) if is_real is None else is_real
    taken = (states, rows, counts)
    if order is not None:
        taken = client_rows.take(taken, order)
    *taken, counts = _pad_rows(taken, -count % chunk)
    taken = (*taken, counts & (jnp.arange(len(counts)) < count))
    stacks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), taken)

    def one(own: tuple[Any, ...]) -> tuple[Any, Any]:
        states, rows, counts = own
        some = {"is_real": counts, "summed": True} if summed else {}
        return move_chunks(fn, states, rows, shared, 0, **some)

    moved, outputs = lax.map(one, stacks)
    sums = None
    if summed:
        outputs, parts = outputs
        sums = jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)
    made = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], (moved, outputs))
    if order is not None:
        made = client_rows.take(made, jnp.argsort(order))
    return made[0], (made[1], sums) if summed else made[1]


def _access(
    count: int, chunk: int, order: jax.Array | None
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Returns who is in a chunk, and the reader and the writer of a chunk's rows.

    Args:
      count: K.
      chunk: rows per chunk.
      order: `int32[K]` in which rows are taken, or None.

    Returns:
      `chunk number -> (rows int32[chunk], whether they are this chunk's)`,
      `(tree, chunk number) -> rows` and `(tree, rows, chunk number) -> tree`. The last
      chunk, where it lacks rows, has some of an earlier chunk, which it computes again
      and does not write.
    """
    if chunk == 1 or order is None:

        def start(number: jax.Array) -> jax.Array:
            if order is not None:
                return order[number]
            return jnp.minimum(number * chunk, count - chunk)

        def members(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            rows = start(number) + jnp.arange(chunk)
            return rows, rows >= (0 if chunk == 1 else number * chunk)

        # Slices: a gather and a scatter per leaf take long to compile.
        def read(tree: Any, number: jax.Array) -> Any:
            at = start(number)
            return jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, at, chunk), tree
            )

        def write(tree: Any, new: Any, number: jax.Array) -> Any:
            at = start(number)
            if count % chunk:
                is_own = members(number)[1]
                new = client_rows.select_rows(is_own, new, read(tree, number))
            return jax.tree.map(
                lambda leaf, value: lax.dynamic_update_slice_in_dim(leaf, value, at, 0),
                tree,
                new,
            )

        return members, read, write

    def sorted_members(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        slots = number * chunk + jnp.arange(chunk)
        return order[jnp.minimum(slots, count - 1)], slots < count

    def gather(tree: Any, number: jax.Array) -> Any:
        return client_rows.take(tree, sorted_members(number)[0])

    def scatter(tree: Any, new: Any, number: jax.Array) -> Any:
        rows, is_own = sorted_members(number)
        at = jnp.where(is_own, rows, count)
        return jax.tree.map(
            lambda leaf, value: leaf.at[at].set(value, mode="drop"), tree, new
        )

    return sorted_members, gather, scatter


def chunked(fn: Callable[..., Any], chunk: int) -> Callable[..., Any]:
    """Wraps a function of one client to bound its memory however many are vmapped.

    Args:
      fn: function of pytrees, written for one client; must not close over traced
        values.
      chunk: most clients at once.

    Returns:
      The same function, for which `vmap` is a map over vmapped chunks.
    """
    mapped = jax.custom_batching.custom_vmap(fn)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Any, *args):  # pyright: ignore[reportUnusedFunction]
        del axis_size
        leaves, structure = jax.tree.flatten(args)
        is_row = jax.tree.leaves(in_batched)
        rows = [leaf for leaf, row in zip(leaves, is_row, strict=True) if row]
        shared = [leaf for leaf, row in zip(leaves, is_row, strict=True) if not row]

        def one(rows: list[Any], shared: list[Any]):
            own, common = iter(rows), iter(shared)
            picked = [next(own) if row else next(common) for row in is_row]
            return fn(*jax.tree.unflatten(structure, picked))

        outputs = map_chunks(one, rows, shared, chunk)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped
