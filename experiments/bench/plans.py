"""How well trainings are planned: `python -m experiments.bench.plans`.

Plans twelve trainings, runs each in a process of its own, and prints the estimates of
memory and time beside what was measured.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

__all__ = ["CASES", "Case", "app"]

_RESET_PEAK = Path("/proc/self/clear_refs")
_DEVICES = "--xla_force_host_platform_device_count=2"
_STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of more than 500 MB.

    Attributes:
      name: what it is.
      make: `fp -> (process, model)`.
      num_clients: N.
      examples: per client, on average.
      shape: of an input.
      execution: how the map over clients is run.
      points: settings of a grid, which differ in the seed.
      rounds: R.
    """

    name: str
    make: Callable[[Any], tuple[Any, Any]]
    num_clients: int
    examples: int = 20
    shape: tuple[int, ...] = (28, 28)
    execution: str = "auto"
    points: int = 1
    rounds: int = 8


def _softmax(algorithm: Callable[[Any], Any], **fields: Any) -> Callable[[Any], Any]:
    """A method with the softmax regression."""

    def make(fp: Any) -> tuple[Any, Any]:
        parts = {name: part(fp) for name, part in fields.items()}
        process = fp.FederatedProcess(algorithm=algorithm(fp), **parts)
        return process, fp.LogisticRegression()

    return make


def _with(algorithm: Callable[[Any], Any], model: Callable[[Any], Any]) -> Any:
    """A method with another model."""

    def make(fp: Any) -> tuple[Any, Any]:
        return fp.FederatedProcess(algorithm=algorithm(fp)), model(fp)

    return make


CASES = (
    Case(
        "FLAME, vmap",
        _softmax(lambda fp: fp.Flame()),
        4000,
        execution="vmap",
    ),
    Case(
        "FLAME, chunks of 8",
        _softmax(lambda fp: fp.Flame()),
        8000,
        execution="chunk=8",
    ),
    Case(
        "FLAME, 2 devices",
        _softmax(lambda fp: fp.Flame()),
        8000,
        execution="shard=2",
    ),
    Case(
        "FedAvg, all at once", _softmax(lambda fp: fp.FedAvg()), 8000, execution="vmap"
    ),
    Case(
        "FedAvg, cohort of 100",
        _softmax(
            lambda fp: fp.FedAvg(),
            participation=lambda fp: fp.UniformCohort(size=100),
        ),
        20000,
        examples=40,
    ),
    Case("Ditto, auto", _softmax(lambda fp: fp.Ditto()), 12000),
    Case(
        "FedAvg, coordinate median",
        _softmax(lambda fp: fp.FedAvg(), aggregator=lambda fp: fp.CoordinateMedian()),
        6000,
    ),
    Case(
        "FedGeoMed+, chunks of 16",
        _softmax(lambda fp: fp.FedPlus(), aggregator=lambda fp: fp.GeometricMedian()),
        4000,
        execution="chunk=16",
        rounds=4,
    ),
    Case("FedAMP, auto", _softmax(lambda fp: fp.FedAMP()), 3000),
    Case(
        "pFedMe, hidden layer, vmap",
        _with(lambda fp: fp.PFedMe(), lambda fp: fp.MLP(widths=(100,))),
        600,
        execution="vmap",
        rounds=4,
    ),
    Case(
        "FedAvg, CNN, vmap",
        _with(lambda fp: fp.FedAvg(), lambda fp: fp.models.CNN1()),
        60,
        examples=40,
        execution="vmap",
        rounds=4,
    ),
    Case(
        "FLAME, grid of 8 seeds",
        _softmax(lambda fp: fp.Flame()),
        1500,
        points=8,
    ),
)


def measure(case: Case) -> dict[str, Any]:
    """Plans and runs one training, in this process, which does nothing else.

    Returns:
      Bytes and seconds, estimated and measured.
    """
    import jax

    import fedjax_pfl as fp
    from experiments.bench import workloads
    from fedjax_pfl.engine import cost, driver, grids, groups
    from fedjax_pfl.engine.options import Options
    from fedjax_pfl.engine.resident import Resident

    dataset = workloads.Generated((case.num_clients * case.examples,), case.shape)
    spec = fp.FederationSpec(
        dataset=dataset, partition=fp.IID(), num_clients=case.num_clients
    )
    process, model = case.make(fp)
    (group,) = grids.groups_of(
        jax.random.key(0), process, model, spec, {"seed": range(case.points)}
    )
    settings = Options(
        num_rounds=case.rounds,
        execution=case.execution,
        eval_every=max(case.rounds // 4, 1),
        memory_limit="none",
    )
    own = psutil.Process()
    before = own.memory_info().rss
    started = time.perf_counter()
    prepared = Resident(groups.plan(group, settings))
    planned = cost.memory(prepared.programs, case.rounds)
    shared = {id(leaf): leaf for leaf in jax.tree.leaves(prepared.programs.start[3])}
    pool = sum(leaf.nbytes for leaf in shared.values())
    # The pool was there before; on the first device it is the same memory.
    planned = dataclasses.replace(planned, data=max(planned.data - pool, 0))
    compiling = time.perf_counter() - started
    if _RESET_PEAK.exists():
        _RESET_PEAK.write_text("5")
    started = time.perf_counter()
    record = driver.Run(prepared).train()
    seconds = time.perf_counter() - started
    del prepared.states
    peak = _peak_bytes()
    pace = cost.pace(prepared.programs, case.rounds)
    rounds = 1 + -(-case.rounds // settings.schedule.segment)
    return {
        "name": case.name,
        "execution": str(prepared.programs.plan),
        "planned_bytes": planned.total,
        "measured_bytes": peak - before,
        "parts": dataclasses.asdict(planned),
        "planned_seconds": pace.total(case.rounds, rounds) - pace.compilation,
        "measured_seconds": seconds,
        "compile_seconds": compiling,
        "status": str(record.status[0]),
    }


def _peak_bytes() -> int:
    """Most resident memory since the peak was reset."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("the peak of resident memory is known on Linux only")


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.command(help="Compares the plans of twelve trainings with what these take.")
def main(
    case: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=len(CASES) - 1,
            help="Run one in this process, and print its numbers.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all numbers to this JSON file.")
    ] = None,
) -> None:
    """Prints the table."""
    if case is not None:
        print(json.dumps(measure(CASES[case])))
        return
    console, found = Console(), []
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
    environment = os.environ | {"XLA_FLAGS": flags}  # before JAX starts
    for number in track(range(len(CASES)), console=Console(stderr=True)):
        command = [sys.executable, "-m", "experiments.bench.plans"]
        done = subprocess.run(
            [*command, "--case", str(number)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["killed"]
            raise SystemExit(f"{CASES[number].name} failed: {lines[-1]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    if out is not None:
        out.write_text(json.dumps(found, indent=1), "utf-8")
    table = Table(
        "training", "execution", "planned", "measured", "ratio", "s", "s", "ratio"
    )
    for row in found:
        memory = row["planned_bytes"] / row["measured_bytes"]
        seconds = row["planned_seconds"] / row["measured_seconds"]
        table.add_row(
            row["name"],
            row["execution"],
            f"{row['planned_bytes'] / 1e6:,.0f} MB",
            f"{row['measured_bytes'] / 1e6:,.0f} MB",
            f"{memory:.2f}",
            f"{row['planned_seconds']:.2f}",
            f"{row['measured_seconds']:.2f}",
            f"{seconds:.2f}",
        )
    console.print(table)


if __name__ == "__main__":
    app()
