"""Kept runs: one compressed netCDF file each, readable with xarray alone.

    /measured   data of cards, from the last round:
                value     [point, measure] a number of the result's table; NaN if the
                          training had diverged
                measured  [point, measure] whether the table has that number
                status, algorithm, dataset, partition, seed, swept fields: [point]
                model, population, data, metric, stat, when: [measure]
                report    [point, reported] means over rounds of the methods' reports
    /curves     means over clients in every evaluated round, by [row]
    /clients/K  metrics of every client of static group K in its last and best rounds,
                by [point, when, model, data, client]

Attributes of the file are the command, the configurations and provenance of the run as
JSON, and the digest of its preset at that time. Older runs lack some attributes,
`curves` or `clients`, and have the text "not recorded" in their place. Missing text is
"".
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from fedjax_pfl import results
from fedjax_pfl.results import documents, metrics, summaries

__all__ = ["Kept", "read", "record_of", "write"]

_POINT = ("algorithm", "dataset", "partition", "seed")
_MEASURE = ("model", "population", "data", "metric", "stat", "when")
_SMALL = 4096  # bytes
_ABOUT_CLIENTS = ("malicious", "num_train", "label_counts", "diverged_at")


@dataclasses.dataclass(frozen=True)
class Kept:
    """Content of a file, with the members of a `Result` that figures of means read."""

    command: str  # line that repeats the run
    rows: pd.DataFrame  # of the result's table
    reports: pd.DataFrame  # a row per point with a column per report
    rounds: pd.DataFrame | None  # the result's curves; None if they are not recorded
    groups = (types.SimpleNamespace(config={}, num_validation=None),)

    def table(self) -> pd.DataFrame:
        """Returns a copy of the rows."""
        return self.rows.copy()

    def curves(self) -> pd.DataFrame:
        """Returns the curves or, if they were not kept, their last round."""
        if self.rounds is not None:
            return self.rounds.copy()
        means = self.rows[self.rows["stat"] == "mean"]
        return means.drop(columns=["stat", "when", "status"]).assign(round=0)

    @property
    def headline(self) -> str:
        """Metric of choices and rankings."""
        return metrics.headline(set(self.rows["metric"]))

    @property
    def point(self) -> list[str]:
        """Columns that identify a training."""
        return [*_POINT, *self.fields]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of swept fields other than seed, algorithm, dataset and partition."""
        fixed_columns = (*_POINT, *_MEASURE, "value", "status")
        return tuple(name for name in self.rows if name not in fixed_columns)


def write(
    path: Path,
    command: str,
    table: pd.DataFrame,
    reports: pd.DataFrame | None = None,
    groups: Mapping[str, xr.Dataset] | None = None,
    **record: str,
) -> None:
    """Writes the file of a run, with groups and attributes from `record_of`."""
    datasets = {"measured": _arrays(table, reports), **(groups or {})}
    encoding = {
        f"/{name}": {n: _encoding(v) for n, v in dataset.variables.items()}
        for name, dataset in datasets.items()
    }
    root = xr.Dataset(attrs={"command": command, **record})
    tree = xr.DataTree.from_dict(datasets | {"/": root})
    tree.to_netcdf(path, engine="h5netcdf", encoding=encoding)


def _arrays(table: pd.DataFrame, reports: pd.DataFrame | None) -> xr.Dataset:
    """Turns the rows of a result's tables into arrays over points and measures."""
    point = [name for name in table if name not in (*_MEASURE, "value", "status")]
    points, measures = _numbers(table, point), _numbers(table, list(_MEASURE))
    shape = (points.max() + 1, measures.max() + 1)
    value, is_measured = np.full(shape, np.nan), np.zeros(shape, bool)
    value[points, measures], is_measured[points, measures] = table["value"], True
    firsts = table[~points.duplicated()]
    arrays: dict[str, Any] = {
        "value": (("point", "measure"), value),
        "measured": (("point", "measure"), is_measured),
    }
    arrays |= {n: ("point", _column(firsts[n])) for n in (*point, "status")}
    names = table[~measures.duplicated()]
    arrays |= {n: ("measure", _column(names[n])) for n in _MEASURE}
    if reports is not None and len(reports):
        pivot = reports.pivot(index=point, columns="name", values="value")
        pivot = firsts[point].merge(pivot.reset_index(), how="left", on=point)
        report_names = pivot.columns[len(point) :]
        arrays["report"] = (("point", "reported"), pivot[report_names].to_numpy(float))
        arrays["reported"] = ("reported", report_names.to_numpy(str))
    return xr.Dataset(arrays)


