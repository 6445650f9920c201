"""The client axis: maps, chunks and sums over rows."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import client_map, client_rows, sharding
from tests.lanes import few, wide

ROWS = {"a": jnp.arange(14.0).reshape(7, 2), "b": jnp.arange(7.0)}


EXECUTIONS = ("loop", "vmap", "chunk=1", "chunk=3", "chunk=7", "shard=4", "shard=8")
IN_EVERY_RUN = few(("loop", "vmap", "chunk=3", "shard=4"), EXECUTIONS)


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("execution", IN_EVERY_RUN)
def test_summed_parts_count_every_client_once(execution, has_state, by_size):
    """Seven rows: chunks and devices repeat some of them to be full."""
    how = dataclasses.replace(sharding.Execution.parse(execution), by_size=by_size)
    if how.mode == "shard":
        how = dataclasses.replace(how, chunk_size=2)

    def fn(state, row, shared):
        new = None if state is None else state + row["b"]
        return new, (row["a"] + shared, {"sum": 2.0 ** row["b"], "none": None})

    states = jnp.ones(7) if has_state else None
    moved, (outputs, sums) = jax.jit(
        lambda rows: client_map.move_clients(
            fn, states, rows, 1.0, how, rows["b"][::-1], summed=True
        )
    )(ROWS)
    np.testing.assert_array_equal(outputs, ROWS["a"] + 1)
    np.testing.assert_array_equal(sums["sum"], 2.0**7 - 1)
    if has_state:
        np.testing.assert_array_equal(moved, 1 + ROWS["b"])


@pytest.mark.parametrize(("count", "chunk", "calls"), [(5, 4, 6), (9, 4, 9), (7, 3, 9)])
def test_chunks_waste_few_rows(count, chunk, calls):
    """Five rows in chunks of at most 4 are two chunks of 3, not of 4."""
    seen = []

    def fn(row, shared):
        jax.debug.callback(lambda r: seen.append(float(r)), row)
        return row

    jax.block_until_ready(
        client_map.map_chunks(fn, jnp.arange(float(count)), (), chunk)
    )
    jax.effects_barrier()
    assert len(seen) == calls
    assert set(seen) == set(np.arange(float(count)))


def test_sums_skip_rows_of_weight_zero():
    rows = {"x": jnp.array([[1.0], [jnp.nan], [3.0], [jnp.inf]])}
    weights = jnp.array([1.0, 0.0, 3.0, 0.0])
    np.testing.assert_allclose(client_rows.weighted_sum(rows, weights)["x"], [10.0])
    np.testing.assert_allclose(client_rows.weighted_mean(rows, weights)["x"], [2.5])
    nothing = client_rows.weighted_mean(rows, jnp.zeros(4))
    np.testing.assert_array_equal(nothing["x"], [0.0])


def test_means_have_gradients_beside_rows_of_weight_zero():
    """A NaN that takes no part reaches no weight, either."""
    rows = {"x": jnp.array([[1.0], [jnp.nan], [3.0]])}

    def mean(weight: jax.Array) -> jax.Array:
        return client_rows.weighted_mean(rows, jnp.array([1.0, 0, 1]) * weight)["x"][0]

    # The mean of 1 and 3 with weights 1 and 2: (1 + 3 w) / (1 + w) at w = 2.
    slope = jax.grad(mean)(jnp.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(slope[2], 2 / 9)


@pytest.mark.parametrize(("zero", "unused"), [(None, 0), (0, np.nan), (0, 1e6)])
def test_sums_of_matrices_are_those_of_numpy(zero, unused):
    """Whether a row is skipped or none, by itself and as one of a batch."""
    rng = np.random.default_rng(1)
    rows = {"a": rng.normal(size=(9, 4, 3)), "b": rng.normal(size=9)}
    weights = rng.normal(size=9)
    if zero is not None:
        weights[zero] = 0
    expected = {n: np.tensordot(weights, leaf, 1) for n, leaf in rows.items()}
    if zero is not None:
        rows["a"][zero] = unused
    rows, weights = jax.tree.map(jnp.asarray, (rows, weights))
    found = jax.jit(client_rows.weighted_sum)(rows, weights)
    chex.assert_trees_all_close(found, expected, atol=1e-12)
    both = jax.jit(jax.vmap(client_rows.weighted_sum, in_axes=(None, 0)))
    twice = jax.tree.map(lambda x: np.stack([x, 2 * x]), expected)
    found = both(rows, jnp.stack([weights, 2 * weights]))
    chex.assert_trees_all_close(found, twice, atol=1e-12)


def test_sums_of_squares_are_those_of_numpy():
    rows = np.random.default_rng(2).normal(size=(5, 2000))
    found = client_rows.square_sums(jnp.asarray(rows))
    np.testing.assert_allclose(found, np.square(rows).sum(axis=1), rtol=1e-13)


@pytest.mark.parametrize(
    ("count", "columns"),
    [(1, 5), (3, 5), (255, 5), (256, 5), (700, 5), (4, 10_921), (4, 10_923)],
)
def test_gram_matrices_in_blocks_are_those_of_numpy_and_symmetric(count, columns):
    rng = np.random.default_rng(count)
    rows = {"a": rng.normal(size=(count, 3, columns)), "b": rng.normal(size=count)}
    flat = np.concatenate([rows["a"].reshape(count, -1), rows["b"][:, None]], axis=1)
    found = np.asarray(jax.jit(client_rows.gram)(jax.tree.map(jnp.asarray, rows)))
    np.testing.assert_allclose(found, flat @ flat.T, rtol=1e-13, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)


def test_put_leaves_other_rows_alone():
    new = client_rows.put(
        ROWS, jnp.array([5, 1]), client_rows.take(ROWS, jnp.array([0, 0]))
    )
    np.testing.assert_array_equal(new["b"], [0, 0, 2, 3, 4, 0, 6])


def test_finite_rows_look_at_every_leaf():
    rows = {"a": ROWS["a"].at[2, 1].set(jnp.nan), "b": ROWS["b"].at[6].set(jnp.inf)}
    found = client_rows.finite_rows(rows | {"n": jnp.arange(7)}, 7)
    assert found.tolist() == [True, True, False, True, True, True, False]
    for nothing in (None, jnp.zeros((2, 0)), jnp.zeros((2, 3, 0))):
        assert client_rows.finite_rows(nothing, 2).tolist() == [True, True]


@pytest.mark.parametrize(
    "dtype", [jnp.float16, wide(jnp.bfloat16), jnp.float32, wide(jnp.float64)]
)
def test_any_value_of_many_that_is_not_finite_is_found(dtype):
    """Also where the largest finite values would overflow a sum."""
    largest = jnp.finfo(dtype).max
    rows = np.full((6, 5000), largest, dtype)
    rows[1, ::2] *= -1
    rows[[2, 3, 4], [4999, 2500, 0]] = np.nan, np.inf, -np.inf
    rows[5, 7:9] = np.inf, -np.inf
    expected = [True, True, False, False, False, False]
    magnitude = jax.jit(client_rows.magnitude)
    found = jax.jit(client_rows.finite_rows, static_argnums=1)(rows, 6)
    assert found.tolist() == expected
    assert [np.isfinite(magnitude(row)) for row in rows] == expected
    assert magnitude({"a": rows[1], "b": rows[0, :1]}) == largest
    assert not np.isfinite(magnitude({"a": rows[0], "b": rows[2]}))


def test_ravel_rows_and_back():
    matrix, unravel = client_rows.ravel_rows(ROWS)
    assert matrix.shape == (7, 3)
    back = unravel(matrix[4])
    np.testing.assert_array_equal(back["a"], ROWS["a"][4])
    np.testing.assert_array_equal(back["b"], ROWS["b"][4])


@pytest.mark.parametrize(
    "text", ["", "vmaps", "chunk", "chunk=0", "chunk=-1", "chunk=x", "vmap=3", "loop=1"]
)
def test_wrong_executions_get_one_sentence(text):
    with pytest.raises(fp.InputError):
        sharding.Execution.parse(text)
    assert str(sharding.Execution.parse("shard=2")) == "shard=2"


def test_mixed_rows_are_those_of_the_concatenation():
    rng = np.random.default_rng(0)
    rows = {
        "a": jnp.asarray(rng.normal(size=(5, 3, 2))),
        "b": (jnp.asarray(rng.normal(size=5)), jnp.asarray(rng.normal(size=(5, 4)))),
    }
    matrix = np.concatenate([np.reshape(x, (5, -1)) for x in jax.tree.leaves(rows)], 1)
    weights = rng.normal(size=(7, 5))
    mixed = jax.jit(client_rows.mix)(rows, jnp.asarray(weights))
    assert mixed["a"].shape == (7, 3, 2)
    mixed = np.concatenate([np.reshape(x, (7, -1)) for x in jax.tree.leaves(mixed)], 1)
    np.testing.assert_allclose(mixed, weights @ matrix, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "fn", [client_rows.gram, lambda rows: client_rows.mix(rows, jnp.ones((7, 7)))]
)
def test_pairs_cost_one_product_per_leaf_at_highest_precision(fn):
    with jax.default_matmul_precision("bfloat16"):
        text = jax.jit(fn).lower(ROWS).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == len(jax.tree.leaves(ROWS))
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
    assert "concatenate" not in text


def test_chunks_are_formed_of_clients_with_as_much_work():
    """Every client waits for the largest of its chunk only, and gets its own result."""
    work = jnp.array([3.0, 90.0, 1.0, 5.0, 80.0, 2.0, 4.0])
    rows = {"work": work, "name": jnp.arange(7)}

    def one(row, shared):
        return row["name"] + shared, client_map.lane_max(row["work"])

    sorted_, waits = client_map.map_chunks(one, rows, 10, 2, work)
    np.testing.assert_array_equal(sorted_, 10 + np.arange(7))
    # Chunks (90, 80), (5, 4), (3, 2) and (1, 1), the last one filled up.
    np.testing.assert_array_equal(waits, [3, 90, 1, 5, 90, 3, 5])
    _, waits = client_map.map_chunks(one, rows, 10, 2)
    # In order, the last chunk begins earlier; what it computes again is not written.
    np.testing.assert_array_equal(waits, [90, 90, 5, 5, 80, 80, 4])


@pytest.mark.parametrize("chunk", few((0, 1, 3, 8), range(9)))
@pytest.mark.parametrize("count", [wide(1), 7, wide(8)])
@pytest.mark.parametrize("by_work", [False, True])
def test_chunks_of_any_size_map_every_row_once(chunk, count, by_work):
    rows = {"x": jnp.arange(2.0 * count).reshape(count, 2), "n": jnp.arange(count)}
    work = jnp.sin(jnp.arange(count)) if by_work else None

    def fn(row, shared):
        return row["x"] * shared, row["n"] + 1

    found = jax.jit(lambda r: client_map.map_chunks(fn, r, 3.0, chunk, work))(rows)
    np.testing.assert_array_equal(found[0], 3 * np.asarray(rows["x"]))
    np.testing.assert_array_equal(found[1], np.arange(count) + 1)


HOW = ["loop", "vmap", *(f"chunk={k}" for k in range(1, 9)), "shard=1", "shard=8"]


@pytest.mark.parametrize("how", few(("loop", "vmap", "chunk=3", "shard=8"), HOW))
@pytest.mark.parametrize("by_work", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_every_row_moves_once_from_its_own_state(how, by_work, some):
    """Also where the last chunk begins earlier, among rows that have moved."""
    states = {"s": jnp.arange(14.0).reshape(7, 2), "t": jnp.arange(7)}
    work = jnp.sin(jnp.arange(7)) if by_work else None
    moves = jnp.array([1, 0, 0, 0, 1, 1, 0], bool) if some else None

    def fn(state, row, shared):
        new = {"s": 2 * state["s"] + row, "t": state["t"] + 1}
        return new, state["t"] * shared

    execution = dataclasses.replace(sharding.Execution.parse(how), by_size=by_work)
    moved, outputs = jax.jit(
        lambda states: client_map.move_clients(
            fn, states, jnp.arange(7.0), 10, execution, work, moves
        )
    )(states)
    rows = np.ones(7, bool) if moves is None else np.asarray(moves)
    old = jax.tree.map(np.asarray, states)
    expected = np.where(rows[:, None], 2 * old["s"] + np.arange(7)[:, None], old["s"])
    np.testing.assert_array_equal(moved["s"], expected)
    np.testing.assert_array_equal(moved["t"], old["t"] + rows)
    np.testing.assert_array_equal(np.asarray(outputs)[rows], 10 * old["t"][rows])


def test_chunks_in_which_nobody_moves_take_no_time():
    seen, moves = [], jnp.array([0, 0, 1, 0, 0, 0, 1, 1, 0], bool)

    def fn(state, row, shared):
        jax.debug.callback(lambda r: seen.append(int(r)), row)
        return state + 1, row

    rows = jnp.arange(9)
    moved, outputs = client_map.move_chunks(fn, rows, rows, (), 2, moves=moves)
    jax.block_until_ready(outputs)
    jax.effects_barrier()
    assert sorted(seen) == [2, 3, 6, 7]
    np.testing.assert_array_equal(moved, np.arange(9) + np.asarray(moves))
    np.testing.assert_array_equal(outputs, [0, 0, 2, 3, 0, 0, 6, 7, 0])


def test_states_move_in_the_buffer_they_are_in():
    """A compiled program that may take its argument needs no second set of states."""
    states = jnp.zeros((64, 4096))

    def move(state, row, shared):
        return jnp.tanh(state) + row, shared

    def rounds(states):
        def one(_, states):
            return client_map.move_chunks(move, states, jnp.arange(64.0), (), 8)[0]

        return jax.lax.fori_loop(0, 3, one, states)

    compiled = jax.jit(rounds, donate_argnums=0).lower(states).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < states.nbytes / 2


def test_clients_that_go_one_by_one_have_no_client_axis():
    kernels, x = jnp.ones((5, 3, 2)), jnp.ones((5, 4, 3))
    text = str(
        jax.make_jaxpr(
            lambda *rows: client_map.map_chunks(lambda r, s: r[1] @ r[0], rows, None, 1)
        )(kernels, x)
    )
    assert "f64[4,2] = dot_general" in text


def test_a_chunked_function_is_mapped_in_chunks_and_equals_vmap():
    def one(row, shared):
        return row["x"] @ shared, client_map.lane_max(row["n"])

    rows = {"x": jnp.arange(10.0).reshape(5, 2), "n": jnp.arange(5)}
    shared = jnp.ones((2, 3))
    mapped = jax.jit(jax.vmap(client_map.chunked(one, 2), in_axes=(0, None)))
    values, largest = mapped(rows, shared)
    np.testing.assert_allclose(values, rows["x"] @ shared)
    # The last chunk is full, with a row that the one before has written.
    np.testing.assert_array_equal(largest, [1, 1, 3, 3, 4])
    alone, _ = client_map.chunked(one, 2)(client_rows.take(rows, 1), shared)
    np.testing.assert_allclose(alone, values[1])
