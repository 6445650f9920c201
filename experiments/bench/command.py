"""The command line of the bench.

Arguments are parsed before JAX is imported: how many CPUs may be used has to be settled
first. Every workload runs in a process of its own, whose memory is then the workload's.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.bench import machine, worker
from fedjax_pfl.command import cli, errors

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Options", "app", "launch"]

_ROOT = Path(__file__).parents[2]
_WIDTH = 160  # of files and pipes, where rich would assume 80

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the command; no names mean all workloads and no peers."""

    only: tuple[str, ...]
    against: tuple[str, ...]
    threads: int
    devices: int
    repeat: int
    json: Path | None
    check: Path | None
    list: bool


def _names(text: str | None) -> tuple[str, ...]:
    """Reads `W1,W2`."""
    parts = () if text is None else text.split(",")
    return tuple(dict.fromkeys(part.strip() for part in parts))


@app.command(
    help="Times rounds of trainings, robust rules and quadratic programs, ours and,"
    " side by side, those of others. docs/speed.md says what the numbers mean."
)
def main(
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these workloads.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="PEER,...", help="Peers to time beside ours, or all."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPUs to use, by default all."),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=1, max=1000, help="Split the CPU into N devices.")
    ] = 1,
    repeat: Annotated[
        int,
        typer.Option(
            min=3,
            max=100,
            help="Samples of each contender; up to three times as many where others"
            " use the same CPUs.",
        ),
    ] = 7,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write everything here.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Say how this run differs from an earlier one's --json; exit status 1"
            " if a workload does by more than 10 %.",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only say what can be timed, with peers.")
    ] = False,
) -> None:
    """Times what was asked for."""
    num_cpus = len(machine.cpus())
    if threads is not None and threads > num_cpus:
        raise typer.BadParameter(
            f"expected --threads of at most {num_cpus}, the CPUs that may be used, got"
            f" {threads}"
        )
    options = Options(
        only=_names(only),
        against=_names(against),
        threads=num_cpus if threads is None else threads,
        devices=devices,
        repeat=repeat,
        json=json,
        check=check,
        list=list_,
    )
    cli.answer(lambda: _do(options))


def _do(options: Options) -> None:
    """Times, prints and writes."""
    machine.pin(options.threads)
    from rich.console import Console

    from experiments.bench import report

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    requests = _requests(options)
    if options.list:
        _print_names(console)
        return
    earlier = None if options.check is None else report.read(options.check)
    if options.json is not None:
        report.check_writable(options.json)
    run, broken = _timed(options, requests)
    report.print_all(console, run)
    if options.json is not None:
        print(f"Written: {options.json}")
    if broken:
        raise errors.StoppedError(" ".join(broken), 1)
    if earlier is not None:
        changed = report.print_difference(console, earlier, run)
        if changed:
            names = ", ".join(changed)
            raise errors.StoppedError(f"More than 10 % apart: {names}.", 1)


def _requests(options: Options) -> list[worker.Request]:
    """Returns one request per workload; checks all names."""
    from experiments.bench import catalog
    from fedjax_pfl.core import checks

    for name in options.against:
        checks.known(name, (*catalog.peers(), "all"), "peer")
    peers = catalog.peers() if "all" in options.against else options.against
    return [
        worker.Request(catalog.find(name).name, peers, options.repeat, options.threads)
        for name in options.only or catalog.names()
    ]


def _print_names(console: Any) -> None:
    """Prints what can be timed."""
    from experiments.bench import catalog

    for name in catalog.names():
        timed = catalog.find(name)
        peers = ", ".join(timed.peers)
        console.print(
            f"{name}: {timed.title}; peers {peers}", highlight=False, soft_wrap=True
        )


def _timed(
    options: Options, requests: list[worker.Request]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the measurements, and sentences about those that failed."""
    from rich.console import Console
    from rich.progress import Progress

    from experiments.bench import report

    run = {
        "format": report.FORMAT,
        "machine": machine.describe(options.threads, options.devices),
        "repeat": options.repeat,
        "against": list(options.against),
        "workloads": [],
    }
    asked = worker.Request(worker.MACHINE, (), options.repeat, options.threads)
    broken = []
    with Progress(console=Console(stderr=True)) as bar:
        run["machine"] |= _shown(bar, asked, options)
        for request in requests:
            try:
                run["workloads"].append(_shown(bar, request, options))
            except subprocess.CalledProcessError as error:
                broken.append(f"{request.workload} failed: {_last_line(error.stderr)}")
            if options.json is not None:  # what was measured outlives an interruption
                report.write(options.json, run)
    return run, broken


def _last_line(text: str) -> str:
    """Returns the last line of a process's errors as a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'the process said nothing'}.".replace("..", ".")


def _shown(bar: "Progress", request: worker.Request, options: Options) -> Any:
    """Launches a request with a bar of its own."""
    task = bar.add_task(request.workload, total=request.repeat)
    measurement = launch(request, options, lambda: bar.advance(task))
    bar.update(task, completed=request.repeat)
    return measurement


def launch(
    request: worker.Request, options: Options, advance: Callable[[], None]
) -> dict[str, Any]:
    """Measures in a process of its own.

    Args:
      request: what to measure.
      options: the command's options.
      advance: called after every turn of all contenders.

    Returns:
      What was measured.

    Raises:
      CalledProcessError: if the process failed; with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "measurement.json"
        fields = json.dumps(dataclasses.asdict(request))
        command = [sys.executable, "-m", "experiments.bench.worker", fields, str(out)]
        errors = Path(folder) / "errors"
        with (
            errors.open("w") as stderr,
            subprocess.Popen(
                command,
                cwd=_ROOT,
                env=machine.environment(options.threads, options.devices),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == ".":
                    advance()
        if process.returncode:
            text = errors.read_text("utf-8", errors="replace")
            code = process.returncode
            raise subprocess.CalledProcessError(code, command, stderr=text)
        return json.loads(out.read_text("utf-8"))
