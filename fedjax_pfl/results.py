"""Results of trainings: tidy tables, labeled arrays, and one directory of files each.

What the tables call model, population, data, stat and when is defined in `summaries`.
"""

import dataclasses
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from fedjax_pfl import checks, history, summaries

__all__ = ["Result", "check_output"]

_FORMAT = "fedjax_pfl result 1"
_IDENTITY = {  # column -> setting
    "algorithm": "algorithm",
    "dataset": "federation.dataset",
    "partition": "federation.partition",
}
_DERIVED = ("federation.seed", "num_parameters", "execution")  # from other settings
_AXES = {
    "metrics": ("point", "round", "model", "data", "client"),
    "per_round": ("point", "step"),
    "diagnostics": ("point", "round"),
}
_CLIENT_ARRAYS = {
    "times_selected": ("point", "round", "client"),
    "malicious": ("point", "client"),
    "num_train": ("point", "client"),
    "diverged_at": ("point",),
}
_DESCRIPTIONS = {
    "accuracy": ("fraction of examples classified correctly", "1"),
    "loss": ("mean loss per example", "1"),
    "times_selected": ("rounds in which the client took part so far", "rounds"),
    "malicious": ("whether an attack replaces the client's messages", "1"),
    "num_train": ("training examples of the client", "examples"),
    "diverged_at": ("round of divergence, -1 if none", "rounds"),
    "num_nonfinite": ("messages and state rows that were not finite", "rows"),
    "floats_up": ("numbers sent by clients in the round", "floats"),
    "floats_down": ("numbers sent to clients in the round", "floats"),
    "gradient_evaluations": ("gradients of minibatches in the round", "gradients"),
    "round": ("finished rounds when evaluated", "rounds"),
    "step": ("number of the round", "rounds"),
    "client": ("client", "1"),
    "model": ("model that was evaluated", "1"),
    "data": ("examples on which it was evaluated", "1"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What one call of `simulate` or `grid`, or several merged ones, produced.

    Attributes:
      groups: histories, one per static group (one compilation each).
      provenance: versions, device, platform, commit and start time.
    """

    groups: tuple[history.History, ...]
    provenance: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        """Whether all arrays, configurations and the provenance are the same."""
        return isinstance(other, Result) and _same(vars(self), vars(other))

    @property
    def status(self) -> tuple[str, ...]:
        """`"ok"` or `"diverged at round r"` for every point of every group."""
        return tuple(_status(r) for group in self.groups for r in group.diverged_at)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what varies, beside seed, algorithm, dataset and partition.

        These are the swept fields and the settings of a component that differ between
        groups which have the same component.
        """
        swept = dict.fromkeys(f for g in self.groups for p in g.points for f in p)
        values: dict[tuple[str, str], list[Any]] = {}
        for settings in map(_settings, self.groups):
            for field, value in settings.items():
                owner = settings.get(field.rpartition(".")[0])
                values.setdefault((field, str(owner)), []).append(value)
        differ = [f for (f, _), v in values.items() if any(x != v[0] for x in v)]
        differ = [f for f in differ if f not in _DERIVED]
        named = {"seed", *_IDENTITY.values()}
        return tuple(f for f in dict.fromkeys([*swept, *differ]) if f not in named)

    def table(self) -> pd.DataFrame:
        """Returns one row per value, for a spreadsheet or pandas.

        Returns:
          Columns algorithm, dataset, partition, seed, one per name in `fields`, model,
          population, data, metric, stat, when, value, status. `value` is NaN where a
          training had diverged by then.
        """
        rows = []
        for group in self.groups:
            parts = _parts(group)
            for point, diverged_at in enumerate(group.diverged_at):
                head, status = self._head(group, point), _status(diverged_at)
                for part in parts:
                    rows += [(*head, *cell, status) for cell in part.cells(point)]
        tail = ("model", "population", "data", "metric", "stat", "when", "value")
        return pd.DataFrame(rows, columns=[*self._columns, *tail, "status"])

    def curves(self) -> pd.DataFrame:
        """Returns the mean over clients in every evaluated round, one row per value.

        Returns:
          The columns of `table` up to metric, then round and value.
        """
        rows = []
        for group in self.groups:
            heads = [self._head(group, point) for point in range(len(group.points))]
            rounds = group.rounds.tolist()
            for part, metric in itertools.product(_parts(group), group.metrics):
                for d, data in enumerate(part.data):
                    name = (*part.name, data, metric)
                    for head, means in zip(heads, part.means[metric], strict=True):
                        steps = zip(rounds, means[:, d].tolist(), strict=True)
                        rows += [(*head, *name, *step) for step in steps]
        tail = ("model", "population", "data", "metric", "round", "value")
        return pd.DataFrame(rows, columns=[*self._columns, *tail])

    def summary(self) -> pd.DataFrame:
        """Returns a small table: last round, own test data, mean ± std over seeds.

        Returns:
          One row per algorithm, swept setting and model, over the honest clients: mean
          accuracy (else loss), that of the worst tenth, and variance of the loss. Seeds
          that diverged do not count; spreads divide by the number of seeds minus 1.
        """
        table: Any = self.table()
        is_shown = (table["when"] == "last") & (table["data"] == summaries.OWN_TEST)
        rows = table[is_shown & table["population"].isin(["all", "honest"])]
        value_of = [*self._columns, "model", "metric", "stat"]
        rows = rows.drop_duplicates(value_of, keep="last")  # honest, where there is one
        metric = "accuracy" if (rows["metric"] == "accuracy").any() else "loss"
        shown = {metric: (metric, "mean"), "worst 10 %": (metric, "worst 10 %")}
        shown["loss variance"] = ("loss", "variance")
        varied = {c for c in self._columns if rows[c].nunique(dropna=False) > 1}
        named = varied - {"seed"} | {"algorithm"}
        keys = [c for c in self._columns if c in named]
        summary = []
        for name, cell in rows.groupby([*keys, "model"], sort=False, dropna=False):
            values = {}
            for title, wanted in shown.items():
                is_wanted = (cell["metric"] == wanted[0]) & (cell["stat"] == wanted[1])
                values[title] = _mean_and_std(cell.loc[is_wanted, "value"])
            status = cell.groupby("seed", dropna=False)["status"].first()
            bad = int((status != "ok").sum())
            values["status"] = f"{bad} of {len(status)} diverged" if bad else "ok"
            summary.append(dict(zip([*keys, "model"], name, strict=True)) | values)
        return pd.DataFrame(summary)

    def to_dataset(self, group: int = 0) -> xr.Dataset:
        """Returns one static group as labeled arrays.

        Args:
          group: index into `groups`.

        Returns:
          Metrics with dimensions point, round, model, data, client; diagnostics with
          point, round; values of single rounds with point, step; the swept fields, by
          their dotted names, and the status as coordinates of point.
        """
        record = self.groups[group]
        coords: dict[str, Any] = {
            "round": record.rounds,
            "model": list(record.models),
            "data": list(record.data),
            "client": np.arange(record.num_train.shape[-1]),
            "status": ("point", [_status(r) for r in record.diverged_at]),
        }
        for field in record.points[0]:
            coords[field] = ("point", _coordinate([p[field] for p in record.points]))
        arrays = {n: (d, getattr(record, n)) for n, d in _CLIENT_ARRAYS.items()}
        for kind, dims in _AXES.items():
            named = getattr(record, kind)
            arrays |= {_variable(kind, n): (dims, v) for n, v in named.items()}
        dataset = xr.Dataset(arrays, coords)
        dataset = dataset.assign_coords(
            step=np.arange(dataset.sizes.get("step", 0)) + 1
        )
        for name, variable in dataset.variables.items():
            short = str(name).rpartition(".")[2]
            default = (str(name).replace("_", " "), "1")
            long_name, units = _DESCRIPTIONS.get(short, default)
            variable.attrs = {"long_name": long_name, "units": units}
        return dataset.assign_attrs(
            title=f"{_settings(record).get('algorithm', 'history')}, fedjax_pfl",
            configuration=json.dumps(record.config),
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `config.json`, `summary.csv` and the histories into a new directory.

        Everything is written under a temporary name beside it and renamed at the end.

        Args:
          directory: path that does not exist; its parents are made.

        Raises:
          InputError: if it exists or cannot be written.
        """
        directory = Path(directory)
        check_output(directory)
        temporary = None
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
            temporary.mkdir()
            self._write(temporary)
            temporary.rename(directory)
        except OSError as error:
            raise _unwritable(directory, error) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Result":
        """Reads what `save` wrote.

        Args:
          directory: the saved directory.

        Returns:
          A result equal to the saved one.

        Raises:
          InputError: if the directory is missing, foreign or damaged.
        """
        directory = Path(directory)
        if not (directory / "config.json").is_file():
            raise checks.InputError(
                f"Expected a result directory with a config.json, got '{directory}'."
            )
        try:
            stored = json.loads((directory / "config.json").read_text("utf-8"))
            if stored["format"] != _FORMAT:
                raise ValueError(f"its format is {stored['format']!r}")
            groups = tuple(_read(directory, group) for group in stored["groups"])
            return cls(groups=groups, provenance=stored["provenance"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise checks.InputError(
                f"Cannot read '{directory}' as a result directory: "
                f"{type(error).__name__}: {reason}."
            ) from error

    @property
    def _columns(self) -> tuple[str, ...]:
        """Columns that name a point."""
        return (*_IDENTITY, "seed", *self.fields)

    def _head(self, group: history.History, point: int) -> tuple[Any, ...]:
        """Values of `_columns` for one point."""
        settings = _settings(group) | group.points[point]
        names = (*_IDENTITY.values(), "seed", *self.fields)
        values = (settings.get(name) for name in names)
        return tuple(
            json.dumps(v) if isinstance(v, tuple | list) else v for v in values
        )

    def _write(self, directory: Path) -> None:
        """Writes all files into an existing directory."""
        groups = []
        for k, group in enumerate(self.groups):
            name = str(_settings(group).get("algorithm", "group")).lower()
            file = "history.nc" if len(self.groups) == 1 else f"history-{k}-{name}.nc"
            self.to_dataset(k).to_netcdf(directory / file, engine="h5netcdf")
            names = ("points", "config", "compile_seconds", "run_seconds")
            groups.append({"file": file} | {n: getattr(group, n) for n in names})
        config = {"format": _FORMAT, "provenance": self.provenance, "groups": groups}
        (directory / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
        self.table().to_csv(directory / "summary.csv", index=False)


def check_output(directory: str | os.PathLike[str]) -> None:
    """Checks that a result can be saved; to be called before a long run.

    Args:
      directory: path that must not exist yet.

    Raises:
      InputError: if it exists or if no directory can be made there.
    """
    directory = Path(directory)
    if os.path.lexists(directory):
        raise checks.InputError(
            f"Expected an output directory that does not exist yet, got '{directory}'."
        )
    ancestor = directory.absolute().parent
    while not os.path.lexists(ancestor):
        ancestor = ancestor.parent
    try:
        os.rmdir(tempfile.mkdtemp(dir=ancestor, prefix=".check-"))
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> checks.InputError:
    """The sentence for a directory that cannot be written."""
    reason = error.strerror or error
    return checks.InputError(f"Cannot write the directory '{directory}': {reason}.")


def _parts(group: history.History) -> list[summaries.Part]:
    """Every model in every population of a group."""
    return summaries.parts(
        group.metrics,
        group.models,
        group.data,
        group.malicious,
        group.times_selected,
    )


def _status(diverged_at: int) -> str:
    """Status of a point in words."""
    return "ok" if diverged_at < 0 else f"diverged at round {diverged_at}"


def _settings(group: history.History) -> dict[str, Any]:
    """The configuration; its `model` must not be confused with a table's column."""
    return {
        "model.class" if name == "model" else name: value
        for name, value in group.config.items()
    }


def _mean_and_std(values: pd.Series) -> str:
    """Mean and spread of the values that are not NaN, as text."""
    spread = values.std()
    if values.notna().sum() < 2:
        return "" if values.isna().all() else f"{values.mean():.4f}"
    return f"{values.mean():.4f} ± {spread:.4f}"


def _coordinate(values: list[Any]) -> np.ndarray:
    """Values of a swept field as numbers or, where some are not, as text."""
    plain = all(isinstance(v, bool) for v in values) or all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    return np.array(values if plain else [str(v) for v in values])


def _variable(kind: str, name: str) -> str:
    """Name in a file: metrics keep theirs, other values say where they belong."""
    return name if kind == "metrics" else f"{kind}.{name}"


def _read(directory: Path, stored: dict[str, Any]) -> history.History:
    """Reads one group back."""
    dataset = xr.load_dataset(directory / stored["file"], engine="h5netcdf")
    named: dict[str, Any] = {kind: {} for kind in _AXES}
    for name in dataset.data_vars:
        kind, dot, short = str(name).partition(".")
        if dot:
            named[kind][short] = dataset[name].to_numpy()
        elif name not in _CLIENT_ARRAYS:
            named["metrics"][str(name)] = dataset[name].to_numpy()
    return history.History(
        points=tuple(stored["points"]),
        models=tuple(dataset["model"].to_numpy().tolist()),
        data=tuple(dataset["data"].to_numpy().tolist()),
        rounds=dataset["round"].to_numpy(),
        config=stored["config"],
        compile_seconds=stored["compile_seconds"],
        run_seconds=stored["run_seconds"],
        **{name: dataset[name].to_numpy() for name in _CLIENT_ARRAYS},
        **named,
    )


def _same(a: Any, b: Any) -> bool:
    """Equality of nested values; NaN equals NaN, a tuple its list."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        return _same(vars(a), vars(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        nan = a.dtype.kind == "f"
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=nan)
    return a is b or a == b
