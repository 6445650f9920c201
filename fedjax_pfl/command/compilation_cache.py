"""Cache of compiled programs for later commands.

It is in the home directory, or in the one that JAX's own variable names.
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
    """Hides false alarms about cached programs; call it before JAX is imported."""
    from importlib import metadata  # not needed by completion

    # Older versions of JAX log two long lines per program on some CPUs, because they
    # take preferences of the compiler for instructions that the machine lacks
    # (https://github.com/jax-ml/jax/issues/38445).
    version = metadata.version("jaxlib").split(".")
    if tuple(map(int, version[:2])) < _LOGS_UNTIL:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # failures raise errors


def sentence(warning: str) -> str:
    """Rephrases JAX's warnings about single programs as one warning."""
    if not warning.startswith("Error reading persistent compilation cache entry"):
        return warning
    return (
        "JAX cannot use its cached programs on this machine, and compiles them again."
    )


def keep() -> None:
    """Turns on JAX's cache of compiled programs if a directory for it is usable."""
    import jax

    from fedjax_pfl.core import checks

    variable = os.environ.get(_VARIABLE)
    if variable == "":  # means no directory in JAX
        return
    directory = _home() if variable is None else variable
    # A user who sets JAX's variable has decided to trust its directory.
    is_trusted = variable is not None
    reason = None if "://" in directory else _problem(Path(directory), is_trusted)
    if reason is not None:
        problem = f"Cannot keep compiled programs in '{directory}': {reason}"
        if variable is not None:
            raise checks.InputError(
                f"{problem}. Set {_VARIABLE} to a directory that can be written."
            )
        warnings.warn(f"{problem}; every command compiles its own.", stacklevel=1)
        return
    jax.config.update("jax_compilation_cache_dir", directory)
    # Small programs too, since a command has many.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _home() -> str:
    """Returns the directory of this kind of machine."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        text = platform.processor()
    # Every kind of machine has a folder: programs are compiled for its instructions.
    lines = re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.MULTILINE)
    kind = " ".join(sorted(set(lines))) or text
    digest = hashlib.sha256(kind.encode()).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = f"{platform.machine()}-{digest}"
    return str(Path(cache) / "fedjax_pfl" / "jax" / name)


def _problem(directory: Path, is_trusted: bool) -> str | None:
    """Returns the reason not to keep programs in a directory, or None."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return error.strerror or str(error)
    about = directory.stat()
    is_own = about.st_uid == os.getuid() and not about.st_mode & stat.S_IWOTH
    if is_trusted or is_own:
        return None
    return "other users can write there, and its programs are run"
