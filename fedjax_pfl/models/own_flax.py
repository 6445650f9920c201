"""Models made of a user's flax modules."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, tree_paths
from fedjax_pfl.models import heads, normalization, objectives, own

__all__ = ["LinenModel", "NnxModel", "from_flax"]

_TRAINING = ("train", "training", "is_training")


def from_flax(
    module: object, *, initial_params: core.Params = None, head: str | None = None
) -> own.OwnModel:
    """Makes a model of a flax module.

    Dropout acts in training. Batch normalization takes the statistics of a batch,
    without its padding, in training, and running ones in evaluation; other state than
    these is refused.

    Args:
      module: a linen module; an argument `train`, `training`, `is_training` or
        `deterministic` of its `__call__` is set. Or a factory of an nnx module from
        `rngs`, such as its class; or an nnx module, and every training starts from its
        parameters.
      initial_params: the module's parameters from which every training starts, or None
        to draw them; variables of linen and states of nnx are fine. Running statistics,
        of a module that has some, belong to them.
      head: regular expression searched in the names of parameters, for example
        `"^Dense_1/"`: the part that methods with personal heads keep at the client.
        None if it is named `head`.

    Returns:
      The model, for any method, `simulate` and `grid`.

    Raises:
      InputError: if an argument does not fit, in one sentence.
    """
    if isinstance(module, nn.Module):
        if isinstance(initial_params, Mapping) and "params" in initial_params:
            if set(initial_params) <= {"params", statistics.NAME}:
                running = initial_params.get(statistics.NAME)
                params = dict(initial_params["params"])
                initial_params = statistics.joined(params, running)
        model = LinenModel(module=module, initial_params=initial_params, head=head)
        _check_hash(module)
        return model
    if isinstance(initial_params, nnx.Module | nnx.State):
        initial_params = _params_of(initial_params)
    if isinstance(module, nnx.Module):
        instance = _Instance(module)
        start = instance.params if initial_params is None else initial_params
        return NnxModel(module=instance, initial_params=start, head=head)
    if not callable(module) or (
        isinstance(module, type) and issubclass(module, nn.Module)
    ):
        raise checks.InputError(
            "Expected a linen module such as MLP(width=64), an nnx module, or what"
            f" makes an nnx module of rngs, got {checks.shown(module)}."
        )
    return NnxModel(module=module, initial_params=initial_params, head=head)


def _check_hash(module: nn.Module) -> None:
    """Refuses a module without a hash, which identifies its program."""
    try:
        hash(module)
    except TypeError:
        raise checks.InputError(
            f"Expected fields of {type(module).__name__} that are hashable, as tuples"
            " are in place of lists."
        ) from None


def _refuse_state(name: str, kinds: list[str]) -> None:
    """Refuses a module that keeps more than parameters and running statistics."""
    raise checks.InputError(
        f"Expected {name} to have no state but the running statistics of BatchNorm, got"
        f" {', '.join(kinds)}."
    )


def _check_statistics(
    name: str, running: core.Tree, owners: list[tuple[str, ...]]
) -> None:
    """Refuses running statistics of other layers than batch normalization."""
    # Only batch normalization leaves padding out.
    paths = {"/".join(path) for path in owners}
    strays = [
        n for n in tree_paths.by_name(running) if n.rpartition("/")[0] not in paths
    ]
    if strays:
        _refuse_state(name, [f"{statistics.NAME}/{leaf}" for leaf in strays])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinenModel(own.OwnModel):
    """A linen module as a model; a grid may sweep fields of the module."""

    module: Any

    @property
    def name(self) -> str:
        """Class of the module."""
        return type(self.module).__name__

    def __repr__(self) -> str:
        return f"from_flax({self.name})"

    def _mode(self, key: core.Key | None) -> dict[str, bool]:
        """Returns the arguments that tell training from evaluation."""
        names = inspect.signature(type(self.module).__call__).parameters
        mode = {name: key is not None for name in _TRAINING if name in names}
        return mode | (
            {"deterministic": key is None} if "deterministic" in names else {}
        )

    def _variables(self, key: core.Key, x: jax.Array) -> core.Params:
        owners: list[tuple[str, ...]] = []
        with normalization.noted(owners):
            variables = dict(self.module.init(key, x, **self._mode(None)))
        # Sown values are outputs, not state.
        variables.pop("intermediates", None)
        params, running = variables.pop("params", {}), None
        if statistics.NAME in variables:
            running = variables.pop(statistics.NAME)
            _check_statistics(self.name, running, owners)
        if variables:
            _refuse_state(self.name, sorted(variables))
        return statistics.joined(params, running)

    def _call(self, call: objectives.Call) -> tuple[Any, Any]:
        running, key = call.constants.running, call.key
        outputs, updates = normalization.run(
            self.module,
            statistics.joined({"params": call.params}, running),
            call.x,
            key=key,
            weight=call.constants.weight,
            options=self._mode(key),
        )
        return outputs, updates.get(statistics.NAME, running)


class _MaskedBatchNorm(nnx.BatchNorm):
    """Batch normalization of nnx with the padding mask of `normalization.masked`."""

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Maps `[B, ..., channels]` to the same shape."""
        return super().__call__(
            x, use_running_average, mask=normalization.mask(x, mask)
        )


