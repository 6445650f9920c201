"""Trained models of the best round on validation data, in place of the last round."""

import dataclasses
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.engine import save_models, trained_parameters
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.engine.trainer import Trainer
from fedjax_pfl.results import model_files

__all__ = ["Best"]

_OF_EACH = "best-of-each"
_VALIDATION = "validation"
_PREFIX = "rows/best/"  # of names of arrays in a checkpoint


@dataclasses.dataclass
class _BestArrays:
    """Best models of one predictor."""

    arrays: dict[str, np.ndarray]  # `[G, *P]` or `[G, K, *P]`
    rounds: np.ndarray  # `int[G]` or `int[G, K]`, -1 before any
    scores: np.ndarray  # `[G]` or `[G, K]`; larger is better

    def named(self) -> dict[str, np.ndarray]:
        """Returns all arrays by name."""
        return self.arrays | {"rounds": self.rounds, "scores": self.scores}


class Best:
    """Models of a group that were best so far, on the host; the earliest of equals."""

    def __init__(self, trainer: Trainer, choice: str):
        """Starts without models, for `best` of all clients or `best-of-each`."""
        planned = trainer.planned
        schedule = planned.plan.schedule
        if schedule.clients == "participants" or _VALIDATION not in schedule.data:
            raise checks.InputError(
                "Expected evaluations of the same clients, on validation data too, to"
                f" keep the {choice} models, got"
                f" eval_clients={schedule.clients!r} on {', '.join(schedule.data)}."
            )
        self._trainer, self._choice = trainer, choice
        self._members = [trainer.members(g) for g in range(len(planned.group.points))]
        self._best = {name: self._empty(kind) for name, kind in planned.kinds.items()}

    def _empty(self, kind: trained_parameters.Kind) -> _BestArrays:
        """Returns empty arrays for the best models."""
        sizes = (len(self._members), len(self._members[0]))
        leaves = model_files.named(kind.shapes)
        axes = sizes[:1] if kind.is_shared else sizes
        shape = sizes if self._choice == _OF_EACH and not kind.is_shared else sizes[:1]
        return _BestArrays(
            arrays={n: np.zeros((*axes, *v.shape), v.dtype) for n, v in leaves.items()},
            rounds=np.full(shape, -1, np.int64),
            scores=np.full(shape, -np.inf),
        )

    def see(self, recorder: Recorder) -> None:
        """Keeps the models of this round that are better than those before."""
        # Each predictor has its own best round: by the mean of the metric over honest
        # clients on their validation data or, with `best-of-each`, by each client's own
        # value.
        for name, best in self._best.items():
            scores, table = recorder.scores(name, _VALIDATION)
            if best.scores.ndim > 1:
                # The history has all recorded clients, the models only the evaluated
                # ones.
                at = [recorder.places(members) for members in self._members]
                scores = np.stack([row[k] for row, k in zip(table, at, strict=True)])
            is_better = scores > best.scores
            for point in np.flatnonzero(is_better.reshape(len(scores), -1).any(axis=1)):
                self._keep(int(point), name, is_better[point])
            best.scores[is_better] = scores[is_better]
            best.rounds[is_better] = recorder.rounds[-1]
            if (best.rounds < 0).all():
                raise checks.InputError(
                    "Expected clients with validation examples, by which the"
                    f" {self._choice} models are kept, got none."
                )

    def _keep(self, point: int, name: str, is_better: np.ndarray) -> None:
        """Fetches the models of a point, of all clients or of `bool[K]` of them."""
        kind = self._trainer.planned.kinds[name]
        members = self._members[point]
        rows = members[:1] if kind.is_shared else members
        arrays = save_models.fetched(self._trainer, point, rows, name, kind)
        for leaf, best in self._best[name].arrays.items():
            if is_better.ndim:
                best[point][is_better] = arrays[leaf][is_better]
            else:
                best[point] = arrays[leaf]

    def of(self, point: int, model: str) -> tuple[dict[str, np.ndarray], Any]:
        """Returns arrays like those of `save_models.fetched`, and their rounds."""
        best, kind = self._best[model], self._trainer.planned.kinds[model]
        arrays = {name: value[point] for name, value in best.arrays.items()}
        if not kind.is_shared:
            arrays[model_files.CLIENTS] = self._members[point].astype(np.int32)
        return arrays, best.rounds[point].tolist()

    def saved(self) -> dict[str, np.ndarray]:
        """Returns all arrays for a checkpoint, by name."""
        return {
            f"{_PREFIX}{model}/{name}": value
            for model, best in self._best.items()
            for name, value in best.named().items()
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the arrays of a checkpoint."""
        for model, best in self._best.items():
            for name, value in best.named().items():
                array = arrays.get(f"{_PREFIX}{model}/{name}")
                if array is None or (array.shape, array.dtype) != (
                    value.shape,
                    value.dtype,
                ):
                    raise ValueError(f"other best models of {model}")
                value[...] = array
