"""The command `benchmark`: one or several data sets, method by method.

Its directory has `experiment.json`, a folder per data set (see `benchmark.training`),
the tables `scores.csv` and `searches.csv`, and the pages.
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
    batch,
    compilation_cache,
    errors,
    job,
    outputs,
    presets,
    printing,
    run_folder,
)
from fedjax_pfl.core import checks
from fedjax_pfl.engine import budgets
from fedjax_pfl.engine.options import time_left
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import plain_files

__all__ = ["do", "task_of"]


def do(options: arguments.Options) -> None:
    """Tunes, trains and ranks the methods on the requested data sets."""
    compilation_cache.keep()
    # The first task is made before the directory, which a wrong option must not leave.
    names = presets.matching(options.preset_name)
    task_of_first = task_of(dataclasses.replace(options, preset=names[0]))
    with batch.opened(options) as (out, hint):
        ahead.start()
        _run_all(names, options, out, hint, task_of_first)
    console = printing.console(quiet=options.quiet)
    bench = tables.Tables.load(out)
    for task in bench.tasks:
        _show(console, bench.of_tasks(task))
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
    task_of_first: tasks.Task,
) -> None:
    """Does one data set after the other; skips data sets with missing files."""
    time, skipped = time_left(options.max_minutes), []
    for name in names:
        task = task_of_first
        if name != names[0]:
            task = task_of(dataclasses.replace(options, preset=name))
        plain_files.check(out / task.name, is_directory=True)
        try:
            training.run(
                out,
                task,
                say=(lambda text: None) if options.quiet else outputs.say,
                max_minutes=time(),
                resume_anyway=options.resume_anyway,
                progress=not options.quiet,
                execution=options.execution,
                memory_limit=options.memory_limit,
            )
        except data.MissingFilesError as error:
            # Several data sets go on without those that are not on this machine.
            if len(names) == 1:
                raise
            outputs.say(f"Skipped {name}: {error}")
            skipped.append(name)
            continue
        except Interrupted as stopped:
            raise errors.StoppedError(f"{stopped}; {hint}", 3) from None
        # After every data set, so that an interrupted command has pages as well.
        bench = tables.collect(out)
        bench.save(out)
        page.write(bench, out)
    if len(skipped) == len(names):
        raise checks.InputError(f"None of {', '.join(names)} has its data here.")


def task_of(options: arguments.Options) -> tasks.Task:
    """Returns the task of a preset, with the options applied."""
    experiment = job.experiment_of(options)
    grid_of_all = experiment.grids[0]
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
    # `only` has one text at most, see `Options.check`.
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
        model=grid_of_all.model,
        spec=grid_of_all.spec,
        num_rounds=experiment.num_rounds,
        seeds=experiment.seeds,
        metric=options.metric or "accuracy",
        budget=budget,
        # Rows add their own --only.
        command=run_folder.command(dataclasses.replace(options, only=None)),
        learned=learned,
    )


def _only(
    methods: Mapping[str, fp.FederatedProcess], names: str
) -> tuple[dict[str, fp.FederatedProcess], dict[str, fp.FederatedProcess]]:
    """Returns the methods of `--only`, without and with learned fields."""
    choices = [name.strip() for name in names.split(",")]
    searched, learned = (
        {plain_files.plain_name(f"{name}{ending}"): name for name in methods}
        for ending in ("", tasks.LEARNED)
    )
    for name in choices:
        checks.known(name, searched | learned, "method of --only")
    searches, learnings = (
        {folders[name]: methods[folders[name]] for name in choices if name in folders}
        for folders in (searched, learned)
    )
    return searches, learnings


def _show(console: Console, bench: tables.Tables) -> None:
    """Prints the ranking of one data set."""
    section = data_set.results(bench, ranking.places(bench))
    (part,) = section.parts
    printing.table(console, section.columns, part.rows, title=bench.tasks[0])
