"""Timetables of trainings in virtual time, computed before anything is trained."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import byte_counts, checks, struct
from fedjax_pfl.core.timetable import Charges
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.local import participation as participations
from fedjax_pfl.local.solvers import ToTolerance

__all__ = ["charges", "with_timetables"]

_WORKS = (participations.FullWork, participations.ClientBudgets)


def with_timetables(
    processes: Sequence[FederatedProcess],
    model: Any,
    federations: Sequence[core.Federation],
    keys: Sequence[core.Key],
    num_rounds: int,
) -> list[FederatedProcess]:
    """Fills in the timetables of processes in virtual time; others stay as they are.

    Args:
      processes: one per point.
      model: the model, given the federation's shapes.
      federations: one per point.
      keys: one per point.
      num_rounds: R.

    Returns:
      The processes.

    Raises:
      InputError: if a part does not fit, in one sentence.
    """
    timed = []
    for process, federation, key in zip(processes, federations, keys, strict=True):
        schedule = getattr(process.participation, "schedule", None)
        if schedule is not None:
            _check(process)
            if isinstance(federation.malicious, jax.ShapeDtypeStruct):
                charged = _free(federation.num_clients)
            else:
                charged = charges(process, model, federation, key)
            words = np.asarray(jax.random.key_data(key)).tolist()
            rng = np.random.default_rng([*words, core.Stream.PARTICIPATION])
            timetable = schedule(rng, charged, num_rounds)
            participation = dataclasses.replace(
                process.participation, timetable=timetable
            )
            process = dataclasses.replace(process, participation=participation)
        timed.append(process)
    return timed


def _free(num_clients: int) -> Charges:
    """Charges nothing, where there are shapes in place of data."""
    none = np.zeros(num_clients)
    return Charges(examples=none, steps=none, up=0.0, down=0.0)


def _check(process: FederatedProcess) -> None:
    """Refuses what virtual time does not know."""
    participation, algorithm = process.participation, process.algorithm
    name, method = type(participation).__name__, type(algorithm).__name__
    if not isinstance(process.work, _WORKS):
        raise checks.InputError(
            f"Expected work of a known length with {name}, whose devices say who is"
            f" slow, got {type(process.work).__name__}; leave work out."
        )
    may_lose = getattr(participation, "deadline", None) is not None
    if may_lose and not algorithm.is_usual:
        raise checks.InputError(
            f"Expected a method of one exchange per round where work may be late, got"
            f" {method}; leave out deadline."
        )
    if hasattr(participation, "concurrency") and not algorithm.allows_late:
        raise checks.InputError(
            f"Expected a method whose server averages models of clients into its own,"
            f" or keeps their latest messages, with {name}, got {method}, in which a"
            " late message has no meaning."
        )


def charges(
    process: FederatedProcess, model: Any, federation: core.Federation, key: core.Key
) -> Charges:
    """Counts what a task of every client costs.

    Args:
      process: the process.
      model: the model, given the federation's shapes.
      federation: data of N clients.
      key: `[]` key of the training.

    Returns:
      The charges. A solver that ends by a tolerance is charged its most steps.

    Raises:
      InputError: if the method does not count its clients' work.
    """
    process = dataclasses.replace(
        process, participation=participations.AllClients(), attack=None, aggregator=None
    )
    process = struct.as_arrays(process, jnp.zeros(()).dtype)
    # Only the counts are computed: what the steps lead to is left out by the compiler.
    counted = _counted(model, process, key, federation)
    if counted is None:
        raise checks.InputError(
            "Expected a method that counts its local work in virtual time, got"
            f" {type(process.algorithm).__name__}."
        )
    examples, steps = (np.asarray(value, float) for value in counted[:2])
    if len(examples) != federation.num_clients:
        raise checks.InputError(
            "Expected a method whose clients train on their devices in virtual time,"
            f" got {type(process.algorithm).__name__}, which trains on a server."
        )
    solver = getattr(process.algorithm, "local", None)
    if isinstance(solver, ToTolerance):
        steps = np.full(len(steps), float(solver.max_steps))
        examples = (steps + 1) * np.asarray(federation.train.num_examples)
    sent = (float(byte_counts.total(words)) for words in counted[2:])
    up, down = (value / federation.num_clients for value in sent)
    return Charges(examples=examples, steps=steps, up=up, down=down)


@functools.partial(jax.jit, static_argnames="model")
def _counted(
    model: Any, process: FederatedProcess, key: core.Key, federation: core.Federation
) -> tuple[jax.Array, ...] | None:
    """Counts examples `[N]` and steps `[N]`, and what all clients send and receive."""
    state = process.init(key, model, federation)
    info = process.round(state, model, federation)[1]
    names = ("gradient_evaluations", "client_steps")
    if any(name not in info.client for name in names):
        return None
    return (*(info.client[n] for n in names), info.bytes_up, info.bytes_down)
