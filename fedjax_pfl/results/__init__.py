"""Results of trainings: histories, tables, metrics, files, trained models."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.results.checkpoint import Checkpoints
    from fedjax_pfl.results.history import History
    from fedjax_pfl.results.model_files import TrainedModel, TrainedModels, load_models
    from fedjax_pfl.results.result import Result
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Checkpoints",
    "History",
    "Result",
    "TrainedModel",
    "TrainedModels",
    "load_models",
]
