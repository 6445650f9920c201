"""The origin of a result: its code, versions, device.

The code of a training consists of the sources of this package, the user's own modules,
and the versions of the libraries that both use.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import inspect
import json
import platform
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedjax_pfl.core import checks

__all__ = [
    "CONTINUED",
    "code",
    "collect",
    "compare",
    "continued",
    "package",
    "processor",
]

CONTINUED = "continued_with_other_code"
"""Name of the sentences about code that trained before that of the provenance."""

_PACKAGES = ("fedjax_pfl", "jax", "jaxlib", "flax", "optax", "numpy")
_SHORT = 12  # digits of a digest that sentences show
_NOT_RECORDED = "not recorded"
_INSTALLED = ("site-packages", "dist-packages")


def collect(*parts: object) -> dict[str, Any]:
    """Returns the code that trains some parts, with versions, device and time."""
    import jax  # not at the top: a command compares code before it starts JAX

    return code(*parts) | {
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        CONTINUED: [],
    }


def code(*parts: object) -> dict[str, Any]:
    """Returns versions, `package`, and digests of the parts' own modules, for JSON."""
    digests = {name: _digest(owner) for name, owner in _definitions(parts, {})}
    own_sources = dict(sorted(digests.items()))
    return {**_versions(), **package(), "own_sources": own_sources}


@functools.cache
def _versions() -> Mapping[str, str]:
    """Returns the versions of the libraries that calculate, and of Python."""
    versions = dict.fromkeys(_PACKAGES, _NOT_RECORDED) | {
        "python": platform.python_version()
    }
    for name in _PACKAGES:  # a folder that is not installed has no version
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def package() -> Mapping[str, Any]:
    """Returns the digest, commit and state of the package, at the first call."""
    folder = Path(__file__).parents[1]
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*.py")}
    digest = _digest_of({name: path.read_bytes() for name, path in paths.items()})
    # They stay so for an installed package.
    commit, clean = _NOT_RECORDED, None
    try:
        # Fails if the package is installed in a folder of another repository.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(folder, "rev-parse", "HEAD")
        clean = not _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        pass
    return {"sources": digest, "commit": commit, "clean": clean}


def _git(folder: Path, *words: str) -> str:
    """Returns the output of a git command in a folder."""
    process = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def continued(origin: Mapping[str, Any]) -> list[str]:
    """Returns a provenance's sentences about other code that trained before."""
    sentences = origin.get(CONTINUED)
    return list(map(str, sentences)) if isinstance(sentences, list) else []


def compare(
    place: Path, stored: object, current: Mapping[str, Any], *, anyway: bool
) -> list[str]:
    """Refuses other code than stored, or warns if `anyway`; returns the differences."""
    stored = stored if isinstance(stored, dict) else {}
    differences = list(_changes(stored, current))
    if differences and anyway:
        warnings.warn(
            f"Resuming with other code, as the result notes: {'; '.join(differences)}.",
            stacklevel=2,
        )
    elif differences:
        raise checks.InputError(
            f"'{place}' was made with other code: {'; '.join(differences)}; use"
            " that code, start again in another directory, or mix both and mark the"
            " result with --resume-anyway (in Python: resume_anyway of Checkpoints)."
        )
    return differences


