"""Properties of the local solvers of a method."""

import dataclasses
import unittest
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, local
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import evaluation
from fedjax_pfl.testing import compiled_rounds, subjects

__all__ = ["solver_fields_act"]


# Several uneven batches, on which all fields act.
_SGD = local.SGD(learning_rate=0.1, epochs=2, batch_size=4)
_OPTAX = local.Optax(hyperparameters={"learning_rate": 0.1}, epochs=2, batch_size=4)


def solver_fields_act(subject: subjects.Subject) -> None:
    """Checks that each field of `SGD` and `Optax` acts, or is refused."""
    method = subject.algorithm
    # Another value of a field that acts makes another program of a round and its
    # evaluation, once operations without an effect are taken out.
    names = [
        field.name
        for field in dataclasses.fields(method)
        if isinstance(getattr(method, field.name), local.SGD)
    ]
    if not names:
        raise unittest.SkipTest("the method has no field with a local solver, SGD")
    idle = []
    for name in names:
        # A method that refuses to walk over batches has a solver without them.
        for choices in ((_SGD, getattr(method, name)), (_OPTAX,)):
            idle += _idle(subject, name, choices)
    if idle:
        raise AssertionError(
            f"Another value of {', '.join(idle)} changes neither a round nor the"
            " evaluation after it; expected another program, or an InputError."
        )


def _variants(solver: local.SGD | local.Optax) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a field of a solver, and values that differ from its own."""
    yield "epochs", {"epochs": solver.epochs + 1}
    yield "num_steps", {"num_steps": 1}
    yield "batch_size", {"batch_size": 3}
    yield "order", {"order": _backwards}
    for remainder in ("full", "scaled", "drop"):
        yield f"remainder={remainder}", {"remainder": remainder}
    schedule = optax.linear_schedule(0.1, 0.01, 4)
    if isinstance(solver, local.Optax):
        yield "hyperparameters", {"hyperparameters": {"learning_rate": 0.05}}
        yield "optimizer", {"optimizer": optax.sgd}
        scheduled: dict[str, Any] = {"hyperparameters": {"learning_rate": schedule}}
    else:
        yield "learning_rate", {"learning_rate": 0.05}
        yield "momentum", {"momentum": 0.5}
        yield "weight_decay", {"weight_decay": 0.1}
        yield "decay", {"decay": 0.5}
        yield "clip_norm", {"clip_norm": 0.01}
        scheduled = {"learning_rate": schedule}
    yield "a schedule", scheduled
    yield "per_round", {"per_round": True, **scheduled}


def _backwards(view: core.ClientView, epoch: jax.Array) -> jax.Array:
    """Returns the order in which a client's last example comes first."""
    slots = view.data.index.shape[0]
    return jnp.maximum(view.data.num_examples - 1 - jnp.arange(slots), 0)


def _idle(
    subject: subjects.Subject, name: str, choices: Sequence[Any]
) -> Iterator[str]:
    """Yields the fields without effect of the first accepted solver."""
    for solver in choices:
        expected = _program(subject, name, solver)
        if expected is None:
            continue
        # Only the first solver that the method accepts is varied.
        for field, values in _variants(solver):
            changed = dataclasses.replace(solver, **values)
            if _program(subject, name, changed) == expected:
                yield f"{name}.{field} of {type(solver).__name__}"
        return


def _program(subject: subjects.Subject, name: str, solver: Any) -> str | None:
    """Returns a round and the evaluation after it as text; None if refused."""
    try:
        # The method's numbers are constants of the text; compiling would take longest.
        method = struct.replace_field(subject.algorithm, name, solver)
        at = dataclasses.replace(subject, algorithm=method).everyone
        process = dataclasses.replace(at.process, algorithm=method)

        def run(state: core.State) -> tuple[core.State, Any]:
            after, _ = process.round(state, at.model, at.federation)
            metrics = evaluation.evaluate(process, after, at.model, at.federation)[0]
            return after, metrics

        return compiled_rounds.text(run, jax.eval_shape(at.first))
    except checks.InputError:
        return None
