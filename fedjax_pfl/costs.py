"""Time that a group of trainings will take, estimated before anything is compiled.

What the traced programs do is counted (`counting`), and what that takes is measured on
this machine (`machine`).
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import compiled, counting, evaluate, machine, programs, stacking, types

__all__ = ["Cost", "chunk_size", "estimate", "largest_of_chunk"]

_MOST_DRAWN = 1000  # chunks of a cohort that are looked at
_DRAWS = 20  # cohorts whose sizes are looked at


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of a group, compilation apart.

    Attributes:
      start: of the first states.
      round: of one round of all points.
      evaluation: of one evaluation, on everything that is ever evaluated.
      total: of the whole training.
      kinds: share of a round's seconds by kind of work, the largest first.
      flops: floating point operations of the products in a round.
      is_bound: whether a loop that waits for a tolerance is counted to its limit.
    """

    start: float
    round: float
    evaluation: float
    total: float
    kinds: dict[str, float]
    flops: float
    is_bound: bool


def largest_of_chunk(
    num_examples: np.ndarray,
    cohort: int,
    num_clients: int,
    chunk: int,
    *,
    by_size: bool = False,
) -> float:
    """The mean, over chunks of random cohorts, of the most examples of a client.

    Args:
      num_examples: `int[n]` of clients like those that there will be.
      cohort: K.
      num_clients: N; where it is K and n, cohorts are all clients in order.
      chunk: clients per chunk.
      by_size: whether chunks are formed by size.

    Returns:
      The mean. Every member of a chunk takes as many steps as its largest one.
    """
    rng = np.random.default_rng(0)
    cohort = min(cohort, _MOST_DRAWN * chunk)
    everyone = cohort == num_clients == len(num_examples)
    found = []
    for _ in range(1 if everyone else _DRAWS):
        drawn = num_examples
        if not everyone:
            is_enough = cohort <= len(num_examples)
            drawn = rng.choice(num_examples, cohort, replace=not is_enough)
        if by_size:
            drawn = np.sort(drawn)[::-1]
        found += [drawn[i : i + chunk].max() for i in range(0, cohort, chunk)]
    return float(np.mean(found))


def chunk_size(plan: compiled.Plan, cohort: int) -> int:
    """Clients of a round that are mapped together."""
    execution = plan.execution
    if execution.mode == "shard":
        devices = execution.num_devices or jax.device_count()
        cohort = -(-cohort // devices)
    if execution.mode == "loop":
        return 1
    size = execution.chunk_size or cohort
    return -(-cohort // -(-cohort // min(size, cohort)))


def _values(
    arguments: Any, rows: dict[str, Any], sizes: dict[str, float]
) -> list[float | None]:
    """Typical values of a program's arguments, in the order of its inputs."""
    places = {
        id(rows[name]["num_examples"]): float(round(size))
        for name, size in sizes.items()
    }

    def value(leaf: Any) -> float | None:
        if id(leaf) in places:
            return places[id(leaf)]
        is_known = isinstance(leaf, jax.Array | np.ndarray | int | float)
        if not is_known or jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key):
            return None
        values = np.unique(np.asarray(leaf)) if np.size(leaf) <= 10**4 else []
        return float(values[0]) if len(values) == 1 else None

    return [value(leaf) for leaf in jax.tree.leaves(arguments)]


def estimate(
    plan: compiled.Plan,
    processes: Any,
    federations: Sequence[types.Federation],
    num_rounds: int,
    rates: machine.Machine,
    *,
    like: Sequence[types.Federation] | None = None,
) -> Cost:
    """Estimates the time of a group of grid points; compiles none of its programs.

    Args:
      plan: everything static.
      processes: the points' processes, stacked.
      federations: one per point; shapes in place of arrays do.
      num_rounds: rounds R.
      rates: of this machine.
      like: federations whose clients have as many examples each; those above by
        default.

    Returns:
      Seconds. Loops until a tolerance is met are counted to their limits.
    """
    traced = programs.trace(plan, processes, federations)
    first, known = federations[0], (like or federations)[0]
    clients = first.num_clients
    cohort = processes.participation.cohort_size(clients)
    data = {
        name: np.asarray(getattr(known, name).num_examples) for name in stacking.ROWS
    }

    def sizes(cohort: int, chunk: int, by_size: bool) -> dict[str, float]:
        return {
            name: largest_of_chunk(counts, cohort, clients, chunk, by_size=by_size)
            for name, counts in data.items()
        }

    def counted(
        program: jax.stages.Traced,
        more: Any,
        chunk: int,
        number: int,
        by_size: bool = False,
    ):
        arguments = (processes, traced.states, traced.rows, traced.pool, *more)
        values = _values(arguments, traced.rows, sizes(number, chunk, by_size))
        return counting.count(program.jaxpr.jaxpr, values)

    segment = counted(
        traced.segment,
        (1, 0, num_rounds),
        chunk_size(plan, cohort),
        cohort,
        plan.execution.by_size,
    )
    length = plan.schedule.segment
    rounds = rates.seconds(segment)
    evaluated = clients
    if isinstance(plan.schedule.clients, int):
        evaluated = plan.schedule.clients
    elif plan.schedule.clients == "participants":
        evaluated = cohort
    seen: collections.Counter[tuple[str, ...]] = collections.Counter()
    for done in [*range(0, num_rounds, length), num_rounds]:
        seen[plan.schedule.due(done, done == num_rounds)] += 1
    evaluations = {
        names: sum(
            rates.seconds(
                counted(traced.evaluate(names), (), evaluate.CHUNK, evaluated)
            ).values()
        )
        for names in seen
    }
    start = sum(rates.seconds(counting.count(traced.init.jaxpr.jaxpr)).values())
    each = sum(rounds.values()) / length
    return Cost(
        start=start,
        round=each,
        evaluation=max(evaluations.values()),
        total=start
        + num_rounds * each
        + sum(times * evaluations[names] for names, times in seen.items()),
        kinds={kind: value / sum(rounds.values()) for kind, value in rounds.items()},
        flops=segment.total("flops") / length,
        is_bound=segment.is_bound,
    )
