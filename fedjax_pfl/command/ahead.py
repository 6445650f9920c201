"""Imports modules for the end of a command while its trainings are compiled."""

import importlib
import threading

__all__ = ["start"]

_MODULES = (  # of tables and figures; together they take more than a second
    "pandas",
    "xarray",
    "h5netcdf",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "PIL.PngImagePlugin",
)


def start() -> None:
    """Imports them in a thread, which ends with the command at the latest."""
    threading.Thread(target=_import_all, daemon=True).start()


def _import_all() -> None:
    for name in _MODULES:
        importlib.import_module(name)
