"""Rows of several processes in a checkpoint, put together by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import core
from fedjax_pfl.results.checkpoint import arrays

TREE = {
    "server": jnp.arange(6.0).reshape(1, 2, 3),
    "clients": jnp.arange(36.0).reshape(1, 6, 2, 3),
    "steps": jnp.arange(6, dtype=jnp.int32)[None],
    "key": jax.random.split(core.seed_key(3), 1),
    "empty": jnp.zeros((1, 0)),
}
LIKE = jax.eval_shape(lambda: TREE)
ROWS = ("['clients']", "['steps']")


def pieces(folder, *ranges):
    """What processes of these rows would have written."""
    leaves = arrays.named(TREE)
    shared = {name: leaf for name, leaf in leaves.items() if name not in ROWS}
    arrays.write(folder / "state", shared)
    rows = {
        (start, stop): {n: np.asarray(leaves[n])[:, start:stop] for n in ROWS}
        for start, stop in ranges
    }
    return arrays.read(folder / "state", rows, LIKE)


@pytest.mark.parametrize("bounds", [(0, 6), (0, 3, 6), (0, 1, 2, 3, 6)])
def test_rows_of_any_number_of_processes_are_joined(tmp_path, bounds):
    found = pieces(tmp_path, *zip(bounds[:-1], bounds[1:], strict=True))
    assert jax.tree.structure(found) == jax.tree.structure(TREE)
    for one, other in zip(
        jax.tree.leaves(arrays.named(found)),
        jax.tree.leaves(arrays.named(TREE)),
        strict=True,
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ranges", [[(0, 3)], [(3, 6)], [(0, 2), (4, 6)]])
def test_missing_rows_are_noticed(tmp_path, ranges):
    with pytest.raises(ValueError, match="rows are missing"):
        pieces(tmp_path, *ranges)


def test_rows_of_another_training_are_noticed(tmp_path):
    arrays.write(tmp_path / "state", {"['w']": np.zeros((1, 2))})
    like = {"w": jnp.zeros((1, 2)), "x": jnp.zeros((1, 3, 4))}
    for shape in ((1, 3, 5), (2, 2, 4)):
        rows = {(0, 3): {"['x']": np.zeros(shape)}}
        with pytest.raises(ValueError, match="another shape|rows are missing"):
            arrays.read(tmp_path / "state", rows, like)
