"""Evaluations as runs of Weights & Biases."""

import time
from collections.abc import Sequence
from typing import Any

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine.callbacks import base

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases(base.Callback):
    """Makes one run per training, in one group; needs the extra `wandb`.

    A run has the name of its training, all settings as its configuration, and metrics
    like `personal/test/accuracy`, with the round as step. Trainings of one static
    group have open runs side by side. Every call makes new runs: a training that goes
    on from a checkpoint makes one with all its evaluations, and the run that was
    interrupted stays unchanged. The library's own variables apply: `WANDB_MODE=offline`
    writes files for `wandb sync` and needs no account, `WANDB_DIR` is their folder.

    Example: `fp.grid(..., callbacks=[fp.engine.WeightsAndBiases("federated")])`.
    """

    def __init__(self, project: str = "fedjax_pfl", group: str | None = None):
        """Loads the library.

        Args:
          project: in which the runs are.
          group: name under which they belong together; None takes the time of the call.

        Raises:
          InputError: if the package wandb is missing.
        """
        self._project, self._group = project, group
        self._library = base.library("wandb", "wandb")
        self._runs: dict[int, Any] = {}

    def begin(self, trainings: Sequence[base.Training]) -> None:
        """Names the group."""
        self._name = self._group or time.strftime("%Y%m%d-%H%M%S")

    def evaluated(self, evaluation: base.Evaluation) -> None:
        """Logs the metrics of every training.

        Raises:
          InputError: if a run cannot be made, for example without an account.
        """
        for training, metrics in evaluation.points():
            self._run(training).log(metrics, step=evaluation.round)
        if evaluation.is_last:
            self._finish(0)

    def end(self, result: results.Result | None) -> None:
        """Marks runs of a group that did not end as failed."""
        self._finish(1)

    def _run(self, training: base.Training) -> Any:
        """Returns the open run of a training."""
        if training.number not in self._runs:
            try:
                self._runs[training.number] = self._library.init(
                    project=self._project,
                    group=self._name,
                    name=training.name,
                    config=training.settings,
                    reinit="create_new",  # while runs of other points are open
                )
            except self._library.Error as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise checks.InputError(
                    f"Weights & Biases made no run: {reason}; WANDB_MODE=offline needs"
                    " no account."
                ) from error
        return self._runs[training.number]

    def _finish(self, exit_code: int) -> None:
        """Ends all open runs."""
        while self._runs:
            self._runs.popitem()[1].finish(exit_code=exit_code)
