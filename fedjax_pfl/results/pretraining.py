"""Files of pretrained parameters, with a record of the users in their training."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import tree_paths
from fedjax_pfl.results import model_files

__all__ = ["HeldOut", "held_out_of", "write"]

_KEY = "fedjax_pfl.pretraining"


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Users that parameters were pretrained on."""

    dataset: str  # name of the data set, or of the user's own file
    fraction: float  # `held_out_users` of federations that exclude them

    @classmethod
    def of(cls, spec: Any) -> "HeldOut | None":
        """Returns the users that a federation's recipe leaves out, with 0 for none."""
        if not hasattr(spec, "held_out_users"):
            return None
        path = getattr(spec.dataset, "path", None)
        name = spec.dataset.name if path is None else Path(path).name
        return cls(name, spec.held_out_users or 0.0)


def write(path: Path, params: core.Params, users: HeldOut) -> None:
    """Writes parameters into a new safetensors file that `load_params` reads."""
    arrays = {n: np.asarray(leaf) for n, leaf in tree_paths.by_name(params).items()}
    header = {_KEY: json.dumps(dataclasses.asdict(users))}
    model_files.write(path, arrays, header)


def held_out_of(path: Path) -> HeldOut | None:
    """Returns the users of a file of `write`; None for other files."""
    import safetensors

    with safetensors.safe_open(path, framework="numpy") as file:
        text = (file.metadata() or {}).get(_KEY)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        return HeldOut(str(fields["dataset"]), float(fields["fraction"]))
    except (ValueError, KeyError, TypeError):
        return None
