"""The learner of values per client and layer: one pass back through each training."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core
from fedjax_pfl.core import tree_paths
from fedjax_pfl.engine.callbacks import progress
from fedjax_pfl.engine.derivatives import fields, reverse, trainer
from fedjax_pfl.engine.derivatives.values import Values
from fedjax_pfl.engine.groups import Group, PlannedGroup
from fedjax_pfl.engine.trainer import Interrupted
from fedjax_pfl.results import checkpoint, directories, provenance

__all__ = ["Descent", "arrays_of", "begun", "descend", "with_values"]

_STATE = "values"


class Descent:
    """Descent in values `[V, K]`: of clients, `[G, N]`, or of layers, `[1, L]`."""

    def __init__(
        self,
        backward: reverse.Backward,
        optimizer: optax.GradientTransformation,
        num_trainings: int,
        store: checkpoint.Store | None = None,
    ):
        """Starts at the values of the processes, or at those of a checkpoint."""
        self.backward, self._store = backward, store
        self.num_trainings = num_trainings
        points = backward.values()
        self._shapes = {name: value.shape for name, value in points.items()}
        self._is_layered = any(value.ndim == 3 for value in points.values())
        # All points and clients share values of layers: one row stands for them.
        self.best = {
            name: (value[:1, 0] if self._is_layered else value).astype(np.float64)
            for name, value in points.items()
        }
        process = backward.trainer.planned.group.processes[0]
        self._values = Values(
            {n: fields.scale_of(process, _field(n)) for n in points},
            self.best,
            optimizer,
            jnp.zeros(()).dtype,
        )
        num_rows = 1 if self._is_layered else len(backward.trainer.planned.group.points)
        self.done, self.path = 0, np.full((num_rows, num_trainings), np.nan)
        self._least = np.full(num_rows, np.inf)
        self.continued: tuple[str, ...] = ()
        if store is not None:
            self._identity = self._identity_values()
            template = self._progress().states
            progress = store.latest(self._identity, template, self._restore)
            if progress is not None:
                self.done, self.continued = progress.done, progress.continued

    def spread(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Broadcasts values `[V, K]` to points and clients."""
        return {
            name: np.broadcast_to(
                value[:, None] if self._is_layered else value, self._shapes[name]
            )
            for name, value in values.items()
        }

    def gathered(
        self, objective: np.ndarray, slopes: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns objectives `[V]`, and derivatives `[V, K]` that move the values."""
        if not self._is_layered:
            # Without a client's share 1 / N, steps are as long as those of one value.
            return objective, {n: s.shape[1] * s for n, s in slopes.items()}
        return objective.mean(keepdims=True), {
            n: s.sum(axis=1).mean(axis=0, keepdims=True) for n, s in slopes.items()
        }

    def run(
        self, interrupt: Callable[[], str | None], reach: Callable[[int, str], None]
    ) -> None:
        """Trains and steps until the end."""
        if self.done:
            self._report(reach)
        while self.done < self.num_trainings:
            self._step()
            self._report(reach)
            reason = interrupt()
            is_last = self.done == self.num_trainings
            # An interrupted descent is saved before it ends.
            if self._store is not None and (reason or is_last or self._store.due()):
                self._store.save(self._identity, self._progress())
            if reason is not None:
                raise Interrupted(reason, self.done * self.backward.num_rounds)

    def _report(self, reach: Callable[[int, str], None]) -> None:
        """Reports the finished rounds and the objective."""
        objective = self.path[:, self.done - 1].mean()
        text = f"{self.backward.objective}: {objective:.4g}"
        reach(self.done * self.backward.num_rounds, text)

    def _step(self) -> None:
        """Trains once, goes back, and moves the values."""
        values, sign = self._values.now(), self.backward.objective.sign
        objective, slopes = self.gathered(*self.backward(self.spread(values)))
        is_better = sign * objective < self._least
        self._least = np.where(is_better, sign * objective, self._least)
        # Path and best values are those that were trained, before the step.
        self.path[:, self.done] = objective
        for name, value in values.items():
            self.best[name] = np.where(is_better[:, None], value, self.best[name])
            slope = sign * slopes[name] * self._values.scales[name].slope(value)
            # A slope of 0 keeps the NaN of a diverged training out of the optimizer.
            slopes[name] = np.nan_to_num(slope)
        self._values.step(slopes)
        self.done += 1

    def _identity_values(self) -> dict[str, Any]:
        """Returns values that must match for a checkpoint to be continued."""
        owner = self.backward.trainer
        group = owner.planned.group
        return owner.planned.configuration(owner.execution) | {
            "points": list(group.points),
            "dtype": str(jnp.zeros(()).dtype),
            "generator": core.GENERATOR,
            "code": provenance.code(group.processes[0], group.model),
            "fields": list(self._shapes),
            "values": "PerLayer" if self._is_layered else "PerClient",
            "objective": str(self.backward.objective),
            "trainings": self.num_trainings,
            **owner.identity,
        }

    def _step_values(self) -> Any:
        """Returns all values that a step changes."""
        return self.best, self._least, self.path, self._values.state()

    def _progress(self) -> checkpoint.Progress:
        """Returns a checkpoint with the host's float64 numbers as arrays."""
        return checkpoint.Progress(
            done=self.done,
            states={"trainings": jnp.asarray(self.done, jnp.int32)},
            arrays=trainer.numbered(_STATE, self._step_values()),
            seconds=(0.0, 0.0),
            ended=self.done == self.num_trainings,
            continued=self.continued,
        )

    def _restore(self, progress: checkpoint.Progress) -> None:
        """Restores a checkpoint; raises ValueError if it is damaged."""
        parts = trainer.restored(progress.arrays, _STATE, self._step_values())
        self.best, self._least, self.path, values = parts
        self._values.restore(values)


def _field(name: str) -> str:
    """Returns the name of a field from that of its values per client."""
    return name.removeprefix(fields.PER_CLIENT)


def descend(
    planned: Sequence[PlannedGroup],
    maker: trainer.Differentiation,
    optimizer: optax.GradientTransformation,
    num_trainings: int,
    checkpoints: checkpoint.Checkpoints | None,
    interrupt: Callable[[], str | None],
) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Returns the best values of the points of every group, and its path."""
    results = []
    with contextlib.ExitStack() as stack:
        if checkpoints is not None:
            stack.enter_context(directories.locked(checkpoints.path))
            checkpoints.check(len(planned))
        for number, plan in enumerate(planned):
            store = None
            if checkpoints is not None:
                store = checkpoints.store(number, plan.algorithm)
            backward = reverse.Backward(plan, maker, store)
            descent = Descent(backward, optimizer, num_trainings, store)
            title = f"{plan.algorithm} x {len(plan.group.points)}, there and back"
            total = num_trainings * backward.num_rounds
            is_shown = plan.options.progress
            with progress.steps(title, total, is_shown=is_shown) as reach:
                descent.run(interrupt, reach)
            best = descent.spread(descent.best)
            results.append(({_field(n): v for n, v in best.items()}, descent.path))
    return results


def begun(group: Group, names: Sequence[str], *, per: str) -> Group:
    """Returns a group with its values for each `client`, or for each `layer`."""
    shape = (group.federations[0].num_clients,)
    shape += (len(arrays_of(group)),) if per == "layer" else ()
    numbers = [fields.taken(process, names) for process in group.processes]
    values = {n: [np.full(shape, float(point[n])) for point in numbers] for n in names}
    return with_values(group, values)


def with_values(
    group: Group, values: Mapping[str, Sequence[np.ndarray] | np.ndarray]
) -> Group:
    """Returns a group with values per client, by field and point."""
    processes = [
        dataclasses.replace(
            process, per_client={n: np.asarray(rows[k]) for n, rows in values.items()}
        )
        for k, process in enumerate(group.processes)
    ]
    return dataclasses.replace(group, processes=processes)


def arrays_of(group: Group) -> dict[str, int]:
    """Returns the sizes of the model's arrays of parameters by name, in JAX's order."""
    model = group.model.for_federation(group.federations[0])
    shapes = tree_paths.by_name(jax.eval_shape(model.init, group.keys[0]))
    return {name: int(np.prod(leaf.shape)) for name, leaf in shapes.items()}
