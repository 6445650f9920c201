"""Results of trainings: tidy tables, labeled arrays, and one directory of files each.

`summaries` defines the columns model, population, data, stat and when of the tables.
"""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.results import (
    csv_files,
    directories,
    documents,
    history,
    labels,
    learned,
    metrics,
    plain_files,
    provenance,
    spending,
    summaries,
    xarray_io,
)

if TYPE_CHECKING:  # half of the time of importing the package, paid by its users only
    import pandas as pd
    import xarray as xr

    from fedjax_pfl.results.model_files import TrainedModels
__all__ = ["Result"]

_NAMES = (
    *labels.IDENTITY.values(),
    *("aggregator", "attack", "execution", "metric", "model", "parameter_dtype"),
)
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Setting = None | bool | _Whole | float | str | list[Any]
_OWN_TEST = summaries.OWN_TEST
_STORED = ("config", "compile_seconds", "run_seconds")  # next to the arrays
_OF_MODEL = ("model", "population", "data", "metric")
_CLIENT = ("client", "name", "num_train", "num_test", "value")
_HISTORY = ("rounds", "history")  # columns of a client's course
_MOMENTS = ("moment", "mean", "10 %", "median", "90 %")


class _Group(documents.Document):
    """Entry of `config.json` for a static group."""

    file: Annotated[str, msgspec.Meta(pattern=r"\Ahistory(-\d+-[a-z0-9-]+)?\.nc\Z")]
    sha256: documents.Digest
    points: Annotated[list[dict[str, _Setting]], msgspec.Meta(min_length=1)]
    config: dict[str, Any]
    compile_seconds: Annotated[float, msgspec.Meta(ge=0)]
    run_seconds: Annotated[float, msgspec.Meta(ge=0)]

    def __post_init__(self):
        if any(point.keys() != self.points[0].keys() for point in self.points):
            raise ValueError("points with different fields")
        for name in _NAMES:
            if not isinstance(self.config.get(name), str | None):
                raise ValueError(f"{name} is no name")
        for settings in (self.config, *self.points):
            if not isinstance(settings.get("seed", 0), int):
                raise ValueError("seed is no whole number")


class _Config(documents.Document):
    """The file `config.json`."""

    provenance: dict[str, Any]
    groups: Annotated[list[_Group], msgspec.Meta(min_length=1)]


_CONFIG = documents.Sealed("config.json", "fedjax_pfl result 1", _Config)


_Method = Callable[["Result"], "pd.DataFrame"]


