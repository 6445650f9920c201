"""Learns fields from poor starts, trains a grid: `python -m experiments.learned`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pandas as pd
import typer

import fedjax_pfl as fp
from experiments import commands, presets  # noqa: F401 (presets of the papers)
from experiments.learned import page
from fedjax_pfl import results
from fedjax_pfl.command import presets as named_presets
from fedjax_pfl.core import checks, struct

__all__ = ["DATA", "FOLDER", "app"]

FOLDER = Path(__file__).parents[1] / "results" / "learned"
DATA = ("digits", "fmnist_dir", "femnist")
_LAM, _RATE = "algorithm.lam", "algorithm.local.learning_rate"
_LAMS = np.geomspace(0.01, 10, 9)
_RATES = np.geomspace(0.003, 1, 5)
_STARTS = ((10.0, 0.003), (0.01, 0.003), (10.0, 0.05), (0.01, 1.0))  # the last unstable
_SEEDS = (0, 1, 2)
_PER_CLIENT = ("digits",)  # elsewhere it takes hours
_OBJECTIVE = "validation:loss:personal"
_EVERY = 2  # rounds between two moves


@commands.application(
    "Learns lam and the learning rate of FLAME, beside a grid of them."
)
def app(
    data: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(DATA)}; all by default.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the tables.")
    ] = FOLDER,
) -> None:
    """Writes two tables per data set."""
    for name in data or DATA:
        _study(name, out)


def _study(name: str, out: Path) -> None:
    """Trains the grid, learns from every start, and writes both."""
    checks.known(name, DATA, "data set of the study")
    experiment = named_presets.get(f"benchmark_{name}")
    grid = next(
        g for g in experiment.grids if isinstance(g.process.algorithm, fp.Flame)
    )
    base = (jax.random.key(0, impl="threefry2x32"), grid.process, grid.model, grid.spec)
    rounds = experiment.num_rounds

    points = [
        {_LAM: lam, _RATE: rate, "seed": seed}
        for lam in _LAMS
        for rate in _RATES
        for seed in _SEEDS
    ]
    result = fp.grid(*base, points, rounds, eval_every=rounds)
    learned, paths = _learn(base, rounds, page.TRAININGS)
    grid_scores = _scores(result)
    parts = [grid_scores.assign(kind="grid"), learned.assign(kind="learned")]
    if name in _PER_CLIENT:
        parts.append(_per_client(grid_scores, base, rounds).assign(kind="per client"))
    out.mkdir(parents=True, exist_ok=True)
    for kind, table in (("points", pd.concat(parts)), ("paths", paths)):
        file = out / f"{name}-{kind}.csv"
        table.to_csv(file, index=False, float_format="%.6g")
        print(f"Table: {file}")


def _learn(base: Any, rounds: int, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Learns from every start; returns the best trainings' scores and all paths."""
    fields = [_LAM, _RATE]
    starts, values = _start_values(_STARTS), _start_values(_STARTS)
    scores, paths = [], []
    for number in range(count):
        learned = fp.learn(
            *base,
            fields,
            rounds,
            objective=_OBJECTIVE,
            seeds=_SEEDS,
            starts=values,
            eval_every=_EVERY,
        )
        path, rows, ends = learned.path, _scores(learned.result), []
        for start, value in zip(starts, values, strict=True):
            part = path[_mask(path, {f"start {n}": v for n, v in value.items()})]
            ends.append(part[fields].iloc[-1].to_dict())
            start_fields = {f"start {n}": v for n, v in start.items()}
            paths.append(part.assign(**start_fields, training=number))
            part = rows[_mask(rows, {"lam": value[_LAM], "rate": value[_RATE]})]
            start_fields = {"lam": start[_LAM], "rate": start[_RATE]}
            scores.append(part.assign(**start_fields, training=number))
        # Each later training begins with the final values of the previous one.
        values = ends
    keys = ["lam", "rate"]
    table = pd.concat(scores)
    means = table.groupby([*keys, "training"])["validation_accuracy"].agg(
        lambda accuracies: accuracies.mean(skipna=False)
    )
    # All trainings of a start may diverge: -1 ranks them last, where NaN would fail.
    best = means.fillna(-1).groupby(keys).idxmax().tolist()
    is_best = pd.MultiIndex.from_frame(table[[*keys, "training"]]).isin(best)
    return table[is_best], pd.concat(paths)


def _mask(table: pd.DataFrame, values: Mapping[str, float]) -> np.ndarray:
    """Returns a mask of the rows with these values, to single precision."""
    return np.logical_and.reduce(
        [np.isclose(table[name], value, rtol=1e-6) for name, value in values.items()]
    )


def _start_values(starts: Sequence[tuple[float, float]]) -> list[dict[str, float]]:
    """Returns values by dotted name."""
    return [dict(zip((_LAM, _RATE), start, strict=True)) for start in starts]


def _per_client(scores: pd.DataFrame, base: Any, rounds: int) -> pd.DataFrame:
    """Learns lam of every client, from the best point of the grid."""
    key, process, model, spec = base
    lam, rate = page.best_of(scores)
    count = spec.build().num_clients
    flame = dataclasses.replace(process.algorithm, lam=lam, kappa=None, rho=lam / count)
    flame = struct.replace_field(flame, "local.learning_rate", rate)
    process = dataclasses.replace(process, algorithm=flame)
    learned = fp.learn(
        *(key, process, model, spec),
        _LAM,
        rounds,
        per="client",
        objective=_OBJECTIVE,
        seeds=_SEEDS,
        eval_every=rounds,
    )
    print(learned)
    return _scores(learned.result).assign(lam=np.nan, rate=rate)


def _scores(result: results.Result) -> pd.DataFrame:
    """Returns scores of personal models in the last round, a row per training."""
    rows = []
    for group in result.groups:
        model = group.models.index("personal")
        for number, point in enumerate(group.points):
            row = {"lam": point.get(_LAM), "rate": point.get(_RATE)}
            row["seed"] = point["seed"]
            for data, metric in (
                ("validation", "loss"),
                ("validation", "accuracy"),
                ("test", "accuracy"),
            ):
                column = group.data.index(data)
                values = group.metrics[metric][number, -1, model, column]
                finite_values = values[~np.isnan(values)]
                is_lost = group.diverged_at[number] >= 0 or not finite_values.size
                row[f"{data}_{metric}"] = np.nan if is_lost else finite_values.mean()
            rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    app()
