"""A user's own algorithm, by the name of its module and class."""

import dataclasses
import importlib
import os
import sys
from typing import Any

from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import checks, struct

__all__ = ["find"]

_HOOKS = ("init", "round", "predictors")


def find(name: str) -> type:
    """Finds the class of an algorithm.

    Args:
      name: one of `ALGORITHMS`, or `module:Class`, whose module is imported from the
        current directory or wherever Python finds it.

    Returns:
      The class.

    Raises:
      InputError: if there is no such class, or if it is not an algorithm.
    """
    if ":" not in name:
        checks.known(name, registry.ALGORITHMS, "algorithm")
        return registry.ALGORITHMS[name]
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


def _module(path: str, name: str) -> Any:
    """Imports a module, the current directory first."""
    if not all(part.isidentifier() for part in path.split(".")):
        raise checks.InputError(
            "Expected an algorithm module:Class, such as my_module:MyMethod, got"
            f" {name!r}."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise checks.InputError(
            f"Cannot import the module of {name!r} from '{here}': {error}."
        ) from error


def _is_a_leaf(kind: type) -> bool:
    """Tells whether JAX would take an object of this class for an array."""
    import jax

    return jax.tree_util.all_leaves([object.__new__(kind)])
