"""Derivatives with respect to a value per client, compared with their training."""

import dataclasses
from typing import Any

import numpy as np

from experiments.bench import contenders, workloads
from fedjax_pfl.engine import groups, simulation
from fedjax_pfl.engine.derivatives import reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = ["BACKWARD", "Backward"]

_FIELD = "algorithm.lam"
_PLAIN = "training"


@dataclasses.dataclass(frozen=True)
class Backward(workloads.Based):
    """Going back through FLAME's rounds; its peer `training` goes and measures."""

    def contender(self, name: str) -> contenders.Repeated:
        """Makes one of the two; its result is the objective `[1]`."""
        count = len(self.base.spec.dataset.sizes)
        flame = dataclasses.replace(self.base.process.algorithm, rho=1 / count)
        process = dataclasses.replace(
            self.base.process,
            algorithm=flame,
            per_client={_FIELD: np.full(count, float(flame.lam))},
        )
        group = dataclasses.replace(self.base, process=process).group()
        options = Options(
            num_rounds=self.rounds,
            eval_every=self.rounds,
            evaluate_on=("train",),
            memory_limit="none",
        )
        if name == _PLAIN:
            return _training(groups.plan(group, options))
        objective = Objective("train", "loss", "personal")
        differentiation = trainer.Differentiation((f"per_client.{_FIELD}",), objective)
        (planned,) = simulation.check_groups([group], options, trainer=differentiation)
        back = reverse.Backward(planned, differentiation)
        return contenders.Repeated(back, lambda made: made[0], str(planned.plan))

    def loss(self, result: Any) -> float | None:
        """Returns the objective."""
        return float(result[0])


def _training(planned: groups.PlannedGroup) -> contenders.Repeated:
    """Returns a training from its first state to its evaluation."""
    runner = Resident(planned)
    model = planned.names.index("personal")
    active = np.ones(len(planned.group.points), bool)

    def call() -> np.ndarray:
        runner.begin()
        runner.advance(active, 0, planned.options.num_rounds)
        return runner.evaluate(("train",), is_last=False)[1]["loss"][:, model, 0]

    return contenders.Repeated(call, lambda made: made.mean(axis=1), str(planned.plan))


_W1, _W2, _W4 = (workloads.WORKLOADS[name] for name in ("W1", "W2", "W4"))
BACKWARD = {
    row.name: row
    for row in (
        Backward(
            "G1",
            "derivatives per client, FLAME, softmax, 10 clients of 560, batch 100",
            (_PLAIN,),
            rounds=10,
            base=dataclasses.replace(_W1, spec=_W4.spec),
        ),
        Backward(
            "G2",
            "derivatives per client of W2, 1,000 clients of 48",
            (_PLAIN,),
            rounds=10,
            base=_W2,
        ),
    )
}
