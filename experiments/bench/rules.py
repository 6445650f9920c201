"""Robust rules on random messages, ours and others'."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import contenders
from fedjax_pfl import aggregators

__all__ = ["PEERS", "RULES", "OurRule", "Rule"]

_OUTLIERS = 10  # one row of so many is far off
_COLUMNS = 100_000


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule applied to messages `[K, D]`.

    Attributes:
      name: for example `A1`.
      title: what it is, for people.
      kind: `median`, `geometric_median` or `krum`.
      num_rows: K.
      aggregator: ours.
      peers: names of what it can be compared with.
      num_columns: D.
    """

    name: str
    title: str
    kind: str
    num_rows: int
    aggregator: Any
    peers: tuple[str, ...]
    num_columns: int = _COLUMNS
    rounds: int = 1
    steps_per_round: float | None = None

    @property
    def num_outliers(self) -> int:
        """Returns the number of rows that are far off."""
        return self.num_rows // _OUTLIERS

    @property
    def flops_per_round(self) -> float | None:
        """Returns operations of one Gram matrix; None for a rule that only compares."""
        if self.kind == "median":
            return None
        return 2 * self.num_rows**2 * self.num_columns

    def messages(self) -> np.ndarray:
        """Draws `float32[K, D]`, a cloud about 1 and the outliers."""
        rng = np.random.default_rng(0)
        shape = (self.num_rows, self.num_columns)
        drawn = 1 + rng.standard_normal(shape, dtype=np.float32) / 10
        drawn[: self.num_outliers] += 5
        return drawn


class OurRule:
    """Our aggregator, compiled."""

    execution = ""

    def __init__(self, rule: Rule):
        self._messages = jnp.asarray(rule.messages())
        self._weights = jnp.ones(rule.num_rows)
        self._reference = jnp.zeros(rule.num_columns)
        self._key = jax.random.key(0, impl="threefry2x32")
        self._rule = jax.jit(rule.aggregator)

    def run(self) -> None:
        """Aggregates once."""
        self._aggregate, _ = self._rule(
            self._key, self._messages, self._weights, self._reference
        )
        self._aggregate.block_until_ready()

    def result(self) -> np.ndarray:
        """Returns the aggregate `[D]`."""
        return np.array(self._aggregate)


class TheirRule:
    """A peer's rule on messages of its own type."""

    execution = ""

    def __init__(self, apply: Callable[[Any], Any], messages: Any):
        self._apply, self._messages = apply, messages

    def run(self) -> None:
        """Aggregates once."""
        self._aggregate = self._apply(self._messages)

    def result(self) -> np.ndarray:
        """Returns the aggregate `[D]`."""
        return np.array(self._aggregate)


def _torch(rule: Rule) -> TheirRule:
    torch_rules = contenders.imported("torch_rules")
    return TheirRule(
        torch_rules.of(rule), torch_rules.torch.from_numpy(rule.messages())
    )


def _byzfl(rule: Rule) -> TheirRule:
    """Applies its rule; the geometric median with 20 steps, and a radius like ours."""
    byzfl = contenders.library("byzfl")
    name, *arguments = {
        "median": ("Median",),
        "geometric_median": ("GeometricMedian", 1e-6, 20),
        "krum": ("Krum", rule.num_outliers),
    }[rule.kind]
    torch = contenders.imported("torch_rules").torch
    return TheirRule(
        getattr(byzfl, name)(*arguments), torch.from_numpy(rule.messages())
    )


def _geom_median(rule: Rule) -> TheirRule:
    """Applies it with its own defaults, which stop when the objective stops falling."""
    compute = contenders.library("geom_median.torch").compute_geometric_median
    torch = contenders.imported("torch_rules").torch
    rows = list(torch.from_numpy(rule.messages()))
    return TheirRule(lambda rows: compute(rows).median, rows)


PEERS = {"torch": _torch, "byzfl": _byzfl, "geom-median": _geom_median}
"""Makers of the peers of rules."""


def _krum(name: str, num_rows: int) -> Rule:
    """Returns Krum that expects the outliers that there are."""
    title = f"Krum of {num_rows:,} x {_COLUMNS:,}"
    rule = aggregators.Krum(num_malicious=num_rows // _OUTLIERS)
    return Rule(name, title, "krum", num_rows, rule, ("torch", "byzfl"))


_ALL = (
    Rule(
        "A1",
        "coordinate median of 100 x 100,000",
        "median",
        100,
        aggregators.CoordinateMedian(),
        ("torch", "byzfl"),
    ),
    Rule(
        "A2",
        "geometric median of 100 x 100,000 to 1e-6",
        "geometric_median",
        100,
        aggregators.GeometricMedian(tolerance=1e-6),
        ("torch", "byzfl", "geom-median"),
    ),
    _krum("A3", 100),
    _krum("A3large", 1000),
)
RULES = {rule.name: rule for rule in _ALL}
