"""The origin of a result: its code, versions, device.

Code is what trains: the sources of this package, modules of the user's own, and the
versions of the libraries below both. A training is of one code, unless somebody asked
for another.
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

import jax

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
"""Name of the sentences that say which code trained before that of the provenance."""

_PACKAGES = ("fedjax_pfl", "jax", "jaxlib", "flax", "optax", "numpy")
_SHORT = 12  # digits of a digest that sentences show
_NOT_RECORDED = "not recorded"
_INSTALLED = ("site-packages", "dist-packages")


def collect(*parts: Any) -> dict[str, Any]:
    """Returns the code that trains some parts, with versions, device and time."""
    return code(*parts) | {
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        CONTINUED: [],
    }


def code(*parts: Any) -> dict[str, Any]:
    """Returns what tells one code from another, as JSON knows it.

    Args:
      *parts: processes, models, or classes and functions of them, whose modules count
        where they are not the package's.

    Returns:
      Versions by package; `commit` and `clean` of `package`; `sources`, the digest of
      the package; `own_sources`, digests by module of the user's own.
    """
    return {**_versions(), **package(), "own_sources": _own_sources(parts)}


@functools.cache
def _versions() -> Mapping[str, str]:
    """Returns the versions of the libraries that calculate, and of Python."""
    versions = dict.fromkeys(_PACKAGES, _NOT_RECORDED) | {
        "python": platform.python_version()
    }
    for name in _PACKAGES:  # of a folder that is not installed there is no version
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def package() -> Mapping[str, Any]:
    """Returns commit and digest of this package, as it was when first asked for.

    Returns:
      `sources`, SHA-256 of all its modules; `commit` of the repository that they belong
      to, and `clean`, whether they are those of the commit: "not recorded" and None
      where they are installed.
    """
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    commit, clean = _NOT_RECORDED, None
    try:
        # Fails where the package is installed below another repository.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(folder, "rev-parse", "HEAD")
        clean = not _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        pass
    return {"sources": digest.hexdigest(), "commit": commit, "clean": clean}


def _git(folder: Path, *words: str) -> str:
    """Asks git about the repository of a folder."""
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def continued(origin: Mapping[str, Any]) -> list[str]:
    """Returns what a provenance says of other code that trained before, if anything."""
    said = origin.get(CONTINUED)
    return list(map(str, said)) if isinstance(said, list) else []


def compare(
    place: Path, before: Any, now: Mapping[str, Any], *, anyway: bool
) -> list[str]:
    """Refuses to go on with other code.

    Args:
      place: where the work of before is.
      before: its code, as it was read from a file.
      now: code of this process, from `code`.
      anyway: whether to go on nevertheless.

    Returns:
      What differs, in words, of which a warning tells; nothing where the code is the
      same.
    """
    before = before if isinstance(before, dict) else {}
    differences = list(_differences(before, now))
    if differences and anyway:
        warnings.warn(
            f"Going on with other code, as the result says: {'; '.join(differences)}.",
            stacklevel=2,
        )
    elif differences:
        raise checks.InputError(
            f"'{place}' was made with other code: {'; '.join(differences)}; go on with"
            " that code, start anew in another directory, or mix both and mark the"
            " result with --resume-anyway (in Python: resume_anyway of Checkpoints)."
        )
    return differences


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields what differs between two codes; the commit is no difference by itself."""
    for name in (*_PACKAGES, "python"):
        if before.get(name) != now.get(name):
            was, is_now = (_shown(each.get(name)) for each in (before, now))
            yield f"{name} was {was} and is {is_now}"
    if before.get("sources") != now.get("sources"):
        was, is_now = (
            f"{_shown(each.get('sources'))} (commit {_shown(each.get('commit'))}"
            f"{', changed' if each.get('clean') is False else ''})"
            for each in (before, now)
        )
        yield f"the sources of fedjax_pfl were {was} and are {is_now}"
    own = [each.get("own_sources") for each in (before, now)]
    ours, theirs = (each if isinstance(each, dict) else {} for each in reversed(own))
    for name in dict.fromkeys([*theirs, *ours]):
        if theirs.get(name) != ours.get(name):
            was, is_now = (_shown(each.get(name)) for each in (theirs, ours))
            yield f"the source of {_shown(name)} was {was} and is {is_now}"


