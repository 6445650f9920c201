"""Selection and naming of the rows for a figure."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import metrics, summaries
from fedjax_pfl.results.metrics import HYBRID, MODELS, judge

__all__ = [
    "Choice",
    "DESCRIPTION",
    "HYBRID",
    "MODELS",
    "RUN",
    "VALIDATION",
    "band",
    "best_settings",
    "by_environment",
    "choice",
    "contenders",
    "environments",
    "first_model",
    "groups",
    "judge",
    "label",
    "label_values",
    "last_round",
    "methods",
    "reported",
    "settings",
    "short",
    "shown_clients",
    "shown_curves",
    "title",
    "trials",
    "tuned",
    "varying",
]

_FEW = 100  # validation examples: the standard error of an accuracy is up to 5 %
VALIDATION = "own validation"
"""Data for the choice of settings, by their name in tables."""
_METHODS = ("algorithm.phi",)  # fields that turn an algorithm into another method
DESCRIPTION = ("algorithm", "dataset", "partition")
RUN = "run"
"""Field that distinguishes directories with the same trainings."""
_OF_METHODS = (*summaries.METHOD_FIELDS, RUN)


def settings(result: results.Result) -> list[str]:
    """Columns that distinguish settings."""
    return [*DESCRIPTION, *result.fields]


def methods(result: results.Result) -> list[str]:
    """Columns that distinguish methods."""
    return ["algorithm", *(f for f in result.fields if f.startswith(_OF_METHODS))]


def environments(result: results.Result) -> list[str]:
    """Columns that distinguish the environments of comparisons."""
    fields = [f for f in result.fields if not f.startswith(_OF_METHODS)]
    return ["dataset", "partition", *fields]


def contenders(result: results.Result, rows: pd.DataFrame) -> list[str]:
    """Columns that distinguish methods in rows of best settings."""
    columns = methods(result)
    # Without an algorithm's own settings if these differ between environments only: it
    # is the same method.
    general = [name for name in columns if name not in tuned(result)]
    counts = [len(rows[names].drop_duplicates()) for names in (columns, general)]
    return columns if counts[0] == counts[1] else general


def by_environment(
    rows: pd.DataFrame, names: Sequence[str], also: Sequence[str] = ()
) -> list[tuple[str, pd.DataFrame]]:
    """Returns rows of every environment, with a title."""
    differ = [name for name in names if rows[name].nunique(dropna=False) > 1]
    return [
        (title(part.iloc[0], [*also, *differ], also), part)
        for part in groups(rows, [*also, *names])
    ]


def title(row: pd.Series, names: Sequence[str], bare: Sequence[str] = ()) -> str:
    """Formats text, for example `SignFlip, digits, concentration = 0.1`."""
    bare = [n for n in names if n in (*bare, *DESCRIPTION)]
    texts = [str(row[name]) for name in bare if not pd.isna(row[name])]
    texts += label_values(row, [name for name in names if name not in bare])
    if names and not texts:
        return f"no {short(names[-1:])[0]}"
    return ", ".join(texts)


def shown_curves(
    result: results.Result, data: str = summaries.OWN_TEST
) -> tuple[pd.DataFrame, str]:
    """Returns the rows of the curves to draw for some data, and the metric."""
    curves, metric = _best_curves(result)
    curves = curves[curves["data"] == data]
    return curves[curves["model"].isin(MODELS)], metric


def best_settings(result: results.Result) -> pd.DataFrame:
    """Returns the best setting of every method on validation data in the last round."""
    curves, _ = _best_curves(result)
    return curves[settings(result)].drop_duplicates()


def _best_curves(result: results.Result) -> tuple[pd.DataFrame, str]:
    """Returns the curves of the best settings, and the metric."""
    curves, metric = reported(result, result.curves())
    # Without enough validation data all settings stay.
    fields = tuned(result)
    if not fields or not choice(result).is_made:
        return curves, metric
    compared = [name for name in settings(result) if name not in fields]
    curve_rows = []
    for candidates in groups(curves, compared):
        # Never a hybrid: its models were chosen on the same validation data.
        model = judge(candidates["model"].unique())
        score = functools.partial(_score, metric=metric, model=model)
        curve_rows.append(max(groups(candidates, fields), key=score))
    return pd.concat(curve_rows), metric


@dataclasses.dataclass(frozen=True)
class Choice:
    """Whether settings can be chosen, and a remark for readers."""

    # Half of the honest clients or more validate, in every training, or there is only
    # one setting.
    is_made: bool
    sentence: str


def choice(result: results.Result) -> Choice:
    """Judges the training with the fewest validation data."""
    if not tuned(result):
        return Choice(is_made=True, sentence="")
    # The training with the fewest validating clients decides.
    counts = []  # share of clients that validate, clients, examples
    for group in result.groups:
        if group.num_validation is not None:
            honest = np.where(group.malicious, 0, group.num_validation)
            clients = (honest > 0).sum(axis=1)
            total = (~group.malicious).sum(axis=1)
            counts += zip(
                clients / total, clients, total, honest.sum(axis=1), strict=True
            )
    share, clients, total, examples = min(counts, default=(1, 0, 0, _FEW))
    if share < 0.5:
        sentence = f"only {clients} of {total} clients have validation examples."
        return Choice(is_made=False, sentence=f"No setting was chosen: {sentence}")
    few = f"Settings were chosen with only {examples} validation examples."
    return Choice(is_made=True, sentence=few if examples < _FEW else "")


def _score(setting: pd.DataFrame, metric: str, model: str) -> float:
    """Scores a model of a setting on validation data in the last round."""
    rows = setting[setting["round"] == setting["round"].max()]
    rows = rows[(rows["data"] == VALIDATION) & (rows["model"] == model)]
    return metrics.score(metric, rows["value"].mean(skipna=False))


def trials(
    result: results.Result,
    fields: Sequence[str],
    *,
    metric: str,
    model: str | None = None,
    data: str = "validation",
) -> pd.DataFrame:
    """Returns a row per setting of a search, the longest trained and best first."""
    rows = endings(result, fields, metric=metric, model=model, data=data)
    by_setting = pd.DataFrame(rows).groupby(list(fields), sort=False, dropna=False)
    # A setting counts as trained only as long as its shortest seed, and a diverged seed
    # makes its score NaN, the worst.
    table = by_setting.agg(
        rounds=("rounds", "min"),
        score=("score", lambda values: values.mean(skipna=False)),
        status=("status", summaries.tally),
    )
    scores = np.array([metrics.score(metric, score) for score in table["score"]])
    return table.iloc[np.lexsort((-scores, -table["rounds"]))].reset_index()


def endings(
    result: results.Result,
    fields: Sequence[str],
    *,
    metric: str,
    model: str | None = None,
    data: str = "validation",
) -> list[dict[str, Any]]:
    """Returns fields, `rounds`, `score` and `status` of every training of a search."""
    rows = []
    for group in result.groups:
        judged = model or judge(group.models)
        for g, point in enumerate(group.points):
            final = group.rounds.tolist().index(group.ends[g])
            score = group.means(g, metric, judged, data)[final]
            if 0 <= group.diverged_at[g] <= group.ends[g]:
                score = np.nan  # not the mean over the clients that are left
            row = {name: point.get(name) for name in fields}
            row |= {"rounds": int(group.ends[g]), "score": float(score)}
            rows.append(row | {"status": group.status[g]})
    return rows


def shown_clients(result: results.Result) -> tuple[pd.DataFrame, str]:
    """Returns clients' values and histories under `shown_curves`, and the metric."""
    curves, metric = shown_curves(result)
    clients, _ = reported(result, result.clients(histories=True), metric)
    clients = clients[clients["model"].isin(MODELS)]
    setting_rows = curves[settings(result)].drop_duplicates()
    return clients.merge(setting_rows, on=settings(result)), metric


