"""The descent of values per client: from training to training, and from checkpoints."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core
from fedjax_pfl.engine.derivatives import fields, reverse, sharing, trainer
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import checkpoint, provenance

__all__ = ["Descent"]

_STATE = "values"
_OWN = sharing.PerClient()


class Descent:
    """Values `[V, K]` that an optimizer moves, each step by one pass back.

    `sharing` says whose they are: `[G, N]` of clients, or `[1, L]` of layers.

    Attributes:
      backward: the pass.
      done: trainings so far.
      best: `[V, K]` values of the best training of every row.
      path: `[V, T]` the objective after each training.
      continued: which other code has trained some of it, in words.
    """

    def __init__(
        self,
        backward: reverse.Backward,
        name: str,
        optimizer: optax.GradientTransformation,
        num_trainings: int,
        store: checkpoint.Store | None = None,
        shared: sharing.Sharing = _OWN,
    ):
        """Begins at the values of the processes, or where a checkpoint ended."""
        self.backward, self._name, self._optimizer = backward, name, optimizer
        self._store, self.num_trainings = store, num_trainings
        self._shared = shared
        planned = backward.trainer.planned
        inner = name.removeprefix(fields.PER_CLIENT)
        self._scale = fields.scale_of(planned.group.processes[0], inner)
        values = shared.taken(backward.values()[name].astype(np.float64))
        self.done, self.path = 0, np.full((len(values), num_trainings), np.nan)
        self.best, self._least = values, np.full(len(values), np.inf)
        self._free: Any = jnp.asarray(self._scale.free(values))
        self._memory = optimizer.init(self._free)
        self.continued: tuple[str, ...] = ()
        if store is not None:
            like = self._progress().states
            self._identity = self._described()
            progress = store.latest(self._identity, like, self._restore)
            if progress is not None:
                self.done, self.continued = progress.done, progress.continued

    def run(
        self, interrupt: Callable[[], str | None], reach: Callable[[int, str], None]
    ) -> None:
        """Trains and steps until the end."""
        if self.done:
            self._tell(reach)
        while self.done < self.num_trainings:
            self._step()
            self._tell(reach)
            reason = interrupt()
            is_last = self.done == self.num_trainings
            if self._store is not None and (reason or is_last or self._store.due()):
                self._store.save(self._identity, self._progress())
            if reason is not None:
                raise Interrupted(reason, self.done * self.backward.num_rounds)

    def _tell(self, reach: Callable[[int, str], None]) -> None:
        """Says how far it is."""
        now = self.path[:, self.done - 1].mean()
        text = f"{self.backward.objective}: {now:.4g}"
        reach(self.done * self.backward.num_rounds, text)

    def _step(self) -> None:
        """Trains once, goes back, and moves the values."""
        values = self._scale.value(np.asarray(self._free, np.float64))
        if not self.done:
            values = self.best  # as they are, without the way there and back
        sign = self.backward.objective.sign
        objective, slopes = self.backward({self._name: self._shared.spread(values)})
        objective, slope = self._shared.gathered(objective, slopes[self._name])
        is_better = sign * objective < self._least
        self.best = np.where(is_better[:, None], values, self.best)
        self._least = np.where(is_better, sign * objective, self._least)
        self.path[:, self.done] = objective
        slope = sign * slope * self._scale.slope(values)
        update, self._memory = self._optimizer.update(
            jnp.asarray(np.nan_to_num(slope)), self._memory, self._free
        )
        self._free = self._free + update
        self.done += 1

    def _described(self) -> dict[str, Any]:
        """Returns what must be equal for a checkpoint to be continued."""
        owner = self.backward.trainer
        group = owner.planned.group
        return owner.planned.configuration(owner.execution) | {
            "points": list(group.points),
            "dtype": str(jnp.zeros(()).dtype),
            "generator": core.GENERATOR,
            "code": provenance.code(group.processes[0], group.model),
            "field": self._name,
            "values": type(self._shared).__name__,
            "objective": str(self.backward.objective),
            "trainings": self.num_trainings,
            **owner.identity,
        }

    def _moving(self) -> tuple[Any, ...]:
        """Returns all that changes from step to step."""
        return self.best, self._least, self.path, self._free, self._memory

    def _progress(self) -> checkpoint.Progress:
        """Returns a checkpoint, whose arrays keep the float64 numbers of the host."""
        leaves = jax.tree.leaves(self._moving())
        return checkpoint.Progress(
            done=self.done,
            states={"trainings": jnp.asarray(self.done, jnp.int32)},
            arrays=trainer.numbered(_STATE, leaves),
            seconds=(0.0, 0.0),
            ended=self.done == self.num_trainings,
            continued=self.continued,
        )

    def _restore(self, progress: checkpoint.Progress) -> None:
        """Takes what belongs to a checkpoint; a ValueError says that it is damaged."""
        leaves, structure = jax.tree.flatten(self._moving())
        like = [np.asarray(leaf) for leaf in leaves]
        arrays = trainer.restored(progress.arrays, _STATE, like)
        self.best, self._least, self.path, free, memory = jax.tree.unflatten(
            structure, arrays
        )
        self._free, self._memory = jax.tree.map(jnp.asarray, (free, memory))
