"""A finished method of a benchmark: results of its trainings as rows of the tables."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.benchmark import training
from fedjax_pfl.results import history, metrics, provenance, shares, spending

__all__ = [
    "COSTS",
    "FIXED_TESTS",
    "ORIGIN",
    "REFERENCES",
    "TARGET",
    "TO_TARGET",
    "Finished",
    "federation",
]

REFERENCES = tuple(name for name, _ in shares.REFERENCES)
TARGET = "FedAvg"
"""Method with the last validation value that is the target of all."""
COSTS = ("bytes", "gradients", "virtual_seconds")
FIXED_TESTS = "the same test examples for all seeds"
"""Words of a data set whose test examples do not depend on the seed."""
TO_TARGET = f"_to_{TARGET.lower()}"
"""Suffix of columns of the costs until the target."""
ORIGIN = ("commit", "versions", "machine", "date")
"""Columns for the origin of a row."""
_PACKAGES = ("python", "jax", "fedjax_pfl")
_MACHINE = ("platform", "num_devices", "device")
_COMMIT = 12  # digits
_LAST = 0.7
"""Share of the rounds; the slope of a line after it is the last gain of a training."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A method with its trainings."""

    task: str  # name of the data set
    said: training.Method  # content of the file in its folder
    final: results.Result  # of the best setting
    searched: results.Result | None  # of the search

    @classmethod
    def load(cls, folder: Path, task: str) -> "Finished":
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
        rows = rows[rows["metric"] == self._metric]
        return rows.set_index(["seed", "client"])["value"]

    def reached(self) -> dict[int, float]:
        """Returns the last validation value of every seed."""
        (group,) = self.final.groups
        seeds = [int(settings["seed"]) for settings in group.points]
        return {s: float(self._validated(group, g)[-1]) for g, s in enumerate(seeds)}

    def scores(
        self, served: Mapping[str, pd.Series], targets: Mapping[int, float]
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows of `Tables.scores`."""
        (group,) = self.final.groups
        table, values = self.final.table(), self.clients()
        is_shown = (table["when"] == "last") & (table["metric"] == self._metric)
        for point, settings in enumerate(group.points):
            seed = int(settings["seed"])
            rows = table[is_shown & (table["seed"] == seed)]
            row = {"task": self.task, "method": self.said.name, "seed": seed}
            row |= {"metric": self._metric, "model": self.said.model}
            row |= {"status": group.status[point], "rise": self._rise(group, point)}
            row["first_evaluation"] = int(group.rounds[group.rounds > 0].min())
            row |= self._means(rows) | self._unseen(rows)
            for name in REFERENCES:
                row |= self._shares(seed, values, name, served.get(name))
            row |= _costs(spending.after(group, point, int(group.ends[point])))
            yield row | self._costs_to(targets.get(seed, np.nan), group, point)

    def _costs_to(
        self, target: float, group: history.History, point: int
    ) -> dict[str, float]:
        """Returns the costs until a training was as good as a target."""
        if not np.isfinite(target):
            return {name + TO_TARGET: np.nan for name in ("rounds", *COSTS)}
        rows = (
            dict(zip(spending.COLUMNS, row, strict=True))
            for row in spending.to_target(group, point, target)
        )
        row = next(row for row in rows if row["model"] == self.said.model)
        cost = {"rounds": row["rounds"], **_costs(row)}
        return {name + TO_TARGET: value for name, value in cost.items()}

    @property
    def _metric(self) -> str:
        """The metric of the ranking."""
        return self.final.headline

    def _means(self, table: pd.DataFrame) -> dict[str, float]:
        """Returns test and validation numbers from the table of one training."""
        rows = table[(table["model"] == self.said.model)]
        rows = rows[rows["population"] != "unseen"]
        rows = rows[rows["population"] == rows["population"].iloc[0]]
        values = rows.set_index(["data", "stat"])["value"]
        # With each client's better model on validation data.
        means = table.query("data == 'own test' and stat == 'mean'")
        hybrid = means.loc[means["model"] == "hybrid (validation)", "value"]
        return {
            "value": float(values["own test", "mean"]),
            "worst": float(values["own test", "worst 10 %"]),
            "hybrid": float(hybrid.iloc[0]) if len(hybrid) else np.nan,
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

    def _shares(
        self, seed: int, values: pd.Series, name: str, reference: pd.Series | None
    ) -> dict[str, float]:
        """Returns the shares of clients that a reference serves better or worse."""
        columns = [f"{side}_than_{name.lower()}" for side in ("worse", "better")]
        if reference is None or name == self.said.name:
            return dict.fromkeys(columns, np.nan)
        gap = (values - reference).xs(seed, level="seed").dropna()
        gap *= metrics.sign(self._metric)
        return dict(zip(columns, ((gap < 0).mean(), (gap > 0).mean()), strict=True))

    def _validated(self, group: history.History, point: int) -> np.ndarray:
        """Returns the validation curve `[E]` of one training, mean over clients."""
        m, d = group.models.index(self.said.model), group.data.index("validation")
        counts = group.evaluated[point, :, d] & ~group.malicious[point]
        return metrics.mean(group.metrics[self._metric][point, :, m, d], counts)

    def _rise(self, group: history.History, point: int) -> float:
        """Returns the last gain of the validation curve in a tenth of the rounds."""
        means = self._validated(group, point)
        # The slope of a least-squares line through the last three tenths: the
        # difference of two evaluations varies several times more over seeds.
        earlier = np.flatnonzero(group.rounds <= _LAST * group.rounds[-1])
        start = earlier[-1] if earlier.size else 0
        rounds = group.rounds[start:] - np.mean(group.rounds[start:])
        slope = rounds @ means[start:] / (rounds @ rounds or 1.0)
        return float(metrics.sign(self._metric) * slope * group.rounds[-1] / 10)

    def search(self) -> dict[str, Any]:
        """Returns the row of `Tables.searches`."""
        file = self.said
        # They stay so for methods without settings to search.
        best = median = np.nan
        failed = 0.0
        if self.searched is not None:
            fields = list(file.settings)
            parts = [self._first_scores(g, fields) for g in self.searched.groups]
            scores = np.concatenate(parts)
            # Settings that diverged have no score, and count as failed.
            finite = scores[np.isfinite(scores)]
            failed = float(1 - len(finite) / len(scores))
            if finite.size:
                best, median = float(finite.max()), float(np.median(finite))
        return {
            "task": self.task,
            "method": file.name,
            "settings": ", ".join(
                f"{name.removeprefix('algorithm.')} = {_short(value)}{self._end(name)}"
                for name, value in file.settings.items()
            ),
            "fields": len(file.settings),
            "tried": file.tried,
            "budget": file.budget,
            "spent": file.spent,
            "best": best,
            "median": median,
            "failed": failed,
            "command": file.command,
            "data": federation(self.final.groups[0].config),
            **self._origin(),
        }

    def _end(self, name: str) -> str:
        """Returns a mark if the best value of a field is the least or largest tried."""
        best, values = self.said.settings[name], set()
        for group in self.searched.groups if self.searched is not None else ():
            values |= {point[name] for point in group.points}
        numbers = [value for value in values if isinstance(value, int | float)]
        # The range may be too narrow if it is; two values have no inside.
        if len(numbers) < 3 or not min(numbers) < max(numbers):
            return ""
        ends = {min(numbers): " (least tried)", max(numbers): " (largest tried)"}
        return ends.get(best, "")

    def _origin(self) -> dict[str, str]:
        """Returns commits, versions, machine and date of the trainings."""
        info = dict.fromkeys(_MACHINE, "?") | self.final.provenance
        parts = [part for part in (self.searched, self.final) if part is not None]
        commits = dict.fromkeys(_commit(part.provenance) for part in parts)
        versions = (f"{name} {info.get(name, '?')}" for name in _PACKAGES)
        return {
            "commit": " and ".join(commits),
            "versions": ", ".join(versions),
            "machine": f"{info['platform']}, {info['num_devices']} × {info['device']}",
            "date": str(info.get("started", "")).partition("T")[0],
        }

    def _first_scores(self, group: history.History, fields: list[str]) -> np.ndarray:
        """Returns every setting's validation score before the first one was dropped."""
        is_dropped = np.zeros(len(group.points), bool)
        if group.dropped is not None:
            is_dropped = group.dropped
        # All settings have had the same training there, so their scores are comparable.
        rung = group.ends[is_dropped].min() if is_dropped.any() else group.rounds[-1]
        place = group.rounds.tolist().index(rung)
        values: dict[tuple[Any, ...], list[float]] = {}
        for point, settings in enumerate(group.points):
            score = float(self._validated(group, point)[place])
            values.setdefault(tuple(settings[n] for n in fields), []).append(score)
        return np.array([np.mean(scores) for scores in values.values()])


def _costs(totals: dict[str, Any]) -> dict[str, float]:
    """Returns the columns of costs for the costs of a training."""
    sent = {"bytes": totals["bytes_up"] + totals["bytes_down"]}
    return {name: (sent | totals)[name] for name in COSTS}


def _short(value: Any) -> str:
    """Formats a value of a setting."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commit(origin: Mapping[str, Any]) -> str:
    """Returns the start of a commit, marked if the code was changed."""
    is_mixed = origin.get("clean") is False or provenance.continued(origin)
    return (
        f"{str(origin.get('commit', ''))[:_COMMIT]}{' with changes' * bool(is_mixed)}"
    )


def federation(config: Mapping[str, Any]) -> str:
    """Describes data, model and length of a training by its flat configuration."""

    def fields(start: str) -> str:
        names = [n for n in config if n.startswith(f"{start}.")]
        numbers = {n.removeprefix(f"{start}."): config[n] for n in names}
        return ", ".join(
            f"{name} = {value}"
            for name, value in numbers.items()
            if "." not in name and _is_number(value)
        )

    def named(start: str) -> str:
        details = fields(start)
        return f"{config.get(start, '')}{f' ({details})' * bool(details)}"

    parts = [named("federation.dataset"), named("federation.partition")]
    parts.append(fields("federation"))
    parts += [FIXED_TESTS] * bool(config.get("federation.fixed_test_split"))
    parts += [named("model"), f"{config['num_rounds']} rounds"]
    return ", ".join(filter(None, parts))


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number, or a list of some, other than zero."""
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(v, int | float) and v is not True and v for v in parts)
