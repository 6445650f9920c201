"""Printed summary of a result: tables, failures, communication, time."""

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_pfl import results
from fedjax_pfl.results import comparison, selection

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["result", "text"]

_TEXTS = 2  # columns at the left that are not numbers


def result(console: Console, result: results.Result) -> None:
    """Prints the ranking, all settings, and the trainings that diverged.

    Args:
      console: where to.
      result: what is finished.
    """
    ranked = comparison.rank(result)
    if ranked is not None:
        _print_ranking(console, ranked)
    if selection.tuned(result):
        summary = result.summary()
        _print_settings(console, summary[summary["model"] != "hybrid (oracle)"])
    for group, point in _diverged(result):
        name = group.config["algorithm"]
        values = ", ".join(f"{n} = {v}" for n, v in group.points[point].items())
        console.print(
            f"{name} with {values} diverged at round {group.diverged_at[point]}.",
            highlight=False,
            soft_wrap=True,
        )
    _print_communication(console, result)
    _print_left_out(console, result)
    compiling = sum(group.compile_seconds for group in result.groups)
    running = sum(group.run_seconds for group in result.groups)
    modes = dict.fromkeys(group.config["execution"] for group in result.groups)
    console.print(
        f"Execution {', '.join(modes)}: compiling {compiling:.1f} s, "
        f"running {running:.1f} s.",
        highlight=False,
    )


def _print_communication(console: Console, result: results.Result) -> None:
    """Numbers sent per round, one line per algorithm."""
    sent = result.communication().groupby("algorithm", sort=False)
    for algorithm, row in sent[["floats_up", "floats_down"]].mean().iterrows():
        up, down = (f"{value:,.0f}" for value in row)
        console.print(
            f"{algorithm}: clients send {up} and receive {down} numbers per round.",
            highlight=False,
            soft_wrap=True,
        )


def _print_left_out(console: Console, result: results.Result) -> None:
    """Prints how often FedPG left its fairness objective out."""
    reports = result.reports()
    shares = reports[reports["name"] == "fair_row"].groupby("algorithm")["value"]
    for algorithm, share in shares.mean().items():
        if share < 1:
            console.print(
                f"{algorithm}: {1 - share:.1%} of rounds left the fairness objective"
                " out, as losses were all equal, or one of them was not positive.",
                highlight=False,
                soft_wrap=True,
            )


def _print_ranking(console: Console, compared: comparison.Comparison) -> None:
    """Prints a table per environment, the best first, and who is best."""
    for environment in compared.environments:
        title = f"{environment.title}: clients' own test data, last round"
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
        for place, name in enumerate(comparison.titles_of(compared)):
            table.add_column(name, justify="left" if place < _TEXTS else "right")
        for place, row in enumerate(comparison.rows_of(compared, environment)):
            is_best = compared.is_paired and place == 0
            bad = "" if row[-1] == "ok" else "red"
            table.add_row(*row, style="bold" if is_best else bad)
        console.print(table)
        if environment.conclusion:
            console.print(environment.conclusion, highlight=False)


def _print_settings(console: Console, summary: "pd.DataFrame") -> None:
    """Prints the headline of every setting: settings down, models across."""
    place = list(summary.columns).index("model")
    settings = list(summary.columns[:place])
    models = list(dict.fromkeys(summary["model"]))
    value = summary.columns[place + 1]
    title = f"All settings: {value}, clients' own test data, last round"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in settings:
        table.add_column(name.rpartition(".")[2], overflow="fold")
    for model in models:
        table.add_column(model.replace(" (", "\n("), justify="right")
    for setting, rows in summary.groupby(settings, sort=False, dropna=False):
        cells = rows.set_index("model")[value].replace("", "diverged")
        shown = cells.reindex(models).fillna("-")
        is_ok = (rows["status"] == "ok").all()
        table.add_row(*map(text, setting), *shown, style="" if is_ok else "red")
    console.print(table)


def _diverged(result: results.Result) -> list[tuple[Any, int]]:
    """Groups and numbers of the points that diverged."""
    return [
        (group, point)
        for group in result.groups
        for point, when in enumerate(group.diverged_at)
        if when >= 0
    ]


def text(value: Any) -> str:
    """Formats a setting, lists as in JSON; nothing where an algorithm lacks it."""
    if value is None or value != value:
        return ""
    return str(list(value)) if isinstance(value, tuple) else str(value)
