"""Keeps the rows of a sweep for its page: `python -m experiments.atlas DIR`."""

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments import commands
from experiments.atlas import silo
from fedjax_pfl import results
from fedjax_pfl.command import run_folder
from fedjax_pfl.core import checks
from fedjax_pfl.results import plain_files

__all__ = ["FOLDER", "app", "rows_of"]

FOLDER = Path(__file__).parents[1] / "results" / "atlas"
_NAMES = {
    "algorithm": "method",
    "aggregator": "rule",
    "attack": "attack",
    "attack.about": "about",
    "transforms.1.multiplier": "multiplier",
    "seed": "seed",
    "model": "model",
    "value": "accuracy",
}


@commands.application("Keeps the rows of a sweep of atlas_* for the page.")
def app(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of a sweep's results.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the tables.")
    ] = FOLDER,
) -> None:
    """Reads the sweep and writes its table."""
    name = run_folder.read(directory).preset
    if name is None or not name.startswith("atlas_"):
        raise checks.InputError(f"Expected a sweep of atlas_*, got one of {name!r}.")
    read = silo.rows_of if name == silo.NAME else rows_of
    rows = read(results.Result.load(directory))
    out.mkdir(parents=True, exist_ok=True)
    plain_files.write_text(out / f"{name}.csv", rows.to_csv(index=False))
    print(f"Table: {out / f'{name}.csv'}")


def rows_of(result: results.Result) -> pd.DataFrame:
    """Returns the last accuracy of honest clients on own test data, by model."""
    last = "metric == 'accuracy' and stat == 'mean' and when == 'last'"
    query = f"population == 'honest' and data == 'own test' and {last}"
    table = result.table().query(query)
    privacy = result.privacy()
    keys = [c for c in privacy.columns if c not in ("rounds", "epsilon", "delta")]
    table = table.merge(privacy[[*keys, "epsilon"]], on=keys, how="left")
    names = {n: short for n, short in _NAMES.items() if n in table}  # that vary
    rows = table[[*names, "epsilon"]].rename(columns=names)
    is_alone = table["algorithm"] == "Local"
    # Without noise the multiplier is 0 and epsilon infinite; training alone has none.
    rows["epsilon"] = rows["epsilon"].fillna(float("inf")).mask(is_alone)
    rows["multiplier"] = rows["multiplier"].fillna(0.0)
    if "attack" in rows:
        rows["attack"] = rows["attack"].fillna("none")
    if "rule" in rows:
        rows["rule"] = rows["rule"].mask(is_alone, "none")
    return rows.round({"accuracy": 5, "epsilon": 4})


if __name__ == "__main__":
    app()
