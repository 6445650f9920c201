"""The trained models of the end of trainings: written once, read anywhere.

    models.csv                        one row per file; see `TrainedModels`
    000-flame/000-personal.safetensors
    000-flame/000-global.safetensors  of group 0 (one compilation each), grid point 0

A file holds `params/<path>` for every leaf of the parameters, `[K, *P]` with one row
per client, or `[*P]` where all clients have the same; in the first case also `clients
int32[K]`, their numbers. Its header says, as JSON under `fedjax_pfl`, what was
trained how. The format is safetensors: NumPy, PyTorch and others read it, and nothing
is unpickled.
"""

from typing import TYPE_CHECKING

from fedjax_pfl import lazy

if TYPE_CHECKING:
    from fedjax_pfl.trained.reading import TrainedModel, TrainedModels, load_models
    from fedjax_pfl.trained.writing import Writer, check, size, writer
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "TrainedModel",
    "TrainedModels",
    "Writer",
    "check",
    "load_models",
    "size",
    "writer",
]