def _changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences between two codes; the commit alone is none."""
    for name in (*_PACKAGES, "python"):
        if stored.get(name) != current.get(name):
            was, is_now = (_brief(record.get(name)) for record in (stored, current))
            yield f"{name} was {was} and is {is_now}"
    if stored.get("sources") != current.get("sources"):
        was, is_now = (
            f"{_brief(record.get('sources'))} (commit {_brief(record.get('commit'))}"
            f"{', changed' if record.get('clean') is False else ''})"
            for record in (stored, current)
        )
        yield f"the sources of fedjax_pfl were {was} and are {is_now}"
    digests = [record.get("own_sources") for record in (stored, current)]
    ours, theirs = (d if isinstance(d, dict) else {} for d in reversed(digests))
    for name in dict.fromkeys([*theirs, *ours]):
        if theirs.get(name) != ours.get(name):
            was, is_now = (_brief(record.get(name)) for record in (theirs, ours))
            yield f"the source of {_brief(name)} was {was} and is {is_now}"


def _brief(value: Any) -> str:
    """Shortens a version, a digest, or any other value that a file has instead."""
    if value is None:
        return _NOT_RECORDED
    is_plain = isinstance(value, str) and value.isprintable()
    text = value if is_plain else json.dumps(value)
    is_digest = len(text) >= 40 and text.isalnum()
    return text[: _SHORT if is_digest else 80]


def _definitions(part: Any, visited: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names of the user's modules, with the classes and functions in use."""
    if id(part) in visited or isinstance(part, str | bytes | types.ModuleType):
        return
    visited[id(part)] = part  # alive, so that no other object gets its number
    # Everything that a part calls in the training: fields, closures, wrapped functions.
    inner: list[Any] = []
    if isinstance(part, Mapping):
        inner = list(part.values())
    elif isinstance(part, list | tuple | set | frozenset):
        inner = list(part)
    elif isinstance(part, functools.partial):
        inner = [part.func, part.args, part.keywords]
    elif isinstance(part, types.FunctionType):
        for cell in part.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                inner.append(cell.cell_contents)
    elif isinstance(part, types.MethodType):
        inner = [part.__self__, part.__func__]
    elif not isinstance(part, type) and hasattr(part, "__wrapped__"):  # by jax.jit
        inner = [part.__wrapped__]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in dataclasses.fields(part)]
        inner = [getattr(part, name, None) for name in names]
    is_definition = isinstance(part, type | types.FunctionType)
    owner = part if is_definition else type(part)
    # Methods may be inherited from a module of the user.
    for item in owner.__mro__ if isinstance(owner, type) else (owner,):
        if (name := item.__module__) and _is_own(name):
            is_script = name == "__main__"
            yield f"{name}:{item.__qualname__}" if is_script else name, item
    for item in inner:
        yield from _definitions(item, visited)


def _is_own(module: str) -> bool:
    """Returns whether a module is the user's own, which has no version."""
    top = module.partition(".")[0]
    return top not in _PACKAGES and top not in sys.stdlib_module_names


def _digest(owner: Any) -> str:
    """Returns SHA-256 of the module of a class or function and of its own helpers."""
    try:
        # Of a script or a notebook only the definition counts: other lines do not
        # affect the training, and change often.
        if owner.__module__ == "__main__":
            sources = {"__main__": inspect.getsource(owner).encode()}
        else:
            modules = _with_helpers(sys.modules[owner.__module__])
            sources = {name: path.read_bytes() for name, path in modules.items()}
    except (OSError, TypeError, KeyError):
        return _NOT_RECORDED  # it was typed into an interpreter
    return _digest_of(sources)


def _digest_of(sources: Mapping[str, bytes]) -> str:
    """Returns SHA-256 of files by name."""
    digest = hashlib.sha256()
    for name, content in sorted(sources.items()):
        digest.update(f"{name}\n".encode())
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _with_helpers(module: types.ModuleType) -> dict[str, Path]:
    """Returns the files of a module and of its imports from the same project."""
    # A project is the folder from which the module is imported; of an installed module,
    # its package.
    file = Path(inspect.getfile(module))
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    root, top = file.parents[depth], module.__name__.partition(".")[0]
    is_installed = any(name in _INSTALLED for name in root.parts)
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        member = waiting.pop()
        name, path = member.__name__, Path(getattr(member, "__file__", None) or "")
        if name in files or not _is_own(name) or not path.is_relative_to(root):
            continue
        is_of_others = any(part in _INSTALLED for part in path.relative_to(root).parts)
        if is_of_others or (is_installed and name.partition(".")[0] != top):
            continue
        files[name] = path
        for value in list(vars(member).values()):
            if isinstance(value, types.ModuleType):
                waiting.append(value)
            elif isinstance(home := getattr(value, "__module__", None), str):
                waiting += [sys.modules[home]] if home in sys.modules else []
    return files


def processor() -> str:
    """Returns the name of the CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor()
    line = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return line[1] if line else platform.processor()
