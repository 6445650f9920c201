"""Interleaved samples on a machine that others may use, too, and their statistics.

Contenders take turns (A B A B), so that a change of the machine's speed meets all of
them. Every sample has its wall time, the CPU time of this process, and how busy the
same CPUs were with others; medians are taken over quiet samples.
"""

import dataclasses
import math
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

__all__ = ["Clock", "Sample", "Times", "interleave", "quiet"]

QUIET = 0.15
"""CPUs that others may use during a quiet sample."""
MIN_SECONDS = 0.2
"""Least length of a sample, of several calls if need be."""
MORE_SECONDS = 60.0
"""Time after which no further samples are taken in place of disturbed ones."""
_MOST = 3  # as many samples as were asked for, at most, until enough are quiet


@dataclasses.dataclass(frozen=True)
class Clock:
    """Clocks of the operating system for some CPUs, in seconds."""

    cpus: tuple[int, ...]  # numbers of the CPUs

    def wall(self) -> float:
        """Returns the wall time."""
        return time.perf_counter()

    def cpu(self) -> float:
        """Returns the CPU time of this process and of its ended children."""
        scopes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        usages = [resource.getrusage(usage) for usage in scopes]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def busy(self) -> float:
        """Returns the CPU time of all processes on these CPUs."""
        every = psutil.cpu_times(percpu=True)
        idle = ("idle", "iowait", "guest", "guest_nice")  # guests are in user, too
        return sum(
            value
            for number in self.cpus
            if number < len(every)
            for name, value in every[number]._asdict().items()
            if name not in idle
        )


@dataclasses.dataclass(frozen=True)
class Sample:
    """Seconds per call, and CPUs that others used meanwhile."""

    wall: float
    cpu: float
    others: float


@dataclasses.dataclass(frozen=True)
class Times:
    """Statistics of the quiet samples, in seconds per call."""

    wall: float  # median wall time
    low: float  # first quartile of the wall time
    high: float  # third quartile
    least: float  # least wall time of all samples
    cpu: float  # median CPU time
    others: float  # median number of CPUs that others used, of all samples
    count: int  # samples that count
    total: int  # samples taken

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "Times":
        """Takes the statistics."""
        undisturbed = quiet(samples)
        walls = sorted(sample.wall for sample in undisturbed)
        low, _, high = statistics.quantiles(walls * 2, n=4, method="inclusive")
        return cls(
            wall=statistics.median(walls),
            low=low,
            high=high,
            least=min(sample.wall for sample in samples),
            cpu=statistics.median(sample.cpu for sample in undisturbed),
            others=statistics.median(sample.others for sample in samples),
            count=len(undisturbed),
            total=len(samples),
        )


def quiet(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples during which others used at most `QUIET` CPUs."""
    # If these are fewer than a third of all, then the third with the least use by
    # others.
    least = math.ceil(len(samples) / 3)
    undisturbed = [sample for sample in samples if sample.others <= QUIET]
    if len(undisturbed) >= least:
        return undisturbed
    return sorted(samples, key=lambda sample: sample.others)[:least]


def _sample(call: Callable[[], Any], count: int, clock: Clock) -> Sample:
    """Takes one sample of several calls."""
    busy, cpu, wall = clock.busy(), clock.cpu(), clock.wall()
    for _ in range(count):
        call()
    wall = max(clock.wall() - wall, 1e-9)
    cpu = clock.cpu() - cpu
    others = max(clock.busy() - busy - cpu, 0.0) / wall
    return Sample(wall / count, cpu / count, others)


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    repeat: int,
    clock: Clock,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[Sample]]:
    """Samples calls in turn, until each has `repeat` quiet samples, for a while."""
    counts = {
        name: max(1, math.ceil(MIN_SECONDS / _sample(call, 1, clock).wall))
        for name, call in calls.items()
    }
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    start = clock.wall()
    for turn in range(_MOST * repeat):
        fewest = min(sum(s.others <= QUIET for s in row) for row in samples.values())
        is_late = clock.wall() - start > MORE_SECONDS
        if turn >= repeat and (is_late or fewest >= repeat):
            break
        for name, call in calls.items():
            samples[name].append(_sample(call, counts[name], clock))
        advance()
    return samples
