"""Trainings in every form that they have: `experiments.bench --accelerator`."""

import dataclasses
import gc
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.progress import Progress

from experiments.bench import contenders, machine, timing, worker, workloads
from fedjax_pfl.core import client_rows
from fedjax_pfl.engine import cost, trainer
from fedjax_pfl.models import layers

__all__ = ["CASES", "Form", "measure", "of", "ordered", "time_all"]

_BASE = workloads.WORKLOADS
CASES = _BASE | {case.name: case for case in (w.tenfold() for w in _BASE.values())}
"""Workloads, and versions with ten times as many clients in a round."""
_CHUNKS = (512, 64, 8, 1)
_MORE_ROUNDS = 5  # times as many in a call of an accelerator, whose rounds are short
_ENDED = "the time was up"
_SHARE = 10  # a form takes at most this part of the minutes


@dataclasses.dataclass(frozen=True)
class Form:
    """A way to compute the rounds of a workload."""

    execution: str = "auto"  # how the map over clients is run
    points: int | None = None  # grid points vmapped together; None picks
    convolution: str | None = None  # one of `layers.CONVOLUTIONS`; None picks
    bfloat16_products: bool = False  # whether operands of products are rounded

    @property
    def is_automatic(self) -> bool:
        """Returns whether everything that can be picked is."""
        return dataclasses.replace(self, bfloat16_products=False) == Form()

    @property
    def num_changes(self) -> int:
        """Returns in how many ways it differs from the one that is picked."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(Form()), strict=True)
        return sum(value != usual for value, usual in pairs)


def of(workload: workloads.Workload, num_devices: int) -> list[Form]:
    """Returns all forms of a workload, the picked one first."""
    fewer = (f"chunk={size}" for size in _CHUNKS if size < workload.cohort_size)
    executions = ("auto", "vmap", *["shard"] * (num_devices > 1), *fewer)
    points = (None, *[workload.num_points, 1] * bool(workload.axes))
    has_images = isinstance(workload.model, workloads.BenchCNN)
    convolutions = (None, *layers.CONVOLUTIONS * has_images)
    return [
        Form(execution, at_once, convolution, rounded)
        for rounded, convolution, at_once, execution in itertools.product(
            (False, True), convolutions, points, executions
        )
        if not (rounded and convolution == "xla")  # its operands stay as they are
    ]


def ordered(names: Sequence[str], num_devices: int) -> list[tuple[str, Form]]:
    """Returns the forms of workloads, each with the name of its workload."""
    pairs = [(name, form) for name in names for form in of(CASES[name], num_devices)]
    # The form that `auto` picks comes first, for every workload, then forms that differ
    # from it in one way, and so on: forms beyond the time limit matter least.
    return sorted(pairs, key=lambda pair: pair[1].num_changes)


def measure(names: Sequence[str], start: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Yields values of each form from a number on; `left_out` is why not."""
    plans: set[Any] = set()
    pairs = ordered(names, jax.device_count())[start:]
    for name, its in itertools.groupby(pairs, key=lambda pair: pair[0]):
        workload = CASES[name]
        group, rounds = workload.group(), workload.rounds
        rounds *= 1 if jax.default_backend() == "cpu" else _MORE_ROUNDS
        for _, form in its:
            gc.collect()  # states of the form before
            fields: dict[str, Any] = {"bfloat16_products": form.bfloat16_products}
            if isinstance(group.model, workloads.BenchCNN):
                fields["convolution"] = form.convolution
            form_group = dataclasses.replace(
                group, model=dataclasses.replace(group.model, **fields)
            )
            contender = contenders.Ours(form_group, rounds, form.execution, form.points)
            # The same program as an earlier form: an empty reason, and no times.
            if (name, contender.plan) in plans:
                yield {"left_out": ""}
                continue
            plans.add((name, contender.plan))
            yield _numbers(contender, workload, rounds, repeat)
            del contender


def _numbers(
    contender: contenders.Ours, workload: workloads.Workload, rounds: int, repeat: int
) -> dict[str, Any]:
    """Measures one form."""
    with trainer.compile_clock() as compiling:
        size = _program_bytes(contender.compiled())
    free = cost.available_bytes()
    if size is not None and free is not None and size > free:
        needs, limit = cost.shown(size), cost.shown(free)
        return {"left_out": f"it needs {needs} of memory, of which {limit} are free"}
    contender.run()
    clock = timing.Clock(())  # whatever others do on the CPUs meanwhile
    (samples,) = timing.interleave({"": contender.run}, repeat, clock).values()
    params = jax.eval_shape(contender.plan.model.init, jax.random.key(0))
    num_parameters = client_rows.size(params)
    return {
        "execution": contender.execution,
        "points_per_chunk": contender.plan.points_per_chunk,
        **worker.per_round(samples, rounds),
        "rounds_per_call": rounds,
        "flops_per_round": workload.flops_per_round,
        "least_bytes_per_round": workload.least_bytes_per_round(num_parameters),
        "compile_seconds": compiling[0],
        "program_bytes": size,
    }


