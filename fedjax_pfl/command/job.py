"""The job of a command after its arguments are parsed."""

import contextlib
import dataclasses
import datetime
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import fedjax_pfl as fp
from fedjax_pfl import figures, results
from fedjax_pfl.command import (
    ahead,
    arguments,
    compilation_cache,
    cost_tables,
    distributed,
    errors,
    invocation,
    logs,
    outputs,
    own_data,
    presets,
    printing,
    run_folder,
    show,
    signals,
)
from fedjax_pfl.command.presets.experiment import Experiment, apply_settings
from fedjax_pfl.core import checks, processes
from fedjax_pfl.core.texts import counted
from fedjax_pfl.engine import (
    budgets,
    grids,
    profiling,
    save_models,
    shared,
    simulation,
    streaming,
    tuning,
)
from fedjax_pfl.engine.derivatives import fields, learner
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.derivatives.values import default_optimizer
from fedjax_pfl.engine.groups import Group, PlannedGroup
from fedjax_pfl.engine.options import Options, time_limit
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import directories, pretraining
from fedjax_pfl.results.checkpoint import fingerprint
from fedjax_pfl.results.leases import LostError

__all__ = ["continuation", "default_directory", "do", "experiment_of"]

_MAX_FEDERATIONS = 2  # described before starting


def do(options: arguments.Options) -> None:
    """Plans, trains, saves and shows the trainings of the options."""
    compilation_cache.keep()  # JAX reads this at its first compilation only
    gc.set_threshold(100_000, 20, 20)  # tracing makes many objects without cycles
    console = printing.console(quiet=options.quiet or not processes.is_first())
    if options.join and options.out is not None and run_folder.is_begun(options.out):
        run_folder.check_same(options.out, options)
        options = dataclasses.replace(options, resume=options.out)
    if options.resume is not None and run_folder.is_finished(options.resume):
        _show_finished(console, options, options.resume)
        return
    # Everything that can refuse an option comes before the directory is made.
    experiment = experiment_of(options)
    budget = _budget(options)
    training = _training(experiment, options, budget)
    time_is_up = time_limit(training.max_minutes)
    checks.number("checkpoint_seconds", options.checkpoint_seconds, at_least=0)
    out = options.out or default_directory(experiment.name)
    if options.resume is None and options.command != "plan" and processes.is_first():
        try:
            directories.check_new(out)
        except checks.InputError:
            # A shared sweep may have begun there a moment ago.
            if not (options.join and run_folder.is_begun(out)):
                raise
    grouped = _groups(experiment, training, options, budget)
    groups = list(itertools.chain.from_iterable(grouped))
    _check_tests(groups, training)
    trainer, training = _trainer(options, groups, training)
    if options.command == "plan":
        cost_tables.show(console, options, groups, training, trainer)
        return
    profile = None if options.profile is None else _profile(options, training)
    writers = logs.callbacks(options, out)
    planned = simulation.check_groups(groups, training, trainer=trainer)
    is_new = processes.is_first() and not run_folder.is_begun(out)
    if options.save_models and is_new:
        save_models.check(planned, out / run_folder.MODELS)
    _print_plan(console, experiment, grouped, is_search=options.is_search)
    if options.dry_run:
        return
    del groups, grouped  # devices hold the examples of their clients now
    if options.distributed:
        fp.data.forget()
    training = dataclasses.replace(
        training,
        checkpoints=fp.Checkpoints(
            out / run_folder.CHECKPOINTS,
            min_seconds=options.checkpoint_seconds,
            resume_anyway=options.resume_anyway,
        ),
        callbacks=writers,
    )
    work = _Work(options, out, planned, training, trainer, time_is_up, profile)
    with signals.resumable(work.hint):
        result = work.join(console) if options.join else work.do_alone()
    if not processes.is_first():
        return
    if result is None:
        console.print("Another process has written the result.")
    else:
        show.result(console, result)
    if profile is not None:
        _print_profile(console, profile)
    _print_place(console, options, out)


def _show_finished(console: Console, options: arguments.Options, folder: Path) -> None:
    """Shows the result of a run that has ended."""
    if options.log:
        raise checks.InputError(
            f"The run in '{folder}' is finished; --log is for trainings."
        )
    result = results.Result.load(folder)
    is_cleaned = run_folder.cleaned(folder)
    note = "; what a killed process had left is removed" if is_cleaned else ""
    console.print(f"The run in '{folder}' is finished{note}.")
    show.result(console, result)
    _print_place(console, options, folder)


