"""Populations with a cohort per round: clients' models in a file."""

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp
from experiments.bench import contenders
from experiments.bench.workloads import CLASSES, Generated
from fedjax_pfl import core
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.streaming import Streamed

__all__ = ["POPULATIONS", "Population", "federation"]

_EXAMPLES, _POOL = 60, 60_000  # of a client, and of all, who share them
_CALLS = 400  # of one training, at most
_BATCH_SIZE = 10


def federation(num_clients: int, shape: tuple[int, ...] = (28, 28)) -> core.Federation:
    """Returns clients with overlapping pieces of one pool as examples."""
    dataset = Generated((_POOL,), shape).load(data_dir=None, seed=0, num_clients=None)
    starts = np.arange(num_clients) % (_POOL - _EXAMPLES)
    zeros = np.zeros(num_clients, np.int32)
    train = core.ClientData(
        x=jnp.asarray(dataset.x),
        y=jnp.asarray(dataset.y),
        scale=jnp.asarray(dataset.scale, jnp.float32),
        shift=jnp.zeros((), jnp.float32),
        index=starts[:, None].astype(np.int32) + np.arange(_EXAMPLES, dtype=np.int32),
        num_examples=zeros + _EXAMPLES,
        client_id=np.arange(num_clients, dtype=np.int32),
    )
    none = dataclasses.replace(train, index=train.index[:, :1], num_examples=zeros)
    return core.Federation(
        train=train,
        validation=none,
        test=none,
        malicious=np.zeros(num_clients, bool),
        num_classes=CLASSES,
        name=f"{num_clients:,} clients",
    )


@dataclasses.dataclass(frozen=True)
class Population(contenders.Timed):
    """A streamed training, compared with the same cohorts of a small population."""

    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)  # by contender
    cohort_size: int = 100  # clients of a round
    shape: tuple[int, ...] = (28, 28)  # of an image

    @property
    def steps_per_round(self) -> float:
        """Returns the steps of single clients in a round."""
        return float(self.cohort_size * (_EXAMPLES // _BATCH_SIZE))

    def contender(self, name: str) -> "Stream":
        """Makes the training of a population."""
        process = fp.FederatedProcess(
            algorithm=fp.Flame(local=fp.SGD(batch_size=_BATCH_SIZE)),
            participation=fp.UniformCohort(size=self.cohort_size),
        )
        return Stream(process, federation(self.sizes[name], self.shape), self.rounds)


class Stream:
    """Rounds of a streamed training, without a comparison."""

    execution: ClassVar[str] = "streamed"

    def __init__(
        self, process: fp.FederatedProcess, clients: core.Federation, rounds: int
    ):
        options = Options(
            num_rounds=_CALLS * rounds,
            eval_every=rounds,
            eval_clients=1,
            evaluate_on=("train",),
        )
        group = groups.single(
            jax.random.key(0),
            process,
            fp.LogisticRegression(),
            clients,
            is_described=False,
        )
        self._trainer = Streamed(groups.plan(group, options))
        weakref.finalize(self, self._trainer.close)
        self._rounds, self._done = rounds, 0

    def run(self) -> None:
        """Runs the next rounds; rows are on their way to the file."""
        self._trainer.advance(np.ones(1, bool), self._done, self._rounds)
        self._done += self._rounds

    def result(self) -> Any:
        """Returns no numbers: populations differ."""
        return None


POPULATIONS = {
    "S1": Population(
        "S1",
        "FLAME, softmax, 100 of 1,000,000 clients of 60 per round, batch 10, streamed",
        ("thousand",),
        rounds=20,
        sizes={"ours": 1_000_000, "thousand": 1_000},
    )
}
