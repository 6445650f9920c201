"""The one mechanism for states, hyperparameters and device data: frozen pytrees.

JAX is imported with the first of them: what is only a dataclass needs none.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from fedjax_pfl.core import checks

_T = TypeVar("_T")
_MAX_SHOWN = 8  # entries of a tuple that a representation has

__all__ = [
    "array_repr",
    "as_arrays",
    "get_field",
    "is_required",
    "named_fields",
    "plain",
    "plain_fields",
    "pytree_dataclass",
    "replace_field",
    "same",
    "static_field",
]


def static_field(**kwargs: Any) -> Any:
    """Marks a dataclass field as static: part of the tree's structure, not a leaf.

    A field is static iff it fixes a shape, a loop length, a dtype or which code runs. A
    new value of a static field costs one compilation.

    Args:
      **kwargs: passed to `dataclasses.field`, for example `default=20`.

    Returns:
      The field description.
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(static_field,)
)
def pytree_dataclass(cls: type[_T]) -> type[_T]:
    """Makes a class a frozen, keyword-only dataclass that JAX treats as a pytree.

    `__post_init__` also runs when JAX rebuilds the object from tracers; check only
    static fields there, or use `checks`, which lets tracers pass.

    Args:
      cls: class with annotated fields; those made by `static_field` are structure.

    Returns:
      The registered dataclass.

    Example:
      >>> import jax
      >>> @pytree_dataclass
      ... class Step:
      ...     size: float = 0.1
      ...     num_steps: int = static_field(default=3)
      >>> jax.tree.leaves(Step(size=0.5))
      [0.5]
    """
    import jax

    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    static = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if f.name not in static]
    cls.__init__ = _named_only(cls.__init__, cls.__name__, [f.name for f in fields])

    def structure(node: Any) -> tuple[Any, ...]:
        # The class is part of the structure by hand: JAX compares what
        # `register_dataclass` makes by fields alone, so that two rules without fields
        # would be equal, and one could run the other's compiled program.
        return (cls, *(getattr(node, name) for name in static))

    def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in data), structure(node)

    def flatten_with_keys(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        keyed = ((jax.tree_util.GetAttrKey(n), getattr(node, n)) for n in data)
        return tuple(keyed), structure(node)

    def unflatten(known: tuple[Any, ...], children: Iterable[Any]) -> Any:
        names = dict(zip(static, known[1:], strict=True))
        return cls(**names, **dict(zip(data, children, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _named_only(
    init: Callable[..., None], cls: str, names: list[str]
) -> Callable[..., None]:
    """Wraps `__init__` to name the fields if it is called with others."""

    @functools.wraps(init)
    def checked(self: Any, /, *args: Any, **values: Any) -> None:
        if args:
            raise checks.InputError(
                f"Expected fields of {cls} by their names ({', '.join(names)}), got"
                f" {len(args)} without: {', '.join(map(repr, args))}."
            )
        for name in values.keys() - names:
            checks.known(name, names, f"field of {cls}")
        init(self, **values)

    return checked


def array_repr(self: Any) -> str:
    """Returns the representation of a dataclass with shapes in place of arrays.

    Args:
      self: dataclass; the function is assigned as `__repr__` in its body.

    Returns:
      Its fields that are not None, in one line.

    Example:
      >>> @pytree_dataclass
      ... class Rows:
      ...     x: np.ndarray
      ...     __repr__ = array_repr
      >>> Rows(x=np.zeros((20, 3)))
      Rows(x=float64[20, 3])
    """
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    shown = [f"{n}={_short(v)}" for n, v in values.items() if v is not None]
    return f"{type(self).__name__}({', '.join(shown)})"


def _short(value: Any) -> str:
    """Returns a value in few characters."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if isinstance(value, tuple) and len(value) > _MAX_SHOWN:
        return f"({value[0]!r}, ... {len(value)} in all)"
    return repr(value)


def as_arrays(tree: _T, dtype: Any = np.float32) -> _T:
    """Turns every numeric leaf into an array of `dtype`, integers included.

    Weak and strong types, and `1` against `1.0`, would each cost a retrace; this is
    done once before the compiled boundary. Leaves that are keys, booleans or integer
    arrays with a shape (counters, indices) keep their dtype.

    Args:
      tree: pytree of Python numbers and arrays.
      dtype: floating dtype of the run.

    Returns:
      The same tree with array leaves.
    """
    import jax
    import jax.numpy as jnp

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, bool | np.bool_):
            return jnp.asarray(leaf)
        if isinstance(leaf, int | float | np.number):
            return jnp.asarray(leaf, dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(leaf, dtype)
        return jnp.asarray(leaf)

    return jax.tree.map(convert, tree)


def is_required(field: dataclasses.Field) -> bool:
    """Returns whether a field of a dataclass has no default."""
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _children(node: Any) -> Mapping[str, Any] | None:
    """Returns the named children of a node that dotted names may enter, else None.

    Those of a tuple of dataclasses are named by their numbers.
    """
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
    if isinstance(node, Mapping):
        return node
    if isinstance(node, tuple) and node and all(map(dataclasses.is_dataclass, node)):
        return {str(number): part for number, part in enumerate(node)}
    return None


def named_fields(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `(dotted name, value)` for every leaf field, static ones included.

    A nested dataclass yields the name of its class, then its fields.

    Args:
      node: dataclass or mapping.
      prefix: dotted prefix of the names.

    Yields:
      Pairs in field order.
    """
    children = _children(node)
    if children is None:
        yield prefix, node
        return
    if prefix and dataclasses.is_dataclass(node):
        yield prefix, type(node).__name__
    for name, value in children.items():
        yield from named_fields(value, f"{prefix}.{name}" if prefix else name)


def plain_fields(node: Any, prefix: str = "") -> dict[str, Any]:
    """Returns `named_fields` as JSON knows them: classes and functions by name.

    Args:
      node: dataclass, mapping or None.
      prefix: dotted prefix of the names.

    Returns:
      Values by dotted name, in field order.
    """
    return {name: plain(value) for name, value in named_fields(node, prefix)}


def plain(value: Any) -> Any:
    """Returns a value as JSON knows it: arrays as lists, components by class name."""
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if is_array and not isinstance(value, type):
        return np.asarray(value).tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return getattr(value, "__name__", repr(value))


def get_field(node: Any, name: str) -> Any:
    """Returns the value at a dotted name.

    Args:
      node: dataclass or mapping.
      name: for example `"algorithm.local.learning_rate"`.

    Returns:
      The value.

    Raises:
      InputError: if a part of the name does not exist; near misses are named.
    """
    for depth, part in enumerate(name.split(".")):
        children = _children(node)
        where = ".".join(name.split(".")[:depth]) or type(node).__name__
        if children is None:
            raise checks.InputError(
                f"Field {name!r} does not exist: {where!r} is {node!r}, which has "
                "no fields."
            )
        checks.known(part, children, f"field of {where}")
        node = children[part]
    return node


def replace_field(node: _T, name: str, value: Any) -> _T:
    """Returns a copy of `node` with the field at a dotted name replaced.

    Args:
      node: dataclass or mapping.
      name: dotted name; every part must exist.
      value: new value.

    Returns:
      The changed copy; nothing is modified in place.

    Raises:
      InputError: if a part of the name does not exist.

    Example:
      >>> replace_field({"local": {"size": 1}}, "local.size", 2)
      {'local': {'size': 2}}
    """
    head, _, rest = name.partition(".")
    child = get_field(node, head)
    if rest:
        value = replace_field(child, rest, value)
    if isinstance(node, Mapping):
        return {**node, head: value}  # pyright: ignore[reportReturnType]
    if isinstance(node, tuple):
        parts = {**(_children(node) or {}), head: value}
        return tuple(parts.values())  # pyright: ignore[reportReturnType]
    return dataclasses.replace(node, **{head: value})  # pyright: ignore


def same(a: Any, b: Any) -> bool:
    """Returns whether nested values are equal; NaN equals NaN, a tuple its list.

    Args:
      a: dataclass, mapping, list, tuple, array or anything else.
      b: what it is compared with.
    """
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return same(_children(a), _children(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        nan = a.dtype.kind == "f"
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=nan)
    return a is b or a == b
