"""The page `docs/atlas.md`: privacy, attacks, rules and methods, from kept tables."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

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

    change = paired.interval(gain(strong), gain(clean))
    # Gains are over training alone, which is the same under all noise.
    privacy_text = (
        "**Does federation help more when privacy is stronger?** (Claimed for silos"
        " that protect single examples: arXiv 2206.07902.)"
        f" {silo.verdict(change)} if clients are protected as a whole: Ditto's gain"
        f" over training alone changes by {change} points from no noise"
        f" ({gain(clean).mean():+.2f}) to the strongest noise"
        f" ({gain(strong).mean():+.2f}). Training alone sends nothing, and so costs no"
        " privacy."
    )

    def flipped(rule: str, multiplier: float) -> pd.Series:
        fields = {"method": "FedAvg", "model": "global", "attack": "SignFlip"}
        return _cell(rows, rule=rule, multiplier=multiplier, **fields)

    def gain_of_median(multiplier: float, reference: str) -> paired.Interval:
        pair = (flipped(rule, multiplier) for rule in ("GeometricMedian", reference))
        return paired.interval(*pair)

    mechanism = paired.interval(flipped(_CONTROL, strong), flipped(_MEAN, strong))
    rule_text = (
        "**Does a robust rule still pay under noise?** With sign flips the geometric"
        f" median is {gain_of_median(clean, _MEAN)} points above the mean without"
        f" noise, and {gain_of_median(strong, _MEAN)} with the strongest noise. A"
        " median needs noise on every message, sqrt(K) times as much in all as on the"
        f" sum of K messages. With that noise the mean changes by {mechanism} points,"
        f" and the median is {gain_of_median(strong, _CONTROL)} points above it."
    )

    def loss(method: str, model: str) -> pd.Series:
        fields = {"method": method, "model": model, "rule": _MEAN}
        clean_accuracy = _cell(rows, attack="none", multiplier=clean, **fields)
        scores = [
            _cell(rows, attack=attack, multiplier=strong, **fields)
            for attack in _ATTACKS
            if attack != "none"
        ]
        return clean_accuracy - sum(scores[1:], scores[0]) / len(scores)

    loss_gap = paired.interval(loss("FedAvg", "global"), loss("Ditto", "personal"))
    model_text = (
        "**Which models do attacks and noise hurt?** With both, FedAvg's global model"
        f" loses {loss('FedAvg', 'global').mean():.1f} points and Ditto's personal"
        f" models {loss('Ditto', 'personal').mean():.1f}, {loss_gap} points less."
    )
    return [privacy_text, rule_text, model_text]


def _finding_on_flips(rows: pd.DataFrame) -> str:
    """Returns why noise helps a mean under sign flips, with a control."""

    def change(about: str) -> paired.Interval:
        noises = sorted(rows["multiplier"].unique(), reverse=True)
        pair = (_cell(rows, about=about, multiplier=noise) for noise in noises)
        return paired.interval(*pair)

    return (
        "**Why does noise help the mean against sign flips?** A flipped model, clipped,"
        " is a pull of fixed length toward zero, and noise gives the model a length"
        " that the pull has to remove first: the weakest noise changes the accuracy of"
        f" FedAvg's global model by {change('message')} points. If updates are flipped"
        f" instead of models, there is no such pull, and noise changes it by"
        f" {change('reference')} points."
    )


def _section(
    rows: pd.DataFrame, name: str, title: str, flips: pd.DataFrame | None
) -> Sequence[str]:
    """Returns the blocks of one data set."""
    findings = _findings(rows)
    if flips is not None:
        findings.append(_finding_on_flips(flips))
    seeds = rows["seed"].nunique()
    assert not math.isnan(_local_accuracy(rows).mean())
    blocks = [
        f"## {title}",
        markdown.numbered(findings),
        f"![Accuracy against epsilon, a panel per attack]({_FIGURES}/{name}.svg)",
        "There are a thousand clients, a tenth of whom take part in a round; under"
        " attack a fifth of all are malicious. Messages are clipped. The server adds"
        " noise to the mean, or, for a median, to every message; a mean with noise on"
        " every message is the control. Numbers are the"
        " accuracy of honest clients on their own test data in percent, means over"
        f" {seeds} seeds, with 95 % intervals paired by seed.",
    ]
    for attack, label in _ATTACKS.items():
        blocks += [f"### {label}", "\n".join(_table(rows, attack))]
    names = [name] if flips is None else [name, _FLIPS]
    return [*blocks, "### Run it again", *map(_commands, names)]


def _commands(name: str) -> str:
    """Returns the commands that make a preset's table."""
    return (
        f"```sh\npython -m experiments.sweep --preset {name} --out {name}\n"
        f"python -m experiments.atlas {name}\n```"
    )


def render(folder: Path) -> tuple[str, dict[str, Figure]]:
    """Returns the page and its figures by name; tables of the folder may be missing."""
    blocks = [
        "# Privacy, attacks, rules and methods in one grid",
        "Find out what privacy costs every method, with and without an attack and a"
        " robust rule. See also [what epsilon accounts for](privacy.md) and"
        " [the attacks](parts.md).",
    ]
    # A study that was not run leaves its part out, so that the page can be made early.
    figures = {}
    for name, title in _TITLES.items():
        if not (folder / f"{name}.csv").exists():
            continue
        rows = pd.read_csv(folder / f"{name}.csv", keep_default_na=False)
        rows["epsilon"] = pd.to_numeric(rows["epsilon"])
        figures[name] = _figure(rows)
        control = folder / f"{_FLIPS}.csv"
        flips = pd.read_csv(control) if control.exists() else None
        blocks += _section(rows, name, title, flips)
    if (table := folder / f"{silo.NAME}.csv").exists():
        rows = pd.read_csv(table)
        figures[silo.NAME] = silo.figure(rows)
        blocks += silo.section(rows, f"{_FIGURES}/{silo.NAME}.svg")
        blocks += ["### Run it again", _commands(silo.NAME)]
    blocks.append(
        "`experiments/presets/atlas.py` has every setting. This page is generated by"
        " `python -m experiments.cards` from the tables of `python -m"
        " experiments.atlas`; edits are lost."
    )
    return "\n\n".join(blocks) + "\n", figures
