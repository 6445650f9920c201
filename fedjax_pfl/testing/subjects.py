"""Methods under test, and what their properties share: data, states, rounds."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import attacks, core, models
from fedjax_pfl.core import checks, sharding, struct
from fedjax_pfl.local import participation as participations
from fedjax_pfl.round.process import FederatedProcess
from fedjax_pfl.testing import compiled_rounds, toy

__all__ = ["COHORT", "KEY_SEED", "Setting", "Subject"]

COHORT = 5
KEY_SEED = 3
_VMAP = sharding.Execution()


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A process of arrays on the toy federation, and its state after two rounds."""

    process: FederatedProcess
    model: core.Model  # given the federation's shapes
    federation: core.Federation

    @property
    def key(self) -> core.Key:
        """Returns the key of all runs."""
        return core.seed_key(KEY_SEED)

    def first(self) -> core.State:
        """Returns the state before the first round."""
        return compiled_rounds.init(self.process, self.key, self.model, self.federation)

    @functools.cached_property
    def warm(self) -> core.State:
        """Returns a state after two rounds, so that rows differ between clients."""
        state = self.first()
        for _ in range(2):
            state, _ = self.round(state)
        return state

    def round(
        self,
        state: core.State | None = None,
        *,
        federation: core.Federation | None = None,
        execution: sharding.Execution = _VMAP,
    ) -> tuple[core.State, core.RoundInfo]:
        """Runs one compiled round, by default from the warm state on the same data."""
        return compiled_rounds.run_round(
            self.process,
            self.warm if state is None else state,
            self.model,
            self.federation if federation is None else federation,
            execution,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """Method under test, with the other parts of its process.

    Five of the eight clients of `toy.make_federation` take part in a round; three in
    ten members stop after two epochs at most.

    Attributes:
      algorithm: the method, for example `MyMethod()`.
      model: any model for classes.
      aggregator: in place of the method's own, or None.
      attack: replaces the messages of client 2; None for honest messages.
      transforms: of messages, in order.
      field: dotted name of a traced field of the process and another value for it, for
        example `("algorithm.lam", 0.5)`; None takes the algorithm's first number, own
        ones first, and nine tenths of its value.

    Raises:
      InputError: if `algorithm` is a class, or no dataclass.
    """

    algorithm: Any
    model: Any = models.LogisticRegression()
    aggregator: Any = None
    attack: Any = attacks.SignFlip(scale=2.0)
    transforms: tuple[Any, ...] = ()
    field: tuple[str, float] | None = None

    def __post_init__(self):
        method = self.algorithm
        if isinstance(method, type) or not dataclasses.is_dataclass(method):
            raise checks.InputError(
                "Expected algorithm to be an object whose class is decorated with"
                f" @pytree_dataclass, such as MyMethod(), got"
                f" {checks.shown(method)}."
            )
        struct.check_fields(self)

    @property
    def name(self) -> str:
        """Returns the name of the algorithm's class."""
        return type(self.algorithm).__name__

    def process(self, participation: core.Participation) -> FederatedProcess:
        """Returns the process of these participants, with array leaves."""
        process = FederatedProcess(
            algorithm=self.algorithm,
            aggregator=self.aggregator,
            participation=participation,
            work=participations.Stragglers(fraction=0.3, max_epochs=2),
            attack=self.attack,
            transforms=self.transforms,
        )
        return struct.as_arrays(process, jnp.zeros(()).dtype)

    def _setting(self, participation: core.Participation) -> Setting:
        """Returns the process of these participants on the toy federation."""
        federation = toy.make_federation()
        model = self.model.for_federation(federation)
        return Setting(self.process(participation), model, federation)

    @functools.cached_property
    def setting(self) -> Setting:
        """Returns the setting in which a cohort takes part."""
        return self._setting(participations.UniformCohort(size=COHORT))

    @functools.cached_property
    def everyone(self) -> Setting:
        """Returns the setting in which all clients take part."""
        return self._setting(participations.AllClients())

    @functools.cached_property
    def varied(self) -> tuple[str, float, float] | None:
        """Returns a traced field, its value and another one; None without a number."""
        if self.field is not None:
            name, new_value = self.field
            return name, float(struct.get_field(self.setting.process, name)), new_value
        # Fields of the method come before those of its parts, which have longer paths.
        leaves = jax.tree_util.tree_leaves_with_path(self.algorithm)
        for path, value in sorted(leaves, key=lambda leaf: len(leaf[0])):
            if isinstance(value, float) and value:
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                return f"algorithm.{name}", value, 0.9 * value
        return None
