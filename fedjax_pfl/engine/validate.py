"""Validation of a training's arguments, by name, before they are used."""

import numbers
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedjax_pfl import core
from fedjax_pfl.core import checks, platforms, struct
from fedjax_pfl.round.part import Part
from fedjax_pfl.round.process import PARTS, FederatedProcess

__all__ = ["built", "check", "check_key", "check_model", "refuse_tracers"]

_OPTIONAL = ("aggregator", "server_optimizer", "attack")


def check(
    key: core.Key, process: Any, model: Any, federation: Any, *, name: str = "spec"
) -> None:
    """Refuses arguments of a training that are of another kind."""
    # A class in place of an object, a name in place of a part, or parts in the wrong
    # order would fail far inside, with a message that does not name the argument.
    platforms.check_process()
    platforms.check_jax()
    refuse_tracers(key=key, process=process, model=model, federation=federation)
    check_key(key)
    if not isinstance(process, FederatedProcess):
        form = "a process such as FederatedProcess(algorithm=FedAvg())"
        raise _error("process", process, form)
    for field, (kind, example) in PARTS.items():
        part = getattr(process, field)
        _check_part(field, part, kind, example, optional=field in _OPTIONAL)
    for number, part in enumerate(process.transforms):
        _check_part(f"transforms.{number}", part, core.Transform, "TopK()")
    for number, part in enumerate(process.parts):
        _check_part(f"parts.{number}", part, Part, "a subclass of fp.round.Part")
    for path, leaf in jax.tree_util.tree_leaves_with_path(process):
        if not (isinstance(leaf, numbers.Number) or hasattr(leaf, "shape")):
            place = jax.tree_util.keystr(path, simple=True, separator=".")
            raise _error(place, leaf, "a number, an array or an object with fields")
    check_model(model)
    if not isinstance(federation, core.Specification | core.Federation):
        form = (
            'a specification such as FederationSpec("digits", num_clients=20), or, by'
            " load_federation or Federation.from_arrays, a federation"
        )
        raise _error(name, federation, form)


def built(key: Any, process: Any, model: Any, federation: Any) -> core.Federation:
    """Checks the parts of one training as `check` does; returns the federation."""
    check(key, process, model, federation, name="federation")
    return federation if isinstance(federation, core.Federation) else federation.build()


def check_model(model: Any) -> None:
    """Refuses other objects than models; advises how to wrap networks of libraries."""
    # Networks of flax or plain functions need a wrapper.
    is_network = callable(model) or (hasattr(model, "init") and hasattr(model, "apply"))
    if is_network and not isinstance(model, type):
        if not isinstance(model, core.Model):
            raise _error(
                "model",
                model,
                "made by fp.from_flax(module), of a flax module, by"
                " fp.from_functions(init, apply), of any other network, or an object of"
                " a subclass of fp.core.Model",
            )
    _check_part("model", model, core.Model, "MLP(widths=(64,))")


def refuse_tracers(**arguments: Any) -> None:
    """Refuses to be called inside of a transformation of JAX."""
    # Inside jax.jit everything that is computed is traced, even of constants.
    for name, value in {**arguments, "all arguments": jnp.zeros(())}.items():
        named = [part for _, part in struct.named_fields(value)]
        parts = [part for part in named if not isinstance(part, Iterator)]
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(parts)):
            raise checks.InputError(
                f"Expected {name} to hold values, got tracers: trainings are not run"
                " inside jax.vmap, jax.jit or jax.grad; fp.grid trains many at once,"
                ' as in fp.grid(..., axes={"seed": [0, 1]}).'
            )


def check_key(key: Any) -> None:
    """Refuses other objects than keys `[]` with pairs of words."""
    dtype = getattr(key, "dtype", None)
    if dtype == jnp.uint32 and key.shape[-1:] == (2,):
        raise checks.InputError(
            "Expected key to be made by jax.random.key(seed), got one of"
            " jax.random.PRNGKey, uint32 of shape (2,)."
        )
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise _error("key", key, "made by jax.random.key(seed)")
    if key.shape:
        raise checks.InputError(
            f"Expected one key, got an array of keys of shape {key.shape}; fp.grid"
            ' trains with many seeds, as in fp.grid(..., axes={"seed": [0, 1]}).'
        )
    words = jax.random.key_data(key).shape
    if len(words) != 1 or words[0] % 2:  # our generator's keys are pairs of words
        raise checks.InputError(
            'Expected key to be made by jax.random.key(seed, impl="threefry2x32"), got'
            f" one whose data have the shape {words}."
        )


def _check_part(
    name: str, part: Any, kind: type | str, example: str, *, optional: bool = False
) -> None:
    """Checks that a part is an object of a class, or has a method of a name."""
    if part is None and optional:
        return
    form = f"an object such as {example}"
    if isinstance(kind, type):
        is_part = isinstance(part, kind)
        form += f", of a subclass of fp.core.{kind.__name__}"
    else:
        is_part = hasattr(part, kind) and not isinstance(part, type)
    if not is_part:
        raise _error(name, part, form)


def _error(name: str, value: Any, form: str) -> checks.InputError:
    """Returns the error, with a short description of the value."""
    if isinstance(value, type):
        description = f"the class {value.__name__} instead of {value.__name__}(...)"
    elif isinstance(value, numbers.Number | str | None):
        description = checks.shown(value)
    else:
        description = f"an object of the class {type(value).__name__}"
    return checks.InputError(f"Expected {name} to be {form}, got {description}.")