def _program_bytes(program: jax.stages.Compiled) -> int | None:
    """Bytes that a program and its arguments need on one device, if XLA counts them."""
    analysis = program.memory_analysis()
    if analysis is None:
        return None
    sizes = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes)
    return sum(sizes) - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes


def time_all(
    console: Console,
    run: dict[str, Any],
    names: Sequence[str],
    minutes: float | None,
    save: Callable[[], None],
) -> None:
    """Measures all forms of workloads into a run; calls `save` after each."""
    run |= {"minutes": minutes, "battery": [], "forms": [], "left_out": []}
    start, settings = time.monotonic(), run["machine"]
    seconds = math.inf if minutes is None else 60 * minutes
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("battery", total=1)
        run["battery"] = _battery(run)
        save()
        bar.update(task, completed=1)
        task = bar.add_task(worker.MACHINE, total=1)
        arguments = ("worker", worker.MACHINE, str(run["repeat"]))
        environment = machine.environment(settings)
        settings |= json.loads(machine.output(*arguments, environment=environment))
        bar.update(task, completed=1)
        if settings["backend"] == "cpu":
            console.print(
                f"This is a CPU, {settings['processor']}, and no accelerator: the"
                " command runs here to be tried."
            )
        todo = ordered(names, settings["device_count"])
        task = bar.add_task("forms", total=len(todo))
        # A form that ends the process, or takes a tenth of the minutes, is left out,
        # and another process does the next.
        measured = _results(run, names, len(todo), start + seconds, seconds / _SHARE)
        for (name, form), numbers in zip(todo, measured, strict=True):
            _record(run, name, form, numbers)
            bar.advance(task)
            save()


def _battery(run: dict[str, Any]) -> list[str]:
    """Returns what `python -m fedjax_pfl.testing --platform` prints, line by line."""
    report_lines: list[str] = []
    try:
        environment = machine.environment(run["machine"])
        arguments = ("fedjax_pfl.testing", "--platform")
        for line in machine.lines(*arguments, environment=environment):
            report_lines.append(line.strip())
    except machine.UnavailableError as error:
        report_lines.append(f"ended: {error}")
    return report_lines


def _results(
    run: dict[str, Any], names: Sequence[str], count: int, until: float, most: float
) -> Iterator[dict[str, Any]]:
    """Yields the measurements of each form, or why there are none."""

    def left() -> float:
        return min(until - time.monotonic(), most)

    number = 0
    # A process that dies has measured all forms before `number`; the next one begins
    # after it.
    while number < count:
        reason = _ENDED
        if left() > 0:
            try:
                for line in machine.lines(
                    "experiments.bench.forms",
                    str(run["repeat"]),
                    str(number),
                    *names,
                    environment=machine.environment(run["machine"]),
                    seconds=left,
                ):
                    yield json.loads(line)
                    number += 1
                return
            except machine.UnavailableError as error:
                if number == count:  # it failed after its last form
                    return
                if time.monotonic() < until:
                    reason = str(error)
        yield {"left_out": reason}
        number += 1


def _record(
    run: dict[str, Any], name: str, form: Form, numbers: dict[str, Any]
) -> None:
    """Adds the measurements of a form, with its shares of the device's rates."""
    about = {"workload": name, **dataclasses.asdict(form)}
    if "left_out" in numbers:
        if numbers["left_out"]:
            run["left_out"].append({**about, "reason": numbers["left_out"]})
        return
    seconds, rates = numbers["seconds_per_round"]["wall"], run["machine"]
    prefix = "bfloat16_" if form.bfloat16_products else ""
    peak = 1e9 * rates[f"{prefix}matmul_gflops"]
    # Shares compare with this device's own rates, measured in the same run.
    bandwidth = 1e9 * rates["copy_gigabytes"]
    run["forms"].append(
        {
            **about,
            "is_automatic": form.is_automatic,
            **numbers,
            "share_of_peak": numbers["flops_per_round"] / seconds / peak,
            "share_of_bandwidth": numbers["least_bytes_per_round"]
            / seconds
            / bandwidth,
        }
    )


if __name__ == "__main__":
    # A line of JSON for each form of these workloads, from the first number on.
    _repeat, _first, *_names = sys.argv[1:]
    for _numbers_of_form in measure(_names, int(_first), int(_repeat)):
        print(json.dumps(_numbers_of_form), flush=True)
