"""Roles of parameters: which travel, which stay with the client, which are frozen."""

import abc
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct, tree_paths
from fedjax_pfl.models import changed_kernels, objectives

__all__ = ["ParameterRoles", "Wrapped", "check_model"]


def check_model(name: str, model: object) -> None:
    """Refuses an object that is no model, or a model of series, for a wrapper."""
    if isinstance(model, core.SequenceModel):
        raise checks.InputError(
            f"Expected a model of independent examples for {name}, got"
            f" {type(model).__name__}, a model of series."
        )
    if not isinstance(model, core.Model):
        raise checks.InputError(
            f"Expected a model for {name}, such as MLP(widths=(64,)), got"
            f" {checks.shown(model)}."
        )


@dataclasses.dataclass(frozen=True)
class Wrapped(objectives.Wrapper, core.Model):
    """A model around another one, with its classes, start and running statistics."""

    model: Any

    @property
    def judge(self) -> Any:
        """The model."""
        return self.model

    @property
    def num_classes(self) -> int | None:
        """Number of classes, or None if there are none."""
        return self.model.num_classes

    @property
    def initial_params(self) -> core.Params:
        """Parameters that all trainings start from, or None."""
        return self.model.initial_params

    def starting_at(self, params: core.Params) -> Self:
        """Returns the model with an argument of the program to start from."""
        return dataclasses.replace(self, model=self.model.starting_at(params))

    def first_statistics(self) -> core.Tree:
        """Returns running statistics before the first round; None without any."""
        return self.model.first_statistics()

    @abc.abstractmethod
    def _inner(self, params: core.Params, constants: core.Tree) -> tuple[Any, Any]:
        """Returns parameters, maybe `Changed`, and constants of the model itself."""

    def _call(
        self,
        method: Callable[..., Any],
        params: core.Params,
        x: jax.Array,
        *,
        key: core.Key | None = None,
        constants: core.Tree = None,
    ) -> Any:
        """Calls a method of the model with its own parameters and constants."""

        def call(params: core.Params, x: jax.Array, key: Any, constants: Any) -> Any:
            return method(params, x, key=key, constants=constants)

        params, constants = self._inner(params, constants)
        return changed_kernels.call(call, params, x, key, constants)

    def apply(self, params: core.Params, x: jax.Array, **options: Any) -> jax.Array:
        """Outputs `[B, ...]` of the whole network."""
        return self._call(self.model.apply, params, x, **options)

    def apply_with_statistics(
        self, params: core.Params, x: jax.Array, **options: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the outputs of `apply`, and running statistics after this batch."""
        return self._call(self.model.apply_with_statistics, params, x, **options)

    def featured(
        self, params: core.Params, x: jax.Array, **options: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns features `[B, D]`, and the results of `apply_with_statistics`.

        The model must have features.
        """
        return self._call(self.model.featured, params, x, **options)


@dataclasses.dataclass(frozen=True)
class ParameterRoles(Wrapped):
    """A model with some parameters that never travel; a `core.RoleModel`.

    A method moves the shared parameters, which match no pattern: its states,
    messages, aggregates, attacks and counts of bytes have no others. Frozen
    ones are kept once, for all clients and trainings. Personal ones stay with the
    client: its local solver trains them together with the shared ones, on the loss of
    the client's own model.

    Patterns are regular expressions searched in the names of parameters, such as
    `"^head/"` in `head/kernel`.

    Attributes:
      model: any model but one of series.
      personal: pattern of parameters that stay with the client, or None.
      frozen: pattern of parameters that are never trained, or None.
      trained: in its place, pattern of the trained parameters: those matching neither
        it nor `personal` are frozen.
      seed: if the model has no `initial_params`, frozen parameters are drawn with this
        seed, whatever the seed of the training.
      local_statistics: whether running statistics of normalization layers stay with the
        client, too; else all clients share their mean.
    """

    model: Any = dataclasses.field(metadata=struct.inner("roles"))
    personal: str | None = None
    frozen: str | None = None
    trained: str | None = None
    seed: int = struct.static_field(default=0, at_least=0)
    local_statistics: bool = False

    def __post_init__(self):
        struct.check_fields(self)
        for role in ("personal", "frozen", "trained"):
            if getattr(self, role) is not None:
                tree_paths.check_pattern(role, getattr(self, role))
        checks.alternatives(frozen=self.frozen, trained=self.trained)
        check_model(type(self).__name__, self.model)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's shapes, once the patterns fit it.

        Raises:
          InputError: if a pattern has no match, if both match one parameter, or if
            no parameter is left to be shared.
        """
        model = self.model.for_federation(federation)
        model.check_start()
        self._check(jax.eval_shape(model.init, core.seed_key(0)))
        if self.local_statistics and model.first_statistics() is None:
            raise checks.InputError(
                "Expected a model with running statistics, such as"
                " MLP(normalization='batch'), for local_statistics=True, got"
                f" {getattr(model, 'name', type(model).__name__)}."
            )
        return dataclasses.replace(self, model=model)

    def _check(self, params: core.Params) -> None:
        """Refuses patterns that do not fit the parameters."""
        names = list(tree_paths.by_name(params))
        matches: dict[str, set[str]] = {}
        for role in ("personal", "frozen", "trained"):
            if (pattern := getattr(self, role)) is None:
                continue
            matches[role] = {name for name in names if re.search(pattern, name)}
            if not matches[role]:
                raise checks.InputError(
                    f"Expected {role}={pattern!r} to match some of the model's"
                    f" parameters: {', '.join(names)}."
                )
        if overlap := matches.get("personal", set()) & matches.get("frozen", set()):
            raise checks.InputError(
                "Expected personal and frozen patterns that have no parameter in"
                f" common, but both match {min(overlap)!r}."
            )
        if not jax.tree.leaves(self._split(params)[0]):
            raise checks.InputError(
                "Expected some parameters that are neither personal nor frozen, which"
                f" clients share; the model's are {', '.join(names)}."
            )

    def _split(self, params: core.Params) -> tuple[Any, Any, Any]:
        """Splits all parameters into shared, personal and frozen ones."""
        personal = frozen = None
        if self.personal is not None:
            personal, params = tree_paths.split(params, self.personal)
        if self.frozen is not None:
            frozen, params = tree_paths.split(params, self.frozen)
        elif self.trained is not None:
            params, frozen = tree_paths.split(params, self.trained)
        return params, personal, frozen

    def init(self, key: core.Key) -> core.Params:
        """Draws the shared parameters, with None in the places of others."""
        return self._split(self.model.init(key))[0]

    def first_personal(self, key: core.Key) -> core.Params:
        """Draws personal parameters before the first round, or returns None."""
        return self._split(self.model.init(key))[1]

    def frozen_params(self, start: core.Params = None) -> dict[str, Any]:
        """Returns the frozen parameters by name; see `core.RoleModel`."""
        if self.frozen is None and self.trained is None:
            return {}
        model = self.model if start is None else self.model.starting_at(start)
        params = model.init(core.seed_key(self.seed))
        return tree_paths.by_name(self._split(params)[2])

    def fixed_rows(self) -> core.Tree:
        """Returns the clients' ranks `int32[N]`, or None; see `core.RoleModel`."""
        ranks = self.model.ranks
        return None if ranks is None else jnp.asarray(ranks, jnp.int32)

    def merged(self, params: core.Params, *, client: int | None = None) -> core.Params:
        """Returns all parameters of the network, with adapters added to its kernels.

        Args:
          params: trained parameters: shared ones and, if there are any, the personal
            ones of ONE client, as in `fp.load_models`, with running
            statistics.
          client: number of the client, if its adapters have their own rank; None for
            the full rank.

        Returns:
          The network's parameters, as it has them without roles and adapters.

        Raises:
          InputError: if personal parameters are missing, or there is no such client.
        """
        params, running = statistics.split(params)
        rows = self.fixed_rows()
        fixed = None
        if client is not None and rows is not None:
            checks.whole("client", client, at_least=0, at_most=len(rows) - 1)
            fixed = rows[client]
        params = self._union(params, core.Constants(fixed=fixed))
        return statistics.joined(self.model.merged(params), running)

    def _union(self, params: core.Params, constants: core.Constants) -> core.Params:
        """Puts frozen and personal parameters in their places."""
        frozen = constants.frozen
        if frozen is None:
            frozen = _frozen_of(self)
        # Personal parameters may be in `params`, as in saved models, and have
        # precedence.
        leaves = frozen | tree_paths.by_name(constants.personal)
        leaves |= tree_paths.by_name(params)
        names, structure = _structure_of(self.model)
        for name in names:
            if name not in leaves:
                raise checks.InputError(
                    f"Expected parameters with {name!r}, which every client has its own"
                    " of, or constants with them."
                )
        params = jax.tree.unflatten(structure, [leaves[name] for name in names])
        if constants.fixed is None:
            return params
        return self.model.at_rank(params, constants.fixed)

    def _inner(self, params: core.Params, constants: core.Tree) -> tuple[Any, Any]:
        params, constants = statistics.taken(params, constants)
        params = self._union(params, constants)
        if constants.running is None:
            return params, constants.given
        blanks = dict.fromkeys(("frozen", "personal", "fixed"))
        return params, dataclasses.replace(constants, **blanks)

    def _judged(self, batch: core.Batch) -> core.Batch:
        """Returns a batch with the federation's own constants."""
        constants = core.Constants.of(batch.constants).given
        return dataclasses.replace(batch, constants=constants)


@functools.lru_cache(maxsize=32)
def _structure_of(model: core.Model) -> tuple[list[str], Any]:
    """Returns the names of all parameters of a model, and their tree."""
    shapes = jax.eval_shape(model.init, core.seed_key(0))
    return list(tree_paths.by_name(shapes)), jax.tree.structure(shapes)


@functools.lru_cache(maxsize=4)
def _frozen_of(model: ParameterRoles) -> dict[str, Any]:
    """Returns a model's frozen parameters, for callers without a federation."""
    # Values, not tracers of the program that is traced: the result is cached.
    with jax.ensure_compile_time_eval():
        return model.frozen_params()