@dataclasses.dataclass(frozen=True)
class _Work:
    """Planned trainings, and the directory of their result."""

    options: arguments.Options
    out: Path
    planned: Sequence[PlannedGroup]
    training: Options
    trainer: Callable[..., Resident]
    time_is_up: Callable[[], str | None]  # returns a reason to end, or None
    profile: profiling.Profile | None  # of a few rounds

    @property
    def hint(self) -> str:
        """Sentence with the command that continues the run."""
        return continuation(self.options, self.out)

    @contextlib.contextmanager
    def _interrupt(self) -> Iterator[Callable[[], str | None]]:
        """Yields the trainings' check for a reason to end; adds a hint if it did."""
        with signals.asking() as ask:
            try:
                yield lambda: ask() or self.time_is_up()
            except Interrupted as stopped:
                number = signals.number()
                status = 3 if number is None else 128 + number
                raise errors.StoppedError(f"{stopped}; {self.hint}", status) from None

    def do_alone(self) -> results.Result:
        """Trains all groups in a directory that no other training may use."""
        if self.options.distributed:
            (plan,) = _units(self.planned)
            distributed.check_alike(**run_folder.identity(self.options), plan=plan)
        with contextlib.ExitStack() as stack:
            # The first of several processes locks the directory for all of them.
            with processes.together():
                if processes.is_first():
                    stack.enter_context(run_folder.opened(self.out, self.options))
            ahead.start()
            return self._finish(self.training)

    def join(self, console: Console) -> results.Result | None:
        """Trains free groups; returns None if another process writes the result."""
        run_folder.joined(self.out, self.options, _units(self.planned))
        ahead.start()
        crew = shared.Crew(
            self.planned,
            self.training,
            self.options.lease_seconds,
            trainer=self.trainer,
            is_complete=lambda: run_folder.is_finished(self.out),
            say=console.print,
        )
        training = dataclasses.replace(self.training, progress=False)
        try:
            while True:
                with self._interrupt() as interrupt:
                    lease = crew.train(interrupt)
                if lease is None:
                    break
                with contextlib.suppress(LostError), lease:
                    return self._finish(training, lease.check)
        except checks.InputError:
            if not run_folder.is_finished(self.out):  # by who took over from this one
                raise
        run_folder.tidy(self.out)
        return None

    def _finish(
        self, training: Options, check: Callable[[], None] | None = None
    ) -> results.Result:
        """Trains the groups that have not ended; writes the result after `check`."""
        if self.options.save_models:
            place = self.out / run_folder.MODELS
            if processes.is_first():
                # Empties the folder, in which a killed process may have left models.
                place = run_folder.models_place(self.out)
            training = dataclasses.replace(training, models_to=place)
        with self._interrupt() as interrupt:
            result = simulation.run_groups(
                self.planned,
                training,
                trainer=self.trainer,
                interrupt=interrupt,
                profile=self.profile,
                is_shared=check is not None,
            )
        with processes.together():
            if processes.is_first():
                with run_folder.completed(self.out) as folder:
                    result.write(folder)
                    figures.save_all(result, folder)
                    # Last before the result counts: the lease may have been lost in
                    # the meantime.
                    if check is not None:
                        check()
        return result


def _trainer(
    options: arguments.Options, groups: Sequence[Group], training: Options
) -> tuple[Callable[..., Any], Options]:
    """Returns the factory of trainers, and the options of all their rounds."""
    if options.streamed:
        num_clients = groups[0].federations[0].num_clients
        return streaming.Streamed, training.within(num_clients)
    if options.learn is None:
        return Resident, training
    processes = [group.processes[0] for group in groups]
    learning = learner.Learning(
        names=fields.of_some(processes, options.learn.split(",")),
        objective=Objective.parse(options.learn_on or Objective()),
        optimizer=default_optimizer(),
        restart=training.num_rounds if options.learn_trainings else None,
    )
    return learning, learning.options(training, options.learn_trainings)


def _profile(options: arguments.Options, training: Options) -> profiling.Profile:
    """Returns the requested profile; refuses rounds beyond the training."""
    rounds, segment = training.num_rounds, training.schedule.segment
    if segment >= rounds:
        raise checks.InputError(
            "Expected an --eval-every below the number of rounds with --profile, which"
            f" records the second period, got {segment} and {rounds} rounds."
        )
    return profiling.Profile(options.profile or ".")


def _print_profile(console: Console, profile: profiling.Profile) -> None:
    """Prints the file to open, and the program for it."""
    if file := profile.newest():
        text = f"Profile: open {file} at https://ui.perfetto.dev, or"
        text += f" {profile.directory} with xprof or tensorboard --logdir."
    else:
        text = "Nothing was profiled: all trainings ended in their first rounds."
    console.print(text)


