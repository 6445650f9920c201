"""Conversion of histories to labeled arrays and netCDF files, and back."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.results import history

if TYPE_CHECKING:  # slow to import, and needed only for files and labeled arrays
    import xarray as xr

__all__ = ["read", "to_dataset"]

_HINTS = get_type_hints(history.History)
_GROUPS = [name for name in history.AXES if _HINTS[name] == dict[str, np.ndarray]]
"""Fields with several arrays by name."""
_OPTIONAL = [name for name in history.AXES if _HINTS[name] == np.ndarray | None]
"""Arrays that some histories do not have."""
_NAMES = "client_name"
_DESCRIPTIONS = {
    "accuracy": ("fraction of examples classified correctly", "1"),
    "loss": ("mean loss per example", "1"),
    "balanced_accuracy": ("mean recall of the classes that have examples", "1"),
    "macro_f1": ("mean F1 score of the classes", "1"),
    "f1": ("F1 score of the second class", "1"),
    "precision": ("share of predictions of the second class that are right", "1"),
    "recall": ("share of examples of the second class that were found", "1"),
    "auc": ("area under the ROC curve", "1"),
    "rmse": ("root of the mean squared error", "1"),
    "mae": ("mean absolute error", "1"),
    "r2": ("share of the targets' variance that is explained", "1"),
    "times_selected": ("rounds in which the client took part so far", "rounds"),
    "malicious": ("whether an attack replaces the client's messages", "1"),
    "num_train": ("training examples of the client", "examples"),
    "num_test": ("test examples of the client", "examples"),
    "num_validation": ("validation examples of the client", "examples"),
    "extra_examples": ("examples that the client got beyond its draw", "examples"),
    "label_counts": ("training examples of the client by class", "examples"),
    "collaboration": ("weight of a sender's message for a client", "1"),
    "own_cluster": ("share of a client's collaboration in its own cluster", "1"),
    "cluster": ("known cluster of the client", "1"),
    "leak": ("share of test examples that another client trains on", "1"),
    "evaluated": ("whether the client was evaluated", "1"),
    "diverged_at": ("round of the first divergence, -1 if none", "rounds"),
    "client_diverged_at": ("round of the client's divergence, -1 if none", "rounds"),
    "stopped_at": ("round at which training was stopped early, -1 if none", "rounds"),
    "reached_target": ("whether it was stopped at its target", "1"),
    "dropped": ("whether it was stopped since others were better", "1"),
    "num_nonfinite": ("messages and state rows that were not finite", "rows"),
    "bytes_up": ("bytes sent by clients in the round", "bytes"),
    "bytes_down": ("bytes sent to clients in the round", "bytes"),
    "epsilon": ("privacy loss of a client so far, at the configured delta", "1"),
    "local_epsilon": (
        "largest privacy loss of an example so far, at the configured delta",
        "1",
    ),
    "clip_norm": ("norm to which messages of the round were clipped", "1"),
    "gradient_evaluations": ("gradients of single examples in the round", "gradients"),
    "loss_evaluations": ("losses of single examples without gradients", "losses"),
    "virtual_seconds": ("time of the clients' devices at the end of the round", "s"),
    "arrived": ("clients of the round whose work arrived in time", "clients"),
    "staleness": ("mean age of the models that clients trained from", "rounds"),
    "client_steps": ("local steps of all clients in the round", "steps"),
    "annualized_return": ("geometric return of a year, costs paid", "1"),
    "sharpe": ("mean daily return over its deviation, annualized", "1"),
    "max_drawdown": ("largest fall of the value below an earlier one", "1"),
    "turnover": ("mean share of the portfolio traded in a day", "1"),
    "value": ("value of the portfolio, 1 at first", "1"),
    "mean_alpha": ("mean weight of the clients' own models", "1"),
    "round": ("finished rounds when evaluated", "rounds"),
    "step": ("number of the round", "rounds"),
    "client": ("client", "1"),
    _NAMES: ("name of the client", "1"),
    "class": ("class of examples", "1"),
    "model": ("model that was evaluated", "1"),
    "unseen_model": ("model of clients that never trained", "1"),
    "data": ("examples on which it was evaluated", "1"),
}


def to_dataset(record: history.History, title: str) -> "xr.Dataset":
    """Labels the arrays of a history; see `Result.to_dataset`."""
    import xarray as xr

    coords: dict[str, Any] = {
        "round": record.rounds,
        "model": list(record.models),
        "data": list(record.data),
        "client": record.clients,
        "status": ("point", list(record.status)),
    }
    if record.client_names is not None:
        coords[_NAMES] = (("point", "client"), record.client_names)
    if record.class_names is not None and record.label_counts is not None:
        coords["class"] = list(record.class_names)
    if record.unseen:
        coords["unseen_model"] = list(record.unseen_models)
    for field in record.points[0]:
        coords[field] = ("point", _coordinate([p[field] for p in record.points]))
    arrays = {}
    for field, dims in history.AXES.items():
        values = getattr(record, field)
        if field in _GROUPS:
            prefix = "" if field == "metrics" else f"{field}."
            arrays |= {f"{prefix}{name}": (dims, v) for name, v in values.items()}
        elif values is not None:  # arrays that older histories lack are left out
            arrays[field] = dims, values
    dataset = xr.Dataset(arrays, coords)
    dataset = dataset.assign_coords(step=np.arange(dataset.sizes.get("step", 0)) + 1)
    for name, variable in dataset.variables.items():
        short = str(name).rpartition(".")[2]
        default = (str(name).replace("_", " "), "1")
        long_name, units = _DESCRIPTIONS.get(short, default)
        variable.attrs = {"long_name": long_name, "units": units}
    return dataset.assign_attrs(
        title=title,
        configuration=json.dumps(record.config),
    )


def read(
    path: Path, points: tuple[dict[str, Any], ...], **more: Any
) -> history.History:
    """Reads a history from a file of `to_dataset`; `more` is not stored as arrays."""
    import xarray as xr

    try:
        _check_sizes(path)
        # Only the encodings of a history are decoded: text and truth values.
        options = {"decode_times": False, "decode_timedelta": False}
        dataset = xr.load_dataset(path, engine="h5netcdf", **options)
        return _from_dataset(dataset, points, more)
    except checks.InputError:
        raise
    except (Exception, MemoryError) as error:  # HDF5 raises many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"its {path.name} has no history: {reason}") from error


def _check_sizes(path: Path) -> None:
    """Refuses arrays larger than the file, and references to other files."""
    import h5py

    file_size = path.stat().st_size
    total = 0
    with h5py.File(path, "r") as file:
        for name in file:
            is_own = isinstance(file.get(name, getlink=True), h5py.HardLink)
            variable = file[name] if is_own else None
            if (
                not isinstance(variable, h5py.Dataset)
                or variable.chunks is not None  # and so neither growing nor compressed
                or variable.is_virtual
                or variable.external
                or variable.nbytes > file_size
            ):
                raise ValueError(f"{name} is no array of this file")
            total += variable.nbytes
    checks.memory(f"The history '{path}'", total, "it is no history of ours")


def _from_dataset(
    dataset: "xr.Dataset", points: tuple[dict[str, Any], ...], more: dict[str, Any]
) -> history.History:
    """Inverts `to_dataset`."""
    groups: dict[str, dict[str, np.ndarray]] = {name: {} for name in _GROUPS}
    arrays: dict[str, Any] = dict.fromkeys(_OPTIONAL) | groups
    for name, array in dataset.data_vars.items():
        # Metrics have no prefix, others that of their field.
        start, dot, short = str(name).partition(".")
        is_single = start in history.AXES and not dot and start not in _GROUPS
        field = start if dot or is_single else "metrics"
        if array.dims != history.AXES[field] or array.dtype.kind not in "biuf":
            raise ValueError(f"{name} has other axes or another type")
        target = arrays if is_single else groups[field]
        target[short if dot else start] = array.to_numpy()
    names = {n: tuple(dataset[n].to_numpy().tolist()) for n in ("model", "data")}
    if groups["unseen"]:
        names["unseen_model"] = tuple(dataset["unseen_model"].to_numpy().tolist())
    rounds, clients = (dataset[name].to_numpy() for name in ("round", "client"))
    # Points are in `config.json`, which may belong to another file.
    if dataset.sizes["point"] != len(points) or not groups["metrics"]:
        raise ValueError("it has no metrics, or other points than config.json says")
    if not all(dataset.sizes[n] for n in ("round", "client", *names)):
        raise ValueError("it has no rounds, clients, models or data")
    if any(values.dtype.kind not in "iu" for values in (rounds, clients)):
        raise ValueError("its rounds and clients are no whole numbers")
    clients_called = dataset[_NAMES] if _NAMES in dataset.coords else None
    if clients_called is not None:
        if clients_called.dims != ("point", "client"):
            raise ValueError("its names of clients have other axes")
        clients_called = clients_called.to_numpy().astype(object)
        names["client"] = tuple(clients_called.ravel())
    if "class" in dataset.coords:
        names["class"] = tuple(dataset["class"].to_numpy().tolist())
    if not all(isinstance(n, str) for values in names.values() for n in values):
        raise ValueError("its models, data or clients have no names")
    return history.History(
        points=points,
        models=names["model"],
        data=names["data"],
        unseen_models=names.get("unseen_model", ()),
        rounds=rounds,
        clients=clients,
        client_names=clients_called,
        class_names=names.get("class"),
        **arrays,
        **more,
    )


def _coordinate(values: list[Any]) -> np.ndarray:
    """Returns values of a swept field as numbers or, if some are not, as text."""
    plain = all(isinstance(v, bool) for v in values) or all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    return np.array(values if plain else [str(v) for v in values])
