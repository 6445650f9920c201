"""The one mechanism for states, hyperparameters and device data: frozen pytrees."""

import dataclasses
import functools
import inspect
import math
import numbers
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import numpy as np

from fedjax_pfl.core import checks

if TYPE_CHECKING:
    from jax.typing import DTypeLike

_T = TypeVar("_T")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OPTIMIZERS = ("GradientTransformation", "GradientTransformationExtraArgs")
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
_MAX_SHOWN = 8  # entries of a tuple that a representation has
_LIMITS = ("above", "at_least", "at_most", "below")
_NUMBERS: dict[Any, type] = {int: numbers.Integral, float: numbers.Real}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "None",
    os.PathLike: "a path",
    tuple: "a tuple",
    Iterable: "a sequence",
    Mapping: "a mapping",
    Sequence: "a sequence",
    Callable: "a function",
}

__all__ = [
    "array_repr",
    "changed_repr",
    "as_arrays",
    "check_arrays",
    "checked_call",
    "check_fields",
    "get_field",
    "inner",
    "innermost",
    "is_required",
    "kind_of",
    "named_fields",
    "plain",
    "plain_fields",
    "pytree_dataclass",
    "refuse_stand_in",
    "replace_field",
    "replace_innermost",
    "same",
    "static_field",
    "traced_field",
    "traced_numbers",
]


def static_field(**kwargs: Any) -> Any:
    """Marks a dataclass field as static: part of the tree's structure, not a leaf.

    A field is static iff it fixes a shape, a loop length, a dtype or which code runs. A
    new value of a static field costs one compilation. Fields annotated `Literal` are
    static without the mark.

    Args:
      **kwargs: `above`, `at_least`, `at_most`, `below`: limits of a number, which is
        whole if the field is annotated `int`; `search=[...]`, the values that `fp.tune`
        tries; others are passed to `dataclasses.field`, for example `default=20`.

    Example:
      >>> @pytree_dataclass
      ... class Steps:
      ...     count: int = static_field(default=3, at_least=1)
      >>> Steps(count=0)
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Expected count to be a whole number of ...
    """
    return _limited({"static": True}, kwargs)


def traced_field(**kwargs: Any) -> Any:
    """Marks a dataclass field as a traced number in a range: a leaf of the tree.

    Args:
      **kwargs: limits and others, as in `static_field`; `search=(low, high)`, the range
        in which `fp.tune` draws logarithms, `(low, high, False)` the numbers;
        `unless=NAMES`, fields that must be None for a field that is None to be searched
        (otherwise it is not); `unsearched`, the reason why a number has no range.

    Example:
      >>> @pytree_dataclass
      ... class Pull:
      ...     weight: float = traced_field(default=1.0, at_least=0)
      >>> Pull(weight=-1.0)
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Expected weight to be a finite number at ...
    """
    return _limited({"limits": {}}, kwargs)


def inner(label: str) -> dict[str, str]:
    """Returns the metadata of a wrapper's field that contains the wrapped object.

    Dotted names enter that object as if it replaced the wrapper. The wrapper's other
    fields are below `label`.

    Args:
      label: a name that the fields of wrapped objects do not have.

    Returns:
      Metadata for `dataclasses.field`.

    Example:
      >>> @dataclasses.dataclass(frozen=True)
      ... class Step:
      ...     size: float
      >>> @dataclasses.dataclass(frozen=True)
      ... class Clipped:
      ...     step: Step = dataclasses.field(metadata=inner("clip"))
      ...     norm: float = 1.0
      >>> list(named_fields(Clipped(Step(0.5)), "step"))[:2]
      [('step', 'Step'), ('step.size', 0.5)]
      >>> list(named_fields(Clipped(Step(0.5)), "step"))[2:]
      [('step.clip', 'Clipped'), ('step.clip.norm', 1.0)]
      >>> replace_field(Clipped(Step(0.5)), "size", 2.0)
      Clipped(step=Step(size=2.0), norm=1.0)
    """
    return {"inner": label}