def _numbers(table: pd.DataFrame, names: list[str]) -> pd.Series:
    """Numbers rows by their values, in order of appearance."""
    return table.groupby(names, sort=False, dropna=False).ngroup()


def read(path: Path) -> Kept:
    """Reads the data of cards; damage raises OSError, KeyError or ValueError."""
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        dataset, command = tree["measured"].to_dataset().load(), tree.attrs["command"]
        is_recorded = "curves" in tree.children
        curves = _frame(tree["curves"].to_dataset(), "row") if is_recorded else None
    point, measure = _frame(dataset, "point"), _frame(dataset, "measure")
    points, measures = np.nonzero(dataset["measured"].to_numpy())
    parts = (point.iloc[points], measure.iloc[measures])
    table = pd.concat([part.reset_index(drop=True) for part in parts], axis=1)
    table["value"] = dataset["value"].to_numpy()[points, measures]
    reports = point.drop(columns="status")
    if "report" in dataset:
        reports[dataset["reported"].to_numpy()] = dataset["report"].to_numpy()
    return Kept(command, table, reports, curves)


def _frame(dataset: xr.Dataset, dim: str) -> pd.DataFrame:
    """Returns the columns along one dimension, NaN for missing text."""
    columns = {
        n: v.to_numpy() for n, v in dataset.data_vars.items() if v.dims == (dim,)
    }
    return pd.DataFrame(columns).replace("", np.nan)


def _column(values: pd.Series) -> np.ndarray:
    """Returns numbers, or text if any value is text."""
    if values.dtype.kind in "biuf":
        return values.to_numpy()
    if pd.api.types.infer_dtype(values, skipna=True) == "boolean":
        return values.astype(float).to_numpy()  # NaN if missing
    return (
        values.astype(object).map(lambda v: "" if pd.isna(v) else str(v)).to_numpy(str)
    )


def _encoding(variable: xr.Variable) -> dict[str, Any]:
    """Compresses large arrays in one piece, and text as characters."""
    # A small array takes less space than the index of a compressed one.
    encoding = {"dtype": "S1"} if variable.dtype.kind in "OUT" else {}
    if variable.nbytes <= _SMALL:
        return encoding
    if not encoding:
        encoding = {"shuffle": True, "chunksizes": variable.shape}
    return encoding | {"zlib": True, "complevel": 9}


def record_of(result: results.Result) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
    """Returns the further groups and the attributes of a result's file."""
    configurations = [group.config for group in result.groups]
    attributes = {
        "configuration": json.dumps(configurations),
        "configuration_digest": documents.digest_of({"groups": configurations}),
        "provenance": json.dumps(result.provenance),
        "curves": "recorded",
        "clients": "recorded",
    }
    curves = result.curves()
    groups = {"curves": xr.Dataset({n: ("row", _column(curves[n])) for n in curves})}
    for k in range(len(result.groups)):
        groups[f"clients/{k}"] = _clients(result, k)
    return groups, attributes


def _clients(result: results.Result, k: int) -> xr.Dataset:
    """Returns every client's metrics in the last and the best round of each model."""
    group, dataset = result.groups[k], result.to_dataset(k)
    reported = {part.name: part.reported for part in summaries.parts(group)}
    of_models = [reported[model, "all"] for model in group.models]
    when = [name for name in of_models[0] if name != summaries.OF_EACH]
    # [point, when, model, data, client]
    rounds = [[rounds[name][:, 0] for name in when] for rounds in of_models]
    at = np.stack(rounds).transpose(2, 1, 0)
    arrays = {
        name: (
            ("point", "when", "model", "data", "client"),
            np.take_along_axis(values, at[..., None, None], axis=1).astype(np.float32),
        )
        for name, values in group.metrics.items()
    }
    arrays["at_round"] = (("point", "when", "model"), group.rounds[at])
    about = {n: dataset[n] for n in _ABOUT_CLIENTS if n in dataset}
    clients = xr.Dataset(arrays | about).assign_coords(when=when)
    names = [n for n in dataset.coords if n not in ("round", "step")]
    return clients.assign_coords({name: dataset[name] for name in names})