class _Instance:
    """An nnx module that exists already; equal to itself only."""

    def __init__(self, module: nnx.Module):
        self.kind = type(module)
        self.params = _params_of(module)
        self.parts = _parts(module)

    def __repr__(self) -> str:
        return self.kind.__name__


def _nested(state: core.Tree) -> dict[str, Any]:
    """Returns a state as nested dictionaries with text for keys, as files have them."""
    return tree_paths.nested(
        ([str(part) for part in path], *jax.tree.leaves(variable))
        for path, variable in nnx.to_flat_state(state)
    )


def _params_of(module: Any) -> dict[str, Any]:
    """Returns parameters of a module or state, with running statistics if any."""
    running = _nested(nnx.state(module, nnx.BatchStat))
    return statistics.joined(_nested(nnx.state(module, nnx.Param)), running or None)


def _parts(module: nnx.Module) -> tuple[Any, Any, Any, Any]:
    """Returns graph, and shapes of parameters, of statistics and of random states."""
    name, module = type(module).__name__, nnx.merge(*nnx.split(module))
    owners = []
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.BatchNorm):
            owners.append(tuple(map(str, path)))
        if type(node) is nnx.BatchNorm:
            # Batch normalization of nnx itself does not mask padding.
            object.__setattr__(node, "__class__", _MaskedBatchNorm)
    graph, *parts, extra = nnx.split(
        module, nnx.Param, nnx.BatchStat, nnx.RngState, ...
    )
    if leaves := nnx.to_flat_state(extra):
        _refuse_state(name, sorted({type(variable).__name__ for _, variable in leaves}))
    _check_statistics(name, _nested(parts[1]), owners)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tuple(parts)
    )
    return graph, *shapes


@functools.lru_cache(maxsize=32)
def _parts_of(make: Callable[..., Any]) -> tuple[Any, Any, Any, Any]:
    """Returns the parts of the module that `make` returns, without computing it."""
    module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(core.seed_key(0))))
    if not isinstance(module, nnx.Module):
        name = getattr(make, "__name__", make)
        raise checks.InputError(f"Expected {name!r} to make an nnx module of rngs.")
    return _parts(module)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NnxModel(own.OwnModel):
    """A factory of an nnx module from `rngs`, or an instance, as a model."""

    module: Any

    @property
    def name(self) -> str:
        """Name of the factory of the module, or class of an instance."""
        return getattr(self.module, "__name__", repr(self.module))

    def __repr__(self) -> str:
        return f"from_flax({self.name})"

    @property
    def _parts(self) -> tuple[Any, Any, Any, Any]:
        is_made = isinstance(self.module, _Instance)
        return self.module.parts if is_made else _parts_of(self.module)

    def _variables(self, key: core.Key, x: jax.Array) -> core.Params:
        if isinstance(self.module, _Instance):
            return self.module.params
        self._parts  # noqa: B018 (refuses modules with other state)
        return _params_of(self.module(rngs=nnx.Rngs(key)))

    def _call(self, call: objectives.Call) -> tuple[Any, Any]:
        graph, shapes, statistics_shapes, randomness = self._parts
        module = nnx.merge(
            graph,
            _filled(shapes, call.params),
            _filled(statistics_shapes, call.constants.running),
            _random_state(randomness, call.key),
        )
        module.eval() if call.key is None else module.train()
        heads.watch(module)
        with normalization.masked(call.constants.weight):
            outputs = module(call.x)
        return outputs, _nested(nnx.state(module, nnx.BatchStat)) or None


def _filled(shapes: core.Tree, values: core.Tree) -> core.Tree:
    """Returns a state like these shapes from nested dictionaries; inverts `_nested`."""
    leaves = []
    for path, _ in nnx.to_flat_state(shapes):
        leaf = values
        for part in path:
            leaf = leaf[str(part)]
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _random_state(shapes: core.Tree, key: core.Key | None) -> core.Tree:
    """Returns random states of these shapes that start at a key."""
    key = core.seed_key(0) if key is None else key
    leaves, structure = jax.tree.flatten(shapes)

    def fresh(number: int, leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        # Every stream gets a key of its own, and counters start at 0.
        own_key = jax.random.fold_in(key, number)
        return own_key if leaf.shape == () else jax.random.split(own_key, leaf.shape)

    return jax.tree.unflatten(structure, [fresh(*pair) for pair in enumerate(leaves)])
