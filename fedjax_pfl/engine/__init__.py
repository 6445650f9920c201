"""The engine: trainings and grids, compiled as scans over rounds."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.engine.ask_tell import Optuna
    from fedjax_pfl.engine.budgets import Gradients, Minutes, Rounds
    from fedjax_pfl.engine.callbacks import (
        Callback,
        MLflow,
        TensorBoard,
        WeightsAndBiases,
    )
    from fedjax_pfl.engine.derivatives import (
        Hypergradients,
        Learned,
        Objective,
        hypergradients,
        learn,
    )
    from fedjax_pfl.engine.options import Options
    from fedjax_pfl.engine.simulation import grid, simulate
    from fedjax_pfl.engine.stopping import Halving, StopWhen
    from fedjax_pfl.engine.streaming import simulate_streamed
    from fedjax_pfl.engine.trainer import Interrupted
    from fedjax_pfl.engine.tuning import Range, Tuned, search_space, tune
    from fedjax_pfl.round.local_privacy import local_epsilons
    from fedjax_pfl.round.process import FederatedProcess
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Callback",
    "MLflow",
    "WeightsAndBiases",
    "TensorBoard",
    "FederatedProcess",
    "Gradients",
    "Halving",
    "Hypergradients",
    "Interrupted",
    "Learned",
    "Minutes",
    "Objective",
    "Options",
    "Optuna",
    "Range",
    "Rounds",
    "Tuned",
    "StopWhen",
    "grid",
    "hypergradients",
    "learn",
    "local_epsilons",
    "search_space",
    "simulate",
    "simulate_streamed",
    "tune",
]
