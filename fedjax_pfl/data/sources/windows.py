"""Windows of a series: rows of the past as the input of each example."""

import dataclasses

import numpy as np

from fedjax_pfl.core import checks, texts
from fedjax_pfl.data import dataset as datasets

__all__ = ["windowed"]


def windowed(dataset: datasets.Dataset, window: int) -> datasets.Dataset:
    """Returns inputs `[S, W, F]` of the W rows of the same client before each row."""
    client = dataset.client
    if client is None:
        raise checks.InputError(
            f"Expected a column of clients for windows of {dataset.name!r}, got none;"
            " give one series a column with one name."
        )
    sequence = np.argsort(client, kind="stable")
    _, start, sizes = np.unique(client[sequence], return_index=True, return_counts=True)
    position = np.arange(len(client)) - np.repeat(start, sizes)
    ends = np.flatnonzero(position >= window)
    rows = sequence[ends[:, None] + np.arange(-window, 1)]
    if dataset.part is not None:
        # Windows over the border of two given parts would leak training rows into
        # tests.
        parts = dataset.part[rows]
        rows = rows[(parts == parts[:, :1]).all(axis=1)]
    if lacking := sorted(set(client.tolist()) - set(client[rows[:, -1]].tolist())):
        names = dataset.client_names or range(client.max() + 1)
        number = sizes[np.unique(client) == lacking[0]].item()
        raise checks.InputError(
            f"Client {names[lacking[0]]!r} of {dataset.name!r} has"
            f" {texts.counted(number, 'row', ',')}, too few for an example"
            f" after {window} rows of one part; use a shorter window,"
            f" or leave it out ({len(lacking)} such clients)."
        )
    rows = rows[np.argsort(rows[:, -1])]  # in order of time
    size = rows[:, :-1].size * dataset.x.shape[1] * dataset.x.itemsize
    checks.memory(f"The windows of {dataset.name!r}", 2 * size, "use shorter ones")
    ended = {
        name: getattr(dataset, name)[rows[:, -1]]
        for name in ("y", "client", "part")
        if getattr(dataset, name) is not None
    }
    preparation = dataset.preparation
    if preparation is not None:
        preparation = dataclasses.replace(preparation, windows=rows)
    return dataclasses.replace(
        dataset,
        x=dataset.x[rows[:, :-1]],
        # Drawn parts are W examples apart, so that no row is in windows of two parts.
        gap=window,
        preparation=preparation,
        **ended,
    )
