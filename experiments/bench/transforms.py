"""Trainings with transformed messages, compared with the same without."""

import dataclasses

import fedjax_pfl as fp
from experiments.bench import contenders, workloads

__all__ = ["TRANSFORMED", "Transformed"]

_PLAIN = "plain"
_CLIP, _BANDS = fp.ClipNorm(norm=1.0), 4
_CHAINS = {
    "private": (_CLIP, fp.GaussianNoise(multiplier=1.0)),
    "banded": (_CLIP, fp.messages.BandedNoise(multiplier=1.0, bands=_BANDS)),
    "topk": (fp.TopK(fraction=0.01, error_feedback=True),),
    "qsgd": (fp.QSGD(levels=7),),
}


@dataclasses.dataclass(frozen=True)
class Transformed(workloads.Workload):
    """A workload with transforms; its peer `plain` has none."""

    @classmethod
    def of(cls, plain: workloads.Workload, name: str) -> "Transformed":
        """Returns a workload with the transforms of a name."""
        plain, title = _suited(plain, name)
        chain = _CHAINS[name]
        words = ", ".join(type(transform).__name__ for transform in chain)
        return workloads.converted(
            cls,
            plain,
            name=f"{plain.name}{name}",
            title=f"{title} with {words}",
            peers=(_PLAIN,),
            process=dataclasses.replace(plain.process, transforms=chain),
        )

    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender."""
        if name != _PLAIN:
            return super().contender(name)
        process = dataclasses.replace(self.process, transforms=())
        plain = dataclasses.replace(self, process=process)
        return contenders.Ours(plain.group(), self.rounds, "auto")


def _suited(plain: workloads.Workload, name: str) -> tuple[workloads.Workload, str]:
    """Returns the workload that a name's transforms are added to, and its title."""
    if name != "banded":
        return plain, plain.name
    # Banded noise takes uniform means, none of messages of earlier rounds, as FLAME
    # does, and no client in two of as many rounds as there are bands.
    process = dataclasses.replace(
        plain.process,
        algorithm=fp.FedAvg(local=plain.process.algorithm.local),
        aggregator=fp.aggregators.Mean(),
        participation=fp.local.CyclicCohorts(size=plain.cohort_size // _BANDS),
    )
    title = f"FedAvg, 1/{_BANDS} of the clients of {plain.name} in turn,"
    return dataclasses.replace(plain, process=process), title


TRANSFORMED = {
    row.name: row
    for plain in ("W1", "W2")
    for row in (Transformed.of(workloads.WORKLOADS[plain], name) for name in _CHAINS)
}
