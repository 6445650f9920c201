"""Models of trainings that saved none: held in memory, written on request."""

import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedjax_pfl import results
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.engine import save_models
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.engine.trainer import Trainer
from fedjax_pfl.results import history, model_files

if TYPE_CHECKING:
    from fedjax_pfl.engine import best_models

__all__ = ["Held"]

_LIMIT = 2**28
"""Bytes of states and data that all results of a process hold together."""
_holding: list[weakref.ref["Held"]] = []
_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed with the process


class Held:
    """Finished trainers of one result, until newer results need the memory."""

    def __init__(self):
        self._groups: list[tuple[int, history.History, Trainer, Any]] = []
        self._size, self._opened = 0, None
        self._is_complete = jax.process_count() == 1

    def add(
        self,
        number: int,
        record: history.History,
        trainer: Trainer,
        best: "best_models.Best | None",
    ) -> None:
        """Takes a finished group; see `save_models.Writer.add`."""
        if self._is_complete and isinstance(trainer, Resident):
            self._groups.append((number, record, trainer, best))
            arrays = (trainer.states, trainer.start, trainer.unseen)
            self._size += client_rows.num_bytes(arrays)
            if self._size <= _LIMIT:
                return
        self._forget()

    def _forget(self) -> None:
        """Releases the memory."""
        self._groups, self._size, self._is_complete = [], 0, False

    def keep(self) -> None:
        """Holds the groups from now on; the oldest other results release theirs."""
        alive = [held for held in (ref() for ref in _holding) if held is not None]
        total = self._size + sum(held._size for held in alive)
        # Oldest first, since results are listed in their order.
        for held in alive:
            if total > _LIMIT:
                total -= held._size
                held._forget()
        _holding[:] = [weakref.ref(held) for held in (*alive, self) if held._size]

    def models(self, result: results.Result) -> model_files.TrainedModels:
        """Writes the models to a directory of this process, once, and opens it."""
        if self._opened is None:
            if not self._is_complete:
                raise checks.InputError(
                    "Expected a training whose models are still in memory, which holds"
                    f" {_LIMIT / 2**20:.0f} MiB of the newest ones of one process;"
                    " models_to='DIR' of simulate and grid saves them."
                )
            _folders.append(tempfile.TemporaryDirectory(prefix="fedjax_pfl"))
            place = Path(_folders[-1].name) / "models"
            with save_models.writer(place) as writer:
                for group in self._groups:
                    writer.add(*group)
                writer.finish(result)
            self._opened = model_files.load_models(place)
            self._forget()
        return self._opened
