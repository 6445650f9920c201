"""The command line shared by `run` and `sweep`.

Arguments are parsed before JAX is imported, so that `--help` and wrong options answer
at once and so that `--devices` can take effect.
"""

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_pfl.command import arguments, compilation_cache, errors

__all__ = ["answer", "make_app", "num_cores"]

_shown: set[str] = set()  # sentences of warnings


def make_app(command: str, help: str) -> typer.Typer:
    """Makes the application of one command.

    Args:
      command: `run`, `sweep` or `plan`.
      help: first paragraph of `--help`.

    Returns:
      The application.
    """
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )

    @app.command(help=help)
    def main(
        context: typer.Context,
        preset: Annotated[
            str | None,
            typer.Option(
                show_default="digits",
                help="digits, quadratic, portfolio, a data set's name (mnist,"
                " fashion_mnist, cifar10, cifar100, medical_mnist, femnist, sent140,"
                " shakespeare, stocks), or a card's comparison: fedacs_*, fedpg_*,"
                " fedplus_*, flame_*, portfolio_*; a pattern such as"
                " 'flame_fair_mnist_*' runs all that match, one after the other, in"
                " one directory.",
            ),
        ] = None,
        problem: Annotated[
            str | None,
            typer.Option(
                help="classification or portfolio: short for --preset digits and"
                " --preset portfolio."
            ),
        ] = None,
        set_: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="NAME=VALUE[,VALUE...]",
                help="A field by its dotted name, as in algorithm.lam=0.1,1 or"
                " algorithm=flame,fedavg; values are JSON, commas sweep."
                " Repeatable.",
            ),
        ] = None,
        algorithm: Annotated[
            str | None,
            typer.Option(
                metavar="NAME[,NAME...]",
                help="Short for --set algorithm=NAME,...: names of the package's, or"
                " module:Class of your own.",
            ),
        ] = None,
        seeds: Annotated[
            int | None,
            typer.Option(min=1, max=10_000, help="Use the seeds 0, ..., N-1."),
        ] = None,
        seed_list: Annotated[
            str | None, typer.Option(metavar="S,S,...", help="Use exactly these seeds.")
        ] = None,
        rounds: Annotated[
            int | None, typer.Option(min=1, help="Communication rounds.")
        ] = None,
        dataset: arguments.DatasetName = None,
        data_dir: arguments.DataDirectory = None,
        data: arguments.DataPath = None,
        label: arguments.LabelColumn = None,
        client: arguments.ClientColumn = None,
        clients: Annotated[
            int | None, typer.Option(min=1, help="Number of clients.")
        ] = None,
        eval_every: Annotated[
            int | None, typer.Option(min=1, help="Rounds between evaluations.")
        ] = None,
        eval_on: Annotated[
            str | None,
            typer.Option(
                metavar="DATA[=ROUNDS],...",
                help="Data to evaluate on: test, validation, train, others, everybody;"
                " each with a period of its own if wanted.",
            ),
        ] = None,
        eval_clients: Annotated[
            str | None,
            typer.Option(
                metavar="all|participants|N", help="Whose models are evaluated."
            ),
        ] = None,
        execution: Annotated[
            str,
            typer.Option(help="auto, loop, vmap, chunk=K, shard or shard=DEVICES."),
        ] = "auto",
        devices: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=1000,
                help="Devices that the CPU is split into; one per core if not given.",
            ),
        ] = None,
        points_per_chunk: Annotated[
            int | None,
            typer.Option(min=1, help="Grid points computed together; bounds memory."),
        ] = None,
        streamed: Annotated[
            bool,
            typer.Option(
                "--streamed",
                hidden=command != "run",
                help="Keep the clients' models in a file: for populations beyond the"
                " memory.",
            ),
        ] = False,
        patience: Annotated[
            int | None,
            typer.Option(
                min=1, help="End after so many evaluations without improvement."
            ),
        ] = None,
        target: Annotated[
            float | None, typer.Option(help="End when the metric is this good.")
        ] = None,
        stop_on: Annotated[
            str | None,
            typer.Option(
                metavar="MODEL:DATA:METRIC",
                help="What --patience and --target look at, for example"
                " personal:validation:accuracy; parts may be empty.",
            ),
        ] = None,
        memory_limit: Annotated[
            str,
            typer.Option(
                metavar="SIZE|free|none",
                help="Most memory that the trainings of one compilation may need, for"
                " example 8GB; free is what is free then, none refuses nothing.",
            ),
        ] = "free",
        max_minutes: Annotated[
            float | None,
            typer.Option(help="Save and end after this time, with exit status 3."),
        ] = None,
        checkpoint_seconds: Annotated[
            float, typer.Option(min=0, help="Least time between two checkpoints.")
        ] = 5.0,
        resume: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Go on with what an earlier command has left in its directory.",
            ),
        ] = None,
        diagnostics: Annotated[
            bool,
            typer.Option(
                "--diagnostics", help="Also record the algorithm's own values."
            ),
        ] = False,
        save_models: Annotated[
            bool,
            typer.Option(
                "--save-models",
                help="Write the trained models of the evaluated clients, too.",
            ),
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only say what would be trained.")
        ] = False,
        as_if_clients: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=2**31 - 1,
                hidden=command != "plan",
                help="Plan for so many clients like those that there are.",
            ),
        ] = None,
        profile: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Write a profile of the rounds between the second and the third"
                " evaluation.",
            ),
        ] = None,
        log: arguments.LogTo = None,
        out: Annotated[
            Path | None,
            typer.Option(help="New directory; results/<preset>-<time> if not given."),
        ] = None,
        quiet: Annotated[
            bool, typer.Option("--quiet", help="Print only the directory's name.")
        ] = False,
        version: arguments.Version = False,
    ) -> None:
        logs = arguments.logs(log)
        if as_if_clients is not None and command != "plan":
            raise typer.BadParameter("--as-if-clients is for experiments.plan")
        if streamed and command != "run":
            raise typer.BadParameter("--streamed is for experiments.run")
        if streamed and (diagnostics or profile is not None or memory_limit != "free"):
            raise typer.BadParameter(
                "--streamed goes with none of --diagnostics, --profile and"
                " --memory-limit"
            )
        if resume is not None and command == "plan":
            raise typer.BadParameter("experiments.plan trains nothing to go on with")
        if resume is not None:
            _check_alone(context)
            kept = {"max_minutes": max_minutes, "log": logs, "quiet": quiet}
            kept |= {"memory_limit": memory_limit}
            _start(lambda: _resumed(resume, kept))
            return
        if seeds is not None and seed_list is not None:
            raise typer.BadParameter("give --seeds or --seed-list, not both")
        chosen = None if seeds is None else tuple(range(seeds))
        own = arguments.Data.parse(dataset, data, label, client, data_dir)
        short = {
            "algorithm": algorithm,
            "num_rounds": rounds,
            "eval_every": eval_every,
            "federation.dataset": dataset,
            "federation.num_clients": clients,
        }
        settings = [f"{n}={v}" for n, v in short.items() if v is not None]
        options = arguments.Options(
            command=command,
            preset=_preset(preset, problem),
            settings=(*settings, *(set_ or [])),
            seeds=arguments.seeds(seed_list) if seed_list is not None else chosen,
            execution=execution,
            devices=devices,
            points_per_chunk=points_per_chunk,
            memory_limit=memory_limit,
            streamed=streamed,
            as_if_clients=as_if_clients,
            data=own,
            evaluate_on=None if eval_on is None else arguments.periods(eval_on),
            eval_clients=arguments.number_or_name(eval_clients),
            stop=arguments.Stop.parse(patience, target, stop_on),
            diagnostics=diagnostics,
            save_models=save_models,
            checkpoint_seconds=checkpoint_seconds,
            max_minutes=max_minutes,
            resume=None,
            dry_run=dry_run,
            profile=profile,
            log=logs,
            out=out,
            quiet=quiet,
        )
        _start(lambda: options)

    return app


