"""Keeps the rows of fine-tuning for its page: `python -m experiments.finetune`."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments import commands
from experiments.presets import finetune
from fedjax_pfl import results
from fedjax_pfl.core import checks
from fedjax_pfl.results import metrics, plain_files, selection

__all__ = ["FOLDER", "app", "rows_of"]

FOLDER = Path(__file__).parents[1] / "results" / "finetune"
_RATE, _LAM = "algorithm.local.learning_rate", "algorithm.lam"
_STATS = {
    ("own validation", "mean"): "validation",
    ("own test", "mean"): "accuracy",
    ("own test", "worst 10 %"): "worst",
    ("own test", "worse than Local"): "hurt",
}


@commands.application("Keeps the rows of sweeps of finetune_* for the page.")
def app(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory of a sweep of 'finetune_<dataset>_*'."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the tables.")
    ] = FOLDER,
) -> None:
    """Reads the sweeps of all parts of data sets and writes a table of each."""
    tables = {}
    for dataset in finetune.DATASETS:
        folders = {
            part: directory / f"finetune_{dataset}_{part}" for part in finetune.PARTS
        }
        if any(folder.is_dir() for folder in folders.values()):
            parts = [
                rows_of(results.Result.load(folder)).assign(part=part)
                for part, folder in folders.items()
            ]
            tables[dataset] = pd.concat(parts)
    if not tables:
        raise checks.InputError(
            "Expected DIR to be of a sweep of 'finetune_<dataset>_*', got"
            f" '{directory}'."
        )
    out.mkdir(parents=True, exist_ok=True)
    for dataset, table in tables.items():
        file = out / f"{dataset}.csv"
        plain_files.write_text(file, table.to_csv(index=False, float_format="%.6g"))
        print(f"Table: {file}")


def rows_of(result: results.Result) -> pd.DataFrame:
    """Returns scores, bytes and time of methods with their best settings, by seed."""
    best = selection.best_settings(result)

    def with_best(table: pd.DataFrame) -> pd.DataFrame:
        return table.merge(best, on=list(best.columns))

    keys = ["algorithm", "seed"]
    table = with_best(result.table())
    # The personal model counts, or the global one of a method without.
    judges = {
        method: metrics.judge(method_rows["model"].unique())
        for method, method_rows in table.groupby("algorithm")
    }

    def headline_rows(rows: pd.DataFrame) -> pd.DataFrame:
        rows = rows[rows["model"] == rows["algorithm"].map(judges)]
        return rows[rows["metric"] == "accuracy"]

    last = headline_rows(table[table["when"] == "last"])
    last = last.set_index([*keys, "data", "stat"])["value"]
    rows = pd.DataFrame(
        {name: last.xs(which, level=[2, 3]) for which, name in _STATS.items()}
    )
    curves = headline_rows(with_best(result.curves()))
    initial_rows = curves[(curves["round"] == 0) & (curves["data"] == "own test")]
    # The pretrained network, before the first round.
    rows["start"] = initial_rows.set_index(keys)["value"]
    costs = with_best(result.spent())
    costs = costs[costs["round"] == costs["round"].max()].set_index(keys)
    rows["megabytes"] = (costs["bytes_up"] + costs["bytes_down"]) / 1e6
    rows["steps"], rows["seconds"] = costs["client_steps"], costs["seconds"]
    settings = costs.reindex(columns=[_RATE, _LAM])
    rows.insert(0, "rate", settings[_RATE])
    rows.insert(1, "lam", settings[_LAM])
    order = {name: k for k, name in enumerate(table["algorithm"].unique())}
    return (
        rows.rename_axis(["method", "seed"])
        .sort_index(
            level="method", key=lambda names: names.map(order), sort_remaining=True
        )
        .reset_index()
    )


if __name__ == "__main__":
    app()
