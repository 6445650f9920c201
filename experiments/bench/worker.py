"""Times one workload in a process of its own, whose memory is then the workload's."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MACHINE", "Request", "measure"]

MACHINE = "machine"
"""Name of the measurement of the machine itself."""
_MATMUL = "matmul"


@dataclasses.dataclass(frozen=True)
class Request:
    """Measurement that a process is asked for.

    Attributes:
      workload: its name, or `MACHINE`.
      peers: names of peers, of which those that fit take part.
      repeat: quiet samples that are wanted.
      threads: CPUs that may be used.
    """

    workload: str
    peers: tuple[str, ...]
    repeat: int
    threads: int


def measure(
    request: Request, advance: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Measures what was asked for.

    Args:
      request: what.
      advance: called after every turn of all contenders.

    Returns:
      Values as JSON knows them.
    """
    if request.workload == MACHINE:
        return _machine(request)
    from experiments.bench import catalog, machine, timing
    from fedjax_pfl.engine import trainer

    workload = catalog.find(request.workload)
    with trainer.compile_clock() as compiling:
        running = {"ours": catalog.make("ours", workload, request.threads)}
        running["ours"].run()
    results = {"ours": running["ours"].result()}
    ours = running["ours"]
    peak = getattr(ours, "peak_bytes", machine.peak_bytes)()
    failures = _add_peers(request, workload, running, results)
    clock = timing.SystemClock(machine.cpus())
    calls = {name: contender.run for name, contender in running.items()}
    calls[_MATMUL] = machine.Matmul().run
    samples = timing.interleave(calls, request.repeat, clock, advance)
    agreement = catalog.compare(workload, results, request.threads)
    return {
        "name": workload.name,
        "title": workload.title,
        "rounds_per_call": workload.rounds,
        "steps_per_round": workload.steps_per_round,
        "flops_per_round": workload.flops_per_round,
        "compile_seconds": compiling[0],
        "peak_bytes": peak,
        "matmul_gflops": _peak_rate(samples.pop(_MATMUL)),
        "contenders": {
            name: _contender(running[name], per_call, workload.rounds)
            | {"agreement": agreement[name]}
            for name, per_call in samples.items()
        },
        "failures": failures,
    }


def _add_peers(
    request: Request, workload: Any, running: dict[str, Any], results: dict[str, Any]
) -> dict[str, str]:
    """Adds the peers that can run and their results; returns why others cannot."""
    from experiments.bench import catalog, contenders

    failures = {}
    for name in catalog.fitting(request.peers, workload):
        try:
            peer = catalog.make(name, workload, request.threads)
            peer.run()
        except contenders.UnavailableError as error:
            failures[name] = str(error)
            continue
        running[name], results[name] = peer, peer.result()
    return failures


def _contender(contender: Any, samples: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Returns samples and statistics per round."""
    from experiments.bench import timing

    per_round = [
        timing.Sample(sample.wall / rounds, sample.cpu / rounds, sample.others)
        for sample in samples
    ]
    return {
        "execution": contender.execution,
        "seconds_per_round": dataclasses.asdict(timing.Times.of(per_round)),
        "samples": [dataclasses.asdict(sample) for sample in per_round],
    }


def _peak_rate(samples: Sequence[Any]) -> float:
    """Returns the fastest product's rate, in GFLOP/s."""
    from experiments.bench import machine

    return machine.MATMUL_FLOPS / min(sample.wall for sample in samples) / 1e9


def _machine(request: Request) -> dict[str, Any]:
    """Measures rates of large products and copies, and the device."""
    import jax

    from experiments.bench import machine, timing

    clock = timing.SystemClock(machine.cpus())
    copy = machine.Copy()
    calls = {_MATMUL: machine.Matmul().run, "copy": copy.run}
    samples = timing.interleave(calls, request.repeat, clock)
    fastest = min(sample.wall for sample in samples["copy"])
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "matmul_gflops": _peak_rate(samples[_MATMUL]),
        "copy_gigabytes": copy.bytes / fastest / 1e9,
    }


def main() -> None:
    """Reads a request and writes the measurement; a dot on stdout is a turn."""
    request, out = sys.argv[1:]
    fields = json.loads(request)
    fields["peers"] = tuple(fields["peers"])
    measurement = measure(Request(**fields), lambda: print(".", flush=True))
    Path(out).write_text(json.dumps(measurement), "utf-8")


if __name__ == "__main__":
    main()
