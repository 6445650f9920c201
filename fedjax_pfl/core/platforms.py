"""The Pythons and the JAX releases that this package runs on."""

import os
import sys

__all__ = ["check_jax", "check_python"]

_PYTHON, _JAX = (3, 11), (0, 7)
_WRONG_ON_CPU = ("0.10.2", "0.11.0")
"""Releases of which the battery of `fedjax_pfl.testing` finds wrong numbers, or whose
compiler crashes, on CPUs; docs/platforms.md has the table."""
_FLAG = "--xla_cpu_experimental_ynn_fusion_type="


def check_python(python: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Refuses a Python that is too old.

    Args:
      python: version of the interpreter.

    Raises:
      ImportError: in one sentence.
    """
    if tuple(python[:2]) < _PYTHON:
        raise ImportError(
            f"fedjax_pfl needs Python {_shown(_PYTHON)} or newer, this is"
            f" {_shown(python[:2])}."
        )


def check_jax(
    version: str | None = None, backend: str | None = None, flags: str | None = None
) -> None:
    """Refuses a JAX that is too old, or known to compute wrongly on this backend.

    Args:
      version: of jaxlib, which computes; None asks what is installed.
      backend: for example `cpu`; None asks JAX, which starts it.
      flags: XLA's; None takes those of the environment.

    Raises:
      InputError: in one sentence that names the remedy.
    """
    from importlib import metadata

    import jax

    from fedjax_pfl.core import checks

    version = metadata.version("jaxlib") if version is None else version
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if release < _JAX:
        raise checks.InputError(
            f"fedjax_pfl needs JAX {_shown(_JAX)} or newer, this is {version}: install"
            f" one with {_command()}."
        )
    if version not in _WRONG_ON_CPU:
        return
    backend = jax.default_backend() if backend is None else backend
    flags = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    if backend == "cpu" and _FLAG not in flags.split():
        raise checks.InputError(
            f"JAX {version} computes wrongly, or crashes, on CPUs: install another"
            f" release with {_command()}, or set XLA_FLAGS={_FLAG} before Python"
            " starts."
        )


def _shown(version: tuple[int, ...]) -> str:
    """Formats text, for example `3.11`."""
    return ".".join(map(str, version))


def _command() -> str:
    """Returns the command that installs a JAX that computes right."""
    wanted = ",".join(f"!={version}" for version in _WRONG_ON_CPU)
    return f'pip install -U "jax>={_shown(_JAX)},{wanted}"'
