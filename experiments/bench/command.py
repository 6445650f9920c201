"""The command line of the bench, in which every workload has a process of its own."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments import commands
from experiments.bench import machine, worker
from fedjax_pfl.command import errors

__all__ = ["app", "launch"]


def _names(text: str | None) -> list[str]:
    """Reads `W1,W2`."""
    parts = () if text is None else text.split(",")
    return list(dict.fromkeys(part.strip() for part in parts))


@commands.application(
    "Times rounds of trainings, robust rules and quadratic programs, ours and, side by"
    " side, those of others. docs/speed.md says what the numbers mean."
)
def app(
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these workloads.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="PEER,...", help="Peers to compare with, or all."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPUs to use, by default all.")
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, max=1000, help="Split the CPU into N devices.")
    ] = 1,
    huge_pages: Annotated[
        bool,
        typer.Option(
            "--huge-pages",
            help="Time all contenders with the settings of the allocator that the"
            " commands that train have, on Linux.",
        ),
    ] = False,
    repeat: Annotated[
        int,
        typer.Option(
            min=3,
            max=100,
            help="Samples of each contender; up to three times as many where others"
            " use the same CPUs.",
        ),
    ] = 7,
    file: Annotated[
        Path | None,
        typer.Option(
            "--json", "--out", metavar="FILE", help="Also write everything here."
        ),
    ] = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Keep the other workloads of the --json file, which a run on the same"
            " machine with the same versions and options has written.",
        ),
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Say how this run differs from an earlier one's --json; exit status 1"
            " if a workload does by more than 10 %.",
        ),
    ] = None,
    accelerator: Annotated[
        bool,
        typer.Option(
            "--accelerator",
            help="Measure W1 to W6 and versions ten times as large in every form of"
            " execution, convolution and product, on the device that JAX has.",
        ),
    ] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            min=0.01,
            help="With --accelerator: end after M minutes, and say what was left out.",
        ),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Only say what can be timed, with peers.")
    ] = False,
) -> None:
    """Times the chosen workloads."""
    num_cpus = len(machine.cpus())
    count = num_cpus if threads is None else threads
    if count > num_cpus:
        raise typer.BadParameter(
            f"expected --threads of at most {num_cpus}, the CPUs that may be used, got"
            f" {threads}"
        )
    if accelerator and (against or check):
        raise typer.BadParameter(
            "--accelerator measures ours alone: expected neither --against nor --check"
            " with it"
        )
    if update and (file is None or accelerator):
        raise typer.BadParameter("expected --update with --json, of rounds and rules")
    if max_minutes is not None and not accelerator:
        raise typer.BadParameter("expected --max-minutes with --accelerator only")

    # Before JAX is imported, which sees as many CPUs as it starts with.
    machine.pin(count)
    from experiments.bench import catalog, forms, report
    from fedjax_pfl.command import printing

    console = printing.console()
    cases = forms.CASES if accelerator else catalog.TIMED
    if only_list:
        for name, timed in cases.items():
            console.print(f"{name}: {timed.title}; peers {', '.join(timed.peers)}")
        return
    workloads, peers = _checked(cases, _names(only), _names(against))
    earlier = None if check is None else report.read(check)
    if file is not None:
        report.check_writable(file)
    run = {
        "format": report.FORMAT,
        "machine": machine.describe(count, devices, huge_pages),
        "repeat": repeat,
        "against": _names(against),
        "workloads": [],
    }
    base_run = run
    if file is not None and update:
        base_run = report.read(file)
        report.check_alike(base_run, run)

    def save() -> None:  # what was measured outlives an interruption
        if file is not None:
            report.write(file, report.merged(base_run, run))

    failures = []
    if accelerator:
        forms.time_all(console, run, workloads, max_minutes, save)
        report.print_forms(console, run)
    else:
        failures = _time(run, workloads, peers, save)
        report.print_all(console, run)
    if file is not None:
        print(f"Written: {file}")
    if failures:
        raise errors.StoppedError(" ".join(failures), 1)
    names = [] if earlier is None else report.changes(console, earlier, run)
    if names:
        raise errors.StoppedError(f"More than 10 % apart: {', '.join(names)}.", 1)


def _checked(
    catalog_names: Collection[str], only: list[str], against: list[str]
) -> tuple[list[str], Sequence[str]]:
    """Returns the workloads and peers of names that are known."""
    from experiments.bench import catalog
    from fedjax_pfl.core import checks

    peers = catalog.peers()
    for name in against:
        checks.known(name, (*peers, "all"), "peer")
    for name in only:
        checks.known(name, catalog_names, "workload")
    return only or list(catalog_names), peers if "all" in against else against


def _time(
    run: dict[str, Any],
    workloads: list[str],
    peers: Sequence[str],
    save: Callable[[], None],
) -> list[str]:
    """Adds the measurements to a run; returns sentences about failures."""
    from rich.console import Console
    from rich.progress import Progress

    failures, repeat = [], run["repeat"]
    with Progress(console=Console(stderr=True)) as bar:

        def shown(name: str) -> dict[str, Any]:
            task = bar.add_task(name, total=repeat)
            arguments = (name, str(repeat), *peers)
            numbers = launch(arguments, run["machine"], lambda: bar.advance(task))
            bar.update(task, completed=repeat)
            return numbers

        run["machine"] |= shown(worker.MACHINE)
        for name in workloads:
            try:
                run["workloads"].append(shown(name))
            except machine.UnavailableError as error:
                failures.append(f"{name} failed: {error}.".replace("..", "."))
            save()
    return failures


def launch(
    arguments: Sequence[str], settings: dict[str, Any], advance: Callable[[], None]
) -> dict[str, Any]:
    """Measures in a process of its own; raises UnavailableError if it failed."""
    environment = machine.environment(settings)
    options = {"environment": environment, "advance": advance}
    return json.loads(machine.output("worker", *arguments, **options))
