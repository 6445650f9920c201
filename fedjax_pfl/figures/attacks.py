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
    """Returns means over clients with a column `kind`, the settings, and the metric."""
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
    # A fraction of 0 is no attack, whatever its kind.
    kind = kind.where(kind.notna() & (rows[FRACTION] > 0), _NONE)
    fields = [f for f in result.fields if f not in (FRACTION, *_KINDS, _TOLD)]
    described = [*selection.DESCRIPTION, *fields]
    return rows.assign(kind=kind), described, metric


def with_attackers(result: results.Result) -> contents.Lines | None:
    """Returns the metric against the fraction of malicious clients."""
    rows, settings, metric = _attacked(result)
    # `under_attacks` shows several attacks of one fraction, as a table.
    if rows.empty or rows[FRACTION].nunique() < 2 or _is_table(rows):
        return None
    kinds = [kind for kind in rows["kind"].unique() if kind != _NONE]
    if not kinds:
        return None
    methods = [name for name in selection.methods(result) if name != _TOLD]
    rows, methods, is_best = multiples.best_of_many(result, rows, methods)
    # Every panel begins at a fraction of 0, which has no kind of attack.
    clean = rows[rows["kind"] == _NONE]
    parts = [pd.concat([clean, rows[rows["kind"] == k]]).assign(kind=k) for k in kinds]
    return multiples.in_panels(
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
    """Returns mean metrics of settings by attacks, if these have one fraction."""
    rows, settings, metric = _attacked(result)
    if rows.empty or not _is_table(rows):
        return None
    kinds = [str(kind) for kind in rows["kind"].unique()]
    names = selection.varying(rows, settings)
    labels, values = [], []
    for line in selection.groups(rows, [*settings, "model"]):
        head = line.iloc[0]
        labels.append(f"{selection.label(head, names)}, {head['model']}")
        values.append(line.groupby("kind")["value"].mean().reindex(kinds))
    # Shares have the same colors in all reports, from 0 to 100 percent.
    is_share = metric in metrics.SHARES
    fraction = rows[FRACTION].max()
    title = (
        f"{summaries.OWN_TEST} data, honest clients, last round;"
        f" {100 * fraction:g} % malicious"
    )
    scaled = (100 if is_share else 1) * np.array(values)
    panel = contents.Heat(title, "", pd.DataFrame(scaled, labels, kinds))
    return contents.Heats(
        panels=(panel,),
        xlabel="attack",
        ylabel="",
        value=f"mean {metric}" + (" in percent" if is_share else ""),
        total=1,
        low=0 if is_share else None,
        high=100 if is_share else None,
    )
