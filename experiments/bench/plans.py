"""Planned and measured cost of trainings: `python -m experiments.bench.plans`."""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import psutil
import typer
from rich.console import Console
from rich.progress import track

import fedjax_pfl as fp
from experiments import commands
from experiments.bench import adapters, machine, workloads
from fedjax_pfl.command import printing
from fedjax_pfl.engine import cost, grids, groups, simulation
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = ["CASES", "Case", "app"]

_RESET_PEAK = Path("/proc/self/clear_refs")
_DEVICES = "--xla_force_host_platform_device_count=2"


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of more than 500 MB, by default on MNIST's inputs."""

    name: str  # of the training
    process: fp.FederatedProcess  # the method and its parts
    num_clients: int  # N
    execution: str = "auto"  # how the map over clients is run
    rounds: int = 8  # R
    examples: int = 20  # per client, on average
    model: Any = fp.LogisticRegression()  # of every client
    points: int = 1  # settings of a grid, which differ in the seed
    # Of the examples, by the numbers of the clients' examples.
    source: Callable[[tuple[int, ...]], Any] = workloads.Generated


def _process(algorithm: Any, **parts: Any) -> fp.FederatedProcess:
    return fp.FederatedProcess(algorithm=algorithm, **parts)


_FLAME, _FEDAVG = _process(fp.Flame()), _process(fp.FedAvg())
_COHORT = _process(fp.FedAvg(), participation=fp.UniformCohort(size=100))
_MEDIAN = _process(fp.FedAvg(), aggregator=fp.CoordinateMedian())
_GEOMETRIC = _process(fp.FedPlus(), aggregator=fp.GeometricMedian())
_PFEDME, _HIDDEN = _process(fp.PFedMe()), fp.MLP(widths=(100,))
_ENCODER = fp.models.TextEncoder(
    depth=6, width=384, heads=12, mlp_width=1536, vocabulary=30_522
)
_ADAPTED = fp.lora(_ENCODER, targets="query|value", rank=8)  # 73,728 parameters
CASES = (
    Case("FLAME, vmap", _FLAME, 4000, "vmap"),
    Case("FLAME, chunks of 8", _FLAME, 8000, "chunk=8"),
    Case("FLAME, 2 devices", _FLAME, 8000, "shard=2"),
    Case("FedAvg, all at once", _FEDAVG, 8000, "vmap"),
    Case("FedAvg, cohort of 100", _COHORT, 20000, examples=40),
    Case("Ditto, auto", _process(fp.Ditto()), 12000),
    Case("FedAvg, coordinate median", _MEDIAN, 6000),
    Case("FedGeoMed+, chunks of 16", _GEOMETRIC, 4000, "chunk=16", 4),
    Case("FedAMP, auto", _process(fp.FedAMP()), 3000),
    Case("pFedMe, hidden layer, vmap", _PFEDME, 600, "vmap", 4, model=_HIDDEN),
    Case("FedAvg, CNN, vmap", _FEDAVG, 60, "vmap", 4, 40, fp.models.CNN1()),
    Case("FLAME, grid of 8 seeds", _FLAME, 1500, points=8),
    Case(
        "FLAME, adapters of an encoder",
        _process(fp.Flame(local=fp.SGD(batch_size=8))),
        100,
        rounds=2,
        examples=10,
        model=_ADAPTED,
        source=adapters.Texts,
    ),
)


def measure(case: Case) -> dict[str, Any]:
    """Plans and runs one training in this process, started for it."""
    dataset = case.source((case.num_clients * case.examples,))
    spec = fp.FederationSpec(
        dataset=dataset, partition=fp.IID(), num_clients=case.num_clients
    )
    seeds = {"seed": range(case.points)}
    (group,) = grids.groups_of(jax.random.key(0), case.process, case.model, spec, seeds)
    settings = Options(
        num_rounds=case.rounds,
        execution=case.execution,
        eval_every=max(case.rounds // 4, 1),
        memory_limit="none",
    )
    start_bytes = psutil.Process().memory_info().rss
    started = time.perf_counter()
    prepared = Resident(groups.plan(group, settings))
    planned = cost.memory(prepared)
    # Arrays that points share are counted once.
    shared = {id(leaf): leaf for leaf in jax.tree.leaves(list(group.federations))}
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
        "measured_bytes": peak - start_bytes,
        "parts": dataclasses.asdict(planned),
        "planned_seconds": pace.total(case.rounds, rounds) - pace.compilation,
        "measured_seconds": seconds,
        "compile_seconds": compiling,
        "status": str(record.status[0]),
    }


@commands.application("Compares the plans of thirteen trainings with what these take.")
def app(
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
    rows, cells = [], []
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
    environment = os.environ | {"XLA_FLAGS": flags}  # before JAX starts
    for number in track(range(len(CASES)), console=Console(stderr=True)):
        arguments = ("plans", "--case", str(number))
        try:
            rows.append(json.loads(machine.output(*arguments, environment=environment)))
        except machine.UnavailableError as error:
            raise SystemExit(f"{CASES[number].name} failed: {error}") from None
    if out is not None:
        out.write_text(json.dumps(rows, indent=1), "utf-8")
    for row in rows:
        texts = [row["name"], row["execution"]]
        for unit, scale, form in (("bytes", 1e6, ",.0f"), ("seconds", 1, ".2f")):
            estimate, measurement = row[f"planned_{unit}"], row[f"measured_{unit}"]
            pair = (f"{value / scale:{form}}" for value in (estimate, measurement))
            texts += [*pair, f"{estimate / measurement:.2f}"]
        cells.append(texts)
    titles = ("training", "execution", "planned MB", "measured MB", "ratio")
    titles += ("planned s", "measured s", "ratio")
    printing.table(printing.console(), titles, cells, numbers=titles[2:])


if __name__ == "__main__":
    app()