def tuned(result: results.Result) -> list[str]:
    """Columns of an algorithm's own settings, which figures show the best of."""
    method_fields = [f for f in result.fields if f.startswith("algorithm.")]
    return [f for f in method_fields if f not in _METHODS]


def reported(
    result: results.Result, rows: pd.DataFrame, metric: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Returns rows of the reported population and metric, by default the headline."""
    if metric is None:
        metric = result.headline
    # Honest clients of a training in which some are malicious, all clients of others.
    is_honest = rows["population"] == "honest"
    training = [rows[n] for n in (*DESCRIPTION, "seed", *result.fields)]
    attacked = is_honest.groupby(training, dropna=False).transform("any")
    population = np.where(attacked, "honest", "all")
    return rows[(rows["metric"] == metric) & (rows["population"] == population)], metric


def last_round(
    result: results.Result, stat: str = "mean", metric: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Returns `reported` statistics over clients on own test data in the last round."""
    rows = result.table()
    rows = rows[(rows["when"] == "last") & (rows["data"] == summaries.OWN_TEST)]
    rows = rows[(rows["stat"] == stat) & rows["model"].isin(MODELS)]
    return reported(result, rows, metric)


def groups(rows: pd.DataFrame, keys: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Returns rows by equal keys, missing ones included, in order of appearance."""
    for _, group in rows.groupby(list(keys), sort=False, dropna=False):
        yield group


def first_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Keeps the model that represents a setting, the first available of `MODELS`."""
    return rows[rows["model"] == judge(rows["model"].unique())]


def varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Returns names for labels: swept fields, and others with several values."""
    return [n for n in names if rows[n].nunique(dropna=False) > 1 or "." in n]


def band(rows: pd.DataFrame) -> str:
    """Describes the bands of several seeds; empty for one."""
    seeds = rows["seed"].nunique()
    return f"mean over {seeds} seeds, band from min to max" if seeds > 1 else ""


def label(row: pd.Series, names: Sequence[str]) -> str:
    """Formats text, for example `Flame (lam = 1, kappa = 2)`."""
    texts = label_values(row, [name for name in names if name != "algorithm"])
    return f"{row['algorithm']} ({', '.join(texts)})" if texts else row["algorithm"]


def label_values(row: pd.Series, names: Sequence[str]) -> list[str]:
    """Formats values, as in `lam = 1`, by the last part of a name; none if missing."""
    values = {name: row[name] for name in names if not pd.isna(row[name])}
    return [
        f"{name} = {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in zip(short(list(values)), values.values(), strict=True)
    ]


def short(names: Sequence[str]) -> list[str]:
    """Shortens dotted names to the last part, or two parts if the last are equal."""
    parts = [name.rpartition(".")[2] for name in names]
    return [
        " ".join(name.split(".")[-2:])
        if parts.count(part) > 1 or part == "seed"
        else part
        for name, part in zip(names, parts, strict=True)
    ]
