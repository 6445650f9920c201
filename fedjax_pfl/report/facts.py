"""Facts about trainings: their duration, machine and settings."""

import dataclasses
import itertools
import json
from typing import Any

import numpy as np

from fedjax_pfl import results
from fedjax_pfl.report import sources, tables
from fedjax_pfl.results import (
    comparison,
    history,
    selection,
    spending,
    summaries,
)
from fedjax_pfl.results import named_clients as of_names
from fedjax_pfl.results import provenance as origins

__all__ = [
    "communication",
    "configuration",
    "methods",
    "overview",
    "privacy",
    "provenance",
    "searches",
    "timing",
    "unseen",
]

_VERSIONS = ("fedjax_pfl", "jax", "numpy", "python")


def overview(loaded: sources.Loaded) -> list[tuple[str, str]]:
    """Returns the facts of the report, a few words each."""
    result = loaded.result
    groups = result.groups
    points = [point for group in groups for point in group.points]
    seeds = {point["seed"] for point in points if "seed" in point}
    data = dict.fromkeys(map(_data, groups))
    clients = dict.fromkeys(_clients(group) for group in groups)
    rounds = dict.fromkeys(
        str(_value(group, "num_rounds") or int(group.rounds[-1])) for group in groups
    )
    endings = [status for status in result.status if status != "ok"]
    diverged = sum(status.startswith("diverged") for status in endings)
    # Stopped, dropped, or at their target.
    early = len(endings) - diverged
    status = f"{len(points) - diverged} of {len(points)} finite"
    status += f", {diverged} diverged" if diverged else ""
    status += f", {early} ended early" if early else ""
    facts = [
        ("methods", ", ".join(methods(result))),
        ("data", "; ".join(data)),
        ("clients", ", ".join(clients)),
        ("rounds", ", ".join(rounds)),
        ("seeds", str(len(seeds) or 1)),
        ("trainings", status),
    ]
    notes = (origins.continued(source.provenance) for source in loaded.sources)
    if continued := dict.fromkeys(itertools.chain.from_iterable(notes)):
        facts.append(("continued with other code", "; ".join(continued)))
    if loaded.unfinished:
        facts.append(("not finished, left out", ", ".join(loaded.unfinished)))
    return facts


def methods(result: results.Result) -> list[str]:
    """Names the algorithms in order of appearance."""
    return list(dict.fromkeys(_algorithm(group) for group in result.groups))


def timing(loaded: sources.Loaded) -> tables.Table:
    """Returns the seconds of every static group, and its machine."""
    parts = []
    for source in loaded.sources:
        rows = []
        for group in source.groups:
            # Points that stopped early have taken fewer rounds.
            rounds = int(spending.rounds(group).sum())
            speed = rounds / group.run_seconds if group.run_seconds > 0 else np.nan
            row = (
                _algorithm(group),
                str(len(group.points)),
                f"{rounds:,}",
                f"{group.compile_seconds:,.1f}",
                f"{group.run_seconds:,.1f}",
                tables.number(speed),
                str(_value(group, "execution") or "–"),
            )
            rows.append(row)
        heading = f"{source.name}: {_place(source.provenance)}"
        parts.append(tables.Part(heading, tuple(rows)))
    columns = ("static group", "grid points", "rounds of all points", "compile s")
    columns += ("run s", "rounds/s", "execution")
    caption = (
        "Seconds for lowering and compiling, and for everything else, which includes"
        " evaluations and checkpoints. Rounds/s are those of all grid points of the"
        " group together, by the seconds of running."
    )
    return tables.Table("timing", "Timing", caption, columns, tuple(parts))


def communication(loaded: sources.Loaded) -> tables.Table:
    """Returns the bytes and steps of every algorithm, means over its trainings."""
    titles = {
        "rounds": "rounds",
        "bytes_up": "up per round",
        "bytes_down": "down per round",
        "total_bytes_up": "up",
        "total_bytes_down": "down",
        "client_steps": "client steps",
    }
    sent = loaded.result.communication().groupby("algorithm", sort=False)
    rows = []
    for algorithm, means in sent[[*titles]].mean().iterrows():
        cells = ("–" if np.isnan(value) else f"{value:,.0f}" for value in means)
        rows.append((str(algorithm), *cells))
    caption = (
        "Bytes sent by clients (up) and to clients (down), of all of them together, per"
        " round and in all rounds; client steps are the local steps of all clients in"
        " all rounds. Means over the trainings of an algorithm."
    )
    columns = ("algorithm", *titles.values())
    return tables.of_rows("communication", "Communication", caption, columns, rows)


