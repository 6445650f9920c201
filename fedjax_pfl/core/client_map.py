"""The map over clients in four executions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, loops, sharding
from fedjax_pfl.core.aliases import Tree

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

    A loop with this bound has one trip count per chunk of clients. So its body runs
    without the selects that a bound per lane would need.

    Args:
      x: `[]` value of this lane.

    Returns:
      `[]` value that is the same for all lanes; `x` itself outside vmap.
    """
    return x


@lane_max.def_vmap
def _lane_max_rule(axis_size: int, in_batched: list[bool], x: jax.Array):
    del axis_size
    # Again `lane_max`, since vmaps may be nested.
    return lane_max(jnp.max(x, axis=0) if in_batched[0] else x), False


def map_clients(
    fn: Callable[[Any, Any], Any],
    rows: Tree,
    shared: Tree,
    execution: sharding.Execution,
    work: jax.Array | None = None,
    *,
    shared_specs: Tree = _WHOLE,
) -> Tree:
    """Applies a function of one client to all clients.

    Args:
      fn: `(row, shared) -> output`, written for one client.
      rows: pytree of `[K, ...]`.
      shared: pytree that every call receives.
      execution: execution mode; see `Execution`.
      work: `[K]` amounts of work, by which chunks are formed if `execution.by_size`.
      shared_specs: see `move_clients`.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    return move_clients(
        _still(fn), None, rows, shared, execution, work, shared_specs=shared_specs
    )[1]


def move_clients(
    fn: Callable[[Any, Any, Any], tuple[Any, Any]],
    states: Tree,
    rows: Tree,
    shared: Tree,
    execution: sharding.Execution,
    work: jax.Array | None = None,
    moves: jax.Array | None = None,
    alike: Tree = None,
    *,
    summed: bool = False,
    shared_specs: Tree = _WHOLE,
) -> tuple[Any, Any]:
    """Applies a function of one client to all clients, and updates their states.

    States go through a loop over chunks in one buffer: the states of a chunk are read,
    and overwritten by the new ones.

    Args:
      fn: `(state, row, shared) -> (state, output)`, written for one client.
      states: pytree of `[K, ...]`, or None.
      rows: pytree of `[K, ...]`.
      shared: pytree that every call receives.
      execution: execution mode; see `Execution`.
      work: see `map_clients`.
      moves: `bool[K]` clients that move; others keep their states. Chunks in which no
        client moves take no time, and have zeros as outputs. None moves all.
      alike: pytree of `[K, ...]` with equal rows within every chunk, or None; `fn` then
        gets `(shared, row)`, and values that depend on these are computed once a chunk.
      summed: whether outputs are pairs with second parts to sum over all clients, chunk
        by chunk, which are never stored side by side; not with `moves`.
      shared_specs: how devices divide `shared`, a prefix of its tree; a call gets the
        part of its device. By default all devices have all of `shared`.

    Returns:
      Pytrees of `[K, ...]` states and outputs; if `summed`, outputs are a pair of
      `[K, ...]` and of sums `[...]`.
    """
    if not execution.by_size:
        work = None
    fn = loops.recomputed(fn)
    count = jax.tree.leaves((states, rows))[0].shape[0]
    # Uncompiled, one client after another: the reference for all other modes.
    if execution.mode == "loop":
        pairs = []
        for number in range(count):
            state, row = client_rows.take((states, rows), jnp.asarray(number))
            pairs.append(fn(state, row, _with_row(shared, alike, number)))
        after, outputs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *pairs)
        if summed:
            outputs = _added(outputs, None)
        return _selected(moves, after, states), outputs
    if execution.mode == "shard":

        def part(local: tuple[Any, ...], shared: Tree) -> tuple[Any, Any]:
            is_real, states, rows, *options = local
            after, outputs = move_chunks(
                fn,
                states,
                rows,
                shared,
                execution.chunk_size,
                *options,
                is_real=is_real,
                summed=summed,
            )
            if not summed:
                return (after, outputs), None
            return (after, outputs[0]), lax.psum(outputs[1], sharding.AXIS)

        split, full = PartitionSpec(sharding.AXIS), _WHOLE
        specs = (split, shared_specs)
        mapped = sharding.on_devices(part, execution, specs, (split, full))
        extra = -count % sharding.client_mesh(execution.num_devices).size
        # Repeated rows fill the last device, and must not count in sums.
        is_real = jnp.arange(count + extra) < count if summed and extra else None
        padded = _pad_rows((states, rows, work, moves, alike), extra)
        local, sums = mapped((is_real, *padded), shared)
        after, outputs = jax.tree.map(lambda leaf: leaf[:count], local)
        return after, (outputs, sums) if summed else outputs
    chunk = execution.chunk_size if execution.mode == "chunk" else 0
    return move_chunks(
        fn, states, rows, shared, chunk, work, moves, alike, summed=summed
    )


def _added(outputs: tuple[Any, Any], is_own: jax.Array | None) -> tuple[Any, Any]:
    """Sums the second parts of outputs `[C, ...]` over the rows that count."""
    output, parts = outputs
    if is_own is not None:
        parts = client_rows.select_rows(
            is_own, parts, jax.tree.map(jnp.zeros_like, parts)
        )
    return output, jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)


def _still(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Lifts a function of stateless clients to one of clients with states."""
    return lambda state, row, shared: (state, fn(row, shared))


