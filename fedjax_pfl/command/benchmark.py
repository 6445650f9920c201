"""The command `benchmark`: one or several data sets, method by method.

Its directory has `experiment.json`, a folder per data set (see `benchmark.training`),
the tables `scores.csv` and `searches.csv`, and the pages, which are written anew after
every data set.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.benchmark import data_set, page, ranking, tables, tasks, training
from fedjax_pfl.command import (
    ahead,
    arguments,
    compilation_cache,
    errors,
    job,
    outputs,
    presets,
    printing,
    run_folder,
    signals,
)
from fedjax_pfl.core import checks
from fedjax_pfl.engine import budgets
from fedjax_pfl.engine.options import time_left
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import directories, plain_files

__all__ = ["do", "task_of"]


def do(options: arguments.Options) -> None:
    """Tunes, trains and ranks the methods of the data sets that are asked for."""
    compilation_cache.keep()
    if options.max_minutes is not None:
        checks.number("max_minutes", options.max_minutes, above=0)
    names = presets.matching(options.preset_name)
    first = task_of(dataclasses.replace(options, preset=names[0]))
    out = options.out or job.default_directory(options.preset_name.strip("*?_"))
    if options.resume is None:
        directories.check_new(out)
    hint = job.continuation(options, out)
    with run_folder.opened(out, options), signals.resumable(hint):
        ahead.start()
        _run_all(names, options, out, hint, first)
    console = printing.console(quiet=options.quiet)
    found = tables.Tables.load(out)
    for task in found.tasks:
        _show(console, found.of_tasks(task))
    if options.quiet:
        outputs.say(out)
        return
    outputs.say(f"Results: {out}")
    outputs.say(f"Page: {out / 'benchmark.html'}")


def _run_all(
    names: list[str],
    options: arguments.Options,
    out: Path,
    hint: str,
    first: tasks.Task,
) -> None:
    """Does one data set after the other; those whose data are missing are skipped."""
    left, skipped = time_left(options.max_minutes), []
    for number, name in enumerate(names):
        task = first
        if number:
            task = task_of(dataclasses.replace(options, preset=name))
        plain_files.check(out / task.name, is_directory=True)
        try:
            training.run(
                out,
                task,
                say=_silent if options.quiet else outputs.say,
                max_minutes=left(),
                resume_anyway=options.resume_anyway,
                progress=not options.quiet,
                execution=options.execution,
                memory_limit=options.memory_limit,
            )
        except data.MissingFilesError as error:
            if len(names) == 1:
                raise
            outputs.say(f"Skipped {name}: {error}")
            skipped.append(name)
            continue
        except Interrupted as stopped:
            raise errors.StoppedError(f"{stopped}; {hint}", 3) from None
        found = tables.collect(out)
        found.save(out)
        page.write(found, out)
    if len(skipped) == len(names):
        raise checks.InputError(f"None of {', '.join(names)} has its data here.")


def _silent(text: str) -> None:
    """Prints no line."""


def task_of(options: arguments.Options) -> tasks.Task:
    """Returns the task of a preset, with the options applied."""
    experiment = job.experiment_of(options)
    first = experiment.grids[0]
    methods = {}
    for grid in experiment.grids:
        name = tasks.name_of(grid.process)
        if grid.axes:
            raise checks.InputError(
                f"Expected one value of each field, which searches vary, got"
                f" {', '.join(grid.axes)} with several for {name}."
            )
        if name in methods:
            raise checks.InputError(f"Expected different methods, got {name} twice.")
        methods[name] = grid.process
    learned = {n: methods[n] for n in experiment.learned if n in methods}
    for names in options.only or ():
        methods, learned = _only(methods, names)
    budget = None
    if options.tune_budget is not None:
        budget = budgets.parse(options.tune_budget)
        if not isinstance(budget, budgets.Gradients):
            raise checks.InputError(
                "Expected a --tune-budget in gradients, which all methods count, such"
                f" as 2e6gradients, got {options.tune_budget!r}."
            )
    return tasks.Task(
        name=plain_files.plain_name(experiment.name.removeprefix("benchmark_")),
        methods=methods,
        model=first.model,
        spec=first.spec,
        num_rounds=experiment.num_rounds,
        seeds=experiment.seeds,
        metric=options.metric or "accuracy",
        budget=budget,
        command=run_folder.command(dataclasses.replace(options, only=None)),
        learned=learned,
    )


def _only(
    methods: Mapping[str, fp.FederatedProcess], names: str
) -> tuple[dict[str, fp.FederatedProcess], dict[str, fp.FederatedProcess]]:
    """Returns the methods of `--only`, and those whose fields are learned."""
    searched, learned = (
        {plain_files.plain_name(f"{name}{ending}"): name for name in methods}
        for ending in ("", tasks.LEARNED)
    )
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        checks.known(name, {**searched, **learned}, "method of --only")
    first, second = (
        {folders[name]: methods[folders[name]] for name in wanted if name in folders}
        for folders in (searched, learned)
    )
    return first, second


def _show(console: Console, found: tables.Tables) -> None:
    """Prints the ranking of one data set."""
    shown = data_set.results(found, ranking.places(found))
    (part,) = shown.parts
    printing.table(console, shown.columns, part.rows, title=found.tasks[0])
