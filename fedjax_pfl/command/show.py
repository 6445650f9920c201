"""Printed summary of a result: tables, failures, communication, time."""

from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedjax_pfl import results
from fedjax_pfl.command import printing
from fedjax_pfl.results import comparison, learned, selection

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["result", "text"]


def result(console: Console, result: results.Result) -> None:
    """Prints the ranking, all settings, and the trainings that diverged."""
    ranked = comparison.rank(result)
    if ranked is not None:
        _print_ranking(console, ranked)
    # Settings that a search dropped are in no table.
    finalists = result.contenders()
    if newcomers := comparison.unseen_text(finalists):
        console.print(newcomers.lstrip())
    if selection.tuned(finalists):
        summary = finalists.summary()
        _print_settings(console, summary[summary["model"] != "hybrid (oracle)"])
    _print_learned(console, result)
    _print_dropped(console, result)
    _print_diverged(console, result)
    _print_communication(console, result)
    _print_privacy(console, result)
    _print_left_out(console, result)
    compiling = sum(group.compile_seconds for group in result.groups)
    running = sum(group.run_seconds for group in result.groups)
    modes = dict.fromkeys(str(group.config.get("execution")) for group in result.groups)
    console.print(
        f"Execution {', '.join(modes)}: compiling {compiling:.1f} s, "
        f"running {running:.1f} s."
    )


def _print_learned(console: Console, result: results.Result) -> None:
    """Prints the learned fields, a line per start, and options for the best."""
    settings = learned.settings(result.groups)
    if settings is None:
        return
    titles, fields = list(map(str, settings.columns)), learned.fields(result.groups)
    for field, text in zip(fields, selection.short(list(fields)), strict=True):
        titles = [title.replace(field, text) for title in titles]
    rows = [
        # NaN if another method has the axis of the start.
        ["–" if v != v else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row]
        for row in settings.itertuples(index=False)
    ]
    title = f"Learned on {learned.objective(result.groups)}, means over seeds"
    printing.table(console, titles, rows, title=title, numbers=titles[1:])


def _print_dropped(console: Console, result: results.Result) -> None:
    """Prints a line per group of a search: dropped trainings and saved rounds."""
    for group in result.groups:
        if group.dropped is not None:
            console.print(
                f"{group.config['algorithm']}: {group.dropped.sum()} of"
                f" {len(group.points)} trainings were dropped on validation data; the"
                f" search took {group.share_of_rounds:.0%} of the rounds of all."
            )
            cut = ((group.stopped_at >= 0) & ~group.dropped).sum()
            if cut:
                console.print(
                    f"{group.config['algorithm']}: the time was up for {cut} trainings,"
                    " which ended before their last round."
                )


def _print_diverged(console: Console, result: results.Result) -> None:
    """Prints a line per training that diverged."""
    for group in result.groups:
        for point, status in zip(group.points, group.status, strict=True):
            if status.startswith("diverged"):
                values = ", ".join(f"{name} = {value}" for name, value in point.items())
                name = group.config.get("algorithm")
                console.print(f"{name} with {values} {status}.")


def _print_communication(console: Console, result: results.Result) -> None:
    """Prints the traffic per round and in total, one line per algorithm."""
    columns = ["bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down"]
    sent = result.communication().groupby("algorithm", sort=False)
    for algorithm, row in sent[columns].mean().iterrows():
        if row.notna().all():
            up, down = (f"{value:,.0f}" for value in row.iloc[:2])
            totals = (f"{value / 1e6:,.2f}" for value in row.iloc[2:])
            console.print(
                f"{algorithm}: clients send {up} and receive {down} bytes per round,"
                f" {' and '.join(totals)} MB in total."
            )


def _print_privacy(console: Console, result: results.Result) -> None:
    """Prints the privacy loss of trainings with noise, one line per algorithm."""
    for table, unit in (
        (result.privacy(), "one client in place of another"),
        (result.local_privacy(), "one example of a client in place of another"),
    ):
        losses = table.groupby(["algorithm", "delta"], sort=False)["epsilon"]
        for (algorithm, delta), values in losses:
            low, high = (f"{value:.3g}" for value in (values.min(), values.max()))
            span = low if low == high else f"{low} to {high}"
            console.print(
                f"{algorithm}: epsilon {span} at delta {delta:g} for {unit}, every"
                " training for itself."
            )


def _print_left_out(console: Console, result: results.Result) -> None:
    """Prints the share of rounds in which FedPG left out its fairness objective."""
    reports = result.reports()
    shares = reports[reports["name"] == "fair_row"].groupby("algorithm")["value"]
    for algorithm, share in shares.mean().items():
        if share < 1:
            console.print(
                f"{algorithm}: {1 - share:.1%} of rounds left the fairness objective"
                " out, as losses were all equal, or one of them was not positive."
            )


def _print_ranking(console: Console, ranking: comparison.Comparison) -> None:
    """Prints a table per environment, the best first, and its conclusion."""
    # There is no column of statuses if all are ok.
    has_status = ranking.measures[-1:] == ("status",)
    for environment in ranking.environments:
        titles, rows = comparison.brief(ranking, environment)
        is_red = [has_status and row.cells[-1] != "ok" for row in environment.rows]
        styles = ["red" if red else "" for red in is_red]
        if ranking.is_paired:
            styles[0] = "bold"
        printing.table(
            console,
            titles,
            rows,
            title=f"{environment.title}: clients' own test data, last round",
            numbers=titles[2:],
            styles=styles,
        )
        if environment.conclusion:
            console.print(environment.conclusion)


def _print_settings(console: Console, summary: "pd.DataFrame") -> None:
    """Prints the headline of every setting: settings down, models across."""
    place = list(summary.columns).index("model")
    settings = list(summary.columns[:place])
    models = list(dict.fromkeys(summary["model"]))
    value = summary.columns[place + 1]
    across = [model.replace(" (", "\n(") for model in models]
    rows, styles = [], []
    for setting, trainings in summary.groupby(settings, sort=False, dropna=False):
        # A method may lack models that others have.
        cells = trainings.set_index("model")[value].replace("", "diverged")
        rows.append([*map(text, setting), *cells.reindex(models).fillna("-")])
        styles.append("" if (trainings["status"] == "ok").all() else "red")
    printing.table(
        console,
        [*selection.short(settings), *across],
        rows,
        title=f"All settings: {value}, clients' own test data, last round",
        numbers=across,
        styles=styles,
    )


def text(value: Any) -> str:
    """Formats a setting, lists as in JSON; empty if an algorithm lacks it."""
    if value is None or value != value:
        return ""
    return str(list(value)) if isinstance(value, tuple) else str(value)