def _budget(options: arguments.Options) -> budgets.Budget | None:
    """Returns the budget of a search, if there is one."""
    if options.tune_budget is None:
        return None
    budget = budgets.parse(options.tune_budget)
    if options.tune is not None and not isinstance(budget, budgets.Minutes):
        raise checks.InputError(
            f"Expected --tune, or a --tune-budget in {budget.unit}, which sets their"
            f" number, got both: {options.tune} and {options.tune_budget}."
        )
    return budget


def _training(
    experiment: Experiment, options: arguments.Options, budget: budgets.Budget | None
) -> Options:
    """Returns the options of the trainings."""
    rule = options.stop_rule()
    stop_when = None if rule is None else fp.StopWhen(**rule)
    eval_clients, eval_every = experiment.eval_clients, experiment.eval_every
    if options.is_search:
        minutes = budget.count if isinstance(budget, budgets.Minutes) else None
        halving = fp.engine.Halving(minutes=minutes)
        # Settings are compared at rungs, so every rung must be an evaluation.
        rung = halving.first_rung(experiment.num_rounds)
        stop_when = dataclasses.replace(halving, min_rounds=rung)
        eval_every = options.eval_every or rung
    if options.streamed and options.eval_clients is None:
        eval_clients = streaming.EVAL_CLIENTS
    # Options of the same name in commands and in Python, and the others.
    shared_names = {f.name for f in dataclasses.fields(options)}
    shared_names &= {f.name for f in dataclasses.fields(Options)}
    values = {name: getattr(options, name) for name in shared_names} | {
        "num_rounds": experiment.num_rounds,
        "eval_every": eval_every,
        "evaluate_on": dict(experiment.evaluate_on),
        "eval_clients": eval_clients,
        "stop_when": stop_when,
        "progress": not options.quiet,
        "models_of": options.save_models or "last",
    }
    if options.distributed:
        values["execution"] = "shard"
    return Options(**values)


def continuation(options: arguments.Options, out: Path) -> str:
    """Returns the hint with the command that resumes a run."""
    return f"continue with: {run_folder.resuming(options, out)}"


def _print_place(console: Console, options: arguments.Options, out: Path) -> None:
    """Prints the paths of figures and results."""
    for file in sorted((out / "figures").glob("*.png")):
        console.print(f"Figure: {file}")
    if options.quiet:
        outputs.say(out)
        return
    outputs.say(f"Results: {out}")
    if options.save_models:
        outputs.say(f"Models: {out / run_folder.MODELS}")
    outputs.say(f"Report: {invocation.of('report', out)}")
    logs.print_hint(options, out)


