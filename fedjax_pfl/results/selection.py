"""Selection and naming of the rows that a figure shows."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.core import checks
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
"""Data by which settings are chosen, as tables call them."""
_METHODS = ("algorithm.phi",)  # fields that make another method of an algorithm
DESCRIPTION = ("algorithm", "dataset", "partition")
RUN = "run"
"""Field that tells directories apart where they hold the same trainings."""
_OF_METHODS = (*summaries.METHOD_FIELDS, RUN)


def settings(result: results.Result) -> list[str]:
    """Columns that tell settings apart: what is compared, then what is tuned."""
    return [*_compared(result), *tuned(result)]


def methods(result: results.Result) -> list[str]:
    """Columns that tell methods apart."""
    return ["algorithm", *(f for f in result.fields if f.startswith(_OF_METHODS))]


def environments(result: results.Result) -> list[str]:
    """Columns that tell apart what methods are compared in."""
    others = [f for f in result.fields if not f.startswith(_OF_METHODS)]
    return ["dataset", "partition", *others]


def contenders(result: results.Result, rows: pd.DataFrame) -> list[str]:
    """Columns that tell apart the methods of rows, of which best settings were kept.

    Without an algorithm's own settings where another one is best in another
    environment: it is the same method.
    """
    everything = methods(result)
    few = [name for name in everything if name not in tuned(result)]
    same = len(rows[everything].drop_duplicates()) == len(rows[few].drop_duplicates())
    return everything if same else few


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
    shown = [str(row[name]) for name in bare if not pd.isna(row[name])]
    shown += label_values(row, [name for name in names if name not in bare])
    if names and not shown:
        return f"no {short(names[-1:])[0]}"
    return ", ".join(shown)


def shown_curves(
    result: results.Result, data: str = summaries.OWN_TEST
) -> tuple[pd.DataFrame, str]:
    """Returns rows of the curves on some data that are drawn, and the metric.

    Of the settings of an algorithm's own fields only the one that is best on validation
    data in the last round is kept; all of them if too few clients validate.
    """
    curves, metric = _best_curves(result)
    curves = curves[curves["data"] == data]
    return curves[curves["model"].isin(MODELS)], metric


def best_settings(
    result: results.Result, model: str | None = None, metric: str | None = None
) -> pd.DataFrame:
    """Returns the best setting of every method on validation data in the last round.

    All settings if too few clients validate; see `choice`.

    Args:
      result: with several settings of an algorithm's own fields.
      model: whose values choose, for all methods; None for each one's personal model,
        or its global one where it has none. Never a hybrid, whose models were chosen on
        the same validation data, client by client.
      metric: by which is chosen; None for the result's headline.

    Returns:
      Values of `settings`, one row per method and environment.
    """
    curves, _ = _best_curves(result, model, metric)
    return curves[settings(result)].drop_duplicates()


def _best_curves(
    result: results.Result, model: str | None = None, metric: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Returns the curves of the best settings, and the metric."""
    table = result.curves()
    if model is not None:
        single = {name for name in table["model"] if not name.startswith(HYBRID)}
        checks.known(model, single, "model to choose by")
    if metric is not None:
        checks.known(metric, set(table["metric"]), "metric")
    curves, metric = reported(result, table, metric)
    if not tuned(result) or not choice(result).is_made:
        return curves, metric
    kept = []
    for candidates in groups(curves, _compared(result)):
        judges = model or judge(candidates["model"].unique())
        score = functools.partial(_score, metric=metric, model=judges)
        kept.append(max(groups(candidates, tuned(result)), key=score))
    return pd.concat(kept), metric


@dataclasses.dataclass(frozen=True)
class Choice:
    """Grounds on which settings are chosen.

    Attributes:
      is_made: whether half of the honest clients or more validate, in every training,
        or there is nothing to choose.
      sentence: what a reader has to know of it, or empty.
    """

    is_made: bool
    sentence: str


def choice(result: results.Result) -> Choice:
    """Judges the validation data of the training that has fewest of them."""
    if not tuned(result):
        return Choice(is_made=True, sentence="")
    found = []  # share of clients that validate, clients, examples
    for group in result.groups:
        if group.num_validation is not None:
            honest = np.where(group.malicious, 0, group.num_validation)
            clients = (honest > 0).sum(axis=1)
            total = (~group.malicious).sum(axis=1)
            found += zip(
                clients / total, clients, total, honest.sum(axis=1), strict=True
            )
    share, clients, total, examples = min(found, default=(1, 0, 0, _FEW))
    if share < 0.5:
        sentence = f"only {clients} of {total} clients have validation examples."
        return Choice(is_made=False, sentence=f"No setting was chosen: {sentence}")
    few = f"Settings were chosen with only {examples} validation examples."
    return Choice(is_made=True, sentence=few if examples < _FEW else "")


