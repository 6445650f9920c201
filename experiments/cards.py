"""Method cards from committed runs: `python -m experiments.cards`.

A run is a directory `results/<method>/<run>` with `summary.csv`, as `Result.save` wrote
it, and `command.txt`, the one line that reproduces it. A card is a function of these
files and of the method's texts alone, byte for byte.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from experiments import cli, paired

__all__ = ["Card", "Claim", "Side", "app", "render"]

FOLDER = Path(__file__).parent
DATA = ("own test", "own validation")
_POINT = ("algorithm", "dataset", "partition", "seed")
_VALUE = ("model", "population", "data", "metric", "stat", "when", "value", "status")
_TUNED = "algorithm."  # fields chosen by validation data, environment by environment

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      algorithm: class name, as in the tables.
      model: `personal`, `global` or another predictor.
      where: values of the algorithm's swept fields; of several settings that remain,
        the best on validation data is taken.
    """

    algorithm: str
    model: str
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        fields = [f"{n.rpartition('.')[2]} = {v}" for n, v in self.where.items()]
        return " ".join([self.algorithm, self.model, *fields])


@dataclasses.dataclass(frozen=True)
class Claim:
    """That one side has a higher mean accuracy than the other.

    Attributes:
      text: the claim in words.
      run: name of the run that decides it.
      better: the side claimed to be better.
      worse: the other side.
    """

    text: str
    run: str
    better: Side
    worse: Side


@dataclasses.dataclass(frozen=True)
class Card:
    """Everything of a card that is not computed.

    Attributes:
      method: name of the card and of its directory of runs.
      title: heading.
      text: what the paper reports and why it is not comparable; Markdown.
      reference: what all others are compared with.
      claims: what the runs are to decide.
    """

    method: str
    title: str
    text: str
    reference: Side
    claims: Sequence[Claim] = ()


