"""The command line shared by `run` and `sweep`.

Arguments are parsed before JAX is imported, so that `--help` and wrong options answer
at once and so that `--devices` can take effect.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from fedjax_pfl.command import (
    allocator,
    arguments,
    compilation_cache,
    errors,
    examples,
    outputs,
    signals,
)

__all__ = [
    "Commands",
    "add",
    "answer",
    "answered",
    "application",
    "make_main",
    "num_cores",
    "with_options",
]

_warned: set[str] = set()  # sentences of warnings
_METAVARS = {int: "N", str: "NAME", Path: "DIR"}  # if an option declares no other


def application(**fields: Any) -> typer.Typer:
    """Makes an application in plain text, which sets up no shell."""
    style = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
    options: dict[str, Any] = {"add_completion": False} | style | fields
    return typer.Typer(**options)


def add(app: typer.Typer, name: str, main: Callable[..., None], **fields: Any) -> None:
    """Adds a command whose help begins with its examples."""
    app.command(name, cls=Command, **fields)(main)


class Command(typer.core.TyperCommand):
    """A command with help in sections: examples, arguments, then options by heading."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:
        """Writes what follows the sentences of `--help`."""
        _write_examples(self.name, ctx, formatter)
        headings = ("Arguments", *typing.get_args(arguments.Group))
        sections: dict[str, tuple[Any, ...]] = dict.fromkeys(headings, ())
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                usual = "Output" if parameter.opts[0] != parameter.name else "Arguments"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                name = record[0].partition(" <")[0]  # without its type
                sections[heading] = *sections[heading], (name, record[1])
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Commands(typer.core.TyperGroup):
    """Several commands, with examples first."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:
        """Writes what follows the sentences of `--help`."""
        _write_examples(self.name, ctx, formatter)
        super().format_options(ctx, formatter)


def _write_examples(name: str | None, ctx: typer.Context, formatter: Any) -> None:
    """Writes examples of a command under the name that it was called by."""
    with formatter.section("Examples"):
        for words in examples.EXAMPLES.get(name or "", ()):
            formatter.write(f"  {ctx.command_path} {words}".rstrip() + "\n")


def make_main(command: str) -> Callable[..., None]:
    """Makes the typer function of a command that trains."""

    def main(context: typer.Context, **values: Any) -> None:
        options = arguments.Options(command=command, **values)
        # A check imports NumPy. Its threads must not take signals, which would be lost
        # with them if the process starts again.
        with signals.carried():
            if options.resume is None:
                options.check()
            else:
                _check_alone(context)
            if command != "plan" and not options.dry_run:
                allocator.settle()
        if command != "plan":
            outputs.go_on()
        answer(lambda: _start(options))

    return with_options(main, arguments.Options, command)


def with_options(
    main: Callable[..., None], kind: type, command: str | None = None
) -> Callable[..., None]:
    """Sets the signature of a function, from which typer reads options."""
    hints = typing.get_type_hints(kind)
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    parameters = [keyword("context", annotation=typer.Context)]
    for field in dataclasses.fields(kind):
        declared = field.metadata
        if not declared or (declared["only"] and command not in declared["only"]):
            continue
        hint = hints[field.name]
        kinds = {hint, *typing.get_args(hint)}
        names = [name for kind, name in _METAVARS.items() if kind in kinds]
        entry = {"metavar": next(iter(names), None), **declared["typer"]}
        entry |= declared["others"].get(command, {})
        entry = typer.Option(arguments.flag(field.name), **entry)
        hint = Annotated[hint, entry]
        parameters.append(keyword(field.name, default=field.default, annotation=hint))
    # typer reads the signature, so options are declared once, as fields.
    main.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    return main


def _check_alone(context: typer.Context) -> None:
    """Refuses options with --resume that would change the trainings."""
    for name in context.params.keys() - {*arguments.WITH_RESUME, "algorithm"}:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise typer.BadParameter(
                "--resume continues with the options of the first command; only"
                " --resume-anyway, --max-minutes, --memory-limit, --log, --quiet, the"
                " options that connect processes, and --algorithm for methods of your"
                f" own may be given with it, not {arguments.flag(name)}"
            )


def _resumed(line: arguments.Options) -> arguments.Options:
    """Reads the options of the continued command, and merges the current ones."""
    from fedjax_pfl.command import presets, run_folder

    directory = line.resume or Path()
    options = run_folder.read(directory)
    is_shown = run_folder.is_finished(directory)  # and not trained, if it is one run
    # A directory of several runs may have unfinished ones.
    is_shown = is_shown and not presets.is_pattern(options.preset_name)
    if line.algorithm is not None or not is_shown:
        run_folder.check_own_algorithms(directory, options, line.algorithm)
    changes = {name: getattr(line, name) for name in arguments.WITH_RESUME}
    options = dataclasses.replace(options, **changes)
    options.check()
    return options


def _start(options: arguments.Options) -> None:
    """Does the job, on a CPU by default with a device per core."""
    compilation_cache.silence()  # reading a run's options imports JAX
    if options.resume is not None:
        options = _resumed(options)
    from fedjax_pfl.command import presets, run_folder
    from fedjax_pfl.command.presets import experiment

    # Presets and components that do not exist are refused before JAX is imported.
    presets.matching(options.preset_name)
    experiment.parse(options.settings)
    # A finished run is only shown, by any process alone.
    folder = options.resume
    is_finished = folder is not None and run_folder.is_finished(folder)
    is_joint = options.distributed and not is_finished
    # Only in the process of a command, which may start itself again.
    if is_joint and allocator.is_allowed():
        from fedjax_pfl.command import watched

        watched.start()
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    # Without --devices, a count in the user's own flags stays.
    if options.devices is not None or flag not in flags:
        devices = options.devices or num_cores()  # JAX reads this at its first use
        devices = 1 if options.hosts else devices  # the plan is for other machines
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={devices}".strip()
    connection = contextlib.nullcontext()
    if options.command == "benchmark":
        from fedjax_pfl.command import benchmark as work
    else:
        from fedjax_pfl.command import batch as work

        if is_joint:
            from fedjax_pfl.command import distributed

            connection = distributed.connected(options)
    with connection:
        work.do(options)


def num_cores() -> int:
    """Number of cores that this process may use."""
    # Schedulers and containers may allow fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answer(work: Callable[[], None]) -> None:
    """Does a command's work, which imports JAX itself; errors become one sentence."""
    _warned.clear()
    warnings.showwarning = _show_warning
    try:
        # Inside of the outer try: an interrupt can come during this import.
        from fedjax_pfl.core import checks

        try:
            with checks.as_command():
                work()
        except checks.InputError as error:
            _stop(str(error), 2)
        except errors.StoppedError as error:
            _stop(str(error), error.status)
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        _stop(f"Cannot read or write{place}: {error.strerror or error}.", 2)
    except KeyboardInterrupt:
        _stop("Interrupted.", 130)


def answered(work: Callable[..., None]) -> Callable[..., None]:
    """Makes the function of a command of its work; see `answer`."""

    @functools.wraps(work)
    def main(*args: Any, **options: Any) -> None:
        answer(lambda: work(*args, **options))

    return main


def _show_warning(message: Warning | str, *_: object) -> None:
    """Prints a warning once, without its line of code."""
    sentence = compilation_cache.sentence(str(message))
    if sentence not in _warned:
        _warned.add(sentence)
        outputs.say(f"Warning: {sentence}", error=True)


def _stop(sentence: str, status: int) -> None:
    """Ends the command with a sentence on standard error."""
    outputs.say(sentence, error=True)
    signals.leave(status)
    raise typer.Exit(status)
