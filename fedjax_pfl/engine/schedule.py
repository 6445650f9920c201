"""The schedule of evaluations: their rounds, clients and data."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["DATA", "POOLED", "Schedule"]

DATA = ("test", "validation", "train", "others", "everybody")
"""A client's own examples by part; its own and some others' test examples; all."""

_CLIENTS = ("all", "participants")
POOLED = {"others", "everybody"}
"""Data with test examples of other clients."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Schedule of evaluations; hashable."""

    every: tuple[tuple[str, int], ...]  # rounds between two evaluations, by data
    clients: str | int = (
        "all"  # `all`, `participants` of the last round, or a sample size
    )

    @classmethod
    def parse(
        cls,
        evaluate_on: Iterable[str] | Mapping[str, int | None],
        eval_every: int | None,
        eval_clients: str | int,
        num_rounds: int,
    ) -> "Schedule":
        """Forms a schedule from a user's arguments; without `eval_every`, about 20."""
        checks.positive_int("num_rounds", num_rounds)
        if isinstance(evaluate_on, str):
            evaluate_on = (evaluate_on,)
        intervals = evaluate_on if isinstance(evaluate_on, Mapping) else {}
        base = max(1, -(-num_rounds // 20)) if eval_every is None else eval_every
        checks.positive_int("eval_every", base)
        every = {}
        for name in evaluate_on:
            checks.known(name, DATA, "data to evaluate on")
            rounds = intervals.get(name)
            every[name] = base if rounds is None else rounds
            checks.positive_int(f"evaluate_on[{name!r}]", every[name])
        if not every:
            raise checks.InputError(
                f"Expected at least one of {', '.join(DATA)} to evaluate on."
            )
        # A segment of rounds lasts the smallest period, and ends at every evaluation.
        smallest = min(every.values())
        for name, rounds in every.items():
            if rounds % smallest:
                raise checks.InputError(
                    f"Expected rounds between evaluations to be multiples of the"
                    f" smallest, {smallest}, got {rounds} for {name!r}."
                )
        if eval_clients not in _CLIENTS:
            if isinstance(eval_clients, str):
                checks.known(eval_clients, _CLIENTS, "eval_clients")
            checks.positive_int("eval_clients", eval_clients)
        return cls(every=tuple(every.items()), clients=eval_clients)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of all data, in the order given."""
        return tuple(name for name, _ in self.every)

    @property
    def segment(self) -> int:
        """Rounds between two evaluations of any data."""
        return min(rounds for _, rounds in self.every)

    def within(self, num_rounds: int) -> "Schedule":
        """Returns the schedule with no period longer than the training."""
        every = tuple((name, min(rounds, num_rounds)) for name, rounds in self.every)
        return dataclasses.replace(self, every=every)

    def due(self, round: int, is_last: bool) -> tuple[str, ...]:
        """Returns the names of the data that are due after `round` rounds."""
        return tuple(n for n, every in self.every if is_last or round % every == 0)

    def check(self, federation: core.Federation) -> None:
        """Checks that a federation has the data and clients to evaluate."""
        if "others" in self.data and federation.others is None:
            raise checks.InputError(
                "Evaluation on 'others' needs a federation with num_others of at least"
                " 1, got 0."
            )
        size = self.clients
        if isinstance(size, int) and size > federation.num_clients:
            raise checks.InputError(
                f"Expected eval_clients to be at most {federation.num_clients}, the"
                f" number of clients, got {size}."
            )

    def members(
        self, process: "FederatedProcess", state: core.State, num_clients: int
    ) -> jax.Array | None:
        """Returns rows `int32[K]` of the evaluated clients, or None for all."""
        if self.clients == "all":
            return None
        if self.clients == "participants":
            # Before the first round, the participants of the first.
            last = jnp.maximum(state.round - 1, 0)
            return process.cohort(state.key, last, num_clients)
        # Drawn once per seed: all rounds measure the same clients.
        key = core.stream_key(state.key, core.Stream.EVALUATED_CLIENTS, 0)
        return jax.random.permutation(key, num_clients)[: self.clients]
