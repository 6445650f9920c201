"""Pytrees, dotted names and argument checks."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks, struct


@struct.pytree_dataclass
class Inner:
    size: float = 0.1
    count: int = struct.static_field(default=3)


@struct.pytree_dataclass
class Outer:
    inner: Inner = Inner()
    extra: dict | None = None


def test_static_fields_are_structure():
    assert jax.tree.leaves(Outer()) == [0.1]
    assert jax.tree.structure(Inner()) != jax.tree.structure(Inner(count=4))
    with pytest.raises(AttributeError):
        Inner().size = 1.0


def test_classes_without_fields_have_structures_of_their_own():
    """Else one rule could run the program that was compiled for another."""
    structures = [
        jax.tree.structure(part)
        for part in (
            fp.aggregators.Mean(),
            fp.aggregators.WeightedMean(),
            fp.CoordinateMedian(),
        )
    ]
    processes = [
        jax.tree.structure(fp.FederatedProcess(algorithm=part))
        for part in (fp.FedAvg(), fp.Local(), fp.Centralized())
    ]
    for kinds in (structures, processes):
        assert all(a != b for a, b in itertools.combinations(kinds, 2))


def test_leaves_have_names_and_survive_a_round_trip():
    tree = Outer(inner=Inner(size=0.5, count=7), extra={"rate": 2})
    paths = jax.tree_util.tree_leaves_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    assert names == [".inner.size", ".extra['rate']"]
    leaves, structure = jax.tree.flatten(tree)
    assert jax.tree.unflatten(structure, leaves) == tree


def test_named_fields_and_replacement():
    tree = Outer(extra={"rate": 2})
    assert dict(struct.named_fields(tree)) == {
        "inner": "Inner",
        "inner.size": 0.1,
        "inner.count": 3,
        "extra.rate": 2,
    }
    changed = struct.replace_field(tree, "extra.rate", 5)
    assert struct.get_field(changed, "extra.rate") == 5
    assert tree.extra == {"rate": 2}
    with pytest.raises(checks.InputError, match="Unknown field of Inner 'sizes' .did"):
        struct.replace_field(tree, "inner.sizes", 1)


def test_as_arrays_gives_one_type_to_numbers():
    tree = {"a": 1, "b": 1.5, "c": np.float64(2), "d": True, "e": jnp.arange(2)}
    found = struct.as_arrays(tree, jnp.float32)
    kinds = {name: leaf.dtype.name for name, leaf in found.items()}
    assert kinds["a"] == kinds["b"] == kinds["c"] == "float32"
    assert kinds["d"] == "bool"
    assert kinds["e"].startswith("int")
    assert not any(leaf.weak_type for leaf in found.values())


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True, [1]])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(checks.InputError, match="Expected rho to be a finite number"):
        checks.number("rho", value, above=0)


def test_tracers_and_placeholders_pass():
    jax.eval_shape(lambda x: checks.number("rho", x, above=0), -1.0)
    checks.number("rho", object(), above=0)
    checks.number("rho", None, above=0)
    checks.number("rho", np.float32(0.5), above=0)


def test_a_compiled_function_rebuilds_objects_without_complaint():
    solver = jax.jit(lambda s: s)(struct.as_arrays(fp.SGD(learning_rate=0.5)))
    assert float(solver.learning_rate) == 0.5
