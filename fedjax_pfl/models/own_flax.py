"""Models made of a user's flax modules."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_pfl import core
from fedjax_pfl.core import checks, tree_paths
from fedjax_pfl.models import own

__all__ = ["LinenModel", "NnxModel", "model_of"]

_TRAINING = ("train", "training", "is_training")


def model_of(module: Any, initial_params: Any, head: str | None) -> own.OwnModel:
    """Makes a model of a flax module; see `own.from_flax`."""
    if isinstance(module, nn.Module):
        if isinstance(initial_params, Mapping) and set(initial_params) == {"params"}:
            initial_params = initial_params["params"]
        model = LinenModel(module=module, initial_params=initial_params, head=head)
        _check_hash(module)
        return model
    if isinstance(initial_params, nnx.Module | nnx.State):
        initial_params = _nested(nnx.state(initial_params, nnx.Param))
    if isinstance(module, nnx.Module):
        made = _Made(module)
        start = made.params if initial_params is None else initial_params
        return NnxModel(module=made, initial_params=start, head=head)
    if not callable(module) or (
        isinstance(module, type) and issubclass(module, nn.Module)
    ):
        raise checks.InputError(
            "Expected a linen module such as MLP(width=64), an nnx module, or what"
            f" makes an nnx module of rngs, got {module!r}."
        )
    return NnxModel(module=module, initial_params=initial_params, head=head)


def _check_hash(module: nn.Module) -> None:
    """Refuses a module that cannot tell a program from another."""
    try:
        hash(module)
    except TypeError:
        raise checks.InputError(
            f"Expected fields of {type(module).__name__} that are hashable, as tuples"
            " are in place of lists."
        ) from None


def _refuse_state(name: str, kinds: list[str]) -> None:
    """Refuses a module that keeps more than parameters."""
    raise checks.InputError(
        f"Expected {name} to have parameters only, got {', '.join(kinds)}: running"
        " statistics are neither the clients' nor the server's parameters; use"
        " GroupNorm or LayerNorm in place of BatchNorm."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinenModel(own.OwnModel):
    """A linen module as a model.

    Attributes:
      module: the module; a grid may sweep its fields.
    """

    module: Any

    @property
    def name(self) -> str:
        """Class of the module."""
        return type(self.module).__name__

    def __repr__(self) -> str:
        return f"from_flax({self.name})"

    def _mode(self, key: Any) -> dict[str, bool]:
        """Returns the arguments that tell training from evaluation."""
        names = inspect.signature(type(self.module).__call__).parameters
        mode = {name: key is not None for name in _TRAINING if name in names}
        return mode | (
            {"deterministic": key is None} if "deterministic" in names else {}
        )

    def _own(self, key: core.Key, x: jax.Array) -> Any:
        variables = dict(self.module.init(key, x, **self._mode(None)))
        variables.pop("intermediates", None)
        params = variables.pop("params", {})
        if variables:
            _refuse_state(self.name, sorted(variables))
        return params

    def _call(self, params: Any, x: Any, key: Any, constants: Any) -> Any:
        # Streams other than dropout fall back on that of the parameters.
        rngs = {} if key is None else {"dropout": key, "params": key}
        return self.module.apply({"params": params}, x, rngs=rngs, **self._mode(key))


class _Made:
    """An nnx module that exists already; equal to itself only."""

    def __init__(self, module: nnx.Module):
        self.kind = type(module)
        self.params = _nested(nnx.state(module, nnx.Param))
        self.parts = _parts(module)

    def __repr__(self) -> str:
        return self.kind.__name__


def _nested(state: Any) -> dict[str, Any]:
    """Returns a state as nested dictionaries with text for keys, as files have them."""
    return tree_paths.nested(
        ([str(part) for part in path], *jax.tree.leaves(variable))
        for path, variable in nnx.to_flat_state(state)
    )


def _parts(module: nnx.Module) -> tuple[Any, Any, Any]:
    """Returns graph, shapes of parameters, and shapes of random states."""
    graph, params, randomness, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    if leaves := nnx.to_flat_state(others):
        kinds = sorted({type(variable).__name__ for _, variable in leaves})
        _refuse_state(type(module).__name__, kinds)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, randomness)
    )
    return graph, *shapes


@functools.lru_cache(maxsize=32)
def _parts_of(make: Any) -> tuple[Any, Any, Any]:
    """Returns the parts of the module that `make` makes; computes nothing."""
    module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(core.seed_key(0))))
    if not isinstance(module, nnx.Module):
        name = getattr(make, "__name__", make)
        raise checks.InputError(f"Expected {name!r} to make an nnx module of rngs.")
    return _parts(module)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NnxModel(own.OwnModel):
    """An nnx module as a model.

    Attributes:
      module: what makes the module of `rngs`, or one that exists.
    """

    module: Any

    @property
    def name(self) -> str:
        """Name of what makes the module, or class of one that exists."""
        return getattr(self.module, "__name__", repr(self.module))

    def __repr__(self) -> str:
        return f"from_flax({self.name})"

    @property
    def _parts(self) -> tuple[Any, Any, Any]:
        is_made = isinstance(self.module, _Made)
        return self.module.parts if is_made else _parts_of(self.module)

    def _own(self, key: core.Key, x: jax.Array) -> Any:
        if isinstance(self.module, _Made):
            return self.module.params
        self._parts  # noqa: B018 (refuses modules with running statistics)
        return _nested(nnx.state(self.module(rngs=nnx.Rngs(key)), nnx.Param))

    def _call(self, params: Any, x: Any, key: Any, constants: Any) -> Any:
        graph, shapes, randomness = self._parts
        leaves = []
        for path, _ in nnx.to_flat_state(shapes):
            leaf = params
            for part in path:
                leaf = leaf[str(part)]
            leaves.append(leaf)
        own_state = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
        module = nnx.merge(graph, own_state, _random_state(randomness, key))
        module.eval() if key is None else module.train()
        return module(x)


def _random_state(shapes: Any, key: core.Key | None) -> Any:
    """Returns random states of these shapes that start at a key."""
    key = core.seed_key(0) if key is None else key
    leaves, structure = jax.tree.flatten(shapes)

    def fresh(number: int, leaf: Any) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        own_key = jax.random.fold_in(key, number)
        return own_key if leaf.shape == () else jax.random.split(own_key, leaf.shape)

    return jax.tree.unflatten(structure, [fresh(*pair) for pair in enumerate(leaves)])
