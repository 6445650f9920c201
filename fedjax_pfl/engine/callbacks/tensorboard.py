"""Evaluations as event files for TensorBoard."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine.callbacks import base
from fedjax_pfl.results import plain_files

__all__ = ["TensorBoard"]

_MAX_NAME = 150  # file systems allow 255 bytes


class TensorBoard(base.Callback):
    """Writes event files, one directory per training; needs the extra `tensorboard`.

    Scalars are named like `personal/test/accuracy`, and their step is the round. The
    text `settings` has all settings. A training that goes on from a checkpoint writes
    all its evaluations again, and TensorBoard drops the older ones. Each
    training of the group that runs has one open file.

    Example: `fp.grid(..., callbacks=[fp.engine.TensorBoard("logs")])`, then
    `tensorboard --logdir logs`.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Loads the library.

        Args:
          directory: where trainings get their directories, such as
            `000-Flame,algorithm.lam=0.1,seed=0`; made if it does not exist.

        Raises:
          InputError: if the package tensorboardX is missing.
        """
        self._directory = Path(directory)
        self._library = base.library("tensorboardX", "tensorboard")
        self._writers: dict[int, Any] = {}

    def begin(self, trainings: Sequence[base.Training]) -> None:
        """Makes the directory.

        Raises:
          InputError: if it cannot be made.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise checks.InputError(
                f"Cannot make the directory '{self._directory}' for TensorBoard:"
                f" {error.strerror or error}."
            ) from error

    def evaluated(self, evaluation: base.Evaluation) -> None:
        """Writes one scalar per training and metric.

        Raises:
          InputError: if a training's directory is a link, or has one.
        """
        for training, metrics in evaluation.points():
            writer = self._writer(training)
            for name, value in metrics.items():
                writer.add_scalar(name, value, evaluation.round)
            writer.flush()
        if evaluation.is_last:
            self._close()

    def end(self, result: results.Result | None) -> None:
        """Closes files of a group that did not end."""
        self._close()

    def _writer(self, training: base.Training) -> Any:
        """Returns the open file of a training."""
        if training.number not in self._writers:
            name = re.sub(r"[^\w.,=+-]+", "_", training.name.replace(", ", ","))
            path = self._directory / f"{training.number:03d}-{name}"[:_MAX_NAME]
            plain_files.check(path, is_directory=True)
            for file in path.glob("*"):  # a name that comes again would be written
                plain_files.check(file)
            # Everything is written from the start: evaluations of an earlier process
            # in the directory are not shown any more.
            writer = self._library.SummaryWriter(str(path), purge_step=0)
            rows = [f"| {n} | {value} |" for n, value in training.settings.items()]
            writer.add_text("settings", "\n".join(["| | |", "|---|---|", *rows]))
            self._writers[training.number] = writer
        return self._writers[training.number]

    def _close(self) -> None:
        """Closes all open files."""
        while self._writers:
            self._writers.popitem()[1].close()
