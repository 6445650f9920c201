"""A user's own data: tables, arrays, folders of images, LEAF's JSON."""

import pathlib

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.sources import user_files
from fedjax_pfl.data.sources.user_arrays import arrays_dataset
from fedjax_pfl.data.sources.user_files import ImageFolder, LeafJson, Npz
from fedjax_pfl.data.sources.user_tables import Csv

__all__ = ["Csv", "ImageFolder", "LeafJson", "Npz", "arrays_dataset", "source_for"]

_TABLES = (".csv", ".tsv", ".txt")


def source_for(
    path: str,
    label: str | None = None,
    client: str | None = None,
    data_dir: str | None = None,
) -> datasets.Source:
    """Picks the source of a user's data by the suffix of its name.

    Args:
      path: a table (`.csv`, `.tsv` or `.txt`, plain or `.gz`), an archive (`.npz`), a
        file (`.json`, plain or `.gz`) or folder of LEAF's JSON, or a folder of images.
      label: column of a table, or array of an archive (`y` by default), to predict.
      client: column or array that names each example's client.
      data_dir: where a folder may be, as the sources take it.

    Returns:
      The source.

    Raises:
      InputError: if the kind is unknown, the label of a table is missing, or a label or
        client is given for data that have their own.

    Example:
      >>> source_for("visits.csv", "age", "hospital").client
      'hospital'
      >>> source_for("images.npz")
      Npz(path='images.npz', x='x', y='y', client=None, max_bytes=8589934592)
    """
    path = user_files.as_path(path)
    suffix = pathlib.Path(path.lower().removesuffix(".gz")).suffix
    if suffix in _TABLES:
        if not label:
            raise checks.InputError(
                f"The table '{path}' needs --label (label=...), the column to predict."
            )
        return Csv(path=path, label=label, client=client)
    if suffix == ".npz":
        return Npz(path=path, y=label or "y", client=client)
    if suffix == ".json":
        source = LeafJson(path=path)
    else:
        folder = user_files.locate(path, data_dir)
        if not folder.is_dir():
            raise checks.InputError(
                f"Expected data in a file of the kind {', '.join(_TABLES)} or .json"
                f" (plain or .gz), in an .npz file, or in a folder, got '{path}'."
            )
        kind = LeafJson if user_files.json_files(folder) else ImageFolder
        source = kind(path=path)
    for option, value in (("label", label), ("client", client)):
        if value is not None:
            raise checks.InputError(
                f"The data in '{path}' name classes and clients themselves, expected no"
                f" --{option} ({option}={value!r})."
            )
    return source
