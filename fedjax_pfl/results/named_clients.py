"""Clients by name: their values with every method, and who is worse off with which."""

import dataclasses
from typing import Any

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import metrics, selection, shares

__all__ = ["Named", "of_result"]

_MAX_CLIENTS = 50  # of a table, which lists the worst ones if there are more
_MANY = 5  # clients that a sentence names


@dataclasses.dataclass(frozen=True)
class Named:
    """Clients of one environment."""

    title: str
    columns: tuple[str, ...]  # methods with their models
    rows: tuple[tuple[str, ...], ...]  # name, test examples, and a value per method
    # one per method with clients that the reference serves better
    sentences: tuple[str, ...]
    left_out: int  # number of clients without a row


def of_result(result: results.Result) -> tuple[list[Named], str]:
    """Compares methods client by client, on own test data; also returns the metric."""
    if any(group.client_names is None for group in result.groups):
        return [], result.headline
    # The best settings, each with the model that represents it; means over seeds.
    clients, metric = selection.shown_clients(result)
    clients: Any = clients[clients["value"].notna()]
    if clients.empty:
        return [], metric
    methods = selection.contenders(result, clients)
    names = selection.varying(clients, methods)
    tables = []
    parts = selection.by_environment(clients, selection.environments(result))
    for title, part in parts:
        columns, kinds = {}, {}
        for rows in map(selection.first_model, selection.groups(part, methods)):
            head = rows.iloc[0]
            label = f"{head['model']} model of {selection.label(head, names)}"
            columns[label] = rows.groupby("name")["value"].mean()
            kinds[label] = (head["algorithm"], head["model"])
        tests: Any = part.groupby("name")["num_test"].mean()
        tables.append(_describe(title, pd.DataFrame(columns), tests, kinds, metric))
    return tables, metric


def _describe(
    title: str,
    values: pd.DataFrame,
    tests: pd.Series,
    kinds: dict[str, tuple[str, str]],
    metric: str,
) -> Named:
    """Describes the clients of one environment, the worst first."""
    sign = metrics.sign(metric)
    order = (sign * values.mean(axis=1)).sort_values(kind="stable").index
    listed = order[:_MAX_CLIENTS]
    rows = tuple(
        (str(name), f"{tests[name]:g}", *(f"{v:.4f}" for v in values.loc[name]))
        for name in listed
    )
    sentences = []
    by_kind = {kind: column for column, kind in reversed(kinds.items())}
    references = [by_kind[kind] for kind in shares.REFERENCES if kind in by_kind]
    for reference in references[-1:]:  # Local, which clients can train alone
        for column in values.columns.drop(reference):
            gap: Any = sign * (values[column] - values[reference])
            worse = gap[gap < 0].sort_values(kind="stable")
            if len(worse):
                sentences.append(_sentence(column, reference, sign * worse))
    return Named(
        title, tuple(values.columns), rows, tuple(sentences), len(order) - len(listed)
    )


def _sentence(column: str, reference: str, gaps: pd.Series) -> str:
    """Names the clients with worse values for one method than for another."""
    worst = [f"{name} ({gap:+.4f})" for name, gap in gaps.items()][:_MANY]
    tail = f" and {len(gaps) - _MANY} more" if len(gaps) > _MANY else ""
    verb = "is" if len(gaps) == 1 else "are"
    return (
        f"{', '.join(worst)}{tail} {verb} worse off with the {column} than with the"
        f" {reference}."
    )
