"""Tuning: a search over a method's fields that drops settings which fall behind."""

import dataclasses
import functools
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import (
    ask_tell,
    budgets,
    grids,
    groups,
    resident,
    simulation,
    stopping,
    validate,
)
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Range",
    "Space",
    "Tuned",
    "declared",
    "draw",
    "lattice",
    "least_settings",
    "points",
    "round_gradients",
    "rounds_of",
    "search_cost",
    "search_space",
    "text",
    "tune",
]

NUM_SETTINGS = 27
"""Number of settings of a search by default."""

_REDRAWS = 100  # of all settings, until enough of them differ


@dataclasses.dataclass(frozen=True)
class Range:
    """Interval of a number that is searched.

    Attributes:
      low: the least value.
      high: the largest value, above `low`.
      log: whether logarithms are drawn uniformly, which needs `low` above 0.
    """

    low: float = struct.traced_field()
    high: float = struct.traced_field()
    log: bool = True

    def __post_init__(self):
        struct.check_fields(self)
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
"""Searched values by dotted name: ranges of numbers, and lists of any values."""


def declared(field: dataclasses.Field) -> Range | list[Any] | None:
    """Returns the range or list of a field's declaration for searches, or None."""
    search = field.metadata.get("search")
    return Range(*search) if isinstance(search, tuple) else search


def text(space: Range | list[Any] | None) -> str:
    """Formats a range, or a list of values."""
    return ", ".join(map(str, space)) if isinstance(space, list) else str(space)


@struct.checked_call
def search_space(process: FederatedProcess) -> dict[str, Range | list[Any]]:
    """Returns ranges and lists of values by dotted name, such as `algorithm.lam`.

    They are those of a process's algorithm and server optimizer. Fields that are None
    are not in use and are left out, except for fields in which None stands for a
    default.

    Example:
      >>> import fedjax_pfl as fp
      >>> sorted(search_space(fp.FederatedProcess(algorithm=fp.Ditto())))
      ['algorithm.lam', 'algorithm.local.learning_rate']
    """

    def spaces(node: Any, prefix: str) -> Iterable[tuple[str, Range | list[Any]]]:
        if not dataclasses.is_dataclass(node):
            return
        for field in dataclasses.fields(node):
            value, name = getattr(node, field.name), f"{prefix}.{field.name}"
            space, unless = declared(field), field.metadata.get("unless")
            # None stands for a default only if no alternative field is set.
            if value is None and unless is not None:
                is_used = all(getattr(node, sibling) is None for sibling in unless)
            else:
                is_used = isinstance(value, int | float | str)
            if space is not None and is_used:
                yield name, space
            else:
                yield from spaces(value, name)

    parts = ("algorithm", "server_optimizer")
    return dict(
        itertools.chain.from_iterable(spaces(getattr(process, p), p) for p in parts)
    )