_OF_CLIENTS = (
    "Differential privacy of a whole client, one in place of another, of everything"
    " that the server sends in all rounds. Every training is accounted for alone: not"
    " several seeds, nor what was chosen by comparing trainings or on validation data."
    " Personal models stay with clients."
)
_OF_EXAMPLES = (
    "Differential privacy of an example, one in place of another of the same client, of"
    " everything that this client sends in all rounds, or, where it trains alone, of"
    " its model; of the client of which most is revealed. Every training is accounted"
    " for alone: not several seeds, nor what was chosen by comparing trainings or on"
    " validation data."
)


def privacy(loaded: sources.Loaded) -> list[tables.Table]:
    """Returns the tables of epsilons, if the server or clients added noise."""
    result, parts = loaded.result, []
    for name, title, losses, caption in (
        ("privacy", "Privacy", result.privacy(), _OF_CLIENTS),
        ("local_privacy", "Local privacy", result.local_privacy(), _OF_EXAMPLES),
    ):
        if losses.empty:
            continue
        # Seeds and settings with equal losses share a row.
        columns = ["algorithm", "delta", "epsilon", "rounds"]
        rows = [
            (str(r.algorithm), f"{r.delta:.3g}", f"{r.epsilon:.3g}", f"{r.rounds:,}")
            for r in losses[columns].drop_duplicates().itertuples()
        ]
        parts.append(tables.of_rows(name, title, caption, columns, rows))
    return parts


def unseen(loaded: sources.Loaded) -> list[tables.Table]:
    """Returns the table of clients that never trained, if there were some."""
    parts: dict[str, list[tuple[str, ...]]] = {}
    for heading, *row in comparison.unseen(loaded.result.contenders()):
        parts.setdefault(heading, []).append(tuple(row))
    if not parts:
        return []
    caption = (
        "Models of clients that were held out of training, on their own test data after"
        " the last round: the headline metric's mean over them, and that of the worst"
        " tenth; mean ± standard deviation over seeds. Adapted to their training data"
        " by the method's own rule, or by local epochs where it has none."
    )
    columns = ("method", "model", "mean", "worst 10 %")
    built = tuple(tables.Part(name, tuple(rows)) for name, rows in parts.items())
    return [tables.Table("unseen", "Unseen clients", caption, columns, built, 2)]


def named_clients(loaded: sources.Loaded) -> list[tables.Table]:
    """Returns a table of clients by name per environment, if they have names."""
    groups, metric = of_names.of_result(loaded.result.contenders())
    built = []
    for number, group in enumerate(groups):
        noun = metric.replace("_", " ")
        limit = f", the {len(group.rows)} lowest of all" if group.left_out else ""
        caption = " ".join(
            (
                *group.sentences,
                f"The {noun} of each client on its own test data after the last round,"
                f" mean over seeds{limit}. Differences between single clients are not"
                " tested: with few test examples they can be chance.",
            )
        )
        # Files of different environments need different names.
        name = f"named_clients_{number}" if number else "named_clients"
        title = f"Clients by name: {group.title}" if group.title else "Clients by name"
        columns = ("client", "test examples", *group.columns)
        built.append(tables.of_rows(name, title, caption, columns, group.rows))
    return built


