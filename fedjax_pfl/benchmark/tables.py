"""Tables of a benchmark, two of them, kept as CSV files.

`scores.csv` has a row per data set, method and seed; `searches.csv` one per data set
and method. All pages and figures are made of them.
"""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas as pd

from fedjax_pfl.benchmark import tasks, training
from fedjax_pfl.benchmark.finished import (
    COSTS,
    ORIGIN,
    REFERENCES,
    TARGET,
    TO_TARGET,
    Finished,
)
from fedjax_pfl.core import checks, struct
from fedjax_pfl.results import csv_files, plain_files

__all__ = ["Tables", "collect"]

_DIGITS = 6  # significant ones, in files
_WHOLE, _TEXTS = ("seed", "tried", "fields"), ("settings", "command", "data", *ORIGIN)
_TEXTS += ("unseen_model",)
SCORES = ("task", "metric", "method", "model", "seed", "status")
SCORES += ("value", "worst", "hybrid", "validation", "rise", "unseen", "unseen_model")
SCORES += (*(f"worse_than_{name.lower()}" for name in REFERENCES), "better_than_local")
SCORES += (*COSTS, "first_evaluation", *(n + TO_TARGET for n in ("rounds", *COSTS)))
SEARCHES = ("task", "method", "settings", "fields", "tried", "budget", "spent")
SEARCHES += ("best", "median", "failed", "command", "data", *ORIGIN)


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """Tables of a benchmark.

    Attributes:
      scores: per data set (`task`), `method` and `seed`: the `metric`; the judged
        `model`; how the training ended (`status`); mean over clients of the metric on
        their own test data (`value`), that of the worst tenth of them (`worst`), and
        that with each client's better model on validation data (`hybrid`, NaN for a
        method without global and personal models), in the last round; that on
        `validation` data, and its `rise` in a tenth of the
        rounds, by a line through the last three tenths; that of clients that never
        trained (`unseen`, NaN where there are none) with the model that they were given
        (`unseen_model`, adapted where that is possible); shares of clients who are
        worse off than with FedAvg's global model and than alone, and better off than
        alone; `bytes` sent, `gradients` of single examples and `virtual_seconds` of the
        training; round of the `first_evaluation` of what has been trained; and these
        costs, with `rounds`, until the validation value was first what FedAvg's of that
        seed was in the end, NaN where it never was.
      searches: per data set and method: the best `settings`, and the number of `fields`
        that have one; settings that were `tried`; gradients of the `budget` and those
        `spent`, NaN where a file counts local steps; at the first rung, where all
        settings were trained alike, the `best` and `median` score, and the share of
        settings that `failed`, with a value that is not finite; the `command` that
        repeats the row; a description of the `data`; and `commit`, `versions`,
        `machine` and `date` of its trainings, empty where they were not recorded. Where
        fields were learned, settings are points of the path, and `spent` has the
        learning in it.
    """

    scores: pd.DataFrame
    searches: pd.DataFrame

    __post_init__ = struct.check_fields

    @property
    def tasks(self) -> list[str]:
        """Names of the data sets, in order."""
        return list(dict.fromkeys(self.scores["task"]))

    @property
    def metric(self) -> str:
        """Metric that ranks, in words."""
        return " and ".join(dict.fromkeys(self.scores["metric"])).replace("_", " ")

    @property
    def outdated(self) -> list[str]:
        """Names of the data sets with searches that counted local steps."""
        lacks = self.searches.loc[self.searches["budget"].isna(), "task"]
        return [name for name in self.tasks if name in set(lacks)]

    @property
    def learned(self) -> dict[str, str]:
        """Methods by the names of their rows with learned fields."""
        return self._rows(tasks.LEARNED)

    @property
    def starts(self) -> dict[str, str]:
        """Methods by the names of their rows in which learning would start."""
        return self._rows(tasks.START)

    def _rows(self, ending: str) -> dict[str, str]:
        """Returns methods by the names of their rows with an ending."""
        names = [n for n in dict.fromkeys(self.scores["method"]) if n.endswith(ending)]
        return {name: name.removesuffix(ending) for name in names}

    def of_tasks(self, *names: str) -> "Tables":
        """Returns the rows of some data sets."""
        return Tables(
            *(
                table[table["task"].isin(names)].reset_index(drop=True)
                for table in (self.scores, self.searches)
            )
        )

    def save(self, folder: Path) -> None:
        """Writes `scores.csv` and `searches.csv`, in place of older ones."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("scores", self.scores), ("searches", self.searches)):
            content = csv_files.text(table, float_format=f"%.{_DIGITS}g")
            plain_files.write_text(folder / f"{name}.csv", content)

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
                table = csv_files.read(content, dtype=dict.fromkeys(_TEXTS, str))
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
        task = [Finished.load(path, folder.name) for path in methods]
        served = {m.said.name: m.clients() for m in task if m.said.name in REFERENCES}
        targets = next((m.reached() for m in task if m.said.name == TARGET), {})
        for method in task:
            scores += method.scores(served, targets)
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
