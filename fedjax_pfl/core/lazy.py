"""Packages that import their parts on first access (PEP 562).

The names of a package are imports below `if TYPE_CHECKING:`, which type checkers read;
the form `import A as A` marks a public name.
"""

import functools
import importlib
import sys
import time
from collections.abc import Callable

__all__ = ["IMPORTED", "attach"]

IMPORTED = time.time()
"""When the first part of the package was imported, which this module always is."""


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package with the given `__name__`."""
    module = sys.modules[package]

    def get(name: str) -> object:
        missing = f"module {package!r} has no attribute {name!r}"
        if name == "__all__":
            return sorted(_offered(package))
        if name.startswith("__"):  # tools ask every object for these
            raise AttributeError(missing)
        try:
            # Modules are attributes, too.
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
        offered = _offered(package)
        if name in offered:
            home, attribute = offered[name]
            value = getattr(importlib.import_module(home), attribute)
            setattr(module, name, value)
            return value
        # Imported here, since it imports NumPy, which the other paths do not need.
        from fedjax_pfl.core import checks

        raise AttributeError(missing + checks.suggestion(name, offered))

    return get, lambda: sorted({"__all__", *vars(module), *_offered(package)})


@functools.cache
def _offered(package: str) -> dict[str, tuple[str, str]]:
    """Maps names that a package imports for type checkers to module and attribute."""
    import ast
    from typing import Any

    spec: Any = sys.modules[package].__spec__
    # On first access: parsing takes longer than everything that a command does before
    # it catches signals.
    tree = ast.parse(spec.loader.get_source(package))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != package  # its modules
        for alias in node.names
    }
