"""Tuning: a search over a method's fields that drops what falls behind."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, simulation, stopping, validate
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.engine.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Range",
    "Space",
    "Tuned",
    "draw",
    "halving",
    "lattice",
    "points",
    "search_space",
    "tune",
]


@dataclasses.dataclass(frozen=True)
class Range:
    """Interval of a number that is searched.

    Attributes:
      low: the least value.
      high: the largest value, above `low`.
      log: whether logarithms are drawn uniformly, which needs `low` above 0.
    """

    low: float
    high: float
    log: bool = True

    def __post_init__(self):
        checks.number("low", self.low)
        checks.number("high", self.high)
        if not self.low < self.high:
            raise checks.InputError(
                f"Expected a range from low to high, got {self.low!r} to {self.high!r}."
            )
        if self.log and self.low <= 0:
            raise checks.InputError(
                f"Expected a range of logarithms to begin above 0, got {self.low!r};"
                " log=False draws the numbers themselves."
            )

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def at(self, share: Any) -> Any:
        """Returns the values at shares `[...]` of the way from low to high."""
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * share


Space = Mapping[str, Range | Sequence[Any]]
"""What is searched, by dotted name: ranges of numbers, and lists of any values."""


def search_space(process: FederatedProcess) -> dict[str, Range]:
    """Returns the ranges that a process's algorithm declares for its own fields.

    Fields that are None, and so not in use, are left out.

    Args:
      process: the process.

    Returns:
      Ranges by dotted name, such as `algorithm.lam`.

    Example:
      >>> import fedjax_pfl as fp
      >>> sorted(search_space(fp.FederatedProcess(algorithm=fp.Ditto())))
      ['algorithm.lam', 'algorithm.local.learning_rate']
    """

    def ranges(node: Any, prefix: str) -> Iterable[tuple[str, Range]]:
        if not dataclasses.is_dataclass(node):
            return
        for field in dataclasses.fields(node):
            value, name = getattr(node, field.name), f"{prefix}.{field.name}"
            declared = field.metadata.get("search")
            if declared is not None and isinstance(value, int | float):
                yield name, Range(*declared)
            else:
                yield from ranges(value, name)

    return dict(ranges(process.algorithm, "algorithm"))


def draw(space: Space, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Draws settings at random, every field on its own.

    Args:
      space: what is searched.
      count: number of settings, at least 1.
      seed: of the draws. More settings, or other fields, do not change those drawn.

    Returns:
      Values by dotted name; numbers of ranges have four digits.

    Example:
      >>> draw({"algorithm.lam": Range(0.1, 10)}, 5)[:2] == draw(
      ...     {"algorithm.lam": Range(0.1, 10)}, 2
      ... )
      True
    """
    columns = {}
    for name, values in _checked(space).items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        shares = rng.random(count)
        if isinstance(values, Range):
            # Few digits, so that a setting can be given by hand again.
            columns[name] = [float(f"{v:.4g}") for v in values.at(shares)]
        else:
            columns[name] = [values[int(share * len(values))] for share in shares]
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]


def lattice(space: Space, count: int) -> list[dict[str, Any]]:
    """Returns a grid of at most `count` settings, but two values of each range.

    Args:
      space: what is searched; all values of its lists are in the grid.
      count: number of settings.

    Returns:
      Values by dotted name.
    """
    axes: dict[str, Sequence[Any]] = {}
    spaces = _checked(space)
    listed = math.prod(len(v) for v in spaces.values() if not isinstance(v, Range))
    num_ranges = sum(isinstance(v, Range) for v in spaces.values())
    each = int((count / listed) ** (1 / max(num_ranges, 1)) + 1e-9)
    for name, values in spaces.items():
        if isinstance(values, Range):
            values = values.at(np.linspace(0, 1, max(2, each))).tolist()
        axes[name] = values
    return grids.combinations(axes)


