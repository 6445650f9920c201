"""Derivatives in many values: one backward pass through the rounds of a training."""

import jax
import numpy as np

from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import cost
from fedjax_pfl.engine.derivatives import fields, programs, trainer
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.resident import Resident

__all__ = ["Backward", "go_back"]

_NO_REVERSE = "Reverse-mode differentiation does not work"
_ByName = dict[str, np.ndarray]


class Backward:
    """The compiled backward pass of a group, for any values of its fields.

    Attributes:
      objective: what is differentiated, with the model's name.
      num_rounds: rounds of the training.
    """

    def __init__(self, planned: PlannedGroup, what: trainer.Differentiation):
        """Places the data, and compiles.

        Args:
          planned: the group.
          what: the fields and the objective.

        Raises:
          InputError: if a loop ends by a tolerance, or if the pass will not fit into
            memory.
        """
        self._trainer, self._names = Resident(planned), what.names
        self.objective = what.model_of(planned)
        self.num_rounds = planned.options.num_rounds
        static = (planned.plan, what.names, self.objective, self.num_rounds)
        try:
            lowered = programs.backward.lower(*static, *self._trainer.start)
        except ValueError as error:
            if _NO_REVERSE not in str(error):
                raise
            raise checks.InputError(
                "Expected loops of a known length for derivatives in values per client,"
                f" got one of {planned.algorithm} that ends by a tolerance; leave"
                " per_client out, and differentiate forward."
            ) from error
        self._program = lowered.compile()
        _check_fits(self._program, planned)

    def __call__(self, values: _ByName | None = None) -> tuple[np.ndarray, _ByName]:
        """Trains, and goes back.

        Args:
          values: by field, in place of those of the processes; None for these.

        Returns:
          The objective `[G]`, and its derivatives by name, shaped like the fields.
        """
        processes, *rest = self._trainer.start
        if values is not None:
            order = self._trainer.planned.order
            like = fields.taken(processes, self._names)
            new = {
                n: jax.numpy.asarray(values[n][order], x.dtype) for n, x in like.items()
            }
            processes = fields.put(processes, new)
        return self._trainer.by_point(self._program(processes, *rest))

    def values(self) -> _ByName:
        """Returns the values of the processes by name, `[G]` or `[G, N]`."""
        taken = fields.taken(self._trainer.start[0], self._names)
        return self._trainer.by_point(sharding.fetch(taken))


def go_back(
    planned: PlannedGroup, what: trainer.Differentiation
) -> tuple[np.ndarray, _ByName, _ByName]:
    """Returns the objective of a group's points, its fields' values and derivatives."""
    backward = Backward(planned, what)
    objective, slopes = backward()
    return objective, backward.values(), slopes


def _check_fits(program: jax.stages.Compiled, planned: PlannedGroup) -> None:
    """Refuses a pass that needs more memory than there is."""
    analysis, limit = program.memory_analysis(), planned.options.parsed_memory
    free = limit if isinstance(limit, int) else cost.available_bytes()
    if analysis is None or limit == "none" or free is None:
        return
    if analysis.temp_size_in_bytes > free:
        raise checks.InputError(
            f"Going back through {planned.options.num_rounds} rounds of"
            f" {planned.num_clients} clients needs"
            f" {cost.shown(analysis.temp_size_in_bytes)}, more than the"
            f" {cost.shown(free)} that there are; use fewer rounds, steps or points."
        )
