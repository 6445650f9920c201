"""Callbacks of running trainings: a user's own code, and writers of logs.

Compiled code makes no calls: callbacks run between two segments of rounds.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.engine.callbacks.base import Callback, Evaluation, Training
    from fedjax_pfl.engine.callbacks.ml_flow import MLflow
    from fedjax_pfl.engine.callbacks.tensorboard import TensorBoard
    from fedjax_pfl.engine.callbacks.watch import watching
    from fedjax_pfl.engine.callbacks.weights_and_biases import WeightsAndBiases
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Callback",
    "Evaluation",
    "MLflow",
    "TensorBoard",
    "Training",
    "WeightsAndBiases",
    "watching",
]
