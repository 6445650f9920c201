"""Every aggregator as a rule for a matrix of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators

KEY = jax.random.key(0)
RULES = {name: cls() for name, cls in aggregators.AGGREGATORS.items()}
RULES["geometric_median, prox"] = aggregators.GeometricMedian(
    rho=2.0, method="prox", weighting="examples", max_iterations=2000
)
# Only means can be kept incrementally, and only they are not robust.
ROBUST = [n for n in aggregators.AGGREGATORS if RULES[n].incremental is None]
MEANS = [name for name in aggregators.AGGREGATORS if name not in ROBUST]
each_rule = pytest.mark.parametrize("name", RULES)
each_robust_rule = pytest.mark.parametrize("name", ROBUST)

run = jax.jit(lambda rule, *args: rule(KEY, *args))


def matrix(rows, weights=None, *, name="geometric_median", rule=None, dtype=float):
    """Aggregates `[K, D]` by a rule whose messages have two leaves."""
    rows = np.asarray(rows, dtype)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights)
    split = rows.shape[1] // 2
    messages = {"a": jnp.asarray(rows[:, :split]), "b": jnp.asarray(rows[:, split:])}
    reference = {"a": jnp.full(split, 7.0, dtype)}
    reference["b"] = jnp.full(rows.shape[1] - split, 7.0, dtype)
    rule = RULES[name] if rule is None else rule
    out, info = run(rule, messages, jnp.asarray(weights, dtype), reference)
    assert out["a"].dtype == dtype
    return np.concatenate([out["a"], out["b"]]), info


def random_rows(count=7, size=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


WEIGHTS = np.array([3.0, 1, 4, 1, 5, 9, 2])
