"""The decisions of all parties as examples of a federation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, portfolio
from fedjax_pfl.core import checks
from fedjax_pfl.portfolio.markets import base

__all__ = ["client_data"]

_LARGEST = 1e30  # of prices and relative changes, and 1 over the smallest


def client_data(
    real: np.ndarray,
    generated: np.ndarray,
    split: base.Split,
    *,
    window: int,
    rounds_per_year: int,
) -> dict[str, core.ClientData]:
    """Lays out the examples of all parties: a decision's window, and its growth.

    Args:
      real: `float64[N, T, m, F]` prices of every party's assets.
      generated: `float64[N, P, Y, m, F]` generated prices.
      split: of the T days.
      window: l, days that a decision sees.
      rounds_per_year: see `portfolio.PriceTables`.

    Returns:
      `train`, `validation` and `test` of one pool, as `PortfolioSpec.build` describes
      them.

    Raises:
      InputError: if prices or their changes do not fit into 32 bits.
    """
    num_clients, years, year_days = generated.shape[:3]
    later = generated.reshape(num_clients, years * year_days, *real.shape[2:])
    prices = _stored("prices", np.concatenate([real, later], axis=1))
    tables = portfolio.PriceTables(
        prices=jax.device_put(prices.reshape(-1, *real.shape[2:])),
        days=split.days,
        train_days=split.train_days,
        window=window,
        years=years,
        rounds_per_year=rounds_per_year,
        year_days=year_days,
    )
    growth = _stored("growth", _growth(real[..., 0], generated[..., 0], tables))
    pool = _pool(tables, growth)
    sizes = {  # slots, of which so many are counted as examples
        "train": (tables.slots, tables.n_real),
        "validation": (split.validation_days, split.validation_days),
        "test": (split.test_days, split.test_days),
    }
    start = np.arange(num_clients)[:, None] * growth.shape[1]
    parts = {}
    for name, (slots, count) in sizes.items():
        index = np.zeros((num_clients, max(1, slots)), np.int32)
        index[:, :slots] = start + np.arange(slots)
        start = start + slots
        num_examples = np.full(num_clients, count, np.int32)
        parts[name] = core.ClientData(
            **pool, **jax.device_put({"index": index, "num_examples": num_examples})
        )
    return parts


def _pool(tables: portfolio.PriceTables, growth: np.ndarray) -> dict[str, Any]:
    """Builds the fields that all parts share, from the growth of all examples."""
    num_clients, num_examples, _ = growth.shape
    in_year = np.arange(tables.year_days)
    starts = tables.days + np.arange(tables.years)[:, None] * tables.year_days
    generated = np.where(in_year == 0, tables.train_days - 1, starts + in_year - 1)
    days = [
        np.arange(tables.window - 1, tables.train_days - 1),
        generated.reshape(-1),
        np.arange(tables.train_days - 1, tables.days - 1),
    ]
    x = np.full((num_clients, num_examples, 3), -1, np.int32)
    x[..., 0] = np.arange(num_clients)[:, None] * tables.block
    x[..., 1] = np.concatenate(days)
    x[:, : tables.slots, 2] = np.arange(tables.slots)
    return {
        "x": jax.device_put(x.reshape(-1, 3)),
        "y": jax.device_put(growth.reshape(-1, growth.shape[-1])),
        "scale": jnp.ones((), jnp.float32),
        "shift": jnp.zeros((), jnp.float32),
        "constants": tables,
        "client_id": jax.device_put(np.arange(num_clients, dtype=np.int32)),
    }


def _stored(name: str, values: np.ndarray) -> np.ndarray:
    """Converts positive numbers to 32 bits; checks their range."""
    low, high = values.min(), values.max()
    if not (1 / _LARGEST <= low and high <= _LARGEST):  # also true of NaN
        raise checks.InputError(
            f"Expected real and generated {name} between {1 / _LARGEST:g} and"
            f" {_LARGEST:g}, got {low:g} to {high:g}."
        )
    return values.astype(np.float32)


def _growth(
    real: np.ndarray, generated: np.ndarray, tables: portfolio.PriceTables
) -> np.ndarray:
    """Computes the growth `float64[N, examples, m+1]` of every example, cash first."""
    paid = real[:, 1:] / real[:, :-1]  # [N, T-1, m], by the day before
    end = tables.train_days - 1
    before = np.roll(generated, 1, axis=2)
    before[:, :, 0] = real[:, None, end]
    later = (generated / before).reshape(len(real), -1, real.shape[-1])
    parts = [paid[:, tables.window - 1 : end], later, paid[:, end:]]
    growth = np.concatenate(parts, axis=1)
    return np.concatenate([np.ones_like(growth[..., :1]), growth], axis=-1)
