"""Shares of clients that a model serves better, and worse, than a reference does."""

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import metrics, selection

__all__ = ["REFERENCES", "SIDES", "of_clients", "stat"]

REFERENCES = (("FedAvg", "global"), ("Local", "personal"))
"""Reference algorithms, with their models, that others must beat."""
SIDES = ("better", "worse")


def stat(side: str, reference: str) -> str:
    """Returns the name of a share in a table, for example `worse than Local`."""
    return f"{side} than {reference}"


def of_clients(result: results.Result) -> pd.DataFrame:
    """Returns shares of clients that are better and worse off than with a reference."""
    identity = [*selection.DESCRIPTION, "seed", *result.fields]
    names = [*identity, "model", "population", "metric"]
    empty = pd.DataFrame(columns=[*names, "reference", *SIDES])
    algorithms = {group.config.get("algorithm") for group in result.groups}
    if not algorithms & {name for name, _ in REFERENCES}:
        return empty  # before anything is computed
    clients, metric = selection.reported(result, result.clients())
    methods = [*selection.environments(result), *selection.methods(result), "model"]
    clients = clients.assign(row=_numbers(clients, methods))
    identities = [*selection.environments(result), "seed", "client"]
    clients = clients.assign(who=_numbers(clients, identities))
    contenders = result.contenders()
    if not selection.choice(contenders).is_made:
        return empty
    settings = selection.best_settings(contenders)
    parts = [empty]
    for algorithm, model in REFERENCES:
        is_one = (clients["algorithm"] == algorithm) & (clients["model"] == model)
        reference = clients[is_one].merge(settings, on=list(settings.columns))
        # The first one, if an environment has several references.
        reference = reference.drop_duplicates("who")[["who", "row", "value"]]
        pairs = clients.merge(reference, on="who", suffixes=("", "_of"))
        gap = metrics.sign(metric) * (pairs["value"] - pairs["value_of"])
        pairs = pairs.assign(better=gap > 0, worse=gap < 0)
        # Without the reference itself, and clients for which one of the two diverged.
        pairs = pairs[gap.notna() & (pairs["row"] != pairs["row_of"])]
        groups = pairs.groupby(_numbers(pairs, names), sort=False)
        heads = pairs.loc[groups.head(1).index, names].reset_index(drop=True)
        means = groups[list(SIDES)].mean().reset_index(drop=True)
        parts.append(pd.concat([heads, means], axis=1).assign(reference=algorithm))
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True)[list(empty.columns)] if parts else empty


def _numbers(rows: pd.DataFrame, names: list[str]) -> pd.Series:
    """Numbers rows by their values, missing ones included."""
    return rows.groupby(names, sort=False, dropna=False).ngroup()