def _limited(metadata: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    """Returns a field with its limits in the metadata."""
    limits = {name: kwargs.pop(name) for name in _LIMITS if name in kwargs}
    if limits:
        metadata["limits"] = limits
    for name in ("search", "unless", "unsearched"):
        if name in kwargs:
            metadata[name] = kwargs.pop(name)
    return dataclasses.field(metadata=metadata, **kwargs)


@functools.cache
def _kinds(kind: object) -> tuple[Any, ...]:
    """Returns the alternatives of an annotation."""
    # `Annotated[Any, Protocol]` stands for the protocol, for parts with attributes
    # beyond it.
    if typing.get_origin(kind) is typing.Annotated:
        kind, mark = typing.get_args(kind)[:2]
        kind = kind if isinstance(mark, str) else mark
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _choices(kind: object) -> tuple[Any, ...]:
    """Returns the values that a `Literal` allows; none for other annotations."""
    literals = [k for k in _kinds(kind) if typing.get_origin(k) is typing.Literal]
    return tuple(value for literal in literals for value in typing.get_args(literal))


@functools.cache
def _methods(kind: object) -> list[str]:
    """Returns the public names of a protocol; none for other annotations."""
    is_protocol = isinstance(kind, type) and typing.Protocol in kind.__bases__
    names = vars(kind) if is_protocol else ()
    return [n for n in names if n == "__call__" or not n.startswith("_")]


@functools.cache
def _is_array(kind: object) -> bool:
    """Returns whether an annotation is `jax.Array`, which needs no import here."""
    return "jax" in sys.modules and kind is sys.modules["jax"].Array


def _is_part(kind: object) -> bool:
    """Returns whether an annotation is a dataclass, an interface or an array."""
    is_class = inspect.isabstract(kind) or dataclasses.is_dataclass(kind)
    return is_class or _is_array(kind) or bool(_methods(kind))


def _fits(value: object, kind: object) -> bool:
    """Returns whether a value fits an annotation, as far as that can be checked."""
    if len(_kinds(kind)) > 1:
        return any(_fits(value, option) for option in _kinds(kind))
    origin, of = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Callable:
        return callable(value)
    if not isinstance(origin, type) or origin is Any:
        return True
    # Python counts True and False as numbers; settings do not.
    if isinstance(value, type) or (isinstance(value, bool) and origin is not bool):
        return False
    if methods := _methods(origin):
        return all(hasattr(value, name) for name in methods)
    if _is_array(origin):
        is_number = value is None or isinstance(value, numbers.Number)  # None: no leaf
        of_jax = type(value).__module__.startswith("jax")  # such as a sharding
        return is_number or of_jax or hasattr(value, "dtype")
    if not isinstance(value, _NUMBERS.get(origin, origin)):
        return False
    if isinstance(value, Mapping) and len(of) > 1:
        return all(_fits(v, of[1]) for v in value.values())
    if origin in (Iterable, Sequence) and of:
        is_scalar = getattr(value, "shape", None) == ()
        items = value if isinstance(value, list | tuple | bytes) else ()
        return not is_scalar and all(_fits(item, of[0]) for item in items)
    if origin is not tuple or not of:
        return True
    items = tuple(value)  # pyright: ignore[reportArgumentType]
    of = of[:1] * len(items) if of[-1] is ... else of
    return len(items) == len(of) and all(map(_fits, items, of))


def _words(kind: object) -> str:
    """Describes an annotation, for messages."""
    if len(_kinds(kind)) > 1:
        return " or ".join(map(_words, _kinds(kind)))
    origin, of = typing.get_origin(kind) or kind, typing.get_args(kind)
    if methods := _methods(origin):
        return f"an object with {', '.join(methods)}"
    if origin is tuple and of:
        kinds = {_words(kind): None for kind in of if kind is not ...}
        return f"a tuple, each part {' or '.join(kinds)}"
    if _is_array(origin):
        return "an array"
    if origin in (Iterable, Mapping, Sequence) and of and of[-1] is not Any:
        return f"{_WORDS[origin]}, each part {_words(of[-1])}"
    name = getattr(origin, "__name__", str(origin))
    return _WORDS.get(origin) or f"an object of the class {name}"


@functools.cache
def _check_of(
    field: dataclasses.Field, cls: str | None
) -> tuple[Callable[[Any], None], set[type]] | None:
    """Returns the check of a field's values and the classes that pass, or None."""
    # Without the name of a pytree all fields are static.
    is_static = cls is None or bool(field.metadata.get("static"))
    kinds = [kind for kind in _kinds(field.type) if kind is not types.NoneType]
    part_kinds = [kind for kind in kinds if kind not in (int, float, Any)]
    is_part = any(map(_is_part, kinds))
    limits: dict[str, Any] | None = field.metadata.get("limits")
    if limits is None and not is_part and (not is_static or Any in kinds):
        return None
    is_optional = field.default is None or types.NoneType in _kinds(field.type)
    choices, name, noun = _choices(field.type), field.name, field.name
    if typing.get_origin(field.type) is typing.Annotated:
        noun = typing.get_args(field.type)[1]
    place = name if cls is None else f"{name} of {cls}"
    words = " or ".join(map(_words, kinds))
    if is_part and dataclasses.is_dataclass(field.default):
        words = f"an object such as {type(field.default).__name__}()"
    every = (*kinds, *(arg for kind in kinds for arg in typing.get_args(kind)))
    is_whole = is_static and int in every

    def check_number(value: object, name: str) -> None:
        (checks.whole if is_whole else checks.number)(name, value, **limits or {})
        if is_static and _is_unhashable(value):
            raise checks.InputError(
                f"Expected {name} to be a number of Python, got {checks.shown(value)},"
                " which is an array."
            )

    by_class = limits is None and not choices
    passed: set[type] = set()  # classes of fitting objects, since rounds check often

    def check(value: object) -> None:
        if value is None and is_optional:
            return
        if choices:
            checks.known(value, choices, noun)
            return
        fits = any(_fits(value, kind) for kind in part_kinds)
        if not fits and is_part:
            refuse_stand_in(place, value, words)
        elif not fits and not is_static and not isinstance(value, str):
            refuse_stand_in(place, value, "a number or an object")
        if limits is not None and (fits or len(part_kinds) < len(kinds)):
            if not fits:
                check_number(value, name)
            numbers = value if isinstance(value, tuple) else ()
            if isinstance((*numbers, 0)[0], str):  # a name, with its numbers
                numbers = ()
            for number in numbers:
                check_number(number, f"every one of {name}")
        elif not fits and not any(_fits(value, kind) for kind in kinds):
            text = checks.shown(value)
            raise checks.InputError(
                f"Expected {place if is_part else name} to be {words}, got {text}."
            )
        is_container = isinstance(value, tuple | list | Mapping | type)
        if by_class and not is_container and not _may_stand_in(type(value)):
            passed.add(type(value))

    return check, passed


def _is_unhashable(value: object) -> bool:
    """Returns whether a value cannot be static; true of arrays, not of tracers."""
    if isinstance(value, Hashable):
        return False
    from jax.core import Tracer

    return not isinstance(value, Tracer)


def check_fields(self: Any, *names: str) -> None:
    """Checks the fields of a dataclass that is no pytree, by their declarations.

    All fields count as static. JAX is not imported.

    Args:
      self: dataclass; the function is assigned as `__post_init__` in its body.
      *names: names of the fields to check; by default all.

    Example:
      >>> @dataclasses.dataclass
      ... class Window:
      ...     length: int = static_field(default=3, at_least=1)
      ...     __post_init__ = check_fields
      >>> Window(length=0)
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Expected length to be a whole number of ...
    """
    for field in dataclasses.fields(self):
        check = _check_of(field, None)
        if check is not None and (not names or field.name in names):
            check[0](getattr(self, field.name))


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(static_field, traced_field),
)
def pytree_dataclass(cls: type[_T]) -> type[_T]:
    """Makes a class a frozen, keyword-only dataclass that JAX treats as a pytree.

    Values are checked by the declarations of fields: numbers with limits
    (`static_field`, `traced_field`), `Literal`s, static fields by their annotation, and
    parts, annotated by a protocol or an abstract class, such as `core.Aggregator`. When
    JAX rebuilds the object, of tracers, values are not checked, and `__post_init__` is
    not called.

    Args:
      cls: class with annotated fields; `static_field`s and `Literal`s become structure.

    Example:
      >>> import jax
      >>> @pytree_dataclass
      ... class Step:
      ...     size: float = 0.1
      ...     num_steps: int = static_field(default=3)
      >>> jax.tree.leaves(Step(size=0.5))
      [0.5]
    """
    # With the first pytree: plain dataclasses do not need JAX.
    import jax

    for name, kind in inspect.get_annotations(cls).items():
        default = vars(cls).get(name)
        # A `Literal` selects code.
        if _choices(kind) and not isinstance(default, dataclasses.Field):
            setattr(cls, name, static_field(default=default))
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    static = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if f.name not in static]
    cls.__init__ = _checked(cls.__init__, cls.__name__, fields)

    def structure(node: object) -> tuple[Any, ...]:
        # Here the class is part of the structure: JAX compares structures of
        # `register_dataclass` by fields alone. Two rules without fields would then be
        # equal, and one could run the other's compiled program.
        return (cls, *(getattr(node, name) for name in static))

    def flatten(node: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in data), structure(node)

    def flatten_with_keys(node: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        keyed = ((jax.tree_util.GetAttrKey(n), getattr(node, n)) for n in data)
        return tuple(keyed), structure(node)

    def unflatten(fixed: tuple[Any, ...], children: Iterable[Any]) -> Any:
        # Without checks: JAX also puts tracers and other objects into trees.
        node = object.__new__(cls)
        for name, value in zip((*static, *data), (*fixed[1:], *children), strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _checked(
    init: Callable[..., None], cls: str, fields: Sequence[dataclasses.Field]
) -> Callable[..., None]:
    """Wraps `__init__` to refuse undeclared names and values."""
    names = [field.name for field in fields]
    data = [field.name for field in fields if not field.metadata.get("static")]
    required = [field.name for field in fields if is_required(field) and field.init]
    declared = {
        field.name: check for field in fields if (check := _check_of(field, cls))
    }

    # JAX rebuilds objects without `__init__`, and so without these checks.
    @functools.wraps(init)
    def checked(self: Any, /, *args: object, **values: Any) -> None:
        if args:
            argument = args[0]
            if dataclasses.is_dataclass(argument):
                argument = f"{type(argument).__name__}(...)"
            raise checks.InputError(
                f"Expected fields of {cls} by their names ({', '.join(names)}), got"
                f" {len(args)} without: {argument}; write {cls}({names[0]}={argument})."
            )
        for name in values.keys() - names:
            checks.known(name, names, f"field of {cls}")
        for name, value in values.items():
            if name in declared and type(value) not in declared[name][1]:
                declared[name][0](value)
        if missing := [n for n in required if n not in values]:
            raise checks.InputError(
                f"Expected {cls}({', '.join(f'{n}=...' for n in missing)}), got it"
                f" without {' and '.join(missing)}."
            )
        init(self, **values)
        for name in data:  # `__post_init__` may have replaced values
            value = getattr(self, name)
            if _may_stand_in(type(value)):
                refuse_stand_in(f"{name} of {cls}", value, "a number or an object")

    return checked


def checked_call(
    function: Callable[..., Any], signature: inspect.Signature | None = None
) -> Any:
    """Decorates a function to refuse arguments that do not fit its annotations.

    Args:
      function: the function.
      signature: all allowed arguments, if the function has open options and checks its
        parts, such as processes and models, itself; None for its own signature.

    Returns:
      The function, which raises an `InputError` of one sentence.

    Example:
      >>> @checked_call
      ... def double(number: int) -> int:
      ...     return 2 * number
      >>> double("a")
      Traceback (most recent call last):
        ...
      fedjax_pfl.core.checks.InputError: Expected number to be a whole number, got 'a'.
    """
    annotated, has_parts = inspect.signature(function), signature is not None
    signature = signature or annotated
    names = [p.name for p in annotated.parameters.values() if p.kind < p.VAR_POSITIONAL]

    @functools.wraps(function)
    def call(*args: object, **options: object) -> Any:
        is_open = any(p.kind == p.VAR_KEYWORD for p in signature.parameters.values())
        for name in () if is_open else options.keys() - signature.parameters.keys():
            noun = f"option of {function.__name__}"
            checks.known(name, signature.parameters, noun)
        try:
            arguments = signature.bind(*args, **options).arguments
        except TypeError as error:
            raise checks.InputError(
                f"Expected {function.__name__}({', '.join(names)}) and options by their"
                f" names, got {len(args)} arguments without: {error}."
            ) from None
        for name, parameter in annotated.parameters.items():
            kinds = _kinds(parameter.annotation)
            is_default = name not in arguments or arguments[name] is parameter.default
            is_plain = all((typing.get_origin(k) or k) in _WORDS for k in kinds)
            # Functions with open options check parts, such as processes and models,
            # themselves.
            is_left = parameter.kind == parameter.VAR_KEYWORD or (
                has_parts and not is_plain
            )
            if is_default or is_left:
                continue
            if not any(_fits(arguments[name], kind) for kind in kinds):
                words = " or ".join(map(_words, kinds))
                text = checks.shown(arguments[name])
                raise checks.InputError(f"Expected {name} to be {words}, got {text}.")
        return function(*args, **options)

    call.__signature__ = signature  # pyright: ignore
    return call


def check_arrays(name: str, tree: object) -> None:
    """Checks that the leaves of a tree are arrays or numbers."""
    import jax

    # JAX warns about iterators, which are no trees.
    for leaf in [tree] if isinstance(tree, Iterator) else jax.tree.leaves(tree):
        if isinstance(leaf, type) or not _fits(leaf, jax.Array):
            raise checks.InputError(
                f"Expected {name} to be a tree of arrays, got {checks.shown(leaf)}."
            )


@functools.cache
def _may_stand_in(kind: type) -> bool:
    """Returns whether `refuse_stand_in` may refuse values of a class."""
    return issubclass(kind, (str, type, *_FUNCTIONS)) or kind.__name__ in _OPTIMIZERS


def refuse_stand_in(name: str, value: object, wanted: str) -> None:
    """Refuses a name, an optimizer of optax or a function in place of a part.

    Other objects pass; the message describes `wanted` values.
    """
    if isinstance(value, str):
        raise checks.InputError(f"Expected {name} to be {wanted}, got {value!r}.")
    if isinstance(value, type):
        raise checks.InputError(
            f"Expected {name} to be {wanted}, got the class {value.__name__} instead of"
            f" {value.__name__}(...)."
        )
    is_function = isinstance(value, _FUNCTIONS)
    # Schedules of optax are closures, its makers of optimizers are not.
    makes_optimizer = is_function and str(value.__module__).startswith("optax.")
    if type(value).__name__ in _OPTIMIZERS or (makes_optimizer and not _cells(value)):
        raise checks.InputError(
            f"Expected {name} to be {wanted}, got an optimizer of optax; local solvers"
            " wrap one as in fp.Optax(optimizer=optax.adam,"
            ' hyperparameters={"learning_rate": 0.001}).'
        )
    if is_function:
        raise checks.InputError(
            f"Expected {name} to be {wanted}, got the function {plain(value)};"
            " only the learning rates of fp.SGD and fp.Optax follow a schedule."
        )


def changed_repr(self: Any) -> str:
    """Represents a dataclass in one line, by the fields that are not their defaults.

    Dataclasses in its fields are represented in the same way. The function is assigned
    as `__repr__` in the body of the class.

    Example:
      >>> @pytree_dataclass
      ... class Step:
      ...     size: float = 0.1
      ...     __repr__ = changed_repr
      >>> Step(), Step(size=0.5)
      (Step(), Step(size=0.5))
    """
    parts = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        if is_required(field) or not same(value, _default(field)):
            parts.append(f"{field.name}={_changed(value)}")
    return f"{type(self).__name__}({', '.join(parts)})"


def _changed(value: object) -> str:
    """Formats a value in few characters; dataclasses by fields without defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return changed_repr(value)
    if isinstance(value, tuple) and 0 < len(value) <= _MAX_SHOWN:
        return f"({', '.join(map(_changed, value))}{',' * (len(value) == 1)})"
    return _short(value)


def _default(field: dataclasses.Field) -> Any:
    """Returns the default of a field that has one."""
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING
    return field.default_factory()


def array_repr(self: Any) -> str:
    """Represents a dataclass in one line, without None, with shapes of arrays.

    The function is assigned as `__repr__` in the body of the class.

    Example:
      >>> @pytree_dataclass
      ... class Rows:
      ...     x: np.ndarray
      ...     __repr__ = array_repr
      >>> Rows(x=np.zeros((20, 3)))
      Rows(x=float64[20, 3])
    """
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    parts = [f"{n}={_short(v)}" for n, v in values.items() if v is not None]
    return f"{type(self).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:
    """Formats a value in few characters."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        names = list(map(str, value))
        tail = [f"... {len(names)} in all"] if len(names) > _MAX_SHOWN else []
        return f"{{{', '.join([*names[:_MAX_SHOWN], *tail])}}}"
    if isinstance(value, tuple) and len(value) > _MAX_SHOWN:
        return f"({value[0]!r}, ... {len(value)} in all)"
    return repr(value)


def as_arrays(tree: _T, dtype: "DTypeLike" = np.float32) -> _T:
    """Turns every numeric leaf into an array of `dtype`, integers included.

    Weak and strong types, and `1` against `1.0`, would each cost a retrace; this is
    done once before the compiled boundary. Leaves that are keys, booleans or integer
    arrays with a shape (counters, indices) keep their dtype. A finite number too large
    for `dtype` is refused.
    """
    import jax
    import jax.numpy as jnp

    largest = float(np.finfo(dtype).max)

    def convert(path: Any, leaf: Any) -> Any:
        # First, since Python counts booleans as integers.
        if isinstance(leaf, bool | np.bool_):
            return jnp.asarray(leaf)
        if isinstance(leaf, int | float | np.number):
            if largest < abs(leaf) < math.inf:
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise checks.InputError(
                    f"Expected {name} to be at most {largest:g}, the largest number of"
                    f" {np.dtype(dtype)}, got {leaf}."
                )
            return jnp.asarray(leaf, dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(leaf, dtype)
        return jnp.asarray(leaf)

    return jax.tree_util.tree_map_with_path(convert, tree)


def traced_numbers(tree: Any) -> dict[str, Any]:
    """Returns floating-point leaves of a tree, and Python's numbers, by dotted name.

    Example:
      >>> @pytree_dataclass
      ... class Pull:
      ...     weight: float = 1.0
      ...     steps: int = static_field(default=2)
      >>> traced_numbers(Pull())
      {'weight': 1.0}
    """
    import jax
    import jax.numpy as jnp

    values = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        is_number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        if is_number or jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            values[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
    return values


def is_required(field: dataclasses.Field) -> bool:
    """Returns whether a field of a dataclass has no default."""
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


class _Own(dict[str, Any]):
    """Fields of a wrapper of class `kind`, without the wrapped object, by name."""

    def __init__(self, kind: type, values: Mapping[str, Any]):
        super().__init__(values)
        self.kind = kind


def _inner(node: object) -> dataclasses.Field | None:
    """Returns the field of a wrapper that contains the wrapped object, or None."""
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return None
    return next((f for f in dataclasses.fields(node) if "inner" in f.metadata), None)


def innermost(node: object) -> Any:
    """Returns the innermost wrapped object, see `inner`; others are unchanged."""
    field = _inner(node)
    return node if field is None else innermost(getattr(node, field.name))


def replace_innermost(node: Any, value: object) -> Any:
    """Returns a copy of wrappers, see `inner`, around another innermost object."""
    field = _inner(node)
    if field is None:
        return value
    wrapped = replace_innermost(getattr(node, field.name), value)
    return dataclasses.replace(node, **{field.name: wrapped})


def kind_of(node: object) -> type | None:
    """Returns the class with the fields of a result of `get_field`, or None.

    A wrapper stands for the wrapped object.
    """
    if isinstance(node, _Own):
        return node.kind
    node = innermost(node)
    return type(node) if dataclasses.is_dataclass(node) else None


def _values(node: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass."""
    # Flax's modules hide their parents, which are not settings.
    return {f.name: getattr(node, f.name) for f in dataclasses.fields(node) if f.repr}


def _children(node: object) -> Mapping[str, Any] | None:
    """Returns the children of a node by their parts of dotted names, or None."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        values, field = _values(node), _inner(node)
        if field is None:
            return values
        wrapped = _children(values.pop(field.name)) or {}
        return {**wrapped, field.metadata["inner"]: _Own(type(node), values)}
    if isinstance(node, Mapping):
        return node
    if isinstance(node, tuple) and node and all(map(dataclasses.is_dataclass, node)):
        return {str(number): part for number, part in enumerate(node)}
    return None


def named_fields(node: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `(dotted name, value)` for every leaf field, static ones included.

    A nested dataclass yields the name of its class, then its fields; a wrapper the
    fields of the wrapped object, then its own, see `inner`. The prefix is dotted, too.
    """
    children = _children(node)
    if children is None:
        yield prefix, node
        return
    if prefix and (kind := kind_of(node)) is not None:
        yield prefix, kind.__name__
    for name, value in children.items():
        yield from named_fields(value, f"{prefix}.{name}" if prefix else name)


def plain_fields(node: object, prefix: str = "") -> dict[str, Any]:
    """Returns `named_fields` in JSON types: classes and functions by name."""
    return {name: plain(value) for name, value in named_fields(node, prefix)}


def plain(value: Any) -> Any:
    """Returns a value in JSON types: arrays as lists, components by class name."""
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if is_array and not isinstance(value, type):
        return np.asarray(value).tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if dataclasses.is_dataclass(value):
        return type(innermost(value)).__name__
    if _cells(value):
        return _of_closure(value)
    # Without addresses, so that the name is the same in another process.
    return getattr(value, "__name__", _ADDRESS.sub("", repr(value)))


def _cells(value: object) -> Any:
    """Returns the closure of a function, if it has one."""
    return isinstance(value, types.FunctionType) and value.__closure__


def _of_closure(function: Callable[..., Any]) -> str:
    """Returns the call that made a function, as in `constant_schedule(value=0.1)`."""

    def shown(value: object) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(shown, value))}]"
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, types.FunctionType) and value is not function:
            return plain(value)
        return type(value).__name__

    variables = inspect.getclosurevars(function).nonlocals
    made_by = function.__qualname__.partition(".<locals>")[0]
    return f"{made_by}({', '.join(f'{n}={shown(v)}' for n, v in variables.items())})"


def get_field(node: object, name: str) -> Any:
    """Returns the value at a dotted name, such as `"algorithm.local.learning_rate"`.

    If a part of the name does not exist, the error names near misses.
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


def replace_field(node: _T, name: str, value: object) -> _T:
    """Returns a copy of a dataclass or mapping with another value at a dotted name.

    Every part of the name must exist.

    Example:
      >>> replace_field({"local": {"size": 1}}, "local.size", 2)
      {'local': {'size': 2}}
    """
    head, _, tail = name.partition(".")
    child, field = get_field(node, head), _inner(node)
    # Names enter the wrapped object as if it replaced the wrapper.
    if field is not None and head != field.metadata["inner"]:
        wrapped = replace_field(getattr(node, field.name), name, value)
        return dataclasses.replace(node, **{field.name: wrapped})  # pyright: ignore
    if tail:
        value = replace_field(child, tail, value)
    if field is not None:
        return dataclasses.replace(node, **value)  # pyright: ignore
    if isinstance(node, Mapping):
        return {**node, head: value}  # pyright: ignore[reportReturnType]
    if isinstance(node, tuple):
        parts = {**(_children(node) or {}), head: value}
        return tuple(parts.values())  # pyright: ignore[reportReturnType]
    return dataclasses.replace(node, **{head: value})  # pyright: ignore


def same(a: object, b: object) -> bool:
    """Returns whether nested values are equal; NaN equals NaN, a tuple a list."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return same(_values(a), _values(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        nan = a.dtype.kind == "f"
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=nan)
    # By identity first, since NaN is not equal to itself.
    return a is b or a == b
