"""Tables of a benchmark, two of them, kept as CSV files.

`scores.csv` has a row per data set, method and seed; `searches.csv` one per data set
and method. All pages and figures are made of them.
"""

import dataclasses
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.benchmark import training
from fedjax_pfl.core import checks
from fedjax_pfl.results import history, metrics, plain_files, shares, spending

__all__ = ["Tables", "collect"]

_LAST = 0.9  # of the rounds: a training has converged that gains little after them
_DIGITS = 6  # significant ones, in files
_WHOLE, _TEXTS = ("seed", "tried"), ("settings", "command", "unseen_model")
REFERENCES = tuple(name for name, _ in shares.REFERENCES)
SCORES = (
    *("task", "method", "model", "seed", "status", "value", "worst", "validation"),
    *(
        "rise",
        "unseen",
        "unseen_model",
        *(f"worse_than_{name.lower()}" for name in REFERENCES),
    ),
    *("bytes", "client_steps", "seconds"),
)
SEARCHES = ("task", "method", "settings", "tried", "budget", "spent", "best", "median")
SEARCHES += ("failed", "command")


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """Tables of a benchmark.

    Attributes:
      scores: per data set (`task`), `method` and `seed`: the judged `model`; how the
        training ended (`status`); mean over clients of the metric on their own test
        data (`value`) and that of the worst tenth of them (`worst`), in the last round;
        that on `validation` data, and its `rise` in the last tenth of the rounds; that
        of clients that never trained (`unseen`, NaN where there are none) with the
        model that they were given (`unseen_model`, adapted where that is possible);
        shares of clients who are worse off than with FedAvg's global model and than
        alone; and `bytes` sent, `client_steps` and `seconds` of the training.
      searches: per data set and method: the best `settings`; settings that were
        `tried`; client-steps of the `budget` and those `spent`; at the first rung,
        where all settings were trained alike, the `best` and `median` score, and the
        share of settings that `failed`, with a value that is not finite; and the
        `command` that repeats the row. Where fields were learned, settings are points
        of the path, and `spent` has the learning in it.
    """

    scores: pd.DataFrame
    searches: pd.DataFrame

    @property
    def tasks(self) -> list[str]:
        """Names of the data sets, in order."""
        return list(dict.fromkeys(self.scores["task"]))

    @property
    def learned(self) -> dict[str, str]:
        """Methods by the names of their rows with learned fields."""
        ending = training.LEARNED
        names = [n for n in dict.fromkeys(self.scores["method"]) if n.endswith(ending)]
        return {name: name.removesuffix(ending) for name in names}

    def of_task(self, task: str) -> "Tables":
        """Returns the rows of one data set."""
        return Tables(
            *(
                table[table["task"] == task].reset_index(drop=True)
                for table in (self.scores, self.searches)
            )
        )

    def save(self, folder: Path) -> None:
        """Writes `scores.csv` and `searches.csv`, in place of older ones."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("scores", self.scores), ("searches", self.searches)):
            with plain_files.created(folder / f"{name}.csv") as file:
                table.to_csv(file, index=False, float_format=f"%.{_DIGITS}g")

    @classmethod
    def load(cls, folder: Path) -> "Tables":
        """Reads what `save` wrote.

        Raises:
          InputError: if the files are missing or have other columns.
        """
        tables = []
        for name, columns in (("scores", SCORES), ("searches", SEARCHES)):
            file = Path(folder) / f"{name}.csv"
            try:
                content = io.BytesIO(plain_files.content(file))
                table = pd.read_csv(content, dtype=dict.fromkeys(_TEXTS, str))
            except (OSError, ValueError) as error:
                raise checks.InputError(f"Cannot read '{file}': {error}.") from error
            if tuple(table.columns) != columns:
                raise checks.InputError(
                    f"Expected the columns {', '.join(columns)} in '{file}', got"
                    f" {', '.join(map(str, table.columns))}."
                )
            for column in set(_TEXTS) & set(columns):
                table[column] = table[column].fillna("")
            tables.append(_typed(table))
        return cls(*tables)


def collect(directory: str | Path) -> Tables:
    """Reads the finished methods of a benchmark.

    Args:
      directory: of the benchmark: a folder per data set with one per method.

    Returns:
      The tables, rounded as the files are.

    Raises:
      InputError: if nothing is finished, or something cannot be read.
    """
    scores: list[dict[str, Any]] = []
    searches: list[dict[str, Any]] = []
    for folder in sorted(path for path in Path(directory).iterdir() if path.is_dir()):
        methods = sorted(p for p in folder.iterdir() if training.is_finished(p))
        task = [_Finished.load(path, folder.name) for path in methods]
        served = {m.said.name: m.clients() for m in task if m.said.name in REFERENCES}
        for method in task:
            scores += method.scores(served)
            searches.append(method.search())
    if not scores:
        raise checks.InputError(
            f"Expected a benchmark with a finished method, got '{directory}'."
        )
    frames = pd.DataFrame(scores)[list(SCORES)], pd.DataFrame(searches)[list(SEARCHES)]
    return Tables(*map(_rounded, frames))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    """Gives columns of numbers the types that they have in both places."""
    whole = {name: int for name in _WHOLE if name in table}
    numbers = {n: float for n in table.select_dtypes("number") if n not in whole}
    return table.astype(whole | numbers)


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Rounds numbers as files have them, so that both say the same."""
    table = _typed(table)
    for name in table.select_dtypes("floating"):
        table[name] = [float(f"{value:.{_DIGITS}g}") for value in table[name]]
    return table