@dataclasses.dataclass(frozen=True)
class _Run:
    """One committed run: own test and validation accuracy of the last round."""

    name: str
    command: str
    rows: pd.DataFrame
    fields: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "_Run":
        """Reads a run's directory."""
        from fedjax_pfl import checks

        try:
            command = (folder / "command.txt").read_text("utf-8").strip()
            table = pd.read_csv(folder / "summary.csv")
        except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError):
            raise checks.InputError(
                f"Expected a table and one line of text in '{folder}'."
            ) from None
        missing = [n for n in (*_POINT, *_VALUE) if n not in table]
        if missing or "\n" in command or not command:
            reason = f"no column {missing[0]}" if missing else "not one command"
            raise checks.InputError(
                f"Expected summary.csv of a result and command.txt with one line in"
                f" '{folder}', got {reason}."
            )
        is_shown = (table["when"] == "last") & (table["metric"] == "accuracy")
        is_shown &= (table["stat"] == "mean") & table["population"].isin(
            ["all", "honest"]
        )
        rows: Any = table[is_shown & table["data"].isin(DATA)]
        if rows[rows["data"] == "own test"].empty:
            raise checks.InputError(
                f"Expected accuracies on own test data in '{folder}/summary.csv'."
            )
        fields = tuple(n for n in table if n not in (*_POINT, *_VALUE))
        names = [*_POINT, *fields, "model", "data"]
        rows = rows.drop_duplicates(names, keep="last")  # honest, where there is one
        return cls(name=folder.name, command=command, rows=rows, fields=fields)

    @property
    def _environment(self) -> list[str]:
        """Columns that are not chosen by anybody."""
        return [
            "dataset",
            "partition",
            *(f for f in self.fields if not f.startswith(_TUNED)),
        ]

    def environments(self) -> Iterator[tuple[str, "_Run"]]:
        """The run by data set, partition and fields of neither; with a title."""
        columns = self._environment
        for values, rows in self.rows.groupby(columns, sort=False, dropna=False):
            named = zip(columns[2:], values[2:], strict=True)
            parts = [f"{n.rpartition('.')[2]} = {v}" for n, v in named if v == v]
            title = ", ".join([f"{values[0]}, {values[1]}", *parts])
            yield title, dataclasses.replace(self, rows=rows)

    def settings(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Rows of every algorithm with one setting of its own fields; with a name."""
        own = [f for f in self.fields if f.startswith(_TUNED)]
        for values, rows in self.rows.groupby(
            ["algorithm", *own], sort=False, dropna=False
        ):
            named = zip(own, values[1:], strict=True)
            fields = [f"{n.rpartition('.')[2]} = {v}" for n, v in named if v == v]
            yield ", ".join([values[0], *fields]), rows

    def accuracies(self, side: Side) -> pd.Series | None:
        """Test accuracy of one side by seed; None if the run does not have it."""
        found = []
        for _, rows in self.settings():
            is_side = (rows["algorithm"] == side.algorithm) & (
                rows["model"] == side.model
            )
            for name, value in side.where.items():
                is_side &= (rows[name] == value) if name in rows else False
            if is_side.any():
                rows = rows[is_side]
                on = {d: _by_seed(rows, f"own {d}") for d in ("test", "validation")}
                found.append((on["validation"].mean(), on["test"]))
        if not found:
            return None
        scores = [score for score, _ in found]
        if len(found) > 1 and np.isnan(scores).all():
            from fedjax_pfl import checks

            raise checks.InputError(
                f"Expected validation accuracies to choose among {len(found)} settings"
                f" of {side} in run '{self.name}'."
            )
        best = int(np.nanargmax(scores)) if len(found) > 1 else 0
        return found[best][1]


def _by_seed(rows: pd.DataFrame, data: str) -> pd.Series:
    """Accuracies by seed, in percent; NaN where a training diverged."""
    chosen = rows[rows["data"] == data]
    return 100 * chosen.set_index("seed")["value"].sort_index()


def render(card: Card, results: Path) -> str:
    """Writes a card.

    Args:
      card: texts and claims.
      results: directory of the methods' runs.

    Returns:
      Markdown.

    Raises:
      InputError: if a run is damaged.
    """
    folders = sorted((results / card.method).glob("*/summary.csv"))
    runs = {path.parent.name: _Run.read(path.parent) for path in folders}
    lines = [
        f"# {card.title}",
        "",
        f"Generated by `python -m experiments.cards {card.method}`; edits are lost.",
        "",
        card.text.strip(),
        "",
        "## Our runs",
        "",
        "Mean over clients of the accuracy on their own test data after the last round,"
        " in percent, then mean ± standard deviation over seeds. Differences are to"
        f" {card.reference} and paired by seed, with 95 % intervals of Student's t."
        " Honest clients where some are malicious, else all.",
        "",
    ]
    for run in runs.values():
        lines += _run_lines(run, card.reference)
    if not runs:
        lines += ["There are none yet.", ""]
    lines += _claim_lines(card, runs)
    return "\n".join(lines).rstrip() + "\n"


def _run_lines(run: _Run, reference: Side) -> list[str]:
    """Command and tables of one run."""
    lines = [f"### {run.name}", "", "```sh", run.command, "```", ""]
    for title, part in run.environments():
        base = part.accuracies(reference)
        lines += [
            f"{title}:",
            "",
            "| algorithm | model | seeds | accuracy | difference |",
            "|---|---|---|---|---|",
        ]
        for name, rows in part.settings():
            for model, found in rows.groupby("model", sort=False):
                if model == "hybrid (oracle)":
                    continue  # a bound, not a method
                values = _by_seed(found, "own test")
                cells = (name, model, *_cells(values), _difference(values, base))
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def _cells(values: pd.Series) -> tuple[str, str]:
    """Number of seeds, and mean and spread over those that did not diverge."""
    good = values.dropna()
    seeds = str(len(values))
    if len(good) < len(values):
        seeds = f"{len(good)} of {len(values)}"
    if good.empty:
        return seeds, "diverged"
    spread = f" ± {good.std():.2f}" if len(good) > 1 else ""
    return seeds, f"{good.mean():.2f}{spread}"


def _difference(values: pd.Series, base: pd.Series | None) -> str:
    """Paired difference to the reference, which is not compared with itself."""
    if base is None or values.equals(base):
        return ""
    return str(paired.interval(values, base))


def _claim_lines(card: Card, runs: Mapping[str, _Run]) -> list[str]:
    """Table of verdicts: one row per claim and environment."""
    if not card.claims:
        return []
    lines = [
        "## Claims",
        "",
        "A claim holds if the whole interval is above zero, does not hold if it is"
        " below, and is undecided otherwise.",
        "",
        "| claim | where | difference | verdict | command |",
        "|---|---|---|---|---|",
    ]
    for claim in card.claims:
        for cells in _verdicts(claim, runs.get(claim.run)):
            lines.append(f"| {claim.text} | {' | '.join(cells)} |")
    return lines


def _verdicts(claim: Claim, run: _Run | None) -> Iterator[tuple[str, ...]]:
    """Environment, difference, verdict and command of one claim."""
    if run is None:
        yield f"run `{claim.run}`", "", "not run", ""
        return
    for title, part in run.environments():
        sides = [part.accuracies(side) for side in (claim.better, claim.worse)]
        lacking = [
            str(side)
            for side, found in zip((claim.better, claim.worse), sides, strict=True)
            if found is None
        ]
        if lacking:
            yield title, f"no {lacking[0]}", "not run", f"`{run.command}`"
            continue
        found = paired.interval(*sides)
        yield title, str(found), found.verdict, f"`{run.command}`"


@app.command(help="Writes the cards of all methods, or of one, from committed runs.")
def main(
    method: Annotated[str | None, typer.Argument(help="Only this method.")] = None,
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the methods' runs.")
    ] = FOLDER / "results",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the cards.")
    ] = FOLDER / "cards",
) -> None:
    """Writes `<out>/<method>.md`."""
    cli.answer(lambda: _write(method, results, out))


def _write(method: str | None, results: Path, out: Path) -> None:
    """Renders everything before anything is written."""
    from experiments import cards_fedacs
    from fedjax_pfl import checks

    known = {card.method: card for card in (cards_fedacs.CARD,)}
    if method is not None:
        checks.known(method, known, "method with a card")
        known = {method: known[method]}
    if not results.is_dir():
        raise checks.InputError(
            f"Expected --results to be a directory of runs, got '{results}'."
        )
    texts = {name: render(card, results) for name, card in known.items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        file = out / f"{name}.md"
        temporary = out / f".{name}.{os.getpid()}"
        temporary.write_text(text, "utf-8", newline="\n")
        temporary.replace(file)
        print(f"Card: {file}")


if __name__ == "__main__":
    app()
