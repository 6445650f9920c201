"""Differential privacy of single examples, by noise inside clients' local work."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.local import PrivateSGD
from fedjax_pfl.messages import accounting

__all__ = ["Spending", "check", "local_epsilons", "solver_of"]


def solver_of(process: Any) -> PrivateSGD | None:
    """Returns the private solver that all a client hands out comes from, or None.

    It hands out its messages, and in `Local`, which has none, its model.
    """
    name = process.algorithm.uploads_through
    solver = None if name is None else getattr(process.algorithm, name)
    return solver if isinstance(solver, PrivateSGD) else None


def check(process: Any) -> None:
    """Refuses a private solver where messages see examples in other ways, too."""
    method = process.algorithm
    fields = dataclasses.fields(method)
    found = [f.name for f in fields if isinstance(getattr(method, f.name), PrivateSGD)]
    if found and solver_of(process) is None:
        raise checks.InputError(
            "Expected PrivateSGD as `local` of a method whose messages see examples"
            " through that solver alone, which FedAvg, FedProx, FedPer, Ditto and Flame"
            " are, or of Local, got it as"
            f" {' and '.join(found)} of {type(method).__name__}."
        )
    if found:
        accounting.check_installed()


def local_epsilons(
    process: Any, num_examples: np.ndarray, num_rounds: np.ndarray
) -> np.ndarray:
    """Computes what clients' messages reveal of single examples.

    Neighbors are data sets of one client of which one example is replaced. In `Local`,
    which sends nothing, it is what a client's model reveals to who may see or use it;
    so do personal models that the same solver trains, FLAME's and those of FedPer.

    Args:
      process: one whose `local` is a `PrivateSGD` with concrete numbers.
      num_examples: `int[N]` training examples of every client.
      num_rounds: `int[N]` rounds in which each took part.

    Returns:
      `[N]` epsilon, 0 of who never took part.
    """
    solver: Any = solver_of(process)
    values = float(solver.multiplier), float(solver.delta)
    pairs = np.stack([np.asarray(num_examples), np.asarray(num_rounds)])
    unique, place = np.unique(pairs, axis=1, return_inverse=True)
    each = [
        accounting.epsilon_after(
            *values,
            min(solver.batch_size, int(examples)),
            int(examples),
            int(rounds) * solver.most_steps(int(examples)),
        )
        for examples, rounds in unique.T
    ]
    return np.array(each, float)[place.reshape(-1)]


class Spending:
    """Computes the largest epsilon of all clients while a group of trainings runs."""

    def __init__(self, processes: Sequence[Any], num_examples: Sequence[np.ndarray]):
        """Takes the processes, and `int[N]` examples of the clients of each."""
        self._points = list(zip(processes, num_examples, strict=True))

    def after(self, times: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
        """Computes it after every round of a segment.

        Args:
          times: `int[G, N]` rounds in which clients took part before the segment.
          cohorts: `int[G, segment, K]` who takes part; -1 for nobody.

        Returns:
          `[G, segment]`.
        """
        values = np.zeros(cohorts.shape[:2])
        for point, (process, examples) in enumerate(self._points):
            counts = times[point].copy()
            for number, rows in enumerate(cohorts[point]):
                counts[rows[rows >= 0]] += 1
                values[point, number] = local_epsilons(process, examples, counts).max()
        return values
