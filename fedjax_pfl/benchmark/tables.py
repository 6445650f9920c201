"""The two tables of a benchmark, stored as CSV files.

`scores.csv` has a row per data set, method and seed; `searches.csv` one per data set
and method. All pages and figures are made from these tables.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
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
        their own test data (`value`), mean of the worst tenth of clients (`worst`), and
        mean with each client's better model on validation data (`hybrid`, NaN for a
        method without global and personal models), in the last round; mean on
        `validation` data, and its `rise` in a tenth of the
        rounds, by a line through the last three tenths; mean of clients that never
        trained (`unseen`, NaN if there are none) with their model
        (`unseen_model`, adapted if that is possible); shares of clients that are
        worse off than with FedAvg's global model and than alone, and better off than
        alone; `bytes` sent, `gradients` of single examples and `virtual_seconds` of the
        training; round of the `first_evaluation` of a trained model; and these
        costs, with `rounds`, until the validation value first reached FedAvg's last
        value with that seed, NaN if it never did.
      searches: per data set and method: the best `settings`, and the number of `fields`
        in them; settings that were `tried`; gradients of the `budget` and gradients
        `spent`, NaN if a file counts local steps; at the first rung, with equal
        training of all settings, the `best` and `median` score, and the share of
        settings that `failed`, with a non-finite value; the `command` that
        repeats the row; a description of the `data`; and `commit`, `versions`,
        `machine` and `date` of its trainings, empty if they were not recorded. If
        fields were learned, settings are points of the path, and `spent` includes the
        learning.
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
        """Methods by the names of their rows with the start of learning."""
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
        """Reads the files of `save`.

        Raises:
          InputError: if the files are missing or have other columns.
        """
        tables = []
        for name, columns in (("scores", SCORES), ("searches", SEARCHES)):
            file = Path(folder) / f"{name}.csv"
            try:
                table = csv_files.read(file, dtype=dict.fromkeys(_TEXTS, str))
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
      directory: directory of the benchmark: a folder per data set with one per method.

    Returns:
      The tables, rounded like the files.

    Raises:
      InputError: if no method is finished, or a file cannot be read.
    """
    scores: list[dict[str, Any]] = []
    searches: list[dict[str, Any]] = []
    for folder in sorted(path for path in Path(directory).iterdir() if path.is_dir()):
        methods = sorted(p for p in folder.iterdir() if training.is_finished(p))
        task = [Finished.load(path, folder.name) for path in methods]
        # References first: rows of all methods are relative to them.
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
    """Converts columns of numbers to the same types as in files."""
    integers = {name: int for name in _WHOLE if name in table}
    numbers = {n: float for n in table.select_dtypes("number") if n not in integers}
    return table.astype(integers | numbers)


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Rounds numbers like files, so that both agree."""
    table = _typed(table)
    for name in table.select_dtypes(np.floating):
        table[name] = [float(f"{value:.{_DIGITS}g}") for value in table[name]]
    return table
