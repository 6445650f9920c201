"""Differential privacy of single examples, by noise inside clients' local work."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.local import PrivateSGD
from fedjax_pfl.messages import accounting

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Spending", "check", "local_epsilons", "solver_of"]


def solver_of(process: "FederatedProcess") -> PrivateSGD | None:
    """Returns the private solver behind all releases of a client, or None."""
    # Releases are the messages, and in `Local`, which has none, the model.
    name = process.algorithm.uploads_through
    solver = None if name is None else getattr(process.algorithm, name)
    return solver if isinstance(solver, PrivateSGD) else None


def check(process: "FederatedProcess") -> None:
    """Refuses a private solver if messages also see examples in other ways."""
    method = process.algorithm
    fields = dataclasses.fields(method)
    names = [f.name for f in fields if isinstance(getattr(method, f.name), PrivateSGD)]
    if names and solver_of(process) is None:
        raise checks.InputError(
            "Expected PrivateSGD as `local` of a method with messages that depend on"
            " examples through that solver only, FedAvg, FedProx, FedPer, Ditto, Flame"
            " or Local, got it as"
            f" {' and '.join(names)} of {type(method).__name__}."
        )
    if names:
        accounting.check_installed()


def local_epsilons(
    process: "FederatedProcess", num_examples: np.ndarray, num_rounds: np.ndarray
) -> np.ndarray:
    """Computes epsilon of clients' messages for single examples.

    Neighbors are data sets of one client that differ in one example. In `Local`, which
    has no messages, it is the epsilon of a client's model. It also holds for personal
    models that the same solver trains, as in FLAME and FedPer.

    Args:
      process: a process with a `PrivateSGD` of concrete numbers as `local`.
      num_examples: `int[N]` training examples of every client.
      num_rounds: `int[N]` rounds in which every client took part.

    Returns:
      `[N]` epsilon, 0 for clients that never took part.
    """
    solver: Any = solver_of(process)
    values = float(solver.multiplier), float(solver.delta)
    pairs = np.stack([np.asarray(num_examples), np.asarray(num_rounds)])
    # Clients with equal numbers share one computation.
    unique, place = np.unique(pairs, axis=1, return_inverse=True)
    epsilons = [
        accounting.epsilon_after(
            *values,
            min(solver.batch_size, int(examples)),
            int(examples),
            int(rounds) * solver.most_steps(int(examples)),
        )
        for examples, rounds in unique.T
    ]
    return np.array(epsilons, float)[place.reshape(-1)]


class Spending:
    """Computes the largest epsilon of all clients while a group of trainings runs."""

    def __init__(self, processes: Sequence[Any], num_examples: Sequence[np.ndarray]):
        """Takes the processes, and `int[N]` examples of the clients of each process."""
        self._points = list(zip(processes, num_examples, strict=True))

    def after(self, times: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
        """Computes the largest epsilon of every training and round, `[G, segment]`."""
        values = np.zeros(cohorts.shape[:2])
        for point, (process, examples) in enumerate(self._points):
            counts = times[point].copy()
            for number, rows in enumerate(cohorts[point]):
                # Empty rows of a cohort are -1.
                counts[rows[rows >= 0]] += 1
                values[point, number] = local_epsilons(process, examples, counts).max()
        return values