def halving(
    num_settings: int,
    num_rounds: int,
    eta: int = 3,
    min_rounds: int | None = None,
    watched: stopping.Watched | None = None,
) -> stopping.Halving:
    """Returns the rule that leaves one of some settings for the last rounds.

    Args:
      num_settings: number of settings.
      num_rounds: rounds R of the one that is left.
      eta: `1 / eta` of the settings go on at every rung.
      min_rounds: rounds before the first rung; None for the largest number of rounds
        after which there are as many rungs before R as are needed.
      watched: what settings are compared by; None for the accuracy on validation data.

    Raises:
      InputError: if `min_rounds` is above `num_rounds`.
    """
    fields = {} if watched is None else dataclasses.asdict(watched)
    rule = stopping.Halving(eta=eta, min_rounds=min_rounds or 1, **fields)
    if min_rounds is None:
        rungs = math.ceil(math.log(max(num_settings, 2), eta) - 1e-9)
        return dataclasses.replace(rule, min_rounds=max(1, num_rounds // eta**rungs))
    if min_rounds > num_rounds:
        raise checks.InputError(
            f"Expected min_rounds to be at most the {num_rounds} rounds of a training,"
            f" got {min_rounds}."
        )
    return rule


def points(
    process: FederatedProcess, axes: Mapping[str, Iterable[Any]], num_settings: int
) -> list[dict[str, Any]]:
    """Returns random settings of a method, under all values of other axes.

    Args:
      process: the process, whose algorithm declares what is searched.
      axes: values by dotted name; those of searched fields are left out.
      num_settings: settings of a method that declares something; the others keep their
        axes.
    """
    space = search_space(process)
    others = grids.combinations({n: v for n, v in axes.items() if n not in space})
    drawn = draw(space, num_settings) if space else [{}]
    return [setting | other for setting in drawn for other in others]


def _checked(space: Space) -> dict[str, Range | Sequence[Any]]:
    """Returns a space with tuples `(low, high)` as ranges, and refuses empty ones."""
    if not space:
        raise checks.InputError("Expected at least one field to search, got none.")
    parsed: dict[str, Range | Sequence[Any]] = {}
    for name, values in space.items():
        if isinstance(values, tuple) and len(values) == 2:
            values = Range(*values)
        if not isinstance(values, Range | list) or not values:
            raise checks.InputError(
                f"Expected {name} to be searched in fp.Range(low, high), a pair"
                f" (low, high) or a list of values, got {values!r}."
            )
        parsed[name] = values
    return parsed


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A finished search.

    Attributes:
      result: all trainings, of those that were dropped until then.
      process: the process with the values of the best setting.
      watched: what the settings were compared by.
      num_rounds: rounds of a training that was not dropped.
      fields: dotted names of what was searched.
    """

    result: results.Result
    process: FederatedProcess
    watched: stopping.Watched
    num_rounds: int
    fields: tuple[str, ...]

    @functools.cached_property
    def _trials(self) -> "pd.DataFrame":
        """The settings, ranked, which the best setting and texts are made of."""
        from fedjax_pfl.results import selection

        watched = dataclasses.asdict(self.watched)
        return selection.trials(self.result, self.fields, **watched)

    def trials(self) -> "pd.DataFrame":
        """Returns a row per setting, the best first.

        Returns:
          The searched fields; `rounds` that it was trained for; `score`, what was
          watched in the last of them, mean over seeds; and `status`.
        """
        return self._trials.copy()

    @property
    def best(self) -> dict[str, Any]:
        """Values of the best setting by dotted name."""
        return {name: struct.get_field(self.process, name) for name in self.fields}

    @property
    def cost(self) -> float:
        """Share of the rounds that training every setting to its end would take."""
        return np.mean(self._trials["rounds"].to_numpy()).item() / self.num_rounds

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {_shown(v)}" for name, v in self.best.items())
        return (
            f"{self._trials.to_string(index=False)}\nThe best of {len(self._trials)}"
            f" settings by {self.watched.metric} on {self.watched.data} data: {values}."
            f" The search took {self.cost:.0%} of the rounds that training all of them"
            " to the end would take."
        )


def _shown(value: Any) -> str:
    """Formats a number in few digits, and a part by its name."""
    return f"{value:.4g}" if isinstance(value, float) else str(struct.plain(value))


@as_keywords("stop_when")
def tune(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    num_rounds: int,
    *,
    space: Space | None = None,
    strategy: str = "halving",
    num_settings: int = 27,
    seeds: Iterable[int] = range(3),
    eta: int = 3,
    min_rounds: int | None = None,
    metric: str = "accuracy",
    by_model: str | None = None,
    draw_seed: int = 0,
    **options: Any,
) -> Tuned:
    """Searches a method's fields on validation data; test data have no part in it.

    Args:
      key: `[]` key shared by all settings, as in `grid`.
      process: algorithm and its surroundings.
      model: base model.
      spec: the federation, which needs validation examples.
      num_rounds: rounds R of a training that is not dropped.
      space: ranges and lists of values by dotted name; None for the ranges that the
        algorithm declares (`search_space`). Lists of static values cost a compilation
        each, and settings compete with those that share their program.
      strategy: `halving` drops all but the best `1 / eta` of the settings again and
        again (see `Halving`); `hyperband` does so in brackets that begin to drop later
        and later; `random` and `grid` train all to their end.
      num_settings: number of settings; `grid` takes at most as many, but at least two
        values of each range.
      seeds: seeds of every setting, which share data and draws.
      eta: of `Halving`.
      min_rounds: of `Halving`; None for as many as leave one setting for the last
        `num_rounds * (1 - 1 / eta)` rounds.
      metric: by which settings are compared.
      by_model: model whose values are compared; None for the personal one, else the
        global one.
      draw_seed: of the random draws.
      **options: those of `grid` but `stop_when`. `eval_every` None evaluates about
        every `min_rounds` rounds; evaluations are when settings can be dropped.

    Returns:
      The search, with the process of the best setting.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`; the same call goes on from its `checkpoints`.
    """
    validate.check(key, process, model, spec, spec=True)
    checks.known(strategy, ("halving", "hyperband", "random", "grid"), "strategy")
    checks.positive_int("num_settings", num_settings)
    if space is None and not (space := search_space(process)):
        raise checks.InputError(
            f"{type(process.algorithm).__name__} declares no ranges to search; give a"
            ' space, as in {"algorithm.lam": fp.Range(0.01, 10)}.'
        )
    settings = (
        lattice(space, num_settings)
        if strategy == "grid"
        else draw(space, num_settings, draw_seed)
    )
    seeds = list(seeds)
    if not seeds:
        raise checks.InputError("Expected at least one seed, got none.")
    watched = stopping.Watched(metric=metric, model=by_model)
    rule = halving(num_settings, num_rounds, eta, min_rounds, watched)
    if strategy == "hyperband":
        brackets = 1 + int(math.log(num_rounds / rule.min_rounds, eta) + 1e-9)
        rule = dataclasses.replace(rule, brackets=brackets)
    options = {"eval_every": rule.min_rounds} | {
        name: value
        for name, value in options.items()
        if not (name == "eval_every" and value is None)
    }
    is_dropping = strategy in ("halving", "hyperband")
    options["stop_when"] = rule if is_dropping else None
    parsed = Options(num_rounds=num_rounds, **options)
    if watched.data not in parsed.schedule.data:
        raise checks.InputError(
            "Expected validation among the data of evaluate_on, which settings are"
            f" compared on, got {', '.join(parsed.schedule.data)}."
        )
    time_is_up = time_limit(parsed.max_minutes)
    trials = [{**setting, "seed": seed} for setting in settings for seed in seeds]
    groups = grids.groups_of(key, process, model, spec, trials)
    planned = simulation.check_groups(groups, parsed)
    result = simulation.run_groups(planned, parsed, interrupt=time_is_up)
    fields = tuple(space)
    tuned = Tuned(result, process, watched, num_rounds, fields)
    best = tuned.trials()[list(fields)].iloc[0].to_dict()
    for name, value in best.items():
        value = value.item() if isinstance(value, np.generic) else value
        process = struct.replace_field(process, name, value)
    return dataclasses.replace(tuned, process=process)
