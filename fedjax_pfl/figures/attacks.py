"""Metrics of honest clients under attacks: against their number, or as a table."""

import functools

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import contents, multiples
from fedjax_pfl.results import metrics, selection, summaries

__all__ = ["FRACTION", "under_attacks", "with_attackers"]

FRACTION = "federation.malicious_fraction"
_KINDS = ("attack", "federation.label_poisoning")
_NONE = "no attack"
_TOLD = "algorithm.malicious_fraction"  # follows the fraction


def _attacked(result: results.Result) -> tuple[pd.DataFrame, list[str], str]:
    """Returns means over clients, last round, with a column `kind`; settings; metric.

    Empty without a field for the number of malicious clients.
    """
    if FRACTION not in result.fields:
        return pd.DataFrame(), [], ""
    rows, metric = selection.last_round(result)
    kind = pd.Series(None, rows.index, dtype=object)
    for name in _KINDS:
        kind = kind.fillna(rows[name]) if name in rows else kind
    if not any(name in rows for name in _KINDS):  # one attack, the same everywhere
        config = result.groups[0].config
        only = next((config[name] for name in _KINDS if config.get(name)), None)
        kind = pd.Series(only, rows.index, dtype=object)
    kind = kind.where(kind.notna() & (rows[FRACTION] > 0), _NONE)
    fields = [f for f in result.fields if f not in (FRACTION, *_KINDS, _TOLD)]
    described = [*selection.DESCRIPTION, *fields]
    return rows.assign(kind=kind), described, metric


def with_attackers(result: results.Result) -> contents.Lines | None:
    """Returns the metric against the fraction of malicious clients.

    There is a panel per attack and environment. If all settings are too many lines, an
    algorithm's own settings are the best on validation data, fraction by fraction.

    Returns:
      The lines, with a band over seeds; None without several fractions, or if
      `under_attacks` shows the same values as a table.
    """
    rows, settings, metric = _attacked(result)
    if rows.empty or rows[FRACTION].nunique() < 2 or _is_table(rows):
        return None
    kinds = [kind for kind in rows["kind"].unique() if kind != _NONE]
    if not kinds:
        return None
    methods = [name for name in selection.methods(result) if name != _TOLD]
    rows, methods, is_best = multiples.best_of_many(result, rows, methods)
    clean = rows[rows["kind"] == _NONE]
    parts = [pd.concat([clean, rows[rows["kind"] == k]]).assign(kind=k) for k in kinds]
    return multiples.in_panels(
        contents.Lines,
        multiples.of_few_models(pd.concat(parts), methods).assign(population="honest"),
        [*methods, "model"],
        [f for f in selection.environments(result) if f in settings],
        functools.partial(multiples.over_seeds, by=FRACTION),
        also=["kind"],
        xlabel="fraction of malicious clients",
        ylabel=f"mean {metric}, last round",
        data=summaries.OWN_TEST,
        spread=selection.band(rows),
        is_best=is_best,
    )


def _is_table(rows: pd.DataFrame) -> bool:
    """Returns whether several attacks have one fraction."""
    is_one = rows.loc[rows[FRACTION] > 0, FRACTION].nunique() == 1
    return is_one and rows["kind"].nunique() > 2


def under_attacks(result: results.Result) -> contents.Heats | None:
    """Returns the mean metrics of all settings under every attack, as a colored table.

    Returns:
      Rows are settings and models, columns attacks; None unless there are several
      attacks, all with one fraction.
    """
    rows, settings, metric = _attacked(result)
    if rows.empty or not _is_table(rows):
        return None
    kinds = list(rows["kind"].unique())
    names = selection.varying(rows, settings)
    labels, values = [], []
    for line in selection.groups(rows, [*settings, "model"]):
        head = line.iloc[0]
        labels.append(f"{selection.label(head, names)}, {head['model']}")
        values.append(line.groupby("kind")["value"].mean().reindex(kinds))
    is_share = metric in metrics.SHARES
    fraction = rows[FRACTION].max()
    panel = contents.Heat(
        title=f"{summaries.OWN_TEST} data, honest clients, last round;"
        f" {100 * fraction:g} % malicious",
        algorithm="",
        columns=tuple(map(str, kinds)),
        rows=tuple(labels),
        values=(100 if is_share else 1) * np.array(values),
    )
    return contents.Heats(
        panels=(panel,),
        xlabel="attack",
        ylabel="",
        value=f"mean {metric}" + (" in percent" if is_share else ""),
        total=1,
        low=0 if is_share else None,
        high=100 if is_share else None,
    )
