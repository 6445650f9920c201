"""The Pythons and the JAX releases that this package runs on."""

import os
import sys

__all__ = ["check_jax", "check_process", "check_python", "watch_forks"]

_PYTHON, _JAX = (3, 11), (0, 8, 1)
_WRONG_ON_CPU = ("0.10.2", "0.11.0")
"""Releases with wrong numbers in the battery of `fedjax_pfl.testing`, or crashes of the
compiler, on CPUs; docs/platforms.md has the table."""
_FLAG = "--xla_cpu_experimental_ynn_fusion_type="


def check_python(python: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Refuses a Python that is too old."""
    if tuple(python[:2]) < _PYTHON:
        raise ImportError(
            f"fedjax_pfl needs Python {_dotted(_PYTHON)} or newer, this is"
            f" {_dotted(python[:2])}."
        )


_is_forked = False
"""Whether this process was forked from one that used JAX, and lacks its threads."""


def watch_forks() -> None:
    """Makes every forked child check whether JAX works in it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_look_for_jax)


def _look_for_jax() -> None:
    """Detects whether JAX was used: it then refuses another number of devices."""
    global _is_forked
    jax = sys.modules.get("jax")
    if jax is None or _is_forked:
        return
    name = "jax_num_cpu_devices"
    number = getattr(jax.config, name, None)
    if number is None:  # forked in the middle of the import
        return
    try:
        # JAX refuses another number only after its backend has started.
        jax.config.update(name, 2 if number == 1 else 1)
    except RuntimeError:
        _is_forked = True
    else:
        jax.config.update(name, number)


def check_process() -> None:
    """Refuses a process that was forked from one that used JAX."""
    from fedjax_pfl.core import checks

    if _is_forked:
        raise checks.InputError(
            "This process was forked from one that had used JAX, whose threads it"
            " lacks, so that a training would hang; start it by"
            ' multiprocessing.get_context("spawn").'
        )


def check_jax(
    version: str | None = None, backend: str | None = None, flags: str | None = None
) -> None:
    """Refuses a JAX that is too old, or computes wrongly; None is the present value."""
    from importlib import metadata

    import jax

    from fedjax_pfl.core import checks

    version = metadata.version("jaxlib") if version is None else version
    release = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if release < _JAX:
        raise checks.InputError(
            f"fedjax_pfl needs JAX {_dotted(_JAX)} or newer, this is {version}: install"
            f" one with {_command()}."
        )
    if version not in _WRONG_ON_CPU:
        return
    # Last, since it starts the backend.
    backend = jax.default_backend() if backend is None else backend
    flags = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    if backend == "cpu" and _FLAG not in flags.split():
        raise checks.InputError(
            f"JAX {version} computes wrongly, or crashes, on CPUs: install another"
            f" release with {_command()}, or set XLA_FLAGS={_FLAG} before Python"
            " starts."
        )


def _dotted(version: tuple[int, ...]) -> str:
    """Formats a version, for example `3.11`."""
    return ".".join(map(str, version))


def _command() -> str:
    """Returns the command that installs a correct JAX."""
    exclusions = ",".join(f"!={version}" for version in _WRONG_ON_CPU)
    return f'pip install -U "jax>={_dotted(_JAX)},{exclusions}"'
