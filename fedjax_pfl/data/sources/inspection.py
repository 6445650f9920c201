"""Checks a directory of data files."""

import dataclasses
import os
import time

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.sources import base

__all__ = ["Found", "inspect"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What a directory holds of one named data set.

    Attributes:
      name: name of the data set.
      status: "ok", "missing" or "damaged".
      layout: which layout of files was found, or None.
      num_samples: number of examples, or None unless ok.
      num_classes: number of classes, or None.
      num_clients: number of natural clients, or None where there are none.
      seconds: time taken.
      problem: the sentence that a command would end with, or None.
    """

    name: str
    status: str
    layout: str | None = None
    num_samples: int | None = None
    num_classes: int | None = None
    num_clients: int | None = None
    seconds: float = 0.0
    problem: str | None = None


def inspect(
    kind: type[base.FileSource], data_dir: str | os.PathLike[str] | None
) -> Found:
    """Reads one data set with its default options, whatever was read before.

    Args:
      kind: the data set.
      data_dir: directory of data files, or None for the environment's.

    Returns:
      What was found; nothing is raised for files that are missing or damaged.
    """
    start = time.perf_counter()
    source, layout, status = kind(), None, "damaged"
    try:
        located = source.locate(None if data_dir is None else str(data_dir))
        layout = located.layout
        data = source.read(located)
    except checks.InputError as error:
        if isinstance(error, base.MissingFilesError):
            status = "missing"
        return Found(
            name=kind.name,
            status=status,
            layout=layout,
            seconds=time.perf_counter() - start,
            problem=str(error),
        )
    return Found(
        name=kind.name,
        status="ok",
        layout=layout,
        num_samples=data.num_samples,
        num_classes=data.num_classes,
        num_clients=None if data.client is None else len(np.unique(data.client)),
        seconds=time.perf_counter() - start,
    )
