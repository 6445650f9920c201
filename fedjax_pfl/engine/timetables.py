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
from fedjax_pfl.local import participation as participations
from fedjax_pfl.local.solvers import ToTolerance
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["charges", "with_timetables"]

_WORKS = (participations.FullWork, participations.ClientBudgets)


def with_timetables(
    processes: Sequence[FederatedProcess],
    model: core.Model,
    federations: Sequence[core.Federation],
    keys: Sequence[core.Key],
    num_rounds: int,
) -> list[FederatedProcess]:
    """Fills in the timetables of processes in virtual time; others do not change."""
    timed = []
    for process, federation, key in zip(processes, federations, keys, strict=True):
        if process.participation.is_timed:
            _check(process)
            if isinstance(federation.malicious, jax.ShapeDtypeStruct):
                none = np.zeros(federation.num_clients)
                charged = Charges(examples=none, steps=none, up=0.0, down=0.0)
            else:
                charged = charges(process, model, federation, key)
            words = np.asarray(jax.random.key_data(key)).tolist()
            rng = np.random.default_rng([*words, core.Stream.PARTICIPATION])
            timetable = process.participation.schedule(rng, charged, num_rounds)
            participation = dataclasses.replace(
                process.participation, timetable=timetable
            )
            process = dataclasses.replace(process, participation=participation)
        timed.append(process)
    return timed


def _check(process: FederatedProcess) -> None:
    """Refuses works and methods that virtual time does not support."""
    participation, algorithm = process.participation, process.algorithm
    name, method = type(participation).__name__, type(algorithm).__name__
    if not isinstance(process.work, _WORKS):
        raise checks.InputError(
            f"Expected work of a known length with {name}, whose devices say who is"
            f" slow, got {type(process.work).__name__}; leave work out."
        )
    if participation.may_lose and not algorithm.is_usual:
        raise checks.InputError(
            f"Expected a method of one exchange per round where work may be late, got"
            f" {method}; leave out deadline."
        )
    if participation.is_buffered and not algorithm.allows_late:
        raise checks.InputError(
            f"Expected a method whose server averages models of clients into its own,"
            f" or keeps their latest messages, with {name}, got {method}, in which a"
            " late message has no meaning."
        )


def charges(
    process: FederatedProcess, model: Any, federation: core.Federation, key: core.Key
) -> Charges:
    """Counts the cost of a task of every client."""
    method, search = process.algorithm, process.algorithm.search
    name = _ends_by_tolerance(method)
    # A solver that ends by a tolerance is charged its most steps, a search its most
    # trials: durations do not depend on weights.
    if name is not None:  # with one step per solve, steps count solves
        once = dataclasses.replace(getattr(method, name), max_steps=1, tolerance=0.0)
        method = dataclasses.replace(method, **{name: once})
    counting = dataclasses.replace(
        process,
        algorithm=method,
        participation=participations.AllClients(),
        attack=None,
        aggregator=None,
    )
    counting = struct.as_arrays(counting, jnp.zeros(()).dtype)
    # Only the counts are computed: the compiler removes the results of the steps.
    counted = _counted(model, counting, key, federation)
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
    num_examples = np.asarray(federation.train.num_examples, float)
    if name is not None:
        solves = steps.max()
        max_steps = getattr(process.algorithm, name).max_steps
        steps = np.full(len(steps), solves * max_steps)
        examples = (steps + solves) * num_examples
    sent = (float(byte_counts.total(words)) for words in counted[2:4])
    up, down = (value / federation.num_clients for value in sent)
    if search is not None:
        dtype, trials = counted[4].dtype, search.most_trials(counted[4].dtype)
        examples = examples + trials * num_examples / 3  # no backward pass, two thirds
        up += (trials - int(counted[5])) * dtype.itemsize  # a loss of each
    return Charges(examples=examples, steps=steps, up=up, down=down)


def _ends_by_tolerance(method: Any) -> str | None:
    """Returns the field of a method's solver that ends by a tolerance, or None."""
    names = [f.name for f in dataclasses.fields(method) if f.name != "fine_tune"]
    solvers = {n: getattr(method, n) for n in names}
    solvers = {n: s for n, s in solvers.items() if isinstance(s, core.LocalSolver)}
    fields = [n for n, s in solvers.items() if isinstance(s, ToTolerance)]
    if fields and len(solvers) > 1:
        raise checks.InputError(
            "Expected ToTolerance as the only solver of a method in virtual time, where"
            f" it is charged its most steps, got it as {' and '.join(fields)} of"
            f" {type(method).__name__} beside others."
        )
    return fields[0] if fields else None


@functools.partial(jax.jit, static_argnames="model")
def _counted(
    model: Any, process: FederatedProcess, key: core.Key, federation: core.Federation
) -> tuple[Any, ...] | None:
    """Counts examples and steps `[N]`, bytes up and down, losses and trials."""
    state = process.init(key, model, federation)
    info = process.round(state, model, federation)[1]
    names = ("gradient_evaluations", "client_steps")
    if any(name not in info.client for name in names):
        return None
    sent = info.bytes_up, info.bytes_down
    trials = info.client.get("loss"), info.server.get("trials")
    return (*(info.client[n] for n in names), *sent, *trials)
