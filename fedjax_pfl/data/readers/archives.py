"""Members of tar archives, read in memory; nothing is ever extracted."""

import io
import pathlib
import tarfile
from collections.abc import Mapping
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["read_members"]

_KIND = ".tar.gz archive"


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
    unpacked = io.BytesIO(files.unpacked(content, path, _KIND))
    members = {}
    with files.complete(path, _KIND, tarfile.TarError, EOFError, OSError, ValueError):
        with tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                if member.name not in max_sizes or not member.isfile():
                    continue
                if member.size > max_sizes[member.name]:
                    raise checks.InputError(
                        f"Expected at most {max_sizes[member.name]} bytes in"
                        f" {member.name} of '{path}', got {member.size}."
                    )
                stream: Any = archive.extractfile(member)
                members[member.name] = stream.read()
    missing = [name for name in max_sizes if name not in members]
    if missing:
        raise checks.InputError(
            f"The archive '{path}' lacks {', '.join(missing)}; download it again."
        )
    return members