def _with_row(shared: Tree, alike: Tree, row: int) -> Tree:
    """Pairs shared inputs with the row that a chunk has in common, if any."""
    if alike is None:
        return shared
    return shared, jax.tree.map(lambda leaf: leaf[row], alike)


def _selected(moves: jax.Array | None, new: Tree, old: Tree) -> Tree:
    """Selects new states for rows that move, and old states for the others."""
    return new if moves is None else client_rows.select_rows(moves, new, old)


def _pad_rows(rows: Tree, extra: int) -> Tree:
    """Repeats the last row `extra` times, so that devices are full."""
    if not extra:
        return rows
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)]), rows
    )


def map_chunks(
    fn: Callable[[Any, Any], Any],
    rows: Tree,
    shared: Tree,
    chunk: int,
    work: jax.Array | None = None,
) -> Tree:
    """Maps over vmapped chunks of rows, with one compiled body.

    Args:
      fn: `(row, shared) -> output`, written for one row.
      rows: pytree of `[K, ...]`.
      shared: pytree that every call receives.
      chunk: most rows per chunk; 0 means all at once. Chunks have one size, the
        smallest for their number, so that the last one wastes few rows.
      work: `[K]` by which chunks are formed, largest first; None takes rows in order.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    return move_chunks(_still(fn), None, rows, shared, chunk, work)[1]


def move_chunks(
    fn: Callable[[Any, Any, Any], tuple[Any, Any]],
    states: Tree,
    rows: Tree,
    shared: Tree,
    chunk: int,
    work: jax.Array | None = None,
    moves: jax.Array | None = None,
    alike: Tree = None,
    *,
    is_real: jax.Array | None = None,
    summed: bool = False,
) -> tuple[Any, Any]:
    """Moves states chunk by chunk; see `move_clients` and `map_chunks`.

    Args:
      fn: `(state, row, shared) -> (state, output)`, written for one row.
      states: pytree of `[K, ...]`, or None.
      rows: pytree of `[K, ...]`.
      shared: pytree that every call receives.
      chunk: most rows per chunk; 0 means all at once.
      work: `[K]` by which chunks are formed, or None.
      moves: `bool[K]` rows that move, or None.
      alike: pytree of `[K, ...]` with equal rows within every chunk, or None.
      is_real: `bool[K]` rows that count in sums; None for all.
      summed: whether the second parts of outputs are summed over all rows.

    Returns:
      Pytrees of `[K, ...]` states and outputs, or `(outputs, sums)`.
    """
    count = jax.tree.leaves((states, rows))[0].shape[0]
    if count == 1 or chunk == 0 or chunk >= count:
        shared = _with_row(shared, alike, 0)
        # A single row has no client axis: plain products are faster than batched ones.
        if count == 1:
            state, row = jax.tree.map(lambda leaf: leaf[0], (states, rows))
            pair = fn(state, row, shared)
            after, output = jax.tree.map(lambda leaf: leaf[None], pair)
        else:
            after, output = jax.vmap(fn, in_axes=(0, 0, None))(states, rows, shared)
        if summed:
            output = _added(output, is_real)
        return _selected(moves, after, states), output
    fn = jax.jit(fn, inline=True)  # traced once, for shapes and computation
    num_chunks = -(-count // chunk)
    # The smallest size for this number of chunks wastes the fewest rows.
    chunk = -(-count // num_chunks)
    order = None if work is None else jnp.argsort(-work)
    # In reverse mode, a loop that reads and writes chunks of one buffer takes time
    # proportional to the whole buffer in every turn.
    if loops.is_reversible() and moves is None and alike is None:
        arrays = (states, rows, is_real)
        return _scanned(fn, arrays, shared, chunk, order, summed=summed)
    members, read, write = _access(count, chunk, order)
    busy_first, total = None, num_chunks
    # Chunks of one row need no selection: a row that does not move is skipped.
    is_mixed = moves is not None and chunk > 1
    if moves is not None:
        rows_of, is_own = jax.vmap(members)(jnp.arange(num_chunks))
        busy = (moves[rows_of] & is_own).any(axis=1)
        # Chunks in which clients move go first, in order, and the loop ends after them.
        busy_first, total = jnp.argsort(~busy), busy.sum()

    def run(
        block: tuple[Any, Any],
        mask: jax.Array | None,
        counts: jax.Array | None,
        shared: Tree,
    ) -> Tree:
        states, rows = block
        return move_chunks(
            fn,
            states,
            rows,
            shared,
            chunk=0,
            moves=mask,
            is_real=counts,
            summed=summed,
        )

    def step(turn: jax.Array, carry: Tree) -> Tree:
        held, sums = carry
        number = turn if busy_first is None else busy_first[turn]
        block = read((held[0], rows), number)
        mask = read(moves, number) if is_mixed else None
        counts = read(is_real, number)
        if summed and count % chunk:  # a row of two chunks counts once
            is_own = members(number)[1]
            counts = is_own if counts is None else counts & is_own
        inputs = (block, mask, counts, _with_row(shared, read(alike, number), 0))
        if not jax.tree.leaves(states):
            new = run(*inputs)
        else:
            # The predicate is always true, but opaque to XLA: inputs of a branch are
            # read before it. So no state is read while new ones are written into the
            # same buffer, which avoids a copy of the buffer.
            new = lax.cond(turn >= 0, run, skip, *inputs)
        if summed:
            after, (outputs, terms) = new
            new, sums = (after, outputs), jax.tree.map(jnp.add, sums, terms)
        return write(held, new, number), sums

    row = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (states, rows)
    )
    shapes = jax.eval_shape(fn, *row, _with_row(shared, alike, 0))[1]
    shapes, parts = shapes if summed else (shapes, None)

    def zeros(like: Tree, *rows: int) -> Tree:
        return jax.tree.map(lambda s: jnp.zeros((*rows, *s.shape), s.dtype), like)

    def skip(
        block: Tree, mask: jax.Array | None, counts: jax.Array | None, shared: Tree
    ) -> Tree:
        outputs = zeros(shapes, chunk)
        return block[0], (outputs, zeros(parts)) if summed else outputs

    start = (states, zeros(shapes, count)), zeros(parts)
    (after, outputs), sums = lax.fori_loop(0, total, step, start)
    return after, (outputs, sums) if summed else outputs


def _scanned(
    fn: Callable[..., tuple[Any, Any]],
    arrays: tuple[Any, Any, jax.Array | None],
    shared: Tree,
    chunk: int,
    order: jax.Array | None,
    *,
    summed: bool,
) -> tuple[Any, Any]:
    """Moves chunks of rows as a scan over stacked chunks; see `move_chunks`."""
    states, rows, is_real = arrays
    count = jax.tree.leaves((states, rows))[0].shape[0]
    counts = jnp.ones(count, bool) if is_real is None else is_real
    taken = (states, rows, counts)
    if order is not None:
        taken = client_rows.take(taken, order)
    *taken, counts = _pad_rows(taken, -count % chunk)
    # Repeated last rows fill the last chunk, and must not count in sums.
    taken = (*taken, counts & (jnp.arange(len(counts)) < count))
    stacks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), taken)

    def move_stack(block: tuple[Any, ...]) -> tuple[Any, Any]:
        states, rows, counts = block
        options = {"is_real": counts, "summed": True} if summed else {}
        return move_chunks(fn, states, rows, shared, 0, **options)

    after, outputs = lax.map(move_stack, stacks)
    sums = None
    if summed:
        outputs, parts = outputs
        sums = jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)
    pair = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], (after, outputs))
    if order is not None:
        pair = client_rows.take(pair, jnp.argsort(order))
    return pair[0], (pair[1], sums) if summed else pair[1]


def _access(
    count: int, chunk: int, order: jax.Array | None
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Returns `members`, `read` and `write` of chunks of K rows in order `int32[K]`."""
    if chunk == 1 or order is None:

        def start(number: jax.Array) -> jax.Array:
            if order is not None:
                return order[number]
            return jnp.minimum(number * chunk, count - chunk)

        def members(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            rows = start(number) + jnp.arange(chunk)
            return rows, rows >= (0 if chunk == 1 else number * chunk)

        # Slices: a gather and a scatter per leaf take long to compile.
        def read(tree: Tree, number: jax.Array) -> Tree:
            at = start(number)
            return jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, at, chunk), tree
            )

        def write(tree: Tree, new: Tree, number: jax.Array) -> Tree:
            at = start(number)
            # A last chunk with too few rows repeats rows of an earlier chunk, which are
            # not written.
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

    def gather(tree: Tree, number: jax.Array) -> Tree:
        return client_rows.take(tree, sorted_members(number)[0])

    def scatter(tree: Tree, new: Tree, number: jax.Array) -> Tree:
        rows, is_own = sorted_members(number)
        at = jnp.where(is_own, rows, count)
        return jax.tree.map(
            lambda leaf, value: leaf.at[at].set(value, mode="drop"), tree, new
        )

    return sorted_members, gather, scatter


def chunked(fn: Callable[..., Any], chunk: int) -> Callable[..., Any]:
    """Wraps a function of one client to bound its memory under `vmap`.

    Args:
      fn: function of pytrees, written for one client; must not close over traced
        values.
      chunk: most clients at once.

    Returns:
      The same function; its `vmap` is a map over vmapped chunks.
    """
    mapped = jax.custom_batching.custom_vmap(fn)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Tree, *args):  # pyright: ignore[reportUnusedFunction]
        del axis_size
        leaves, structure = jax.tree.flatten(args)
        # Unbatched leaves are shared; to map them, they would be copied for every
        # client.
        is_row = jax.tree.leaves(in_batched)
        rows = [leaf for leaf, row in zip(leaves, is_row, strict=True) if row]
        shared = [leaf for leaf, row in zip(leaves, is_row, strict=True) if not row]

        def one(rows: list[Any], shared: list[Any]):
            batched, unbatched = iter(rows), iter(shared)
            picked = [next(batched) if row else next(unbatched) for row in is_row]
            return fn(*jax.tree.unflatten(structure, picked))

        outputs = map_chunks(one, rows, shared, chunk)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped
