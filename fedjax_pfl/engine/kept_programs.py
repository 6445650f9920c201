"""Programs that are traced once: later processes read them beside XLA's cache.

A file holds a program as `jax.export` writes it, under a digest of all that its trace
depends on. Programs of a user's own code, of several devices, and with callbacks are
not kept. Without a cache of JAX nothing is.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from fedjax_pfl import core
from fedjax_pfl.core import checks, lazy
from fedjax_pfl.results import checkpoint, plain_files, provenance

__all__ = ["Program"]

_FOLDER = "traced"
_MOST = 4000
"""Files of the folder; the ones that were not used for the longest time go first."""
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_default_device",
    "jax_disable_jit",
)
"""Settings of JAX that change what is traced."""
_LIBRARIES = ("fedjax_pfl", "flax", "jax", "numpy", "optax")
"""Packages whose versions, and sources of this one, are part of the digest."""


class _NotKept(Exception):  # noqa: N818 (not an error)
    """A program whose trace may depend on something that no digest has."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled function, its static arguments, and then its arrays or their shapes.

    Attributes:
      function: made by `jax.jit`.
      static: first arguments.
      arguments: trees of the others.
    """

    function: Any
    static: tuple[Any, ...]
    arguments: tuple[Any, ...]

    def shapes(self) -> Any:
        """Returns the shapes of the results."""
        if self._kept is not None:
            return self._kept.results
        return self.function.eval_shape(*self.static, *self.arguments)

    def lowered(self) -> jax.stages.Lowered:
        """Lowers the program, or reads it; keeps it for later processes."""
        kept = self._kept
        if kept is None:
            traced = self.function.trace(*self.static, *self.arguments)
            kept = None if self._path is None else self._export(traced)
            if self._path is None or kept is None:
                return traced.lower()
            kept.write(self._path)
        return kept.lowered(self.function.__name__, self.arguments)

    @functools.cached_property
    def _path(self) -> Path | None:
        """Returns the file of the program, or None if it is not kept."""
        folder = getattr(jax.config, "jax_compilation_cache_dir", None)
        if not folder or "://" in folder or jax.process_count() > 1 or _is_edited():
            return None
        try:
            parts = [
                _description(self.function.__wrapped__),
                _description(self.static),
                _description(self.arguments, shapes_only=True),
                _surroundings(),
            ]
        except (_NotKept, RecursionError):
            return None
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return Path(folder) / _FOLDER / digest

    @functools.cached_property
    def _kept(self) -> "_Kept | None":
        """Returns the program that an earlier process kept, or None."""
        return None if self._path is None else _Kept.read(self._path)

    def _export(self, traced: jax.stages.Traced) -> "_Kept | None":
        """Exports a program, or returns None if it cannot be kept."""
        leaves, tree = jax.tree.flatten(self.arguments)

        # Exported programs have neither classes nor keys of our generator.
        @jax.jit
        def plain(*words: Any) -> list[jax.Array]:
            arguments = jax.tree.unflatten(tree, _with_keys(words, leaves))
            results = self.function(*self.static, *arguments)
            return _without_keys(jax.tree.leaves(results))

        try:
            results = _decoded(_encoded(traced.out_info))
            if jax.tree.structure(results) != traced.out_tree:
                return None
            shapes = jax.eval_shape(_without_keys, leaves)
            exported = export.export(plain)(*shapes)
        except (_NotKept, NotImplementedError, TypeError, ValueError):
            return None
        donated = [
            number
            for number, info in enumerate(traced.args_info[0])
            if any(leaf.donated for leaf in jax.tree.leaves(info))
        ]
        return _Kept(exported, results, donated)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """An exported program, shapes of its results, and numbers of donated arguments."""

    exported: export.Exported
    results: Any
    donated: list[int]

    @classmethod
    def read(cls, path: Path) -> "_Kept | None":
        """Reads a program; None if there is none, or the file is damaged or old."""
        try:
            with plain_files.opened(path) as file:
                digest, header, blob = file.read().split(b"\n", 2)
            if digest != hashlib.sha256(header + b"\n" + blob).hexdigest().encode():
                return None
            about = json.loads(header)
            exported = export.deserialize(bytearray(blob))
            kept = cls(exported, _decoded(about["results"]), about["donated"])
            os.utime(path)  # was used
        except Exception:  # whatever is wrong with it, the program is traced again
            return None
        return kept

    def write(self, path: Path) -> None:
        """Writes the program, unless its folder cannot be written."""
        about = {"results": _encoded(self.results), "donated": self.donated}
        content = json.dumps(about).encode() + b"\n" + self.exported.serialize()
        digest = hashlib.sha256(content).hexdigest().encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with plain_files.created(path) as temporary:
                temporary.write_bytes(digest + b"\n" + content)
            _drop_old(path.parent)
        except (OSError, checks.InputError):  # such as a link in its place
            return

    def lowered(self, name: str, arguments: tuple[Any, ...]) -> jax.stages.Lowered:
        """Lowers the program for its arguments."""
        tree = jax.tree.structure(self.results)
        shapes = jax.tree.leaves(self.results)

        def call(*arguments: Any) -> Any:
            words = self.exported.call(*_without_keys(jax.tree.leaves(arguments)))
            return jax.tree.unflatten(tree, _with_keys(words, shapes))

        call.__name__ = name
        return jax.jit(call, donate_argnums=self.donated).lower(*arguments)


def _drop_old(folder: Path) -> None:
    """Removes the files that were not used for the longest time."""
    files = list(folder.iterdir())
    if len(files) > _MOST:
        files.sort(key=lambda file: file.stat().st_mtime)
        for file in files[: len(files) - _MOST // 2]:
            file.unlink(missing_ok=True)


@functools.cache
def _is_edited() -> bool:
    """Returns whether sources are newer than their import into this process."""
    sources = Path(core.__file__).parents[1].rglob("*.py")
    return any(path.stat().st_mtime > lazy.IMPORTED for path in sources)


def _alone() -> jax.sharding.Sharding:
    """Returns the placement of arrays on the first device."""
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def _surroundings() -> list[Any]:
    """Describes code, versions, settings and device."""
    code = provenance.code()
    code = {k: v for k, v in code.items() if k not in ("commit", "clean")}
    settings = [str(getattr(jax.config, name, None)) for name in _SETTINGS]
    return [code, settings, jax.default_backend(), jax.devices()[0].device_kind]


@functools.cache
def _key_dtype() -> Any:
    """Returns the dtype of keys of the package's generator."""
    return jax.eval_shape(core.new_key, jax.ShapeDtypeStruct((2,), np.uint32)).dtype


