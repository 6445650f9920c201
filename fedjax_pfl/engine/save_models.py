"""Writes trained models, point by point; only complete files get their names."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_pfl import results
from fedjax_pfl.core import checks, client_rows
from fedjax_pfl.engine import trained_parameters
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.trainer import Trainer
from fedjax_pfl.results import (
    csv_files,
    directories,
    history,
    model_files,
    plain_files,
)

if TYPE_CHECKING:
    from fedjax_pfl.engine import best_models

__all__ = ["Writer", "check", "fetched", "size", "writer"]

_BLOCK_BYTES = 2**28
"""Most bytes that are fetched from the device at once."""


def check(groups: Sequence[PlannedGroup], directory: str | os.PathLike[str]) -> None:
    """Checks before a training that its models can be saved."""
    directory = checks.path("models_to", directory)
    directories.check_new(directory)
    # A full disk after the training would lose its models.
    needed = sum(map(size, groups))
    free = shutil.disk_usage(directories.nearest(directory)).free
    if needed > free:
        raise checks.InputError(
            f"Expected {needed / 1e9:.3g} GB of free disk for the trained models in"
            f" '{directory}', got {free / 1e9:.3g} GB; save those of fewer clients"
            " (eval_clients), or elsewhere."
        )


def size(planned: PlannedGroup) -> int:
    """Computes the bytes of a group's trained models, and checks their names."""
    kinds, total = planned.kinds, 0
    if len({model_files.file_name(0, "", 0, name) for name in kinds}) < len(kinds):
        raise checks.InputError(
            "Expected names of predictors that differ in letters or digits, got"
            f" {', '.join(kinds)}."
        )
    for kind in kinds.values():
        num_bytes = client_rows.num_bytes(model_files.named(kind.shapes))
        total += num_bytes if kind.is_shared else num_bytes * _num_members(planned)
    return total * len(planned.group.points)


def _num_members(planned: PlannedGroup) -> int:
    """Counts the clients that are evaluated of each point."""
    clients, count = planned.plan.schedule.clients, planned.num_clients
    if clients == "participants":
        return planned.group.processes[0].participation.cohort_size(count)
    return count if isinstance(clients, str) else min(clients, count)


@contextlib.contextmanager
def writer(directory: str | os.PathLike[str] | None) -> Iterator["Writer"]:
    """Opens a writer of trained models; the directory appears at the end."""
    place = None if directory is None else Path(directory)
    if place is None or jax.process_index() > 0:
        # Other processes take part in fetching, and do not write.
        yield Writer(place)
        return
    with directories.staged(place) as folder:
        yield Writer(place, folder)


class Writer:
    """Takes groups one by one, then the result, which names them in the table."""

    def __init__(self, place: Path | None, folder: Path | None = None):
        """Writes into a folder that becomes `place`; takes nothing without a place."""
        self._place, self._folder = place, folder
        self._points: list[list[dict[str, Any]]] = []  # rows of the table

    def add(
        self,
        number: int,
        record: history.History,
        trainer: Trainer,
        best: "best_models.Best | None" = None,
    ) -> None:
        """Writes models of a finished group, of the last round or kept in `best`."""
        if self._place is None:
            return
        kinds, algorithm = trainer.planned.kinds, trainer.planned.algorithm
        for point in range(len(record.points)):
            members = trainer.members(point)
            federation = trainer.planned.group.federations[point]
            client_names, units = federation.client_names, federation.train.target_units
            settings = {**record.config, **record.points[point]}
            details = {"status": record.status[point], "settings": settings}
            if units is not None:
                details["target_units"] = np.asarray(units, float).tolist()
            self._points.append([])
            for model, kind in kinds.items():
                path = model_files.file_name(number, algorithm, point, model)
                # One client stands for all of a shared model; its file has no client
                # axis.
                rows = members[:1] if kind.is_shared else members
                about = {"format": model_files.FORMAT, "model": model, **details}
                if best is None:
                    arrays = fetched(trainer, point, rows, model, kind)
                else:
                    arrays, about["rounds"] = best.of(point, model)
                if client_names is not None and not kind.is_shared:
                    about["names"] = [client_names[row] for row in members]
                if self._folder is not None:
                    header = {model_files.HEADER: json.dumps(about)}
                    with directories.writing(self._place):
                        (self._folder / path).parent.mkdir(exist_ok=True)
                        model_files.write(self._folder / path, arrays, header)
                self._points[-1].append(
                    {
                        "model": model,
                        "clients": None if kind.is_shared else len(members),
                        "numbers": client_rows.size(kind.shapes),
                        "status": details["status"],
                        "file": path,
                    }
                )

    def finish(self, result: results.Result) -> None:
        """Writes the table, which completes the directory."""
        if self._place is None or self._folder is None:
            return
        import pandas as pd

        heads = result.points().to_dict("records")
        rows = [
            {**{str(k): v for k, v in head.items() if k != "status"}, **row}
            | {"sha256": plain_files.digest(self._folder / row["file"])}
            for head, models in zip(heads, self._points, strict=True)
            for row in models
        ]
        table = pd.DataFrame(rows).astype({"clients": "Int64"})
        path = self._folder / model_files.TABLE
        with directories.writing(self._place):
            plain_files.write_text(path, csv_files.text(table))


def fetched(
    trainer: Trainer,
    point: int,
    rows: np.ndarray,
    model: str,
    kind: trained_parameters.Kind,
) -> dict[str, np.ndarray]:
    """Fetches the arrays of one file, `[K, *P]` or `[*P]`, in blocks of clients."""
    leaves = model_files.named(kind.shapes)
    num_bytes = client_rows.num_bytes(leaves)
    # A fetch of all clients would hold their models twice.
    block = min(max(_BLOCK_BYTES // max(num_bytes, 1), 1), len(rows))
    arrays = {
        name: np.empty((len(rows), *leaf.shape), leaf.dtype)
        for name, leaf in leaves.items()
    }
    for start in range(0, len(rows), block):
        block_rows = rows[start : start + block]
        filled = np.resize(block_rows, block)  # one program for all blocks
        leaves = model_files.named(trainer.trained(point, filled, (model,))[model])
        for name, value in leaves.items():
            arrays[name][start : start + block] = value[: len(block_rows)]
    if kind.is_shared:
        return {name: value.reshape(value.shape[1:]) for name, value in arrays.items()}
    return arrays | {model_files.CLIENTS: rows.astype(np.int32)}
