"""The page `docs/atlas.md`: privacy, attacks, rules and methods, from kept tables."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments import texts
from experiments.atlas import silo
from experiments.cards import markdown
from fedjax_pfl.results import paired

__all__ = ["render"]

_FIGURES = "atlas_files"
_TITLES = {"atlas_fmnist": "Fashion-MNIST, two labels per client"}
_ATTACKS = {"none": "No attack", "SignFlip": "Sign flips", "ALIE": "ALIE"}
_MEAN, _CONTROL = "Mean", "TrimmedMean"
_RULES = {_CONTROL: "Mean, noise on every message"}
_FLIPS = "atlas_flips"
_LINES = (  # method, model, rule of the lines of the figure, after Local
    ("FedAvg", "global", _MEAN),
    ("FedAvg", "fine-tuned", _MEAN),
    ("Ditto", "personal", _MEAN),
    ("FedAvg", "global", "GeometricMedian"),
    ("Ditto", "personal", "GeometricMedian"),
)


def _cell(rows: pd.DataFrame, **fields: object) -> pd.Series:
    """Returns accuracies in percent by seed, for the rows with these values."""
    for name, value in fields.items():
        rows = rows[rows[name] == value]
    return silo.percent(rows)


def _local_accuracy(rows: pd.DataFrame) -> pd.Series:
    """Returns accuracies of training alone, equal for all noise, rules and attacks."""
    return _cell(rows, method="Local")


def _epsilons(rows: pd.DataFrame) -> dict[float, float]:
    """Returns epsilon by noise multiplier, starting without noise."""
    federated_rows = rows[rows["method"] != "Local"]
    epsilons = federated_rows.groupby("multiplier")["epsilon"].unique()
    return {float(z): float(values[0]) for z, values in epsilons.items()}


def _table(rows: pd.DataFrame, attack: str) -> list[str]:
    """Returns the lines of an attack's table: methods and rules by epsilon."""
    epsilons = _epsilons(rows)
    local_cells = [f"{_local_accuracy(rows).mean():.1f}"] * len(epsilons)
    lines = [["Local", "–", *local_cells]]
    part = rows[rows["attack"] == attack]
    # Without validation data a hybrid would have been chosen on test data.
    part = part[(part["method"] != "Local") & ~part["model"].str.startswith("hybrid")]
    for (method, model, rule), cells in part.groupby(
        ["method", "model", "rule"], sort=False
    ):
        means = [f"{_cell(cells, multiplier=z).mean():.1f}" for z in epsilons]
        lines.append([f"{method} ({model})", _RULES.get(rule, rule), *means])
    return list(markdown.table(["model", "rule", *silo.headings(epsilons)], lines, 2))


def _figure(rows: pd.DataFrame) -> Figure:
    """Draws accuracy against epsilon, a panel per attack."""
    epsilons = _epsilons(rows)
    panels: dict[str, dict[str, list[float]]] = {}
    for attack, title in _ATTACKS.items():
        lines = panels.setdefault(title, {})
        lines["Local"] = [_local_accuracy(rows).mean()] * len(epsilons)
        for method, model, rule in _LINES:
            part = {"method": method, "model": model, "rule": rule, "attack": attack}
            means = [_cell(rows, **part, multiplier=z).mean() for z in epsilons]
            lines[f"{method} ({model}), {rule}"] = means
    return silo.figure_of(epsilons, panels, "accuracy of honest clients, %")


