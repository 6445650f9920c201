"""Compiled programs, kept from one command to the next.

They are at home, or where JAX's own variable says. Small ones are kept, too: a command
has many of them. At home every kind of machine has a directory of its own, since
programs are made for the instructions of one.
"""

import hashlib
import os
import platform
import re
import stat
import tempfile
import warnings
from pathlib import Path

__all__ = ["keep", "sentence", "silence"]

_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_LOGS_UNTIL = (0, 12)  # version of jaxlib


def silence() -> None:
    """Keeps false alarms about kept programs out of a command's output.

    Older versions of JAX log two long lines for each of them on some CPUs, as if
    preferences of the compiler were instructions that the machine lacks
    (https://github.com/jax-ml/jax/issues/38445). Acts before JAX is imported.
    """
    from importlib import metadata  # which completion does without

    version = metadata.version("jaxlib").split(".")
    if tuple(map(int, version[:2])) < _LOGS_UNTIL:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what fails is raised


def sentence(warning: str) -> str:
    """Rephrases a warning: JAX's of single programs become one of all."""
    if not warning.startswith("Error reading persistent compilation cache entry"):
        return warning
    return (
        "JAX cannot use the compiled programs that it has kept on this machine, and"
        " compiles them again."
    )


def keep() -> None:
    """Turns on JAX's cache of compiled programs, where there is a place for it."""
    import jax

    from fedjax_pfl.core import checks

    own = os.environ.get(_VARIABLE)
    if own == "":  # what JAX takes for no directory
        return
    directory = _home() if own is None else own
    reason = None if "://" in directory else _unwritable(Path(directory))
    if reason is None and own is None:
        reason = _unsafe(Path(directory))
    if reason is not None:
        said = f"Cannot keep compiled programs in '{directory}': {reason}"
        if own is not None:
            raise checks.InputError(
                f"{said}. Let {_VARIABLE} name a directory that can be written."
            )
        warnings.warn(f"{said}; every command compiles its own.", stacklevel=1)
        return
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _home() -> str:
    """Returns the directory of this kind of machine."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = platform.processor()
    named = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)
    kind = " ".join(sorted(set(named))) or text
    digest = hashlib.sha256(kind.encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"{platform.machine()}-{digest}"
    return str(Path(cache) / "fedjax_pfl" / "jax" / name)


def _unsafe(directory: Path) -> str | None:
    """Returns the reason why programs of a directory are not to be run, or None.

    Who names a directory by JAX's variable has decided whom to trust.
    """
    about = directory.stat()
    if about.st_uid != os.getuid() or about.st_mode & stat.S_IWOTH:
        return "others can write there, and what it holds is run"
    return None


def _unwritable(directory: Path) -> str | None:
    """Returns the reason why nothing can be written into a directory, or None."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