def _is_key(leaf: Any) -> bool:
    """Returns whether a leaf holds keys; only those of the package are kept."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if is_key and leaf.dtype != _key_dtype():
        raise _NotKept
    return is_key


def _without_keys(leaves: Any) -> list[Any]:
    """Returns leaves with the words of keys."""
    return [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]


def _with_keys(words: Any, like: Any) -> list[Any]:
    """Returns leaves with keys where `like` has keys."""
    return [
        core.new_key(leaf) if _is_key(wanted) else leaf
        for leaf, wanted in zip(words, like, strict=True)
    ]


def _name(item: Any) -> list[str]:
    """Returns the module and name of a class or function; see `_LIBRARIES`."""
    top = (item.__module__ or "").partition(".")[0]
    if top not in _LIBRARIES and top not in sys.stdlib_module_names:
        raise _NotKept
    return [item.__module__, item.__qualname__]


def _named(name: list[str]) -> Any:
    """Returns the class or function of a name; see `_name`."""
    module, path = name
    if module.partition(".")[0] not in _LIBRARIES:
        raise _NotKept
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _description(node: Any, *, shapes_only: bool = False) -> Any:
    """Describes values by lists for JSON; raises `_NotKept` at what it does not know.

    Arrays are described by their values, or by their shapes only.
    """
    describe = functools.partial(_description, shapes_only=shapes_only)
    if isinstance(node, enum.Enum):  # some are whole numbers, too
        return ["enum", *_name(type(node)), node.name]
    if isinstance(node, str | bool | int | None):
        return node
    if isinstance(node, float | complex | bytes | np.generic | np.dtype):
        return [type(node).__name__, repr(node)]
    if isinstance(node, type):
        return ["class", *_name(node)]
    if isinstance(node, Mapping):
        pairs = [[describe(key), describe(value)] for key, value in node.items()]
        return [*_name(type(node)), *pairs]
    if isinstance(node, list | tuple):
        return [*_name(type(node)), *map(describe, node)]
    if isinstance(node, set | frozenset):
        return [*_name(type(node)), *sorted(map(json.dumps, map(describe, node)))]
    if dataclasses.is_dataclass(node):
        names = [field.name for field in dataclasses.fields(node)]
        fields = [[name, describe(getattr(node, name, None))] for name in names]
        return [*_name(type(node)), *fields]
    if hasattr(node, "shape") and hasattr(node, "dtype"):
        return _array(node, shapes_only=shapes_only)
    if isinstance(node, functools.partial):
        return ["partial", *map(describe, (node.func, node.args, node.keywords))]
    if isinstance(node, types.MethodType):
        return ["method", describe(node.__self__), *_name(node.__func__)]
    return _function(node)


def _array(leaf: Any, *, shapes_only: bool) -> list[Any]:
    """Describes an array of the first device, or its shape."""
    where = getattr(leaf, "sharding", None)
    if where is not None and where != _alone():
        raise _NotKept
    weak = bool(getattr(leaf, "weak_type", False))
    about = ["array", list(leaf.shape), str(leaf.dtype), weak]
    return about if shapes_only else [*about, checkpoint.fingerprint(leaf)]


def _function(node: Any) -> list[Any]:
    """Describes a function, and the values that it encloses."""
    if not (hasattr(node, "__module__") and hasattr(node, "__qualname__")):
        raise _NotKept
    name = _name(node)
    if not isinstance(node, types.FunctionType):
        # Such as those of `jax.jit`: known by their names if these lead to them.
        try:
            if _named(name) is node:
                return ["function", *name]
        except (AttributeError, ImportError):
            pass
        raise _NotKept
    try:
        cells = [cell.cell_contents for cell in node.__closure__ or ()]
    except ValueError as error:  # an empty cell
        raise _NotKept from error
    enclosed = [cells, node.__defaults__, node.__kwdefaults__]
    line = node.__code__.co_firstlineno
    return ["function", *name, line, *map(_description, enclosed)]


def _encoded(tree: Any) -> Any:
    """Describes a tree of shapes, so that `_decoded` makes it again."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": [[key, _encoded(tree[key])] for key in sorted(tree)]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: list(map(_encoded, tree))}
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        dtype = "key" if _is_key(tree) else str(tree.dtype)
        return {"array": [list(tree.shape), dtype, bool(tree.weak_type)]}
    if isinstance(tree, tuple):
        return {"tuple of": _name(type(tree)), "items": list(map(_encoded, tree))}
    if not dataclasses.is_dataclass(tree):
        raise _NotKept
    fields = _fields(tree)
    return {
        "class": _name(type(tree)),
        "fields": {name: _encoded(getattr(tree, name)) for name in fields},
    }


def _fields(node: Any) -> Iterator[str]:
    """Yields the names of a tree's fields; a static one is not described."""
    for field in dataclasses.fields(node):
        if field.metadata.get("static"):
            raise _NotKept
        yield field.name


def _decoded(text: Any) -> Any:
    """Makes a tree of shapes from its description."""
    match text:
        case None:
            return None
        case {"dict": pairs}:
            return {key: _decoded(value) for key, value in pairs}
        case {"list": items}:
            return list(map(_decoded, items))
        case {"tuple": items}:
            return tuple(map(_decoded, items))
        case {"array": [shape, dtype, weak]}:
            if dtype == "key":
                dtype = _key_dtype()
            return jax.ShapeDtypeStruct(tuple(shape), dtype, weak_type=weak)
        case {"tuple of": name, "items": items}:
            return tuple.__new__(_named(name), map(_decoded, items))
        case {"class": name, "fields": fields}:
            node = object.__new__(_named(name))
            for field, value in fields.items():
                object.__setattr__(node, field, _decoded(value))
            return node
    raise _NotKept