@dataclasses.dataclass(frozen=True)
class _Finished:
    """A method with its trainings.

    Attributes:
      task: name of the data set.
      said: what its folder says.
      final: trainings of the best setting.
      searched: trainings of the search, or None.
    """

    task: str
    said: training.Method
    final: results.Result
    searched: results.Result | None

    @classmethod
    def load(cls, folder: Path, task: str) -> "_Finished":
        """Reads a method's folder."""
        searched = folder / "search"
        return cls(
            task=task,
            said=training.read(folder),
            final=results.Result.load(folder / "final"),
            searched=results.Result.load(searched) if searched.is_dir() else None,
        )

    def clients(self) -> pd.Series:
        """Returns clients' own test values in the last round, by seed and client."""
        rows = self.final.clients()
        rows = rows[rows["model"] == self.said.model]
        rows = rows[rows["metric"] == metrics.headline(set(rows["metric"]))]
        return rows.set_index(["seed", "client"])["value"]

    def scores(self, served: Mapping[str, pd.Series]) -> Iterator[dict[str, Any]]:
        """Yields the rows of `Tables.scores`.

        Args:
          served: values of clients with the references, by method.
        """
        (group,) = self.final.groups
        table, own = self.final.table(), self.clients()
        is_shown = (table["when"] == "last") & (table["metric"] == self._metric)
        for point, settings in enumerate(group.points):
            seed = int(settings["seed"])
            rows = table[is_shown & (table["seed"] == seed)]
            head = {"task": self.task, "method": self.said.name, "seed": seed}
            head |= {"model": self.said.model, "status": group.status[point]}
            spent = spending.after(group, point, int(group.ends[point]))
            cost = {name: spent[name] for name in ("client_steps", "seconds")}
            cost["bytes"] = spent["bytes_up"] + spent["bytes_down"]
            rise = {"rise": self._rise(group, point)}
            shares = {
                f"worse_than_{name.lower()}": self._worse(seed, own, served.get(name))
                for name in REFERENCES
            }
            yield head | self._means(rows) | self._unseen(rows) | rise | shares | cost

    @property
    def _metric(self) -> str:
        """The metric that methods are ranked by."""
        return metrics.headline(self.final.groups[0].metrics)

    def _means(self, rows: pd.DataFrame) -> dict[str, float]:
        """Returns test and validation numbers from the table of one training."""
        rows = rows[(rows["model"] == self.said.model)]
        rows = rows[rows["population"] != "unseen"]
        rows = rows[rows["population"] == rows["population"].iloc[0]]
        values = rows.set_index(["data", "stat"])["value"]
        return {
            "value": float(values["own test", "mean"]),
            "worst": float(values["own test", "worst 10 %"]),
            "validation": float(values["own validation", "mean"]),
        }

    def _unseen(self, rows: pd.DataFrame) -> dict[str, Any]:
        """Returns the mean over clients that never trained, and their model."""
        models = self.final.groups[0].unseen_models
        if not models:
            return {"unseen": np.nan, "unseen_model": ""}
        rows = rows[(rows["population"] == "unseen") & (rows["stat"] == "mean")]
        values = rows.set_index("model")["value"]
        return {"unseen": float(values[models[-1]]), "unseen_model": models[-1]}

    def _worse(self, seed: int, own: pd.Series, other: pd.Series | None) -> float:
        """Returns the share of clients that a reference serves better, else NaN."""
        if other is None or other.equals(own):
            return np.nan
        gap = (own - other).xs(seed, level="seed").dropna()
        return float((metrics.sign(self._metric) * gap < 0).mean())

    def _validated(self, group: history.History, point: int) -> np.ndarray:
        """Returns the validation curve `[E]` of one training, mean over clients."""
        m, d = group.models.index(self.said.model), group.data.index("validation")
        who = group.evaluated[point, :, d] & ~group.malicious[point]
        return metrics.mean(group.metrics[self._metric][point, :, m, d], who)

    def _rise(self, group: history.History, point: int) -> float:
        """Returns what the validation curve gained in the last tenth of the rounds."""
        means = self._validated(group, point)
        before = np.flatnonzero(group.rounds <= _LAST * group.rounds[-1])
        start = before[-1] if before.size else 0
        return float(metrics.sign(self._metric) * (means[-1] - means[start]))

    def search(self) -> dict[str, Any]:
        """Returns the row of `Tables.searches`."""
        said = self.said
        best = median = np.nan
        failed = 0.0
        if self.searched is not None:
            (group,) = self.searched.groups
            scores = self._first_scores(group, list(said.settings))
            finite = scores[np.isfinite(scores)]
            failed = float(1 - len(finite) / len(scores))
            if finite.size:
                best, median = float(finite.max()), float(np.median(finite))
        return {
            "task": self.task,
            "method": said.name,
            "settings": ", ".join(
                f"{name.removeprefix('algorithm.')} = {_short(value)}"
                for name, value in said.settings.items()
            ),
            "tried": said.tried,
            "budget": said.budget,
            "spent": said.spent,
            "best": best,
            "median": median,
            "failed": failed,
            "command": said.command,
        }

    def _first_scores(self, group: history.History, fields: list[str]) -> np.ndarray:
        """Returns every setting's validation score where none was dropped yet."""
        is_dropped = np.zeros(len(group.points), bool)
        if group.dropped is not None:
            is_dropped = group.dropped
        rung = group.ends[is_dropped].min() if is_dropped.any() else group.rounds[-1]
        first = group.rounds.tolist().index(rung)
        values: dict[tuple[Any, ...], list[float]] = {}
        for point, settings in enumerate(group.points):
            score = float(self._validated(group, point)[first])
            values.setdefault(tuple(settings[n] for n in fields), []).append(score)
        return np.array([np.mean(scores) for scores in values.values()])


def _short(value: Any) -> str:
    """Formats a value of a setting."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
