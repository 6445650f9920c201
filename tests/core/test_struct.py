"""Pytrees, dotted names and argument checks."""

import dataclasses
import itertools
from typing import Annotated, Literal

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


def test_tracers_shapes_and_scalars_pass():
    jax.eval_shape(lambda x: checks.number("rho", x, above=0), -1.0)
    checks.number("rho", jax.ShapeDtypeStruct((), jnp.float32), above=0)
    for scalar in (1, 0.5, np.float32(0.5), np.array(0.5), jnp.array(0.5)):
        checks.number("rho", scalar, above=0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "object"),
        (None, "None"),
        (np.array([0.5]), r"an array float64\[1\]"),
        (jnp.ones((2, 3), jnp.float32), r"an array float32\[2, 3\]"),
        (float, "the class float"),
        (10**400, "1000"),
        pytest.param(10**5000, "an object of the class int", id="digits"),
        (jax.random.key(0), "class"),
    ],
)
def test_numbers_are_scalars(value, words):
    with pytest.raises(checks.InputError, match=f"rho to be a finite.* got .*{words}"):
        checks.number("rho", value)


def test_a_compiled_function_rebuilds_objects_without_complaint():
    solver = jax.jit(lambda s: s)(struct.as_arrays(fp.SGD(learning_rate=0.5)))
    assert float(solver.learning_rate) == 0.5


@struct.pytree_dataclass
class Declared:
    """A field of every kind of declaration."""

    share: float = struct.traced_field(default=0.5, at_least=0, below=1)
    plain: float | None = struct.traced_field(default=None)
    steps: int | None = struct.static_field(default=None, at_least=1)
    part: float = struct.static_field(default=0.5, above=0, at_most=1)
    is_even: bool = struct.static_field(default=False)
    rule: Literal["sum", "mean"] = "sum"
    center: Annotated[Literal["own", "other"], "center of the rule"] = "own"


def test_declared_fields_let_tracers_placeholders_and_defaults_pass():
    declared = Declared(share=0.0, plain=None, steps=None, rule="mean")
    assert jax.tree.leaves(Declared(share=0.25)) == [0.25]  # literals are structure
    assert jax.tree.structure(declared) != jax.tree.structure(Declared())
    assert jax.tree.map(lambda _: None, declared).share is None
    stacked = jax.tree.map(lambda share: np.full(3, share), declared)
    assert stacked.share.shape == (3,)  # as grids have them
    assert float(jax.jit(lambda d: d.share + 1)(Declared(share=0.25))) == 1.25


@dataclasses.dataclass
class Options:
    """A dataclass that is no pytree, whose fields all count as static."""

    steps: int | None = struct.static_field(default=3, at_least=1)
    share: float = struct.static_field(default=0.5, at_least=0, below=1)
    is_even: bool = False
    title: str = "a"
    subtitle: str | None = "b"
    rule: Literal["sum", "mean"] = "sum"

    __post_init__ = struct.check_fields


OF_BOTH = [
    ({"share": 1.0}, "share to be a finite number at least 0 and below 1, got 1.0"),
    ({"share": "x"}, "share to be a finite number .* got 'x'"),
    ({"steps": 0}, "steps to be a whole number of at least 1, got 0"),
    ({"steps": 1.5}, "steps to be a whole number of at least 1, got 1.5"),
    ({"is_even": 1}, "is_even to be true or false, got 1"),
    ({"is_even": None}, "is_even to be true or false, got None"),
    ({"rule": "men"}, "Unknown rule 'men' .* allowed: mean, sum"),
]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        *((kind, *case) for kind in (Declared, Options) for case in OF_BOTH),
        (Declared, {"plain": np.nan}, "plain to be a finite number, got nan"),
        (Declared, {"part": 0.0}, "a finite number above 0 and at most 1, got 0.0"),
        (Declared, {"center": "x"}, "Unknown center of the rule 'x'; allowed: other, "),
        (Options, {"title": None}, "title to be text, got None"),
        (Options, {"subtitle": 3}, "subtitle to be text, got 3"),
    ],
)
def test_values_that_a_declaration_does_not_allow_get_one_sentence(
    kind, fields, message
):
    with pytest.raises(checks.InputError, match=message):
        kind(**fields)


def test_fields_of_a_plain_dataclass_may_be_none_or_whole():
    fields = {"steps": None, "subtitle": None, "share": 0, "rule": "mean"}
    assert Options(**fields) == dataclasses.replace(Options(), **fields)
