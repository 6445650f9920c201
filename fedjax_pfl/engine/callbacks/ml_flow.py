"""Evaluations as runs of MLflow."""

from collections.abc import Sequence
from typing import Any

from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.engine.callbacks import base

__all__ = ["MLflow"]

_MAX_LENGTH = 500  # characters of a value, which all of MLflow's stores take
_MAX_PARAMS = 100  # of one call


class MLflow(base.Callback):
    """Makes one run per training, in one experiment; needs the extra `mlflow`.

    A run has the name of its training, all settings as its parameters, and metrics like
    `personal/test/accuracy`, with the round as step. Every call makes new runs, as
    `WeightsAndBiases` does. The library's own variables apply: `MLFLOW_TRACKING_URI`
    is the place of the runs.

    Example: `fp.grid(..., callbacks=[fp.engine.MLflow("federated")])`.
    """

    def __init__(self, experiment: str = "fedjax_pfl"):
        """Loads the library.

        Args:
          experiment: in which the runs are; made if it does not exist.

        Raises:
          InputError: if the package mlflow is missing.
        """
        self._experiment = experiment
        self._library = base.library("mlflow", "mlflow")
        self._runs: dict[int, str] = {}

    def begin(self, trainings: Sequence[base.Training]) -> None:
        """Finds the experiment, or makes it.

        Raises:
          InputError: if there is no store.
        """
        self._client = self._ask(self._library.MlflowClient)
        experiment = self._ask(self._client.get_experiment_by_name, self._experiment)
        if experiment is None:
            self._place = self._ask(self._client.create_experiment, self._experiment)
        else:
            self._place = experiment.experiment_id

    def evaluated(self, evaluation: base.Evaluation) -> None:
        """Logs the metrics of every training.

        Raises:
          InputError: if the store refuses them.
        """
        for training, metrics in evaluation.points():
            run = self._run(training)
            for name, value in metrics.items():
                self._ask(
                    self._client.log_metric, run, name, value, step=evaluation.round
                )
        if evaluation.is_last:
            self._finish("FINISHED")

    def end(self, result: results.Result | None) -> None:
        """Marks runs of a group that did not end as failed."""
        self._finish("FAILED")

    def _run(self, training: base.Training) -> str:
        """Returns the open run of a training."""
        if training.number not in self._runs:
            new_run = self._ask(
                self._client.create_run, self._place, run_name=training.name
            )
            self._runs[training.number] = run = new_run.info.run_id
            params = [
                self._library.entities.Param(name, str(value)[:_MAX_LENGTH])
                for name, value in training.settings.items()
            ]
            for start in range(0, len(params), _MAX_PARAMS):
                block = params[start : start + _MAX_PARAMS]
                self._ask(self._client.log_batch, run, params=block)
        return self._runs[training.number]

    def _ask(self, call: Any, *args: Any, **options: Any) -> Any:
        """Calls the library, and turns its errors into one sentence."""
        try:
            return call(*args, **options)
        except self._library.MlflowException as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise checks.InputError(f"MLflow takes no runs: {reason}.") from error

    def _finish(self, status: str) -> None:
        """Ends all open runs."""
        while self._runs:
            _, run = self._runs.popitem()
            self._ask(self._client.set_terminated, run, status)
