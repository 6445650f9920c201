"""Times one workload: `python -m experiments.bench.worker NAME REPEAT PEER...`."""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from experiments.bench import machine, timing

__all__ = ["MACHINE", "device", "measure", "per_round"]

MACHINE = "machine"
"""Name of the measurement of the machine itself."""
_MATMUL = "matmul"


def measure(
    name: str, peers: Sequence[str], repeat: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """Measures a workload, or `MACHINE`, and those of its peers that can run here."""
    if name == MACHINE:
        return device(repeat)
    from experiments.bench import catalog
    from fedjax_pfl.engine import trainer

    timed = catalog.find(name)
    with trainer.compile_clock() as compiling:
        base = timed.contender("ours")
        base.run()
    # Ours runs first and alone: the peak of memory is ours.
    running, results, failures = {"ours": base}, {"ours": base.result()}, {}
    peak = getattr(base, "peak_bytes", machine.peak_bytes)()
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
    # A product takes turns with the contenders: its rate is of the same minutes.
    calls[_MATMUL], flops = machine.matmul()
    samples = timing.interleave(calls, repeat, clock, advance)
    agreement = timed.agreement(results)
    return {
        "name": timed.name,
        "title": timed.title,
        "rounds_per_call": timed.rounds,
        "steps_per_round": timed.steps_per_round,
        "flops_per_round": timed.flops_per_round,
        "bytes_per_round": timed.bytes_per_round,
        "compile_seconds": compiling[0],
        "peak_bytes": peak,
        "matmul_gflops": _fastest(samples.pop(_MATMUL), flops),
        "contenders": {
            name: {
                "execution": running[name].execution,
                **per_round(per_call, timed.rounds),
                "agreement": agreement[name],
            }
            for name, per_call in samples.items()
        },
        "failures": failures,
    }


def per_round(samples: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Returns statistics and samples per round."""
    scaled = [
        timing.Sample(sample.wall / rounds, sample.cpu / rounds, sample.others)
        for sample in samples
    ]
    return {
        "seconds_per_round": dataclasses.asdict(timing.Times.of(scaled)),
        "samples": [dataclasses.asdict(sample) for sample in scaled],
    }


def _fastest(samples: Sequence[Any], amount: float) -> float:
    """Returns the rate of the fastest sample, in billions a second."""
    return amount / min(sample.wall for sample in samples) / 1e9


def device(repeat: int) -> dict[str, Any]:
    """Describes JAX's devices, and measures rates of large products and copies."""
    import jax

    work = {}
    for dtype, prefix in (("float32", ""), ("bfloat16", "bfloat16_")):
        work[f"{prefix}matmul_gflops"] = machine.matmul(dtype)
        work[f"{prefix}copy_gigabytes"] = machine.copy(dtype)
    work["update_gigabytes"] = machine.update()
    calls = {name: call for name, (call, _) in work.items()}
    samples = timing.interleave(calls, repeat, timing.Clock(machine.cpus()))
    rates = {name: _fastest(row, work[name][1]) for name, row in samples.items()}
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        **rates,
    }


if __name__ == "__main__":
    # A dot for every turn of all contenders, and then the measurement as JSON.
    name, repeat, *peers = sys.argv[1:]
    turn = functools.partial(print, ".", flush=True)
    print(json.dumps(measure(name, peers, int(repeat), turn)))