def _cached(compute: _Method) -> _Method:
    """Computes a table once per result: figures, rankings and reports share it."""
    name = f"_{compute.__name__}"

    @functools.wraps(compute)
    def table(result: "Result") -> "pd.DataFrame":
        if name not in vars(result):
            vars(result)[name] = compute(result)
        return vars(result)[name].copy()  # callers may change theirs

    return table


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """Result of one call of `simulate` or `grid`, or of several merged ones.

    Attributes:
      groups: histories, one per static group (one compilation each).
      provenance: versions, commit, digests of sources, device, platform, start time,
        and other code that trained before, if any.
      directory: folder that may hold its trained models; None if none were kept.
      held: writes and opens models that are still in memory, or None.
    """

    groups: tuple[history.History, ...]
    provenance: dict[str, Any]
    directory: Path | None = None
    held: Callable[["Result"], "TrainedModels"] | None = None

    __post_init__ = struct.check_fields

    @classmethod
    def merge(cls, results: "Iterable[Result]") -> "Result":
        """Returns the trainings of several results as one, to compare their methods.

        Args:
          results: at least one; differences are paired where seeds and data are equal.

        Returns:
          All groups in this order, with the provenance of the first result and the
          sentences about other code of all results.

        Raises:
          InputError: if there is none, or if one is no `Result`.
        """
        try:
            merged: list[Any] = list(results)
        except TypeError:  # not iterable
            merged = [results]
        if not merged or not all(isinstance(result, Result) for result in merged):
            kinds = ", ".join(dict.fromkeys(type(r).__name__ for r in merged))
            raise checks.InputError(
                f"Expected one Result or more to merge, got {kinds or 'none'}."
            )
        groups = tuple(group for result in merged for group in result.groups)
        origin = dict(merged[0].provenance)
        sentences = (provenance.continued(result.provenance) for result in merged)
        if continued := list(dict.fromkeys(itertools.chain.from_iterable(sentences))):
            origin[provenance.CONTINUED] = continued
        return cls(groups=groups, provenance=origin)

    def __eq__(self, other: object) -> bool:
        """Returns whether arrays, configurations and provenance are the same."""
        if not isinstance(other, Result):
            return False
        own_content, other_content = ((r.groups, r.provenance) for r in (self, other))
        return struct.same(own_content, other_content)

    def __repr__(self) -> str:
        """Describes the trainings and how they ended, in one line."""
        names = dict.fromkeys(str(g.config.get("algorithm")) for g in self.groups)
        rounds = max(int(group.rounds[-1]) for group in self.groups)
        statuses = ", ".join(dict.fromkeys(self.status))
        text = f"{', '.join(names)}: {len(self.status)} x {rounds} rounds, {statuses}"
        return f"Result({text}; see .summary(), .table(), .curves(), .clients())"

    def __str__(self) -> str:
        """Ranks the methods on own test data, paired by seed, with 95 % intervals."""
        from fedjax_pfl.results import comparison

        ranked = comparison.rank(self)
        if ranked is None:
            return repr(self)
        return comparison.text_of(ranked) + comparison.unseen_text(self.contenders())

    def _repr_html_(self) -> str:
        """Shows notebooks the ranking as tables, the answer first."""
        from fedjax_pfl.results import comparison, html_text

        ranked = comparison.rank(self)
        if ranked is None:
            return html_text.paragraph(repr(self))
        unseen = comparison.unseen_text(self.contenders())
        return html_text.of_comparison(ranked) + html_text.preformatted(unseen)

    def models(self) -> "TrainedModels":
        """Opens the trained models: those saved with the result, or still in memory.

        Models of `simulate` or `grid` that were not saved are written to a temporary
        directory, which is removed when the process ends. Up to 256 MiB of the newest
        trainings stay in memory; merged results have none.

        Raises:
          InputError: if there are none; the message includes how to save them.
        """
        from fedjax_pfl.results import model_files

        place = self.directory
        if place is not None and any(
            (folder / model_files.TABLE).is_file()
            for folder in (place, place / model_files.DIRECTORY)
        ):
            return model_files.load_models(place)
        if self.held is not None:
            return self.held(self)
        raise checks.InputError(
            "Expected a training whose models were saved, as models_to='DIR' of"
            " simulate and grid does, or --save-models of a command."
        )

    @property
    def status(self) -> tuple[str, ...]:
        """How every point of every group ended.

        `"ok"`, or `"diverged"`, `"stopped"`, `"dropped"` or `"reached its target"` and
        `" at round r"`.
        """
        return tuple(status for group in self.groups for status in group.status)

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of settings that vary, except seed, algorithm, dataset and partition.

        These are the swept fields and the settings of a component that differ between
        groups with the same component.
        """
        return labels.fields(self.groups)

    @property
    def headline(self) -> str:
        """Metric that chooses rounds, hybrids and settings, and ranks methods.

        The metric of `by_metric`, or the common `metric` of all trainings; else the
        accuracy of classifiers, the annualized return of portfolios, or the loss.
        """
        choices = {group.config.get("metric") for group in self.groups}
        names = {name for group in self.groups for name in group.metrics}
        return metrics.headline(names, choices.pop() if len(choices) == 1 else None)

    def by_metric(self, metric: str) -> "Result":
        """Returns the result with another metric that chooses and ranks.

        Best rounds, hybrids, best settings, `to_target`, the summary and the ranking
        then use this metric; the trainings, and which were stopped or dropped, stay.

        Args:
          metric: a metric in the history of every group, such as `"macro_f1"`.

        Raises:
          InputError: if some group has not measured it.
        """
        for group in self.groups:
            metrics.headline(group.metrics, metric)
        groups = (
            dataclasses.replace(group, config=group.config | {"metric": metric})
            for group in self.groups
        )
        return dataclasses.replace(self, groups=tuple(groups))

    def contenders(self) -> "Result":
        """Returns the trainings for tables: the ones that no search dropped.

        All of a group if none was dropped.
        """
        if all(group.dropped is None for group in self.groups):
            return self
        groups = (g if g.dropped is None else g.only(~g.dropped) for g in self.groups)
        return dataclasses.replace(self, groups=tuple(groups))

    def points(self) -> "pd.DataFrame":
        """Returns how every training ended, one row per point of every group.

        Returns:
          Columns algorithm, dataset, partition, seed, one per name in `fields`, status.
        """
        heads = (head for _, _, head in self._trainings())
        pairs = zip(heads, self.status, strict=True)
        return self._frame([(*head, status) for head, status in pairs], "status")

    @_cached
    def table(self) -> "pd.DataFrame":
        """Returns one row per value, for a spreadsheet or pandas.

        Returns:
          Columns algorithm, dataset, partition, seed, one per name in `fields`, model,
          population, data, metric, stat, when, value, status. `value` is NaN if a
          training had diverged by then. If FedAvg or Local are among the algorithms,
          stats of the headline metric on own test data in the last round include
          `worse than Local` and so on: the share of the population's clients for whom
          the model is worse than Local's personal model (FedAvg's global one) of the
          same seed; no row if either diverged.
        """
        rows = []
        for group in self.groups:
            parts = list(summaries.parts(group))
            for point, status in enumerate(group.status):
                head = self._head(group, point)
                for part in parts:
                    rows += [(*head, *cell, status) for cell in part.cells(point)]
                unseen = summaries.unseen_cells(group, point)
                rows += [(*head, *cell, status) for cell in unseen]
        tail = (*_OF_MODEL, "stat", "when", "value", "status")
        return self._with_shares(self._frame(rows, *tail))

    def _with_shares(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """Adds the shares of clients that are better and worse off, at the end."""
        import pandas as pd

        from fedjax_pfl.results import shares

        client_shares = shares.of_clients(self)
        if client_shares.empty:
            return table
        names = [*self._columns, "model", "population", "metric"]
        status = table.drop_duplicates(names)[[*names, "status"]]
        rows = client_shares.merge(status, on=names, how="left")
        rows = rows.melt([*names, "reference", "status"], [*shares.SIDES], "side")
        pairs = zip(rows["side"], rows["reference"], strict=True)
        rows["stat"] = [shares.stat(*pair) for pair in pairs]
        rows = rows.assign(data=_OWN_TEST, when="last")[list(table.columns)]
        return pd.concat([table, rows], ignore_index=True)

    @_cached
    def curves(self) -> "pd.DataFrame":
        """Returns the mean over clients in every evaluated round, one row per value.

        Returns:
          The columns of `table` up to metric, then round and value.
        """
        rows = []
        for group in self.groups:
            heads = [self._head(group, point) for point in range(len(group.points))]
            rounds, is_trained = group.rounds.tolist(), _is_trained(group)
            for part, metric in itertools.product(
                summaries.parts(group), group.metrics
            ):
                for d, data in enumerate(part.data):
                    means = part.means[metric][:, :, d].tolist()
                    mask = part.evaluated[:, :, d] & is_trained
                    for point, e in np.argwhere(mask).tolist():
                        name = (*heads[point], *part.name, data, metric)
                        rows.append((*name, rounds[e], means[point][e]))
        return self._frame(rows, *_OF_MODEL, "round", "value")

    def clients(self, *, histories: bool = False) -> "pd.DataFrame":
        """Returns every client's own test metrics in the last round, one row per value.

        Args:
          histories: whether to add columns `rounds` and `history`, with the evaluated
            rounds and the client's values in these rounds, NaN where it was not
            evaluated.

        Returns:
          The columns of `table` up to metric, then `client`, its number; `name`, its
          name or else its number as text; `num_train`, `num_test`, `value`, and `low`
          and `high`: for an accuracy, Wilson's 95 % interval, as if the client's test
          examples were independent; NaN for other metrics.
        """
        rows = self._histories_of_clients()
        return rows if histories else rows.drop(columns=list(_HISTORY))

    @_cached
    def _histories_of_clients(self) -> "pd.DataFrame":
        """Returns the rows of `clients` with histories."""
        rows = []
        for group in self.groups:
            num_test = group.num_test
            if num_test is None:
                num_test = np.full(group.num_train.shape, np.nan)
            for part, metric in itertools.product(
                summaries.parts(group), group.metrics
            ):
                if _OWN_TEST not in part.data:
                    continue
                d = part.data.index(_OWN_TEST)
                for point, mask in enumerate(part.masks[metric][:, :, d]):
                    head = (*self._head(group, point), *part.name, _OWN_TEST, metric)
                    values = part.values[metric][point, :, d]
                    # A row of the table has the whole course of its client, up to an
                    # early end.
                    is_trained = _is_trained(group)[point]
                    rounds = group.rounds[is_trained]
                    courses = np.where(mask, values, np.nan)[is_trained]
                    names = group.names_of(point)
                    for client in np.flatnonzero(mask[-1]).tolist():
                        identity = (int(group.clients[client]), str(names[client]))
                        counts = (group.num_train, num_test)
                        sizes = (count[point, client].item() for count in counts)
                        course = (float(values[-1, client]), rounds, courses[:, client])
                        rows.append((*head, *identity, *sizes, *course))
        table = self._frame(rows, *_OF_MODEL, *_CLIENT, *_HISTORY)
        # Of other metrics there are no trials, so that `wilson` gives NaN.
        counts = table["num_test"].where(table["metric"] == "accuracy", 0).fillna(0)
        ends = metrics.wilson(table["value"].to_numpy(float), counts.to_numpy(float))
        place = list(table.columns).index("value")
        for number, name in enumerate(("low", "high")):
            table.insert(place + 1 + number, name, ends[number])
        return table

    def series(self) -> "pd.DataFrame":
        """Returns statistics of clients' test series after the last round.

        Returns:
          One row per moment: the columns that name a point, `model`, `name` of the
          series, `moment` from 0, and over the honest clients `mean`, `10 %`, `median`
          and `90 %`. Empty for models without series.
        """
        rows = []
        for group in self.groups:
            for name, values in group.series.items():
                for point, m in np.ndindex(values.shape[:2]):
                    honest = values[point, m, ~group.malicious[point]]
                    quantiles = np.quantile(honest, (0.1, 0.5, 0.9), axis=0)
                    head = (*self._head(group, point), group.models[m], name)
                    moments = zip(honest.mean(axis=0), *quantiles, strict=True)
                    rows += [(*head, k, *numbers) for k, numbers in enumerate(moments)]
        return self._frame(rows, "model", "name", *_MOMENTS)

    def communication(self) -> "pd.DataFrame":
        """Returns the bytes sent and the local steps, one row per point.

        Returns:
          The columns that name a point, then `rounds`; `bytes_up` and `bytes_down`,
          sent by and to all clients together, as means per round; `total_bytes_up`,
          `total_bytes_down` and `client_steps`, the local steps of all clients, over
          all rounds. NaN for files without these values.
        """
        rows = []
        for group, point, head in self._trainings():
            rounds = int(spending.rounds(group)[point])
            costs = spending.after(group, point, rounds)
            totals = [costs["bytes_up"], costs["bytes_down"]]
            per_round = [total / max(rounds, 1) for total in totals]
            rows.append((*head, rounds, *per_round, *totals, costs["client_steps"]))
        tail = ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down")
        return self._frame(rows, "rounds", *tail, "client_steps")

    def privacy(self) -> "pd.DataFrame":
        """Returns the privacy loss of a client in trainings with noise, by point.

        Returns:
          The columns that name a point, then `rounds`, `epsilon` after all of them, and
          `delta`, for one client in place of another. Every training is accounted for
          alone: choices between trainings, or on validation data, are not included. No
          rows without noise.
        """
        return self._private("epsilon")

    def local_privacy(self) -> "pd.DataFrame":
        """Returns the privacy loss of messages of a `PrivateSGD`, one row per point.

        Returns:
          The columns of `privacy`, for one example in place of another, of the client
          with the largest loss. No rows without noise in the local work.
        """
        return self._private("local_epsilon")

    def _private(self, loss: str) -> "pd.DataFrame":
        """Returns the rows of a privacy loss of histories."""
        rows = []
        for group, point, head in self._trainings():
            if loss in group.per_round:
                rounds = int(spending.rounds(group)[point])
                rows.append((*head, rounds, *spending.privacy(group, point, loss)))
        return self._frame(rows, "rounds", "epsilon", "delta")

    @_cached
    def spent(self) -> "pd.DataFrame":
        """Returns the costs of every training until every evaluation, a row per pair.

        Returns:
          The columns that name a point, `round`, and the columns of `to_target` from
          `bytes_up` to `virtual_seconds`, as totals until then.
        """
        rows = [
            (*head, rounds, *spending.after(group, point, rounds).values())
            for group, point, head in self._trainings()
            for rounds in group.rounds[_is_trained(group)[point]].tolist()
        ]
        return self._frame(rows, "round", *spending.NUMBERS)

    def to_target(self, target: float) -> "pd.DataFrame":
        """Returns the costs of every training until a model was good enough.

        The first evaluated round counts in which the mean over the honest clients of
        the `headline` on own validation data is at least the target (at most, for a
        loss). Test data choose nothing.

        Args:
          target: value to be reached, finite; an accuracy or an F1 score from 0 to 1.

        Returns:
          One row per training and model, except hybrids, which depend on validation
          data: the columns that name a point, `model`, `metric`, `target`; `rounds`;
          `bytes_up` and `bytes_down`, sent by and to all clients; `client_steps`;
          `gradients` of single examples; `seconds`, the training's share of the time
          its group ran, in proportion to rounds; `virtual_seconds`, the time of the
          clients' devices; and the means `validation` and `test` in that round. NaN if
          the target was not reached, or if a file lacks the values.

        Raises:
          InputError: for a target that is no such number, or without validation data.
        """
        rows = [
            (*head, *row)
            for group, point, head in self._trainings()
            for row in spending.to_target(group, point, target)
        ]
        return self._frame(rows, *spending.COLUMNS)

    def reports(self) -> "pd.DataFrame":
        """Returns the method's reports of its rounds, one row per value.

        Returns:
          The columns that name a point, then `name` and `value`, the mean over the
          rounds: of totals for counts of cohort members, of means for their other
          values, and of the aggregator's values. `coverage` is the fraction of clients
          that have taken part.
        """
        rows = []
        for group, point, head in self._trainings():
            values = {n: v[point] for n, v in group.per_round.items()}
            # Not a report of rounds, but of all of them together.
            values["coverage"] = group.times_selected[point, -1] > 0
            for name, value in values.items():
                part = value[~np.isnan(value)] if value.dtype.kind == "f" else value
                if len(part):
                    rows.append((*head, name, part.mean()))
        return self._frame(rows, "name", "value")

    def summary(self, when: str = "last", data: str = _OWN_TEST) -> "pd.DataFrame":
        """Returns a small table: one round, one kind of data, mean ± std over seeds.

        Args:
          when: the round, as in `table`.
          data: the evaluation data, as in `table`.

        Returns:
          One row per algorithm, swept setting and model, over the honest clients: mean
          accuracy (or the `headline`), mean of the worst tenth, companion metrics, and
          variance of the loss. Seeds that diverged do not count; spreads divide by the
          number of seeds minus 1. With noise also `epsilon` and `delta` after all
          rounds, the largest of all seeds; see `privacy`.
        """
        import pandas as pd

        # Privacy losses are per training: every row of a training gets them.
        table: Any = self.table()
        private = self.privacy()
        if len(private):
            table = table.merge(private.drop(columns="rounds"), "left", self._columns)
        is_shown = (table["when"] == when) & (table["data"] == data)
        rows = table[is_shown & table["population"].isin(["all", "honest"])]
        value_of = [*self._columns, "model", "metric", "stat"]
        rows = rows.drop_duplicates(value_of, keep="last")  # honest, if there is one
        metric = self.headline
        columns = {metric: (metric, "mean"), "worst 10 %": (metric, "worst 10 %")}
        companions = metrics.BESIDE.get(metric, ())
        measured = set(rows["metric"])
        columns |= {name: (name, "mean") for name in companions if name in measured}
        columns["loss variance"] = ("loss", "variance")
        varied = {c for c in self._columns if rows[c].nunique(dropna=False) > 1}
        keys = [c for c in self._columns if c in varied - {"seed"} | {"algorithm"}]
        summary = []
        for key, cell in rows.groupby([*keys, "model"], sort=False, dropna=False):
            values = {}
            for title, (name, stat) in columns.items():
                is_wanted = (cell["metric"] == name) & (cell["stat"] == stat)
                values[title] = summaries.mean_and_std(cell.loc[is_wanted, "value"])
            losses = [c for c in ("epsilon", "delta") if c in cell]
            values |= {column: cell[column].max() for column in losses}
            # All rows of a training have its status; it counts once per seed.
            by_seed = cell.groupby("seed", dropna=False)
            values["status"] = summaries.tally(by_seed["status"].first())
            summary.append(dict(zip([*keys, "model"], key, strict=True)) | values)
        return pd.DataFrame(summary)

    def to_dataset(self, group: int = 0) -> "xr.Dataset":
        """Returns one static group as labeled arrays.

        Args:
          group: index into `groups`.

        Returns:
          Metrics with dimensions point, round, model, data, client; diagnostics with
          point, round; values of single rounds with point, step; the swept fields, by
          their dotted names, and the status as coordinates of point.
        """
        record = self.groups[group]
        title = f"{record.config.get('algorithm', 'history')}, fedjax_pfl"
        return xarray_io.to_dataset(record, title)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes `config.json`, tables and the histories into a new directory.

        All files are written under a temporary name and renamed at the end.

        Args:
          directory: path that does not exist yet; missing parents are made.

        Raises:
          InputError: if it exists or cannot be written.
        """
        with directories.new(checks.path("directory", directory)) as folder:
            self.write(folder)

    def write(self, directory: Path) -> None:
        """Writes the files of `save` into an existing directory.

        Args:
          directory: an empty directory; an error leaves some of the files.
        """
        groups = []
        for k, group in enumerate(self.groups):
            name = plain_files.plain_name(str(group.config.get("algorithm", "group")))
            file = "history.nc" if len(self.groups) == 1 else f"history-{k}-{name}.nc"
            with plain_files.created(directory / file) as temporary:
                self.to_dataset(k).to_netcdf(temporary, engine="h5netcdf")
            stored = {n: getattr(group, n) for n in ("points", *_STORED)}
            digest = plain_files.digest(directory / file)
            groups.append({"file": file, **stored, "sha256": digest})
        # After the histories, since it has their digests.
        _CONFIG.write(directory, provenance=self.provenance, groups=groups)
        tables = {"summary": self.table(), "reports": self.reports()}
        if any(group.client_names is not None for group in self.groups):
            tables["clients"] = self.clients()
        steps = learned.path(self.groups)
        if steps is not None:
            tables["learned"] = steps
        for name, table in tables.items():
            plain_files.write_text(directory / f"{name}.csv", csv_files.text(table))

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Result":
        """Reads a directory of `save`.

        Args:
          directory: the saved directory.

        Returns:
          A result equal to the saved one.

        Raises:
          InputError: if the directory is missing, foreign or damaged.
        """
        directory = checks.path("directory", directory)
        if not _CONFIG.is_in(directory):
            raise checks.InputError(
                f"Expected a result directory with a {_CONFIG.name}, got '{directory}'."
            )
        try:
            stored = _CONFIG.read(directory)
            groups = tuple(_read(directory, group) for group in stored.groups)
        except checks.InputError:
            raise
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise checks.InputError(
                f"Cannot read '{directory}' as a result directory: {reason}."
            ) from error
        return cls(groups, stored.provenance, directory)

    @property
    def _columns(self) -> tuple[str, ...]:
        """Columns that name a point."""
        return (*labels.IDENTITY, "seed", *self.fields)

    def _head(self, group: history.History, point: int) -> tuple[Any, ...]:
        """Returns values of `_columns` for one point."""
        settings = labels.settings(group) | group.points[point]
        names = (*labels.IDENTITY.values(), "seed", *self.fields)
        values = (settings.get(name) for name in names)
        return tuple(
            json.dumps(v) if isinstance(v, tuple | list | dict) else v for v in values
        )

    def _trainings(self) -> Iterator[tuple[history.History, int, tuple[Any, ...]]]:
        """Yields the group, the number in it, and the `_head` of every training."""
        for group in self.groups:
            for point in range(len(group.points)):
                yield group, point, self._head(group, point)

    def _frame(self, rows: list[tuple[Any, ...]], *names: str) -> "pd.DataFrame":
        """Returns a table of rows that begin with a `_head`."""
        import pandas as pd

        return pd.DataFrame(rows, columns=[*self._columns, *names])  # pyright: ignore


def _is_trained(group: history.History) -> np.ndarray:
    """Returns a mask `[G, E]` of the evaluations until the end of each point."""
    return group.rounds <= group.ends[:, None]


def _read(directory: Path, stored: _Group) -> history.History:
    """Reads one group back."""
    path = directory / stored.file
    # Before HDF5, which is written in C, parses the file.
    if stored.sha256 != plain_files.digest(path):
        raise ValueError(f"its {stored.file} is not what was written")
    more = {name: getattr(stored, name) for name in _STORED}
    return xarray_io.read(path, tuple(stored.points), **more)
