"""Trainings whose messages are transformed, beside the same without."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import fedjax_pfl as fp
from experiments.bench import contenders, workloads

__all__ = ["TRANSFORMED", "Transformed"]

_PLAIN = "plain"
_CHAINS = {
    "private": (fp.ClipNorm(norm=1.0), fp.GaussianNoise(multiplier=1.0)),
    "topk": (fp.TopK(fraction=0.01, error_feedback=True),),
    "qsgd": (fp.QSGD(levels=7),),
}


@dataclasses.dataclass(frozen=True)
class Transformed(workloads.Workload):
    """A workload with transforms; its peer `plain` has none."""

    @classmethod
    def of(cls, plain: workloads.Workload, name: str) -> "Transformed":
        """Returns a workload with the transforms of a name."""
        fields = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
        chain = _CHAINS[name]
        words = ", ".join(type(transform).__name__ for transform in chain)
        fields |= {
            "name": f"{plain.name}{name}",
            "title": f"{plain.name} with {words}",
            "peers": (_PLAIN,),
            "process": dataclasses.replace(plain.process, transforms=chain),
        }
        return cls(**fields)

    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender."""
        if name != _PLAIN:
            return super().contender(name)
        process = dataclasses.replace(self.process, transforms=())
        plain = dataclasses.replace(self, process=process)
        return contenders.Ours(plain.group(), self.rounds, "auto")

    def agreement(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns accuracy and loss: the trainings are not the same."""
        return self.quality(results)


TRANSFORMED = {
    row.name: row
    for plain in ("W1", "W2")
    for row in (Transformed.of(workloads.WORKLOADS[plain], name) for name in _CHAINS)
}
