"""Times one workload in a process of its own, whose memory is then the workload's.

`python -m experiments.bench.worker NAME REPEAT PEER...` prints a dot after every turn
of all contenders, and then the measurement as JSON.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from experiments.bench import machine, timing

__all__ = ["MACHINE", "measure"]

MACHINE = "machine"
"""Name of the measurement of the machine itself."""
_MATMUL = "matmul"


def measure(
    name: str, peers: Sequence[str], repeat: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """Measures a workload beside peers.

    Args:
      name: of the workload, or `MACHINE`.
      peers: names of peers, of which those that fit take part.
      repeat: quiet samples that are wanted.
      advance: called after every turn of all contenders.

    Returns:
      Values as JSON knows them.
    """
    if name == MACHINE:
        return _machine(repeat)
    from experiments.bench import catalog
    from fedjax_pfl.engine import trainer

    timed = catalog.find(name)
    with trainer.compile_clock() as compiling:
        ours = timed.contender("ours")
        ours.run()
    running, results, failures = {"ours": ours}, {"ours": ours.result()}, {}
    peak = getattr(ours, "peak_bytes", machine.peak_bytes)()
    for peer in peers:
        if peer in timed.peers:
            try:
                contender = timed.contender(peer)
                contender.run()
            except machine.UnavailableError as error:
                failures[peer] = str(error)
            else:
                running[peer], results[peer] = contender, contender.result()
    clock = timing.Clock(machine.cpus())
    calls = {name: contender.run for name, contender in running.items()}
    calls[_MATMUL] = machine.matmul()
    samples = timing.interleave(calls, repeat, clock, advance)
    agreement = timed.agreement(results)
    return {
        "name": timed.name,
        "title": timed.title,
        "rounds_per_call": timed.rounds,
        "steps_per_round": timed.steps_per_round,
        "flops_per_round": timed.flops_per_round,
        "compile_seconds": compiling[0],
        "peak_bytes": peak,
        "matmul_gflops": _peak_rate(samples.pop(_MATMUL)),
        "contenders": {
            name: {
                "execution": running[name].execution,
                **_per_round(per_call, timed.rounds),
                "agreement": agreement[name],
            }
            for name, per_call in samples.items()
        },
        "failures": failures,
    }


def _per_round(samples: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Returns statistics and samples per round."""
    per_round = [
        timing.Sample(sample.wall / rounds, sample.cpu / rounds, sample.others)
        for sample in samples
    ]
    return {
        "seconds_per_round": dataclasses.asdict(timing.Times.of(per_round)),
        "samples": [dataclasses.asdict(sample) for sample in per_round],
    }


def _peak_rate(samples: Sequence[Any]) -> float:
    """Returns the fastest product's rate, in GFLOP/s."""
    return machine.MATMUL_FLOPS / min(sample.wall for sample in samples) / 1e9


def _machine(repeat: int) -> dict[str, Any]:
    """Measures rates of large products and copies, and the device."""
    import jax

    clock = timing.Clock(machine.cpus())
    copy, num_bytes = machine.copy()
    calls = {_MATMUL: machine.matmul(), "copy": copy}
    samples = timing.interleave(calls, repeat, clock)
    fastest = min(sample.wall for sample in samples["copy"])
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "matmul_gflops": _peak_rate(samples[_MATMUL]),
        "copy_gigabytes": num_bytes / fastest / 1e9,
    }


if __name__ == "__main__":
    name, repeat, *peers = sys.argv[1:]
    turn = functools.partial(print, ".", flush=True)
    print(json.dumps(measure(name, peers, int(repeat), turn)))