def _score(setting: pd.DataFrame, metric: str, model: str) -> float:
    """Scores a model of a setting on validation data in the last round."""
    last = setting[setting["round"] == setting["round"].max()]
    last = last[(last["data"] == VALIDATION) & (last["model"] == model)]
    return metrics.score(metric, last["value"].mean(skipna=False))


def trials(
    result: results.Result,
    fields: Sequence[str],
    *,
    metric: str,
    model: str | None = None,
    data: str = "validation",
) -> pd.DataFrame:
    """Returns a row per setting of a search, those trained longest and best first.

    Args:
      result: all trainings, also those that were dropped.
      fields: dotted names of what makes a setting.
      metric: what settings are compared by.
      model: whose; None for the one that `judge` names.
      data: on what, as in `evaluate_on`.

    Returns:
      The fields, `rounds` a setting was trained for, its `score` in the last of them
      (the metric's mean over honest clients, then over seeds), and `status`.
    """
    rows = endings(result, fields, metric=metric, model=model, data=data)
    by_setting = pd.DataFrame(rows).groupby(list(fields), sort=False, dropna=False)
    table = by_setting.agg(
        rounds=("rounds", "min"),
        score=("score", lambda values: values.mean(skipna=False)),
        status=("status", summaries.tally),
    )
    order = [
        (-r, -metrics.score(metric, s)) for r, s in table[["rounds", "score"]].values
    ]
    ranks = sorted(range(len(order)), key=order.__getitem__)
    return table.iloc[ranks].reset_index()


def endings(
    result: results.Result,
    fields: Sequence[str],
    *,
    metric: str,
    model: str | None = None,
    data: str = "validation",
) -> list[dict[str, Any]]:
    """Returns a row per training of a search, in their order; see `trials`.

    Returns:
      The fields, `rounds`, the `score` over honest clients, NaN from a divergence on,
      and `status`.
    """
    rows = []
    for group in result.groups:
        m = group.models.index(model or judge(group.models))
        d = group.data.index(data)
        for g, point in enumerate(group.points):
            last = group.rounds.tolist().index(group.ends[g])
            who = group.evaluated[g, last, d] & ~group.malicious[g]
            score = metrics.mean(group.metrics[metric][g, last, m, d], who)
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
    kept = curves[settings(result)].drop_duplicates()
    return clients.merge(kept, on=settings(result)), metric


def tuned(result: results.Result) -> list[str]:
    """Columns of an algorithm's own settings, of which the best are shown."""
    own = [f for f in result.fields if f.startswith("algorithm.")]
    return [f for f in own if f not in _METHODS]


def _compared(result: results.Result) -> list[str]:
    return [*DESCRIPTION, *(f for f in result.fields if f not in tuned(result))]


def reported(
    result: results.Result, rows: pd.DataFrame, metric: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Returns rows of the reported population and metric, by default the headline.

    The population is the honest clients of a training in which some are malicious, all
    clients of the others.
    """
    if metric is None:
        metric = result.headline
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
    """Keeps the model that stands for a setting, the first there is of `MODELS`."""
    return rows[rows["model"] == judge(rows["model"].unique())]


def varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Returns names whose values a label must show: swept fields and what varies."""
    return [n for n in names if rows[n].nunique(dropna=False) > 1 or "." in n]


def band(rows: pd.DataFrame) -> str:
    """Describes the bands of several seeds; empty for one."""
    seeds = rows["seed"].nunique()
    return f"mean over {seeds} seeds, band from min to max" if seeds > 1 else ""


def label(row: pd.Series, names: Sequence[str]) -> str:
    """Formats text, for example `Flame (lam = 1, kappa = 2)`."""
    shown = label_values(row, [name for name in names if name != "algorithm"])
    return f"{row['algorithm']} ({', '.join(shown)})" if shown else row["algorithm"]


def label_values(row: pd.Series, names: Sequence[str]) -> list[str]:
    """Formats values, as in `lam = 1`, by the last part of a name; none if missing."""
    values = {name: row[name] for name in names if not pd.isna(row[name])}
    return [
        f"{name} = {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in zip(short(list(values)), values.values(), strict=True)
    ]


def short(names: Sequence[str]) -> list[str]:
    """Shortens dotted names to their last parts, and to two where these are equal.

    Example:
      >>> short(["algorithm.lam", "a.local.learning_rate", "a.fine_tune.learning_rate"])
      ['lam', 'local learning_rate', 'fine_tune learning_rate']
    """
    lasts = [name.rpartition(".")[2] for name in names]
    return [
        " ".join(name.split(".")[-2:])
        if lasts.count(last) > 1 or last == "seed"
        else last
        for name, last in zip(names, lasts, strict=True)
    ]
