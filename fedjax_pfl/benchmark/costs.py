"""The table of what methods cost, whole and until they are as good as FedAvg."""

import math

import pandas as pd

from fedjax_pfl.benchmark import finished, ranking, tables, training
from fedjax_pfl.report import tables as texts

__all__ = ["number", "table"]

_TITLES = {
    "rounds": "rounds",
    "bytes": "MB",
    "client_steps": "client-steps",
    "seconds": "seconds",
    "virtual_seconds": "virtual seconds",
}
_VIRTUAL = "virtual_seconds"
_TARGET = (
    " Reached: seeds in which the validation {metric} was once what that of"
    f" {finished.TARGET} with the same seed was in the last round. What follows is"
    " spent until the first evaluation that found it so, in the mean over these seeds."
)
_MEGA = 1e6


def table(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of costs of one data set, in the order of places.

    Means over seeds until the target are of those seeds whose training came there.
    Costs that no method has are left out.
    """
    by_method = task.scores.groupby("method", sort=False)
    means, counts = by_method.mean(numeric_only=True), by_method.count()
    whole, until = (
        [f"{n}{end}" for n in names if counts[f"{n}{end}"].any()]
        for names, end in ((finished.COSTS, ""), (tuple(_TITLES), finished.TO_TARGET))
    )
    columns = ["method", *(_TITLES[name] for name in whole)]
    columns += ["reached"] * bool(until)
    columns += [f"{_TITLES[n.removesuffix(finished.TO_TARGET)]} to it" for n in until]
    rows = []
    for place in places:
        name = place.method
        cells = _cells(means.loc[name, whole])
        if until:
            came, seeds = counts.loc[name, until[0]], counts.loc[name, "seed"]
            cells += [f"{came} of {seeds}", *_cells(means.loc[name, until])]
        rows.append((name, *cells))
    caption = (
        "Of one training: megabytes sent, local steps of all clients and seconds here."
        f"{_devices() if _VIRTUAL in whole else ''}"
        f"{_TARGET.format(metric=task.metric) if until else ''}"
    )
    parts = (texts.Part("", tuple(rows)),)
    name = f"{task.tasks[0]}-costs"
    return texts.Table(name, "Costs", caption, tuple(columns), parts)


def _devices() -> str:
    """Says what virtual time is."""
    devices = training.DEVICES
    return (
        " In virtual time every round waits for its slowest client. Devices compute"
        f" {devices.examples_per_second:g} gradients of examples, send"
        f" {devices.upload / 1e3:g} and receive {devices.download / 1e3:g} kB per"
        " second in the median; logarithms of speeds spread by"
        f" {devices.spread:g} in what they compute and"
        f" by {devices.bandwidth_spread:g} in what they send."
    )


def _cells(row: pd.Series) -> list[str]:
    """Formats costs of a method."""
    units = {name: _MEGA if name.startswith("bytes") else 1.0 for name in row.index}
    return [number(float(row[name]) / units[name]) for name in row.index]


def number(value: float) -> str:
    """Formats a number of any size."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
