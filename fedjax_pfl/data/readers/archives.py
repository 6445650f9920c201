"""Members of tar archives, read in memory; nothing is ever extracted."""

import gzip
import io
import pathlib
import tarfile
import zlib
from collections.abc import Mapping
from typing import Any

from fedjax_pfl.core import checks

__all__ = ["read_members"]

_CHUNK = 1 << 20
_SPARE = 64 << 20  # bytes of headers, and of members that are not wanted


class _Metered:
    """A stream that ends with an error after a number of bytes."""

    def __init__(self, stream: io.BufferedIOBase, limit: int):
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        """Reads on."""
        part = self._stream.read(size)
        self._left -= len(part)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to far more than it should")
        return part


def read_members(
    content: bytes, path: pathlib.Path, max_sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Reads chosen regular files of a `.tar.gz`; every other member is passed over.

    Names are compared as they stand, so that neither `../x` nor a link can lead
    anywhere.

    Args:
      content: the archive.
      path: shown in messages.
      max_sizes: largest size in bytes of each wanted member, by its name.

    Returns:
      Content of each wanted member, by its name.

    Raises:
      InputError: if the archive is damaged, a member is missing, or larger than it may
        be.
    """
    found = {}
    try:
        with gzip.open(io.BytesIO(content)) as unpacked:
            stream: Any = _Metered(unpacked, 2 * sum(max_sizes.values()) + _SPARE)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if member.name in max_sizes and member.isfile():
                        _check_size(member, path, max_sizes[member.name])
                        found[member.name] = _read(archive, member)
            while stream.read(_CHUNK):  # the checksum comes last
                pass
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        if isinstance(error, checks.InputError):
            raise
        raise checks.InputError(
            f"The file '{path}' is not a complete .tar.gz archive, download it again:"
            f" {error}."
        ) from error
    missing = [name for name in max_sizes if name not in found]
    if missing:
        raise checks.InputError(
            f"The archive '{path}' lacks {', '.join(missing)}: it is incomplete or"
            " another archive."
        )
    return found


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Content of one regular member."""
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends after {len(content)} bytes")
    return content


def _check_size(member: tarfile.TarInfo, path: pathlib.Path, largest: int) -> None:
    """Checks the size that the archive promises, before reading."""
    if member.size > largest:
        raise checks.InputError(
            f"The member {member.name} of '{path}' has {member.size} bytes, expected at"
            f" most {largest}."
        )
