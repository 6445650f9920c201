"""Learned settings of methods beside those that the benchmark has tuned."""

from pathlib import Path

import jax
import numpy as np
import pandas as pd

import fedjax_pfl as fp
from fedjax_pfl.command import presets as named
from fedjax_pfl.results import paired

__all__ = ["FILE", "METHODS", "learn", "lines"]

FILE = "benchmark.csv"
METHODS = ("Flame", "Ditto")
_BENCHMARK = Path(__file__).parents[1] / "results" / "benchmark"
_TASK = "digits"
_FIELDS = ("algorithm.lam", "algorithm.local.learning_rate")
_OBJECTIVE = "validation:loss:personal"
_SEARCH_SEEDS, _SEEDS = (0, 1, 2), (10, 11, 12, 13, 14)  # as in the benchmark
_EVERY = 2  # rounds between two moves


def learn() -> pd.DataFrame:
    """Learns both fields of every method in one training, then trains new seeds.

    Returns:
      A row per method and new seed: `lam`, `rate`, test accuracy `value`, and the
      client-steps `spent` on learning: those of 1 + 2 trainings per seed.
    """
    experiment = named.get(f"benchmark_{_TASK}")
    key = jax.random.key(0, impl="threefry2x32")
    rounds, rows = experiment.num_rounds, []
    for method in METHODS:
        setting = next(
            grid
            for grid in experiment.grids
            if type(grid.process.algorithm).__name__ == method
        )
        data = (setting.model, setting.spec)
        learned = fp.learn(
            *(key, setting.process, *data, _FIELDS, rounds),
            objective=_OBJECTIVE,
            seeds=_SEARCH_SEEDS,
            eval_every=_EVERY,
        )
        result = fp.grid(
            *(key, learned.process, *data, {"seed": _SEEDS}, rounds), eval_every=rounds
        )
        (group,) = result.groups
        place = (group.models.index("personal"), group.data.index("test"))
        values = np.nanmean(group.metrics["accuracy"][:, -1, *place], axis=-1)
        spent = learned.result.spent()
        steps = spent.loc[spent["round"] == rounds, "client_steps"].sum()
        lam, rate = (learned.best[name] for name in _FIELDS)
        shared = {"lam": lam, "rate": rate, "spent": steps * (1 + len(_FIELDS))}
        rows += [
            {"method": method, "seed": point["seed"], "value": value, **shared}
            for point, value in zip(group.points, values, strict=True)
        ]
    return pd.DataFrame(rows)


def lines(folder: Path) -> list[str]:
    """Returns the lines of a table, a row per method learned and one tuned.

    Args:
      folder: with the file.
    """
    learned = pd.read_csv(folder / FILE)
    scores, searches = (
        pd.read_csv(_BENCHMARK / f"{name}.csv").query("task == @_TASK")
        for name in ("scores", "searches")
    )
    head = ("method", "settings", "test accuracy", "beside tuned", "client-steps")
    table = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for method, own in learned.groupby("method", sort=False):
        search = searches[searches["method"] == method].iloc[0]
        tuned = scores[scores["method"] == method].set_index("seed")["value"] * 100
        values, first = own.set_index("seed")["value"] * 100, own.iloc[0]
        found = f"lam = {first['lam']:.4g}, local.learning_rate = {first['rate']:.4g}"
        beside = str(paired.interval(values, tuned))
        rows = (
            (f"{method}, tuned", search["settings"], tuned, "–", search["spent"]),
            (f"{method}, learned", found, values, beside, first["spent"]),
        )
        table += [
            f"| {name} | {settings} | {each.mean():.2f} | {difference} | {spent:,.0f} |"
            for name, settings, each, difference, spent in rows
        ]
    return table
