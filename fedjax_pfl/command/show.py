"""Printed summary of a result: tables, failures, communication, time."""

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_pfl import results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["result", "text"]


def result(console: Console, result: results.Result) -> None:
    """Prints tables of all settings, and the trainings that diverged.

    Args:
      console: where to.
      result: what is finished.
    """
    summary = result.summary()
    _print_tables(console, summary[summary["model"] != "hybrid (oracle)"])
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


def _print_tables(console: Console, summary: "pd.DataFrame") -> None:
    """Prints one table per statistic: settings down, models across."""
    first = list(summary.columns).index("model")
    settings = list(summary.columns[:first])
    models = list(dict.fromkeys(summary["model"]))
    for value in reversed(summary.columns[first + 1 : -1]):  # the mean comes last
        title = f"{value}, clients' own test data, last round"
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
        for name in settings:
            table.add_column(name.rpartition(".")[2], overflow="fold")
        width = summary[value].str.len().max()
        for model in models:
            header = model.replace(" (", "\n(")
            table.add_column(header, justify="right", min_width=width)
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
