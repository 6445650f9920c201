"""Packages whose parts are imported when they are first asked for (PEP 562).

What a package offers is written once, as imports below `if TYPE_CHECKING:`, which type
checkers and editors read as they read any other, and which are made one by one. Each
is written `import A as A`, which says that it is offered; `__all__` follows from that.
They are read at the first question too, as parsing would take longer than all that a
command does before it catches signals.
"""

import functools
import importlib
import sys
from collections.abc import Callable

__all__ = ["attach"]


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Makes the hooks of a package that imports late.

    Args:
      package: its `__name__`; its modules are also found as its attributes.

    Returns:
      Its `__getattr__` and its `__dir__`.
    """
    module = sys.modules[package]

    def get(name: str) -> object:
        missing = f"module {package!r} has no attribute {name!r}"
        if name == "__all__":
            return sorted(_offered(package))
        if name.startswith("__"):  # tools ask every object for these
            raise AttributeError(missing)
        try:
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
        # It imports NumPy, which naming the extra does without.
        from fedjax_pfl.core import checks

        raise AttributeError(missing + checks.suggestion(name, offered))

    return get, lambda: sorted({"__all__", *vars(module), *_offered(package)})


@functools.cache
def _offered(package: str) -> dict[str, tuple[str, str]]:
    """Maps names that a package imports for type checkers to module and attribute."""
    import ast
    from typing import Any

    spec: Any = sys.modules[package].__spec__
    tree = ast.parse(spec.loader.get_source(package))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
