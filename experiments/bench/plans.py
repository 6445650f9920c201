"""Planned and measured cost of trainings: `python -m experiments.bench.plans`.

Plans twelve trainings, runs each in a process of its own, and prints the estimates of
memory and time beside what was measured.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fedjax_pfl as fp
from experiments.bench import machine, workloads
from fedjax_pfl.engine import cost, grids, groups, simulation
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = ["CASES", "Case", "app"]

_RESET_PEAK = Path("/proc/self/clear_refs")
_DEVICES = "--xla_force_host_platform_device_count=2"


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of more than 500 MB.

    Attributes:
      name: of the training.
      algorithm: the method.
      num_clients: N.
      examples: per client, on average.
      shape: of an input.
      execution: how the map over clients is run.
      points: settings of a grid, which differ in the seed.
      rounds: R.
      model: of every client.
      parts: further fields of the process.
    """

    name: str
    algorithm: Any
    num_clients: int
    examples: int = 20
    shape: tuple[int, ...] = (28, 28)
    execution: str = "auto"
    points: int = 1
    rounds: int = 8
    model: Any = fp.LogisticRegression()
    parts: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = (
    Case("FLAME, vmap", fp.Flame(), 4000, execution="vmap"),
    Case("FLAME, chunks of 8", fp.Flame(), 8000, execution="chunk=8"),
    Case("FLAME, 2 devices", fp.Flame(), 8000, execution="shard=2"),
    Case("FedAvg, all at once", fp.FedAvg(), 8000, execution="vmap"),
    Case(
        "FedAvg, cohort of 100",
        fp.FedAvg(),
        20000,
        examples=40,
        parts={"participation": fp.UniformCohort(size=100)},
    ),
    Case("Ditto, auto", fp.Ditto(), 12000),
    Case(
        "FedAvg, coordinate median",
        fp.FedAvg(),
        6000,
        parts={"aggregator": fp.CoordinateMedian()},
    ),
    Case(
        "FedGeoMed+, chunks of 16",
        fp.FedPlus(),
        4000,
        execution="chunk=16",
        rounds=4,
        parts={"aggregator": fp.GeometricMedian()},
    ),
    Case("FedAMP, auto", fp.FedAMP(), 3000),
    Case(
        "pFedMe, hidden layer, vmap",
        fp.PFedMe(),
        600,
        execution="vmap",
        rounds=4,
        model=fp.MLP(widths=(100,)),
    ),
    Case(
        "FedAvg, CNN, vmap",
        fp.FedAvg(),
        60,
        examples=40,
        execution="vmap",
        rounds=4,
        model=fp.models.CNN1(),
    ),
    Case("FLAME, grid of 8 seeds", fp.Flame(), 1500, points=8),
)


def measure(case: Case) -> dict[str, Any]:
    """Plans and runs one training, in this process, which does nothing else.

    Returns:
      Bytes and seconds, estimated and measured.
    """
    dataset = workloads.Generated((case.num_clients * case.examples,), case.shape)
    spec = fp.FederationSpec(
        dataset=dataset, partition=fp.IID(), num_clients=case.num_clients
    )
    process = fp.FederatedProcess(algorithm=case.algorithm, **case.parts)
    (group,) = grids.groups_of(
        jax.random.key(0), process, case.model, spec, {"seed": range(case.points)}
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
    planned = cost.memory(prepared)
    shared = {id(leaf): leaf for leaf in jax.tree.leaves(prepared.start[3])}
    pool = sum(leaf.nbytes for leaf in shared.values())
    # The pool was there before; on the first device it is the same memory.
    planned = dataclasses.replace(planned, data=max(planned.data - pool, 0))
    compiling = time.perf_counter() - started
    if _RESET_PEAK.exists():
        _RESET_PEAK.write_text("5")
    started = time.perf_counter()
    record = simulation.Run(prepared).train()
    seconds = time.perf_counter() - started
    del prepared.states
    peak = machine.resident_peak()
    pace = cost.pace(prepared)
    rounds = 1 + -(-case.rounds // settings.schedule.segment)
    return {
        "name": case.name,
        "execution": str(prepared.planned.plan),
        "planned_bytes": planned.total,
        "measured_bytes": peak - before,
        "parts": dataclasses.asdict(planned),
        "planned_seconds": pace.total(case.rounds, rounds) - pace.compilation,
        "measured_seconds": seconds,
        "compile_seconds": compiling,
        "status": str(record.status[0]),
    }


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
    console, rows = Console(), []
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
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    if out is not None:
        out.write_text(json.dumps(rows, indent=1), "utf-8")
    table = Table(
        "training", "execution", "planned", "measured", "ratio", "s", "s", "ratio"
    )
    for row in rows:
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