def draw(space: Space, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Draws distinct settings at random, each field independently; at most all."""
    spaces = _parsed_space(space)
    # A stream per field, so that further settings or fields change no drawn value.
    streams = [np.random.default_rng([seed, zlib.crc32(n.encode())]) for n in spaces]
    count = int(min(count, _number(spaces)))
    rows: dict[tuple[Any, ...], None] = {}  # numbers of ranges, places in lists
    for _ in range(_REDRAWS):
        shares = (rng.random(count) for rng in streams)
        columns = map(_column, spaces.values(), shares)
        rows |= dict.fromkeys(zip(*columns, strict=True))
        if len(rows) >= count:
            break
    return [
        {
            name: drawn if isinstance(values, Range) else values[drawn]
            for (name, values), drawn in zip(spaces.items(), row, strict=True)
        }
        for row in list(rows)[:count]
    ]


def _column(values: Range | Sequence[Any], shares: np.ndarray) -> list[Any]:
    """Returns numbers of a range, or places in a list, at shares `[...]` of it."""
    if isinstance(values, Range):
        # Few digits, so that a setting can be given by hand again.
        return [float(f"{v:.4g}") for v in values.at(shares)]
    return (shares * len(values)).astype(int).tolist()


def _number(spaces: Mapping[str, Range | Sequence[Any]]) -> float:
    """Counts the settings of a checked space; infinite with a range."""
    return math.prod(
        math.inf if isinstance(values, Range) else len(values)
        for values in spaces.values()
    )


def lattice(space: Space, count: int) -> list[dict[str, Any]]:
    """Returns a grid of at most `count` settings, or two values of each range."""
    axes: dict[str, Sequence[Any]] = {}
    spaces = _parsed_space(space)
    num_listed = math.prod(len(v) for v in spaces.values() if not isinstance(v, Range))
    num_ranges = sum(isinstance(v, Range) for v in spaces.values())
    # An exact root may be computed as slightly less than a whole number.
    size = int((count / num_listed) ** (1 / max(num_ranges, 1)) + 1e-9)
    for name, values in spaces.items():
        if isinstance(values, Range):
            values = np.unique(values.at(np.linspace(0, 1, max(2, size)))).tolist()
        axes[name] = values
    return grids.combinations(axes)


def points(
    process: FederatedProcess, axes: Mapping[str, Iterable[Any]], num_settings: int
) -> list[dict[str, Any]]:
    """Returns random settings of a method, under all values of the other axes."""
    space = search_space(process)
    # Axes of searched fields would overwrite the drawn values.
    axis_points = grids.combinations({n: v for n, v in axes.items() if n not in space})
    settings = draw(space, num_settings) if space else [{}]
    return [setting | point for setting in settings for point in axis_points]


def _parsed_space(space: Space) -> dict[str, Range | Sequence[Any]]:
    """Returns a space with tuples `(low, high)` as ranges."""
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
        if isinstance(values, list):
            plain_values = [struct.plain(value) for value in values]
            for place, value in enumerate(plain_values):
                if value in plain_values[:place]:
                    raise checks.InputError(
                        f"Expected the values of {name} to differ in tables of results,"
                        f" got {value!r} twice."
                    )
        parsed[name] = values
    return parsed


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A finished search.

    Attributes:
      result: all trainings; dropped ones end early.
      process: the process with the values of the best setting.
      watched: the metric by which the settings were compared.
      num_rounds: rounds of a training that was not dropped.
      fields: dotted names of the searched fields.
      budget: effort that the search was allowed, or None for a number of settings.
      gradients: number of gradients of single examples, if the budget counts these,
        else None.
      is_whole: whether all settings of its lists were tried.
    """

    result: results.Result
    process: FederatedProcess
    watched: stopping.Watched
    num_rounds: int
    fields: tuple[str, ...]
    budget: budgets.Budget | None = None
    gradients: float | None = None
    is_whole: bool = False

    __post_init__ = struct.check_fields

    @functools.cached_property
    def _trials(self) -> "pd.DataFrame":
        """Ranked settings, from which the best setting and texts are made."""
        from fedjax_pfl.results import selection

        by = self.watched.described
        return selection.trials(self.result, self.fields, **by)

    def trials(self) -> "pd.DataFrame":
        """Returns a row per setting, the best first.

        Returns:
          The searched fields; `rounds` that it was trained for; `score`, the
          watched value in the last of them, a mean over seeds; and `status`.
        """
        return self._trials.copy()

    @property
    def best(self) -> dict[str, Any]:
        """Values of the best setting by dotted name."""
        return {name: struct.get_field(self.process, name) for name in self.fields}

    @property
    def rounds(self) -> int:
        """Rounds of all trainings together."""
        return sum(int(group.ends.sum()) for group in self.result.groups)

    @property
    def cost(self) -> float:
        """Share of the rounds that training every setting to its end would take."""
        groups = self.result.groups
        sizes = [len(group.points) for group in groups]
        shares = [group.share_of_rounds for group in groups]
        return np.average(shares, weights=sizes).item()

    @property
    def unfinished(self) -> int:
        """Number of trainings that ended because the time was up."""
        return sum(status.startswith("stopped") for status in self.result.status)

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {_formatted(v)}" for name, v in self.best.items())
        text = (
            f"{self._trials.to_string(index=False)}\nThe best of {len(self._trials)}"
            f" settings by {self.watched.chosen} on {self.watched.data} data: {values}."
            f" The search took {self.rounds:,} rounds, {self.cost:.0%} of those that"
            " training all of them to the end would take."
        )
        if self.is_whole:
            text += " The lists have no other settings."
        if self.gradients is not None:
            text += f" They have about {self.gradients:,.0f} gradients."
        if self.budget is not None:
            text += f" The budget was {self.budget.count:,g} {self.budget.unit}."
        if self.unfinished:
            text += f" The time was up, with {self.unfinished} trainings unfinished."
        return text


def _formatted(value: Any) -> str:
    """Formats a number in few digits, and a part by its name."""
    return f"{value:.4g}" if isinstance(value, float) else str(struct.plain(value))


def rounds_of(num_settings: int, options: Options) -> int:
    """Returns the rounds, for each seed, of competing settings of one program."""
    settings = [{"algorithm.setting": number} for number in range(num_settings)]
    return _rounds(settings, options)


def _rounds(settings: Sequence[Mapping[str, Any]], options: Options) -> int:
    """Returns the rounds that settings of one program take for each seed."""
    rule, schedule = options.stop_when, options.schedule
    if not isinstance(rule, stopping.Halving):
        return len(settings) * options.num_rounds
    # A limit of minutes would end settings by the clock of this dry run.
    rule = dataclasses.replace(rule, minutes=None)
    watch = stopping.watch(rule, settings, options.num_rounds)
    for done in range(schedule.segment, options.num_rounds, schedule.segment):
        if rule.data in schedule.due(done, False):
            watch.see(done, np.zeros(len(settings)))
    ends = np.where(watch.stopped_at < 0, options.num_rounds, watch.stopped_at)
    return int(ends.sum())


def round_gradients(group: groups.Group, options: Options) -> int:
    """Counts gradients of single examples in a first round; a loss is a third."""
    planned = groups.plan(group, options)
    arguments = (planned.processes[0], planned.keys[0], planned.group.federations[0])
    try:
        return math.ceil(resident.gradients(planned.plan, *arguments))
    except checks.InputError as error:
        raise checks.InputError(
            f"Expected a budget in rounds or minutes for {planned.algorithm}, whose"
            " clients do not count gradients, got one in gradients."
        ) from error


@dataclasses.dataclass(frozen=True)
class _Search:
    """A planned search."""

    # Key, process, model and spec.
    base: tuple[
        core.Key, FederatedProcess, core.Model, core.Specification | core.Federation
    ]
    space: dict[str, Range | Sequence[Any]]
    strategy: str | stopping.Halving | ask_tell.Optuna
    seeds: list[int]  # of every setting
    draw_seed: int  # of random draws
    options: Options
    fixed_values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _federations: grids.Federations = dataclasses.field(
        default_factory=grids.Federations
    )
    _gradients: dict[Any, int] = dataclasses.field(default_factory=dict)

    def settings(self, count: int) -> list[dict[str, Any]]:
        """Returns settings of a search that does not learn from their scores."""
        if self.strategy == "grid":
            return lattice(self.space, count)
        return draw(self.space, count, self.draw_seed)

    def groups_of(
        self, settings: Sequence[dict[str, Any]], seeds: Sequence[int]
    ) -> list[groups.Group]:
        """Returns the static groups of settings, under some seeds."""
        trials = [
            {**self.fixed_values, **setting, "seed": seed}
            for setting in settings
            for seed in seeds
        ]
        return grids.groups_of(*self.base, trials, self._federations)

    def gradients_of(self, group: groups.Group) -> int:
        """Returns the gradients of a group's first round."""
        program = jax.tree.structure(group.processes[0])
        if program not in self._gradients:
            self._gradients[program] = round_gradients(group, self.options)
        return self._gradients[program]

    def cost(self, count: int, budget: type[budgets.Budget]) -> int:
        """Returns the most rounds, or gradients, of a search of so many settings."""
        if not isinstance(self.strategy, ask_tell.Optuna):
            programs = self._programs(self.settings(count))
            return sum(self._price(settings, budget) for settings in programs)
        # A study may suggest settings of the costliest program only.
        lists = {n: v for n, v in self.space.items() if isinstance(v, list)}
        setting = draw(self.space, 1)[0]
        programs = self._programs([setting | c for c in grids.combinations(lists)])
        highest = max(self._price(settings[:1], budget) for settings in programs)
        return highest * int(min(count, _number(self.space)))

    def _programs(
        self, settings: Sequence[dict[str, Any]]
    ) -> Iterable[list[dict[str, Any]]]:
        """Returns the settings of every program, which compete."""
        competing: dict[Any, list[dict[str, Any]]] = {}
        list_names = [n for n, values in self.space.items() if isinstance(values, list)]
        for setting in settings:
            process = self.base[1]
            for name in list_names:
                process = struct.replace_field(process, name, setting[name])
            competing.setdefault(jax.tree.structure(process), []).append(setting)
        return competing.values()

    def _price(
        self, settings: Sequence[dict[str, Any]], budget: type[budgets.Budget]
    ) -> int:
        """Returns the rounds, or the gradients, of settings of one program."""
        plain_settings = [{n: struct.plain(v) for n, v in s.items()} for s in settings]
        price = _rounds(plain_settings, self.options) * len(self.seeds)
        if budget is budgets.Gradients:
            # Counted in the first round of the first seed; see `budgets.Gradients`.
            (group,) = self.groups_of(settings[:1], self.seeds[:1])
            price *= self.gradients_of(group)
        return price


def search_cost(
    base: tuple[core.Key, FederatedProcess, Any, core.Specification],
    budget: type[budgets.Rounds] | type[budgets.Gradients],
    options: Options,
    trials: Sequence[Mapping[str, Any]],
    federations: grids.Federations,
) -> Callable[[int], int]:
    """Returns the cost of a search of a process's declared space by its settings."""
    search = _Search(
        base=base,
        space=search_space(base[1]),
        strategy="halving",
        seeds=[int(trial["seed"]) for trial in trials],
        draw_seed=0,
        options=options,
        fixed_values=trials[0],
        _federations=federations,
    )
    return functools.partial(search.cost, budget=budget)


def least_settings(options: Options) -> int:
    """Counts the settings of the smallest search: those of one rung, or one."""
    rule = options.stop_when
    return rule.eta if isinstance(rule, stopping.Halving) else 1


@as_keywords("stop_when")
def tune(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification | core.Federation,
    num_rounds: int,
    *,
    space: Space | None = None,
    strategy: str | stopping.Halving | ask_tell.Optuna = "halving",
    num_settings: int | None = None,
    budget: budgets.Budget | None = None,
    seeds: Iterable[int] = range(3),
    metric: str | None = None,
    by_model: str | None = None,
    draw_seed: int = 0,
    **options: Any,
) -> Tuned:
    """Searches a method's fields on validation data; test data are never used.

    Args:
      key: `[]` key shared by all settings, as in `grid`.
      process: algorithm and its surroundings.
      model: base model.
      spec: the federation, which needs validation examples.
      num_rounds: rounds R of a training that is not dropped.
      space: ranges and lists of values by dotted name; None for the ranges that the
        algorithm declares (`search_space`). Lists of static values cost a compilation
        each, and settings compete with those that share their program.
      strategy: `halving` drops all but the best third of the settings again and again,
        `hyperband` does so in brackets that begin to drop later and later; a `Halving`
        sets other numbers. `random` and `grid` train all settings to their end, and so
        does an `Optuna`, whose study suggests them.
      num_settings: number of settings, 27 without a budget; the number that compete if
        the budget is in minutes. `grid` takes at most as many, but at least two values
        of each range. All settings differ: lists with fewer are searched whole, and an
        `Optuna` ends when its study suggests nothing new.
      budget: `Rounds` or `Gradients` in place of `num_settings`: as many settings as
        they pay for, at most 10,000, the same on every machine. Or `Minutes`: further
        settings until the time is up, when those in training end at their next
        evaluation.
      seeds: seeds of every setting, which share data and draws.
      metric: by which settings are compared, and the `metric` of `grid`; None for that
        of a `Halving`, else the accuracy.
      by_model: model whose values are compared; None for the model of a `Halving`,
        else the personal one, or the global one if there is none.
      draw_seed: of the random draws.
      **options: as for `grid`, but `stop_when`. `eval_every` None evaluates at every
        rung, which are when settings can be dropped. Batches of an `Optuna` or within
        minutes are calls of their own for `callbacks`, and have folders of their own in
        `checkpoints`.

    Returns:
      The search, with the process of the best setting.

    Raises:
      InputError: if an argument does not fit, in one sentence; among others, if the
        budget is below the cost of the smallest search.
      Interrupted: after `max_minutes`; the same call goes on from its `checkpoints`,
        but for one with a budget in minutes, which has none.
    """
    validate.check(key, process, model, spec)
    if space is None and not (space := search_space(process)):
        raise checks.InputError(
            f"{type(process.algorithm).__name__} declares no ranges to search; give a"
            ' space, as in {"algorithm.lam": fp.Range(0.01, 10)}.'
        )
    checks.whole("draw_seed", draw_seed, at_least=0)
    seeds = list(seeds)
    if not seeds:
        raise checks.InputError("Expected at least one seed, got none.")
    if budget is not None and not isinstance(budget, budgets.Budget):
        raise checks.InputError(
            "Expected a budget such as fp.engine.Rounds(3000), Gradients(2e6) or"
            f" Minutes(10), got {checks.shown(budget)}."
        )
    is_counted = isinstance(budget, budgets.Rounds | budgets.Gradients)
    if is_counted and num_settings is not None:
        raise checks.InputError(
            "Expected num_settings, or a budget in rounds or gradients, got both:"
            f" {num_settings} and {budget!r}."
        )
    size = NUM_SETTINGS if num_settings is None else num_settings
    checks.positive_int("num_settings", size)
    comparison = {"metric": metric, "model": by_model}
    watched = _rule(strategy, {n: v for n, v in comparison.items() if v is not None})
    watched = watched.by(metric)
    if isinstance(watched, stopping.Halving):
        # Evaluations are the only moments at which settings can be dropped.
        first_rung = watched.first_rung(num_rounds)
        watched = dataclasses.replace(watched, min_rounds=first_rung)
        options["stop_when"] = watched
        if options.get("eval_every") is None:
            options["eval_every"] = first_rung
    parsed = Options(num_rounds=num_rounds, metric=metric, **options)
    if watched.data not in parsed.schedule.data:
        raise checks.InputError(
            f"Expected {watched.data} among the data of evaluate_on, which settings are"
            f" compared on, got {', '.join(parsed.schedule.data)}."
        )
    time_is_up = time_limit(parsed.max_minutes)
    base = (key, process, model, spec)
    search = _Search(base, _parsed_space(space), strategy, seeds, draw_seed, parsed)
    if is_counted:
        # The price of a setting is read from the rungs that the search would train.
        size = budgets.most_settings(
            budget,
            functools.partial(search.cost, budget=type(budget)),
            least_settings(parsed),
        )
    result, settings, gradients = _train(search, watched, size, budget, time_is_up)
    fields = tuple(space)
    is_whole = len(settings) == _number(search.space)
    tuned = Tuned(
        result, process, watched, num_rounds, fields, budget, gradients, is_whole
    )
    best = tuned.trials().to_dict("records")[0]
    for name, value in next(s for s in settings if _is_shown_as(s, best)).items():
        process = struct.replace_field(process, name, value)
    return dataclasses.replace(tuned, process=process)


def _is_shown_as(setting: Mapping[str, Any], row: Mapping[Any, Any]) -> bool:
    """Returns whether a row of a table is about a setting; NaN stands for None."""
    plain = {name: struct.plain(value) for name, value in setting.items()}
    # A table shows None as NaN, which does not equal itself.
    return all(
        value == row[name] or (value is None and row[name] != row[name])
        for name, value in plain.items()
    )


def _rule(
    strategy: str | stopping.Halving | ask_tell.Optuna, fields: Mapping[str, Any]
) -> stopping.Timed:
    """Returns the metric that a strategy watches, and when it drops settings."""
    if isinstance(strategy, ask_tell.Optuna):
        return stopping.Timed(**fields)
    if isinstance(strategy, stopping.Halving):
        return dataclasses.replace(strategy, **fields)
    checks.known(strategy, ("halving", "hyperband", "random", "grid"), "strategy")
    if strategy in ("random", "grid"):
        return stopping.Timed(**fields)
    brackets = None if strategy == "hyperband" else 1
    return stopping.Halving(brackets=brackets, **fields)


def _train(
    search: _Search,
    rule: stopping.Timed,
    size: int,
    budget: budgets.Budget | None,
    time_is_up: Callable[[], str | None],
) -> tuple[results.Result, list[dict[str, Any]], float | None]:
    """Trains batch after batch until a search ends."""
    options, strategy = search.options, search.strategy
    minutes = budget.count if isinstance(budget, budgets.Minutes) else None
    if minutes is None and strategy != "grid":
        size = int(min(size, _number(search.space)))
    # All settings are one batch, unless a study or a clock chooses the next ones.
    study, batch = None, size
    if isinstance(strategy, ask_tell.Optuna):
        study = ask_tell.Suggestions(strategy.study(rule.chosen), search.space)
        if minutes is None and size == _number(search.space):
            study.plan(draw(search.space, size, search.draw_seed))
        batch = strategy.batch_size if minutes else min(strategy.batch_size, size)
    is_series = minutes is not None or batch < size
    _check_series(options, is_series=is_series, is_timed=minutes is not None)
    parts: list[results.Result] = []
    trials: list[dict[str, Any]] = []
    gradients, spent, is_over = 0, 0.0, False
    start_time, compiling = time.perf_counter(), 0.0
    while not is_over:
        count = batch if minutes else min(batch, size - len(trials))
        if study is None:
            settings = search.settings(len(trials) + count)[len(trials) :]
        else:
            settings = study.ask(count)
        if not settings:  # all have been trained
            break
        unplanned = search.groups_of(settings, search.seeds)
        batch_options = options
        if minutes is not None:
            # Groups are trained one after the other, with equal shares of the time
            # left.
            timed = dataclasses.replace(
                rule, minutes=(minutes - spent) / len(unplanned)
            )
            batch_options = dataclasses.replace(batch_options, stop_when=timed)
        elif is_series:
            batch_options = _in_folder(batch_options, f"batch-{len(parts):03d}")
        planned = simulation.check_groups(unplanned, batch_options)
        part = simulation.run_groups(planned, batch_options, interrupt=time_is_up)
        # The study learns from a batch before it suggests the next one.
        if study is not None:
            study.tell(*_scores(part, settings, rule))
        if isinstance(budget, budgets.Gradients):
            for group, record in zip(unplanned, part.groups, strict=True):
                gradients += int(record.ends.sum()) * search.gradients_of(group)
        parts.append(part)
        trials += settings
        # A budget in minutes does not count compiling.
        compiling += sum(record.compile_seconds for record in part.groups)
        spent = (time.perf_counter() - start_time - compiling) / 60
        is_over = len(trials) >= size if minutes is None else spent >= minutes
        is_over |= strategy == "grid"
    result = parts[0] if len(parts) == 1 else results.Result.merge(parts)
    return result, trials, gradients if isinstance(budget, budgets.Gradients) else None


def _in_folder(options: Options, name: str) -> Options:
    """Returns options with checkpoints, if any, in a subfolder."""
    if options.checkpoints is None:
        return options
    folder = options.checkpoints.path / name
    checkpoints = dataclasses.replace(options.checkpoints, directory=folder)
    return dataclasses.replace(options, checkpoints=checkpoints)


def _check_series(options: Options, *, is_series: bool, is_timed: bool) -> None:
    """Refuses options that a search of several batches cannot have."""
    if is_timed and options.checkpoints is not None:
        raise checks.InputError(
            "Expected a budget in rounds or gradients with checkpoints, since what"
            " is trained in minutes is not the same again."
        )
    if is_series and options.models_to is not None:
        raise checks.InputError(
            "Expected models_to=None with a search in batches, got"
            f" {str(options.models_to)!r}; train the best process again to save it."
        )


def _scores(
    result: results.Result,
    settings: Sequence[Mapping[str, Any]],
    watched: stopping.Watched,
) -> tuple[list[float], list[bool]]:
    """Returns the score of every setting, and whether it was trained to its end."""
    from fedjax_pfl.results import selection

    fields = list(settings[0])
    rows = selection.endings(result, fields, **watched.described)
    scores, complete = [], []
    for setting in settings:
        runs = [row for row in rows if _is_shown_as(setting, row)]
        scores.append(float(np.mean([row["score"] for row in runs])))
        complete.append(not any(row["status"].startswith("stopped") for row in runs))
    return scores, complete
