"""Robust rules on random messages: ours, others', and PyTorch's as one writes them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.contenders import Repeated, Timed, library
from fedjax_pfl import aggregators

__all__ = ["RULES", "Rule"]

Call = Callable[[], Any]

_OUTLIERS = 10  # one row of so many is far off
_COLUMNS = 100_000
_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Rule(Timed):
    """A rule applied to messages `[K, D]`."""

    kind: str  # `median`, `geometric_median` or `krum`
    num_rows: int  # K
    aggregator: Any  # ours
    num_columns: int = _COLUMNS  # D

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
        messages = 1 + rng.standard_normal(shape, dtype=np.float32) / 10
        # Without outliers all rules would be near the mean, and stop early.
        messages[: self.num_outliers] += 5
        return messages

    def contender(self, name: str) -> Repeated:
        """Makes a contender; peers get messages of PyTorch."""
        if name == "ours":
            return self._ours()
        messages = library("torch").from_numpy(self.messages())
        return Repeated(_PEERS[name](self, messages))

    def _ours(self) -> Repeated:
        """Returns our aggregator, compiled."""
        rule = jax.jit(self.aggregator)
        arguments = (
            jax.random.key(0, impl="threefry2x32"),
            jnp.asarray(self.messages()),
            jnp.ones(self.num_rows),
            jnp.zeros(self.num_columns),
        )
        return Repeated(lambda: rule(*arguments)[0].block_until_ready())

    def loss(self, result: np.ndarray) -> float | None:
        """Returns the rows' mean distance to a geometric median."""
        if self.kind != "geometric_median":
            return None
        offsets = self.messages().astype(np.float64) - result.astype(np.float64)
        return float(np.linalg.norm(offsets, axis=1).mean())


def _torch(rule: Rule, messages: Any) -> Call:
    """Returns a rule in PyTorch."""
    return {
        # PyTorch's own, the lower of two middle values.
        "median": lambda: messages.median(dim=0).values,
        "geometric_median": lambda: _torch_geometric_median(messages),
        "krum": lambda: _torch_krum(messages, rule.num_outliers),
    }[rule.kind]


def _torch_geometric_median(x: Any, tolerance: float = 1e-6) -> Any:
    """Takes Weiszfeld's steps from the mean, until the mean unit pull is small."""
    length = library("torch").linalg.vector_norm
    center = x.mean(dim=0)
    for _ in range(_STEPS):
        pull = 1 / length(x - center, dim=1).clamp_min(1e-12)
        following = pull @ x / pull.sum()
        residual = length(following - center) * pull.mean()
        center = following
        if residual <= tolerance:
            break
    return center


def _torch_krum(x: Any, num_outliers: int) -> Any:
    """Returns the row closest to its nearest ones, distances from one product."""
    square = (x * x).sum(dim=1)
    distance = square[:, None] + square[None] - 2 * (x @ x.T)
    distance.fill_diagonal_(float("inf"))
    nearest = distance.topk(len(x) - num_outliers - 2, dim=1, largest=False).values
    return x[nearest.sum(dim=1).argmin()]


def _byzfl(rule: Rule, messages: Any) -> Call:
    """Returns its rule; the geometric median with 20 steps, and a radius like ours."""
    name, *arguments = {
        "median": ("Median",),
        "geometric_median": ("GeometricMedian", 1e-6, 20),
        "krum": ("Krum", rule.num_outliers),
    }[rule.kind]
    return functools.partial(getattr(library("byzfl"), name)(*arguments), messages)


def _geom_median(rule: Rule, messages: Any) -> Call:
    """Returns it with its own defaults, which stop when the objective stops falling."""
    compute = library("geom_median.torch").compute_geometric_median
    rows = list(messages)
    return lambda: compute(rows).median


_PEERS = {"torch": _torch, "byzfl": _byzfl, "geom-median": _geom_median}


def _krum(name: str, num_rows: int) -> Rule:
    """Returns Krum that expects the outliers that there are."""
    title = f"Krum of {num_rows:,} x {_COLUMNS:,}"
    rule = aggregators.Krum(num_malicious=num_rows // _OUTLIERS)
    return Rule(name, title, ("torch", "byzfl"), "krum", num_rows, rule)


_ALL = (
    Rule(
        "A1",
        "coordinate median of 100 x 100,000",
        ("torch", "byzfl"),
        "median",
        100,
        aggregators.CoordinateMedian(),
    ),
    Rule(
        "A2",
        "geometric median of 100 x 100,000 to 1e-6",
        ("torch", "byzfl", "geom-median"),
        "geometric_median",
        100,
        aggregators.GeometricMedian(tolerance=1e-6),
    ),
    _krum("A3", 100),
    _krum("A3large", 1000),
)
RULES = {rule.name: rule for rule in _ALL}
