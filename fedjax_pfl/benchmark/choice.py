"""Choice of a method's settings: by a search, along derivatives, or by default."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import (
    budgets,
    derivatives,
    grids,
    simulation,
    stopping,
    tuning,
)
from fedjax_pfl.engine.derivatives import fields
from fedjax_pfl.engine.options import Options, time_left
from fedjax_pfl.results import selection
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Base",
    "Choice",
    "check_learned",
    "learn",
    "middle",
    "search",
    "trainings_of",
]

_MOVES = 50  # of the fields in a training that learns them

Base = tuple[core.Key, FederatedProcess, Any, core.Specification]
"""Key, process, model and federation of a method's trainings."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen settings of a method."""

    process: FederatedProcess
    # Values by dotted name.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tried: int = 0  # number of compared settings
    spent: float = 0.0  # gradients of single examples
    # By folder: `search`, `learning`, or none.
    trainings: Mapping[str, results.Result] = dataclasses.field(default_factory=dict)


def search(
    base: Base,
    num_rounds: int,
    *,
    budget: budgets.Gradients,
    seeds: Sequence[int],
    by_model: str | None,
    **options: Any,
) -> Choice:
    """Searches the fields that a method declares, at random and by halving."""
    if not tuning.search_space(base[1]):
        return Choice(base[1])
    tuned = tuning.tune(
        *(*base, num_rounds), budget=budget, seeds=seeds, by_model=by_model, **options
    )
    assert tuned.gradients is not None  # the budget counts them
    return Choice(
        process=tuned.process,
        settings=tuned.best,
        tried=len(tuned.trials()),
        spent=tuned.gradients,
        trainings={"search": tuned.result},
    )


def check_learned(name: str, process: FederatedProcess) -> None:
    """Refuses a method without fields to learn, or without derivatives."""
    if not _ranges(process):
        raise checks.InputError(
            f"Expected a method that declares ranges of its fields, to learn them, got"
            f" {name}."
        )
    fields.check(_with(process, _middle(process)), tuple(_ranges(process)))


def trainings_of(process: FederatedProcess) -> int:
    """Returns the cost of a training that learns p fields: 1 + p trainings."""
    # Derivatives in p fields take about as long as p more trainings.
    return 1 + len(_ranges(process))


def middle(process: FederatedProcess) -> Choice:
    """Chooses the middle of all ranges, where learning starts."""
    settings = _middle(process)
    return Choice(_with(process, settings), settings)


def _ranges(process: FederatedProcess) -> dict[str, tuning.Range]:
    """Returns the declared ranges of numbers by dotted name."""
    space = tuning.search_space(process)
    return {n: r for n, r in space.items() if isinstance(r, tuning.Range)}


def _middle(process: FederatedProcess) -> dict[str, float]:
    """Returns the middle of all ranges, with few digits."""
    return {n: float(f"{r.at(0.5):.4g}") for n, r in _ranges(process).items()}


def _with(process: FederatedProcess, settings: Mapping[str, Any]) -> FederatedProcess:
    """Returns a process with other values of some fields."""
    for name, value in settings.items():
        process = struct.replace_field(process, name, value)
    return process


def learn(
    base: Base,
    num_rounds: int,
    *,
    budget: budgets.Gradients,
    seeds: Sequence[int],
    by_model: str | None,
    **options: Any,
) -> Choice:
    """Learns the fields that a search would vary, from their derivatives."""
    # At most half of the budget is for one training, in which the fields move from the
    # middle of their ranges to reduce the validation loss. Values that suit the end of
    # a training need not suit its beginning, so the rest is for a search, by halving,
    # among points of the path.
    rule = stopping.Halving(model=by_model, metric=options.get("metric"))
    rung = rule.first_rung(num_rounds)
    rule = dataclasses.replace(rule, min_rounds=rung)
    competing = {"stop_when": rule, "eval_every": rung}
    parsed = Options(num_rounds=num_rounds, **competing)
    ranges, start = _ranges(base[1]), _middle(base[1])
    base = (base[0], _with(base[1], start), *base[2:])
    (group,) = grids.groups_of(*base, [{"seed": seeds[0]}])
    steps = len(seeds) * tuning.round_gradients(group, parsed)
    factor = trainings_of(base[1])
    # Learning takes half of the budget, or less, to leave enough for a smallest search.
    minimum = steps * tuning.rounds_of(rule.eta, parsed)
    rounds = int(min(budget.count / 2, budget.count - minimum) // (factor * steps))
    rounds = min(max(rounds, 1), num_rounds)
    count = budgets.most_settings(
        budget,
        lambda n: steps * (factor * rounds + tuning.rounds_of(n, parsed)),
        rule.eta,
    )
    clock = time_left(options.pop("max_minutes", None))
    moving = {"eval_every": max(1, rounds // _MOVES)}
    learned = derivatives.learn(
        *(*base, tuple(ranges), rounds),
        objective=":".join(filter(None, ("validation", "loss", by_model))),
        seeds=seeds,
        starts=[start],
        **(_part(options, "path", clock()) | moving),
    )
    points = _points(learned.path, ranges, count)
    settings = [{**point, "seed": seed} for point in points for seed in seeds]
    result = simulation.grid(
        *(*base, settings, num_rounds), **_part(options, "points", clock()), **competing
    )
    table = selection.trials(result, learned.fields, **rule.described)
    best = {name: float(table[name].iloc[0]) for name in learned.fields}
    (learning,), (trials,) = learned.result.groups, result.groups
    total_rounds = factor * learning.ends.sum() + trials.ends.sum()
    return Choice(
        process=_with(base[1], best),
        settings=best,
        tried=len(points),
        # `steps` is of all seeds, and `ends` has an entry per seed.
        spent=float(total_rounds * steps / len(seeds)),
        trainings={"learning": learned.result, "search": result},
    )


def _part(
    options: Mapping[str, Any], name: str, minutes: float | None
) -> dict[str, Any]:
    """Returns the options of one of two calls, with separate checkpoints."""
    part = {**options, "max_minutes": minutes}
    places = options.get("checkpoints")
    if places is not None:
        folder = places.path / name
        part["checkpoints"] = dataclasses.replace(places, directory=folder)
    return part


def _points(
    path: "pd.DataFrame", ranges: Mapping[str, tuning.Range], count: int
) -> list[dict[str, float]]:
    """Returns at most `count` even points of a path, with both ends, in the box."""
    table = path[list(ranges)].to_numpy(float)
    table = table[np.isfinite(table).all(axis=1)]
    lows, highs = zip(*((r.low, r.high) for r in ranges.values()), strict=True)
    # Clipped to the ranges, since searches stay inside, too.
    rows = list(dict.fromkeys(map(tuple, np.clip(table, lows, highs).tolist())))
    places = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    return [dict(zip(ranges, rows[place], strict=True)) for place in places]
