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
    """A stream that raises an error after a number of bytes."""

    def __init__(self, stream: io.BufferedIOBase, limit: int):
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes."""
        part = self._stream.read(size)
        self._left -= len(part)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to far more than it should")
        return part


def read_members(
    content: bytes, path: pathlib.Path, max_sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Reads chosen regular files of a `.tar.gz` and skips every other member.

    Names must match exactly, so that neither `../x` nor a link can lead anywhere.

    Args:
      content: the archive.
      path: shown in messages.
      max_sizes: largest size in bytes of each wanted member, by its name.

    Returns:
      Content of each wanted member, by its name.

    Raises:
      InputError: if the archive is damaged, or a member is missing or too large.
    """
    members = {}
    try:
        with gzip.open(io.BytesIO(content)) as unpacked:
            stream: Any = _Metered(unpacked, 2 * sum(max_sizes.values()) + _SPARE)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if member.name in max_sizes and member.isfile():
                        limit = max_sizes[member.name]
                        members[member.name] = _read(archive, member, path, limit)
            while stream.read(_CHUNK):  # the checksum comes last
                pass
    except checks.InputError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        raise checks.InputError(
            f"The file '{path}' is not a complete .tar.gz archive: {error}."
        ) from error
    missing = [name for name in max_sizes if name not in members]
    if missing:
        raise checks.InputError(
            f"The archive '{path}' lacks {', '.join(missing)}; download it again."
        )
    return members


def _read(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: pathlib.Path, limit: int
) -> bytes:
    """Reads one regular member whose header promises at most `limit` bytes."""
    if member.size > limit:
        raise checks.InputError(
            f"Expected at most {limit} bytes in {member.name} of '{path}', got"
            f" {member.size}."
        )
    file = archive.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise EOFError(f"{member.name} ends after {len(content)} bytes")
    return content