_PROBLEMS = {"classification": "digits", "portfolio": "portfolio"}


def _preset(preset: str | None, problem: str | None) -> str:
    """The preset, or that of a family of problems."""
    if problem is None:
        return preset or _PROBLEMS["classification"]
    if preset is not None:
        raise typer.BadParameter("give --problem or --preset, not both")
    if problem not in _PROBLEMS:
        raise typer.BadParameter(
            f"expected --problem {' or '.join(_PROBLEMS)}, got {problem!r}"
        )
    return _PROBLEMS[problem]


def _check_alone(context: typer.Context) -> None:
    """Lets --resume only be given with what does not change the trainings."""
    allowed = {"resume", "max_minutes", "memory_limit", "log", "quiet"}
    for name in context.params.keys() - allowed:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = "--" + name.strip("_").replace("_", "-")
            raise typer.BadParameter(
                "--resume goes on with the options of the first command; only"
                " --max-minutes, --memory-limit, --log and --quiet may be given with"
                f" it, not {option}"
            )


def _resumed(directory: Path, given: dict[str, Any]) -> arguments.Options:
    """The options of the command that is continued, with those given now."""
    from fedjax_pfl.command import run_folder

    return dataclasses.replace(run_folder.read(directory), **given)


def _start(read: Callable[[], arguments.Options]) -> None:
    """Does the job, on a CPU by default with a device per core."""

    def work() -> None:
        options = read()
        _check_names(options)
        flag = "--xla_force_host_platform_device_count"
        flags = os.environ.get("XLA_FLAGS", "")
        if options.devices is not None or flag not in flags:
            devices = options.devices or num_cores()  # JAX looks when it is first used
            os.environ["XLA_FLAGS"] = f"{flags} {flag}={devices}".strip()
        compilation_cache.silence()
        from fedjax_pfl.command import batch

        batch.do(options)

    answer(work)


def _check_names(options: arguments.Options) -> None:
    """Refuses presets and components that do not exist, before JAX is imported."""
    from fedjax_pfl.command import presets
    from fedjax_pfl.command.presets import experiment

    presets.matching(options.preset)
    experiment.parse(options.settings)


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answer(work: Callable[[], None]) -> None:
    """Does a command's work; errors of the user are one sentence and exit status 2.

    Args:
      work: imports JAX itself, so that `--help` answers at once.
    """
    _shown.clear()
    warnings.showwarning = _show_warning
    try:
        from fedjax_pfl.core import checks

        try:
            work()
        except checks.InputError as error:
            _stop(str(error), 2)
        except errors.StoppedError as error:
            _stop(str(error), error.status)
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        _stop(f"Cannot read or write{where}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        _stop("Interrupted.", 130)


def _show_warning(message: Warning | str, *_: object) -> None:
    """Shows a sentence once and alone, without the line of code that it came from."""
    sentence = compilation_cache.sentence(str(message))
    if sentence not in _shown:
        _shown.add(sentence)
        print(f"Warning: {sentence}", file=sys.stderr)


def _stop(sentence: str, status: int) -> None:
    """Ends the command with a sentence on standard error."""
    print(sentence, file=sys.stderr)
    raise typer.Exit(status)
