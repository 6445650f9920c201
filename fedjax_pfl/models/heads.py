"""Features of a network: the inputs of its head, recorded while the network runs."""

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
from flax import nnx

from fedjax_pfl import core
from fedjax_pfl.core import checks, tree_paths

__all__ = ["Record", "featured", "recorded", "watch"]

_RECORD: contextvars.ContextVar["Record | None"]
_RECORD = contextvars.ContextVar("record", default=None)


@dataclasses.dataclass
class Record:
    """Inputs of the modules that have parameters of the head only."""

    pattern: str  # regular expression searched in the names of parameters
    inputs: list[jax.Array] = dataclasses.field(default_factory=list)  # [B, ...]

    def is_head(self, path: tuple[Any, ...], params: core.Params) -> bool:
        """Returns whether a module has parameters, all in the head."""
        names = ["/".join(map(str, (*path, n))) for n in tree_paths.by_name(params)]
        return bool(names) and all(re.search(self.pattern, n) for n in names)

    def features(self, name: str) -> jax.Array:
        """Returns the recorded input as one vector per example, `[B, D]`."""
        if len(self.inputs) != 1:
            raise checks.InputError(
                f"Expected {name} to call one layer with the parameters"
                f" {self.pattern!r} once, which maps its features to outputs, got"
                f" {len(self.inputs)} calls; head= of from_flax names the layer."
            )
        (x,) = self.inputs
        return x.reshape(x.shape[0], -1)


@contextlib.contextmanager
def recorded(pattern: str) -> Iterator[Record]:
    """Records inputs of the head, by a pattern such as `^head/`, inside the block."""
    record, inside = Record(pattern), []

    def call(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        is_call = context.method_name == "__call__" and not inside
        params = module.variables.get("params", {}) if is_call else {}
        if not is_call or not record.is_head(module.path, params):
            return function(*args, **kwargs)
        record.inputs.append(args[0] if args else next(iter(kwargs.values())))
        # Modules inside of the head have parameters of the head only, too.
        inside.append(module)
        try:
            return function(*args, **kwargs)
        finally:
            inside.pop()

    token = _RECORD.set(record)
    try:
        with nn.intercept_methods(call):
            yield record
    finally:
        _RECORD.reset(token)


def featured(
    model: Any,
    pattern: str,
    params: core.Params,
    x: jax.Array,
    *,
    key: jax.Array | None = None,
    constants: core.Tree = None,
) -> tuple[jax.Array, jax.Array, Any]:
    """Returns inputs of a model's head and results of `apply_with_statistics`."""
    with recorded(pattern) as record:
        outputs, running = model.apply_with_statistics(
            params, x, key=key, constants=constants
        )
    return record.features(model.name), outputs, running


def watch(module: nnx.Module) -> None:
    """Makes the head of an nnx module record its inputs, inside of `recorded`."""
    record = _RECORD.get()
    if record is None:
        return
    heads = []
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Module):
            leaves = nnx.to_flat_state(nnx.state(node, nnx.Param))
            params = tree_paths.nested(([*map(str, at)], 0) for at, _ in leaves)
            if record.is_head(path, params):
                heads.append((len(path), node))
    if heads:  # the outermost one
        # Unlike linen, nnx has no interceptors: the module gets a class that records.
        _, node = min(heads, key=lambda pair: pair[0])
        object.__setattr__(node, "__class__", _recording(type(node)))


@functools.lru_cache(maxsize=64)
def _recording(kind: type) -> type:
    """Returns a class like another one that records its inputs."""

    def call(self: object, *args: Any, **kwargs: Any) -> Any:
        if (record := _RECORD.get()) is not None:
            record.inputs.append(args[0] if args else next(iter(kwargs.values())))
        return kind.__call__(self, *args, **kwargs)  # pyright: ignore

    return type(kind.__name__, (kind,), {"__call__": call})
