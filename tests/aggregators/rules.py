"""Every aggregator as a rule for a matrix of rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import aggregators
from fedjax_pfl.algorithms import registry
from tests.lanes import few

KEY = jax.random.key(0)
RULES = {name: cls() for name, cls in registry.AGGREGATORS.items()}
del RULES["modular_mean"]  # of fixed point numbers: no equivariance
del RULES["product_mean"]  # of adapters only: test_product_mean.py
RULES["geometric_median, prox"] = aggregators.GeometricMedian(
    rho=2.0, method="prox", weighting="examples", max_iterations=2000
)
# Only means can be kept incrementally, and only they are not robust.
MEANS = [name for name, rule in RULES.items() if rule.incremental is not None]
CLIPPING = ["centered_clipping", "norm_clipping"]  # about the server's model
# Rules without a parameter that needs a smaller share of attackers than one half.
ROBUST = ["coordinate_median", "geometric_median", "krum"]
ROBUST += ["trimmed_mean", "meamed", "nearest_neighbor_mixing"]
# Rules whose mathematics is in test_robust_rules.py; here on demand only.
_MORE = {*ROBUST[3:], *CLIPPING, "bulyan", "bucketing", "geometric_median, prox"}


def _each(names):
    params = few({*names} - _MORE, names)
    return pytest.mark.parametrize("name", params)


each_rule = _each(RULES)
each_free_rule = _each([name for name in RULES if name not in CLIPPING])
each_robust_rule = _each(ROBUST)
each_mean_or_robust_rule = _each([*MEANS, *ROBUST])

run = jax.jit(lambda rule, *args: rule(KEY, *args))


def matrix(
    rows, weights=None, *, name="geometric_median", rule=None, dtype=float, pad_to=13
):
    """Aggregates `[K, D]` by a rule whose messages have two leaves.

    Rows of weight 0 are added up to `pad_to`, so that tests share compiled programs.
    """
    rows = np.asarray(rows, dtype)
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights)
    padding = max(pad_to - len(rows), 0)
    rows = np.pad(rows, ((0, padding), (0, 0)))
    weights = np.pad(weights, (0, padding))
    split = rows.shape[1] // 2
    messages = {"a": rows[:, :split], "b": rows[:, split:]}
    reference = {"a": np.full(split, 7.0, dtype)}
    reference["b"] = np.full(rows.shape[1] - split, 7.0, dtype)
    rule = RULES[name] if rule is None else rule
    out, info = run(rule, messages, jnp.asarray(weights, dtype), reference)
    assert out["a"].dtype == dtype
    return np.concatenate([out["a"], out["b"]]), info


unpadded = functools.partial(matrix, pad_to=0)


def random_rows(count=7, size=6, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size))


WEIGHTS = np.array([3.0, 1, 4, 1, 5, 9, 2])
