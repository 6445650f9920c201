"""Clients by name: what every method makes of each, and whom it serves worse."""

import dataclasses
from typing import Any

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import metrics, selection, shares

__all__ = ["Named", "of_result"]

_MAX_CLIENTS = 50  # of a table; of more, those that fare worst are shown
_MANY = 5  # clients that a sentence names


@dataclasses.dataclass(frozen=True)
class Named:
    """Clients of one environment.

    Attributes:
      title: of the environment.
      columns: methods with their models.
      rows: name, test examples and a value per method of each client, as texts.
      sentences: one per method with clients that the reference serves better.
      left_out: clients without a row.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...]
    left_out: int


def of_result(result: results.Result) -> tuple[list[Named], str]:
    """Compares methods client by client, on own test data in the last round.

    Settings are those that `selection.best_settings` keeps; of each the model that
    speaks for it. Values are means over seeds.

    Returns:
      One `Named` per environment, none where clients have no names; and the metric.
    """
    if any(group.client_names is None for group in result.groups):
        return [], result.headline
    clients, metric = selection.shown_clients(result)
    clients: Any = clients[clients["value"].notna()]
    if clients.empty:
        return [], metric
    methods = selection.contenders(result, clients)
    names = selection.varying(clients, methods)
    found = []
    parts = selection.by_environment(clients, selection.environments(result))
    for title, part in parts:
        columns, kinds = {}, {}
        for rows in map(selection.first_model, selection.groups(part, methods)):
            head = rows.iloc[0]
            label = f"{head['model']} model of {selection.label(head, names)}"
            columns[label] = rows.groupby("name")["value"].mean()
            kinds[label] = (head["algorithm"], head["model"])
        tests = part.groupby("name")["num_test"].mean()
        found.append(_named(title, pd.DataFrame(columns), tests, kinds, metric))
    return found, metric


def _named(
    title: str,
    values: pd.DataFrame,
    tests: Any,
    kinds: dict[str, tuple[str, str]],
    metric: str,
) -> Named:
    """Describes the clients of one environment, those that fare worst first."""
    sign = metrics.sign(metric)
    order = (sign * values.mean(axis=1)).sort_values(kind="stable").index
    shown = order[:_MAX_CLIENTS]
    rows = tuple(
        (str(name), f"{tests[name]:g}", *(f"{v:.4f}" for v in values.loc[name]))
        for name in shown
    )
    sentences = []
    by_kind = {kind: column for column, kind in reversed(kinds.items())}
    known = [by_kind[kind] for kind in shares.REFERENCES if kind in by_kind]
    for reference in known[-1:]:  # Local, which every client could have by itself
        for column in values.columns.drop(reference):
            gap: Any = sign * (values[column] - values[reference])
            worse = gap[gap < 0].sort_values(kind="stable")
            if len(worse):
                sentences.append(_sentence(column, reference, sign * worse))
    return Named(
        title, tuple(values.columns), rows, tuple(sentences), len(order) - len(shown)
    )


def _sentence(column: str, reference: str, gaps: pd.Series) -> str:
    """Names the clients that fare worse with one method than with another."""
    worst = [f"{name} ({gap:+.4f})" for name, gap in gaps.items()][:_MANY]
    more = f" and {len(gaps) - _MANY} more" if len(gaps) > _MANY else ""
    verb = "is" if len(gaps) == 1 else "are"
    return (
        f"{', '.join(worst)}{more} {verb} worse off with the {column} than with the"
        f" {reference}."
    )