def experiment_of(options: arguments.Options) -> Experiment:
    """Returns the preset with the options applied."""
    experiment = presets.get(options.preset_name)
    is_single = options.command == "run"
    if is_single:
        experiment = experiment.single()
    # Before the settings, which can change everything that follows from the data.
    experiment = own_data.with_data(experiment, options)
    experiment = apply_settings(experiment, options.settings)
    if options.init is not None:
        experiment = _with_start(experiment, Path(options.init))
    fields = {
        "seeds": options.all_seeds,
        "evaluate_on": options.evaluate_on,
        "eval_clients": arguments.number_or_name(options.eval_clients),
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    experiment = dataclasses.replace(experiment, **fields)
    settings = experiment.num_points // len(experiment.seeds)
    if is_single and settings > 1:
        raise checks.InputError(
            f"Expected one setting, got {settings}; use {invocation.of('sweep')}."
        )
    return experiment


def _with_start(experiment: Experiment, file: Path) -> Experiment:
    """Starts all trainings from a file, without the users of its pretraining."""
    params = fp.load_params(file)
    users = pretraining.held_out_of(file)
    grids = []
    for grid in experiment.grids:
        grid = grid.started(params)
        name = "federation.held_out_users"
        held_out = None if users is None else pretraining.HeldOut.of(grid.spec)
        if users and held_out and held_out.dataset == users.dataset:
            # A larger share holds out the same users and more, a smaller one not all of
            # them.
            share = min(grid.axes.get(name, (held_out.fraction,)))
            if not share:
                grid = grid.replace(name, users.fraction)
            elif share < users.fraction:
                raise checks.InputError(
                    f"Expected {name} of at least {users.fraction:g}, the share that"
                    f" '{file}' was pretrained on, got {share:g}."
                )
        grids.append(grid)
    return dataclasses.replace(experiment, grids=tuple(grids))


def default_directory(name: str) -> Path:
    """Returns a new directory below the current one."""
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("results") / f"{name}-{time}"


def _groups(
    experiment: Experiment,
    training: Options,
    options: arguments.Options,
    budget: budgets.Budget | None,
) -> list[list[Group]]:
    """Returns the static groups of every grid; builds the federations."""
    grouped = []
    key = jax.random.key(0, impl="threefry2x32")
    federations = grids.Federations()  # shared by all methods
    for grid in experiment.grids:
        axes = {"seed": experiment.seeds, **grid.axes}
        base = (key, grid.process, grid.model, grid.spec)
        if options.is_search:
            count = options.tune or tuning.NUM_SETTINGS
            is_counted = isinstance(budget, budgets.Rounds | budgets.Gradients)
            if is_counted and tuning.search_space(grid.process):
                single = tuning.points(grid.process, axes, 1)
                cost = tuning.search_cost(
                    base, type(budget), training, single, federations
                )
                # Halving compares some settings at least; smaller budgets are refused.
                minimum = tuning.least_settings(training)
                count = budgets.most_settings(budget, cost, minimum)
            axes = tuning.points(grid.process, axes, count)
        groups = grids.groups_of(*base, axes, federations=federations)
        # The files of a streamed training have the rows of one point.
        most = 1 if options.streamed else options.points_per_unit
        if most is not None:
            parts = (group.parts(most) for group in groups)
            groups = list(itertools.chain.from_iterable(parts))
        grouped.append(groups)
    return grouped


def _units(planned: Sequence[PlannedGroup]) -> list[dict[str, Any]]:
    """Describes units of work, so that processes can compare them."""
    # Data that no process has completely have a digest; others get one here.
    federations = {
        id(f): f
        for group in planned
        if not group.digest
        for f in group.group.federations
    }
    digests = {name: fingerprint(f) for name, f in federations.items()}
    return [
        {
            "backend": jax.default_backend(),
            "points": list(group.group.points),
            **group.configuration(str(group.plan)),
            "points_per_chunk": group.plan.points_per_chunk,
            "data": [group.digest or digests[id(f)] for f in group.group.federations],
        }
        for group in planned
    ]


def _check_tests(groups: Sequence[Group], training: Options) -> None:
    """Refuses runs without clients' own test data, which all tables need."""
    if "test" not in training.schedule.data:
        raise checks.InputError(
            "Expected test among the data of --eval-on, which the tables of a command"
            f" show, got {', '.join(training.schedule.data)}."
        )
    for group in groups:
        if not group.federations[0].test.num_examples.any():
            raise checks.InputError(
                "Expected federation.test_fraction above 0, got an empty test split."
            )


def _print_plan(
    console: Console,
    experiment: Experiment,
    grouped: Sequence[Sequence[Group]],
    *,
    is_search: bool,
) -> None:
    """Prints the trainings and the number of compilations."""
    points = sum(len(group.points) for groups in grouped for group in groups)
    count = sum(map(len, grouped))
    console.print(
        f"{counted(points, 'grid point')} x {counted(experiment.num_rounds, 'round')}, "
        f"{counted(count, 'static group')}, {counted(count, 'compilation')} "
        f"of a training; seeds {', '.join(map(str, experiment.seeds))}."
    )
    for grid, groups in zip(experiment.grids, grouped, strict=True):
        # kappa has its own text, which includes the values that follow from rho.
        varied = {n: v for n, v in grid.axes.items() if n != "algorithm.kappa"}
        space = tuning.search_space(grid.process) if is_search else {}
        texts = [
            f"{n} = {', '.join(map(show.text, v))}"
            for n, v in varied.items()
            if n not in space
        ]
        texts += [f"{name} in {tuning.text(values)}" for name, values in space.items()]
        if isinstance(grid.process.algorithm, fp.Flame) and not is_search:
            kappas = (f"{kappa:g}" for kappa in _kappas(groups))
            texts.append(f"kappa = {', '.join(kappas)}")
        line = "; ".join([type(grid.process.algorithm).__name__, *texts])
        console.print(f"  {line}")
    _print_federations(console, list(itertools.chain.from_iterable(grouped)))


def _print_federations(console: Console, groups: Sequence[Group]) -> None:
    """Prints the first few federations, with any leaks of examples."""
    described = {id(d): d for group in groups for d in group.described}.values()
    described = list(dict.fromkeys(item.summary() for item in described))
    head = described[:_MAX_FEDERATIONS]
    for summary in head:
        console.print(summary)
    if len(described) > len(head):
        count = counted(len(described) - len(head), "more federation")
        console.print(f"... and {count}.")


def _kappas(groups: Sequence[Group]) -> list[float]:
    """FLAME's ADMM ratios: `rho N / lam`, of equal clients, if rho is given."""
    kappas = set()
    for group in groups:
        for process, federation in zip(group.processes, group.federations, strict=True):
            flame = process.algorithm
            kappa = 1.0 if flame.kappa is None else flame.kappa
            if flame.rho is not None:
                total = flame.rho * federation.num_clients
                kappa = total / flame.lam if flame.lam else math.inf
            kappas.add(kappa)
    return sorted(kappas)
