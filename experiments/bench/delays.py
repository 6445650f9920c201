"""Asynchronous trainings, compared with synchronous ones of the same clients."""

import dataclasses
from typing import Any

import fedjax_pfl as fp
from experiments.bench import contenders, workloads

__all__ = ["DELAYS", "Delayed"]

_SPEED = 100.0  # examples per second: which only orders who arrives when


@dataclasses.dataclass(frozen=True)
class Delayed(workloads.Based):
    """Buffers of messages, compared with rounds that wait for their last member."""

    per_member: int = 5  # clients that work at any time per message of a buffer

    def contender(self, name: str) -> contenders.Ours:
        """Makes one of the two trainings."""
        size = self.base.cohort_size
        devices = fp.Devices(examples_per_second=_SPEED, spread=1.0)
        participation: Any = fp.Synchronous(size=size, devices=devices)
        if name == "ours":
            participation = fp.Buffered(
                size=size, concurrency=self.per_member * size, devices=devices
            )
        process = dataclasses.replace(self.base.process, participation=participation)
        workload = dataclasses.replace(self.base, process=process)
        return contenders.Ours(workload.group(), self.rounds)

    def agreement(self, results: Any) -> dict[str, dict[str, float]]:
        """Returns no differences: the two train different models."""
        return {name: {} for name in results}


DELAYS = {
    "V1": Delayed(
        "V1",
        "FedAvg, softmax, buffers of 10 of 1,000 clients of 50 to 70, batch 10",
        ("synchronous",),
        rounds=100,
        base=workloads.WORKLOADS["W6"],
    )
}
