"""The file of rows against a dictionary, and what survives a process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.core import checks
from fedjax_pfl.engine.streaming import row_store

LIKE = {
    "a": jax.ShapeDtypeStruct((3, 2), jnp.float32),
    "b": jax.ShapeDtypeStruct((), jnp.int32),
}


def values(rng, count):
    return {
        "a": rng.normal(size=(count, 3, 2)).astype(np.float32),
        "b": rng.integers(99, size=count).astype(np.int32),
    }


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_it_holds_what_was_written_last(tmp_path):
    rng, held = np.random.default_rng(0), {}
    store = row_store.RowStore(tmp_path / "rows", 5000, LIKE)
    for _ in range(60):
        rows = rng.choice(5000, 100, replace=False)
        new = values(rng, 100)
        store.write(rows, new)
        held |= {r: (new["a"][k], new["b"][k]) for k, r in enumerate(rows.tolist())}
        if rng.random() < 0.3:
            store.commit()
        asked = rng.choice(5000, 200, replace=False)
        found = store.read(asked)
        zero = (np.zeros((3, 2), np.float32), np.int32(0))
        wanted = [held.get(r, zero) for r in asked.tolist()]
        np.testing.assert_array_equal(found["a"], [a for a, _ in wanted])
        np.testing.assert_array_equal(found["b"], [b for _, b in wanted])
        np.testing.assert_array_equal(
            store.is_written(asked), [r in held for r in asked.tolist()]
        )
    assert store.written().tolist() == sorted(held)
    # Two copies at most: that of the last commit, and what came after it.
    assert store._size < 3 * 5000


@pytest.mark.parametrize("keep", [1, 3])
def test_kept_commits_stay_as_they_were(tmp_path, keep):
    rng, path, commits = np.random.default_rng(1), tmp_path / "rows", []
    store = row_store.RowStore(path, 50, LIKE, keep)
    for _ in range(9):
        for _ in range(3):
            rows = rng.choice(50, 20, replace=False)
            store.write(rows, values(rng, 20))
        commits.append((store.commit(), store.read(np.arange(50))))
    store.write(np.arange(50), values(rng, 50))  # after the last commit
    del store
    for arrays, wanted in commits[-keep:]:
        again = row_store.RowStore(path, 50, LIKE, keep)
        again.restore(arrays)
        assert_equal(again.read(np.arange(50)), wanted)


def test_places_are_used_again(tmp_path):
    rng = np.random.default_rng(2)
    store = row_store.RowStore(tmp_path / "rows", 100, LIKE, keep=2)
    for _ in range(200):
        store.write(np.arange(100), values(rng, 100))
        store.commit()
    assert store._size <= 1024 * 2


def test_damaged_rows_are_found(tmp_path):
    store = row_store.RowStore(tmp_path / "rows", 10, LIKE)
    store.write(np.arange(10), values(np.random.default_rng(3), 10))
    arrays = store.commit()
    place = int(arrays["places"][4]) * store.row_bytes
    with open(tmp_path / "rows", "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    again = row_store.RowStore(tmp_path / "rows", 10, LIKE)
    with pytest.raises(ValueError, match="is not what was written"):
        again.restore(arrays)


def test_clients_may_keep_nothing(tmp_path):
    store = row_store.RowStore(tmp_path / "rows", 10, (None, None))
    store.write(np.arange(3), (None, None))
    assert store.read(np.arange(3)) == (None, None)
    assert not store.is_written(np.arange(10)).any()
    store.restore(store.commit())


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(checks.InputError, match="Cannot write the clients' rows"):
        row_store.RowStore(tmp_path / "file" / "rows", 10, LIKE)