def _findings(rows: pd.DataFrame) -> list[str]:
    """Returns three findings, each with its paired interval."""
    strong, clean = max(_epsilons(rows)), 0.0
    local_accuracy = _local_accuracy(rows)

    def gain(multiplier: float) -> pd.Series:
        cell = {"attack": "none", "rule": _MEAN, "multiplier": multiplier}
        return _cell(rows, method="Ditto", model="personal", **cell) - local_accuracy

    def flipped(rule: str, multiplier: float) -> pd.Series:
        fields = {"method": "FedAvg", "model": "global", "attack": "SignFlip"}
        return _cell(rows, rule=rule, multiplier=multiplier, **fields)

    def gain_of_median(multiplier: float, reference: str) -> paired.Interval:
        pair = (flipped(rule, multiplier) for rule in ("GeometricMedian", reference))
        return paired.interval(*pair)

    def loss(method: str, model: str) -> pd.Series:
        fields = {"method": method, "model": model, "rule": _MEAN}
        clean_accuracy = _cell(rows, attack="none", multiplier=clean, **fields)
        scores = [
            _cell(rows, attack=attack, multiplier=strong, **fields)
            for attack in _ATTACKS
            if attack != "none"
        ]
        return clean_accuracy - sum(scores[1:], scores[0]) / len(scores)

    # Gains are over training alone, which is the same under all noise.
    change = paired.interval(gain(strong), gain(clean))
    global_loss, personal_loss = loss("FedAvg", "global"), loss("Ditto", "personal")
    return texts.blocks(
        "atlas_findings",
        verdict=silo.verdict(change),
        change=change,
        clean_gain=gain(clean).mean(),
        strong_gain=gain(strong).mean(),
        clean_median=gain_of_median(clean, _MEAN),
        strong_median=gain_of_median(strong, _MEAN),
        mechanism=paired.interval(flipped(_CONTROL, strong), flipped(_MEAN, strong)),
        median_over_control=gain_of_median(strong, _CONTROL),
        global_loss=global_loss.mean(),
        personal_loss=personal_loss.mean(),
        loss_gap=paired.interval(global_loss, personal_loss),
    )


def _finding_on_flips(rows: pd.DataFrame) -> str:
    """Returns why noise helps a mean under sign flips, with a control."""

    def change(about: str) -> paired.Interval:
        noises = sorted(rows["multiplier"].unique(), reverse=True)
        pair = (_cell(rows, about=about, multiplier=noise) for noise in noises)
        return paired.interval(*pair)

    changes = {about: change(about) for about in ("message", "reference")}
    (text,) = texts.blocks("atlas_flips", **changes)
    return text


def _study(
    rows: pd.DataFrame, name: str, title: str, flips: pd.DataFrame | None
) -> dict[str, Any]:
    """Returns texts and tables of one data set."""
    findings = _findings(rows)
    if flips is not None:
        findings.append(_finding_on_flips(flips))
    assert not math.isnan(_local_accuracy(rows).mean())
    names = [name] if flips is None else [name, _FLIPS]
    return {
        "name": name,
        "title": title,
        "findings": markdown.numbered(findings),
        "seeds": rows["seed"].nunique(),
        "tables": {t: "\n".join(_table(rows, a)) for a, t in _ATTACKS.items()},
        "names": names,
    }


def render(folder: Path) -> tuple[str, dict[str, Figure]]:
    """Returns the page and its figures by name; tables of the folder may be missing."""
    # A study that was not run leaves its part out, so that the page can be made early.
    figures, studies, silos = {}, [], None
    for name, title in _TITLES.items():
        if not (folder / f"{name}.csv").exists():
            continue
        rows = pd.read_csv(folder / f"{name}.csv", keep_default_na=False)
        rows["epsilon"] = pd.to_numeric(rows["epsilon"])
        figures[name] = _figure(rows)
        control = folder / f"{_FLIPS}.csv"
        flips = pd.read_csv(control) if control.exists() else None
        studies.append(_study(rows, name, title, flips))
    if (table := folder / f"{silo.NAME}.csv").exists():
        rows = pd.read_csv(table)
        figures[silo.NAME] = silo.figure(rows)
        silos = {
            "name": silo.NAME,
            "findings": markdown.numbered(silo.findings(rows)),
            "seeds": rows["seed"].nunique(),
            "table": "\n".join(silo.table(rows)),
        }
    text = texts.page("atlas", studies=studies, silos=silos, figures=_FIGURES)
    return text, figures