def searches(loaded: sources.Loaded) -> list[tables.Table]:
    """Returns the table of the settings in searches, if there were some."""
    parts = []
    for group in loaded.result.groups:
        if group.dropped is None:
            continue
        metric = group.headline
        fields = [n for n in group.points[0] if n.startswith(summaries.METHOD_FIELDS)]
        # All settings, with those that the search dropped.
        searched = dataclasses.replace(loaded.result, groups=(group,))
        trials = selection.trials(searched, fields, metric=metric)
        rows = [
            (
                str(number),
                ", ".join(selection.label_values(trial, fields)),
                f"{trial['rounds']:,}",
                f"{trial['score']:.4f}",
                trial["status"],
            )
            for number, (_, trial) in enumerate(trials.iterrows(), start=1)
        ]
        share = f"{group.share_of_rounds:.0%} of the rounds of all settings"
        heading = f"{_algorithm(group)}: {share}"
        parts.append(tables.Part(heading, tuple(rows)))
    if not parts:
        return []
    caption = (
        "Every setting that a search has tried, by rounds and then by score: the"
        " model's metric on validation data when it ended, mean over seeds. Those that"
        " were dropped are in no other table and no figure."
    )
    columns = ("rank", "setting", "rounds", "score", "status")
    return [tables.Table("search", "Search", caption, columns, tuple(parts))]


def configuration(loaded: sources.Loaded) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns settings by dotted name: shared by all groups, then of each group."""
    groups = [group for source in loaded.sources for group in source.groups]
    shared = {
        name: value
        for name, value in groups[0].config.items()
        if all(name in g.config and g.config[name] == value for g in groups[1:])
    }
    # One group has no settings of others to be compared with.
    if len(groups) == 1:
        return [("settings", _items(shared | _swept(groups[0])))]
    settings = [("all groups", _items(shared))]
    for number, group in enumerate(groups, start=1):
        config = {n: v for n, v in group.config.items() if n not in shared}
        title = f"group {number}: {_algorithm(group)}"
        settings.append((title, _items(config | _swept(group))))
    return settings


def _swept(group: history.History) -> dict[str, list[Any]]:
    """Returns values of every swept field."""
    swept = {}
    for name in dict.fromkeys(n for point in group.points for n in point):
        values = dict.fromkeys(json.dumps(point.get(name)) for point in group.points)
        swept[name] = [json.loads(value) for value in values]
    return swept


def provenance(source: sources.Source) -> list[tuple[str, str]]:
    """Returns the time, versions and machine of a result."""
    record = source.provenance
    versions = ", ".join(f"{n} {record[n]}" for n in _VERSIONS if record.get(n))
    facts = record | {"versions": versions}
    if record.get("clean") is False:
        facts["commit"] = f"{record.get('commit')}, changed since"
    digests = record.get("own_sources")
    if isinstance(digests, dict):
        facts["own modules"] = ", ".join(f"{name} {digests[name]}" for name in digests)
    facts["continued with other code"] = "; ".join(origins.continued(record))
    names = ("started", "commit", "sources", "own modules", "versions", "platform")
    names += ("continued with other code",)
    return [(name, str(facts[name])) for name in names if facts.get(name)]


def _algorithm(group: history.History) -> str:
    return str(group.config.get("algorithm"))


def _value(group: history.History, name: str) -> Any:
    """Returns a setting, or its values if it was swept; None for unknown names."""
    if name in group.config:
        return group.config[name]
    values = dict.fromkeys(str(p[name]) for p in group.points if name in p)
    return ", ".join(values) or None


def _data(group: history.History) -> str:
    """Returns the data set and partition."""
    names = [_value(group, f"federation.{part}") for part in ("dataset", "partition")]
    return ", ".join(str(name) for name in names if name) or "own data"


def _place(provenance: dict[str, Any]) -> str:
    """Formats devices and platform."""
    kinds = dict.fromkeys(provenance.get(name) for name in ("device", "backend"))
    device = ", ".join(str(kind) for kind in kinds if kind) or "device not known"
    number, platform = provenance.get("num_devices"), provenance.get("platform")
    device = f"{number} × {device}" if number else device
    return f"{device}, {platform}" if platform else device


def _clients(group: history.History) -> str:
    """Counts clients and evaluated clients."""
    total, count = _value(group, "federation.num_clients"), len(group.clients)
    # Clients of the last evaluation: a streamed training evaluates a sample, and
    # eval_clients the participants.
    judged = group.evaluated[:, -1].any(axis=1).sum(axis=-1)
    low, high = int(judged.min()), int(judged.max())
    text = str(total or count)
    if text.isdecimal() and int(text) == low == high:
        return text
    return f"{text}, {low} judged" if low == high else f"{text}, some judged"


def _items(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Formats settings."""
    return [
        (n, v if isinstance(v, str) else json.dumps(v)) for n, v in settings.items()
    ]