def _shown(value: Any) -> str:
    """Returns a version, a digest or what a file has in its place, shortened."""
    if value is None:
        return _NOT_RECORDED
    is_plain = isinstance(value, str) and value.isprintable()
    text = value if is_plain else json.dumps(value)
    is_digest = len(text) >= 40 and text.isalnum()
    return text[: _SHORT if is_digest else 80]


def _own_sources(parts: Any) -> dict[str, str]:
    """Returns SHA-256 of the modules of parts that no version tells, by module."""
    owners = _definitions(parts, {})
    digests = {name: _digest(owner) for name, owner in owners}
    return dict(sorted(digests.items()))


def _definitions(part: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names of own modules, and the classes and functions that are used."""
    if id(part) in seen or isinstance(part, str | bytes | types.ModuleType):
        return
    seen[id(part)] = part  # alive, so that no other object gets its number
    inner: list[Any] = []
    if isinstance(part, Mapping):
        inner = list(part.values())
    elif isinstance(part, list | tuple | set | frozenset):
        inner = list(part)
    elif isinstance(part, functools.partial):
        inner = [part.func, part.args, part.keywords]
    elif isinstance(part, types.FunctionType):
        cells = part.__closure__ or ()
        inner = [cell.cell_contents for cell in cells if _is_filled(cell)]
    elif isinstance(part, types.MethodType):
        inner = [part.__self__, part.__func__]
    elif not isinstance(part, type) and hasattr(part, "__wrapped__"):  # by jax.jit
        inner = [part.__wrapped__]
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in dataclasses.fields(part)]
        inner = [getattr(part, name, None) for name in names]
    is_definition = isinstance(part, type | types.FunctionType)
    owner = part if is_definition else type(part)
    for each in owner.__mro__ if isinstance(owner, type) else (owner,):
        if (name := each.__module__) and _is_own(name):
            is_script = name == "__main__"
            yield f"{name}:{each.__qualname__}" if is_script else name, each
    for each in inner:
        yield from _definitions(each, seen)


def _is_filled(cell: types.CellType) -> bool:
    """Returns whether a cell of a closure has a value."""
    try:
        cell.cell_contents  # noqa: B018 (raises if not)
    except ValueError:
        return False
    return True


def _is_own(module: str) -> bool:
    """Returns whether no version says what a module's code is."""
    top = module.partition(".")[0]
    return top not in _PACKAGES and top not in sys.stdlib_module_names


def _digest(owner: Any) -> str:
    """Returns SHA-256 of the module of a class or function and of its own helpers.

    Of a script or a notebook it is that of the definition alone: other lines of it
    change nothing, and change often.
    """
    try:
        if owner.__module__ == "__main__":
            sources = {"__main__": inspect.getsource(owner).encode()}
        else:
            modules = _with_helpers(sys.modules[owner.__module__])
            sources = {name: path.read_bytes() for name, path in modules.items()}
    except (OSError, TypeError, KeyError):
        return _NOT_RECORDED  # it was typed into an interpreter
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\n".encode())
        digest.update(hashlib.sha256(sources[name]).digest())
    return digest.hexdigest()


def _with_helpers(module: types.ModuleType) -> dict[str, Path]:
    """Returns files by module: of one, and of what it uses of the same project.

    A project is what lies below the folder from which the module is imported; of what
    is installed, the package.
    """
    file = Path(inspect.getfile(module))
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    root, top = file.parents[depth], module.__name__.partition(".")[0]
    is_installed = any(name in _INSTALLED for name in root.parts)
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        each = waiting.pop()
        name, path = each.__name__, Path(getattr(each, "__file__", None) or "")
        if name in files or not _is_own(name) or not path.is_relative_to(root):
            continue
        is_of_others = any(part in _INSTALLED for part in path.relative_to(root).parts)
        if is_of_others or (is_installed and name.partition(".")[0] != top):
            continue
        files[name] = path
        for value in list(vars(each).values()):
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
