"""A user's own algorithm, by the name of its module and class, which importing runs."""

import dataclasses
import importlib
import json
import os
import sys
import types
from collections.abc import Iterator
from importlib import machinery
from pathlib import Path

from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import checks, struct

__all__ = ["check_name", "find"]

_HOOKS = ("init", "round", "predictors")
_MARKS = ("experiment.json", "config.json", "checkpoint.json")
_MAX_MARK = 2**24  # bytes


def check_name(name: str) -> None:
    """Refuses names of own algorithms other than `module:Class`, without an import."""
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*path.split("."), attribute)):
        raise checks.InputError(
            "Expected an algorithm of your own as module:Class, such as"
            f" my_methods:Damped, got {name!r}."
        )


def find(name: str) -> type:
    """Returns the class of one of `ALGORITHMS`, or of `module:Class`, imported."""
    if ":" not in name:
        checks.known(name, registry.ALGORITHMS, "algorithm")
        return registry.ALGORITHMS[name]
    # Each check comes before the step that it protects: import, use, decoration.
    check_name(name)
    path, _, attribute = name.partition(":")
    kind = getattr(_module(path, name), attribute, None)
    if not isinstance(kind, type):
        raise checks.InputError(
            f"Expected a class {attribute!r} in the module {path!r}, got {kind!r}."
        )
    missing = [hook for hook in _HOOKS if not hasattr(kind, hook)]
    if missing:
        raise checks.InputError(
            f"Expected {name} to be an algorithm, such as a subclass of"
            f" SingleExchange, got a class without {', '.join(missing)}."
        )
    if _is_a_leaf(kind):
        raise checks.InputError(
            f"Expected {name} to be decorated with @pytree_dataclass, so that fields of"
            " it can be set and swept."
        )
    bare = [f.name for f in dataclasses.fields(kind) if struct.is_required(f)]
    if bare:
        raise checks.InputError(
            f"Expected the fields of {name} to have defaults, which {', '.join(bare)}"
            " has not."
        )
    return kind


def _module(path: str, name: str) -> types.ModuleType:
    """Imports a module, also from the current directory if that holds no results."""
    # Importing runs code, and a folder of results may come from any source.
    cwd = os.getcwd()
    if _result_around(Path(cwd)) is None:
        # The last place of modules, so that its files never replace a library.
        sys.path[:] = [item for item in sys.path if item not in ("", cwd)] + [cwd]
        _check_unique(path.partition(".")[0], cwd, name)
    for place in _places(path):
        if folder := _result_around(place):
            raise checks.InputError(
                f"Cannot import the module of {name!r}: '{place}' lies in the folder of"
                f" results '{folder}', from which no code is run; move the module out"
                " of it if you trust it."
            )
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise checks.InputError(
            f"Cannot import the module of {name!r} from '{cwd}': {error}."
        ) from error


def _check_unique(top: str, cwd: str, name: str) -> None:
    """Refuses a file of the current directory where Python has another module."""
    local, library = machinery.PathFinder.find_spec(top, [cwd]), _spec(top)
    if local is None or local.origin is None or library is None:
        return
    origin = library.origin or ""
    # The origin `built-in` is no file.
    if not (os.path.exists(origin) and os.path.samefile(local.origin, origin)):
        raise checks.InputError(
            f"Expected another name for the module of {name!r}: '{local.origin}' would"
            f" hide {top!r} of Python or of a library; rename it."
        )


def _spec(top: str) -> machinery.ModuleSpec | None:
    """Returns the spec by which a module was or would be imported."""
    if top in sys.modules:
        return sys.modules[top].__spec__
    finders = (finder.find_spec(top, None) for finder in sys.meta_path)
    return next((spec for spec in finders if spec is not None), None)


def _places(path: str) -> Iterator[Path]:
    """Yields files and folders from which importing a module would run code."""
    # `importlib.util.find_spec` would import the packages around the module.
    top, *inner = path.split(".")
    if path in sys.modules:
        return  # nothing is run
    spec = _spec(top)
    for part in (*inner, None):
        if spec is None:
            return  # importing says what is missing
        folders = list(spec.submodule_search_locations or ())
        origin = [spec.origin] if spec.has_location and spec.origin else []
        yield from map(Path, (*folders, *origin))
        if part is not None:
            spec = machinery.PathFinder.find_spec(part, folders)


def _result_around(place: Path) -> Path | None:
    """Returns the folder of a run or result that a path lies in, links followed too."""
    for path in (place.absolute(), place.resolve()):
        for folder in (path, *path.parents):
            if any(_is_mark(folder / name) for name in _MARKS):
                return folder
    return None


def _is_mark(path: Path) -> bool:
    """Returns whether a file marks a folder of runs or results of this package."""
    try:
        if not path.is_file():
            return False
        if path.stat().st_size > _MAX_MARK:
            return True
        return str(json.loads(path.read_bytes())["format"]).startswith("fedjax_pfl ")
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _is_a_leaf(kind: type) -> bool:
    """Returns whether JAX would take an object of this class for an array."""
    import jax

    return jax.tree_util.all_leaves([object.__new__(kind)])
