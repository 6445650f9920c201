"""The decisions of all parties as examples of a federation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, portfolio
from fedjax_pfl.core import checks

__all__ = ["client_data"]

_LARGEST = 1e30  # of prices and relative changes, and 1 over the smallest


def client_data(
    real: np.ndarray,
    generated: np.ndarray,
    train_days: int,
    validation_days: int,
    *,
    window: int,
    rounds_per_year: int,
) -> dict[str, core.ClientData]:
    """Lays out the examples of all parties: a decision's window, and its growth.

    Args:
      real: `float64[N, T, m, F]` prices of every party's assets.
      generated: `float64[N, P, Y, m, F]` generated prices.
      train_days: R, the first days.
      validation_days: days after these; the test has the others.
      window: l, days that a decision sees.
      rounds_per_year: see `portfolio.PriceTables`.

    Returns:
      `train`, `validation` and `test` of one pool, as `PortfolioSpec.build` describes
      them.

    Raises:
      InputError: if prices or their changes do not fit into 32 bits.
    """
    num_clients, years, year_days = generated.shape[:3]
    days, later = real.shape[1], years * year_days
    generated = generated.reshape(num_clients, later, *real.shape[2:])
    prices = np.concatenate([real, generated], axis=1)
    tables = portfolio.PriceTables(
        prices=jax.device_put(_stored("prices", prices).reshape(-1, *real.shape[2:])),
        days=days,
        train_days=train_days,
        window=window,
        years=years,
        rounds_per_year=rounds_per_year,
        year_days=year_days,
    )
    # Of every example: the day on which it is observed, and the next, which pays it.
    paid = np.r_[window:train_days, days : days + later, train_days:days]
    observed = paid - 1
    is_first = (paid >= days) & ((paid - days) % year_days == 0)
    observed[is_first] = train_days - 1
    close = prices[..., 0]
    growth = close[:, paid] / close[:, observed]
    growth = np.pad(growth, ((0, 0), (0, 0), (1, 0)), constant_values=1)  # of cash
    party = np.arange(num_clients, dtype=np.int32)
    x = np.full((num_clients, len(paid), 3), -1, np.int32)
    x[..., 0] = party[:, None] * tables.block
    x[..., 1] = observed
    x[:, : tables.slots, 2] = np.arange(tables.slots)
    pool: dict[str, Any] = {
        "x": jax.device_put(x.reshape(-1, 3)),
        "y": jax.device_put(_stored("growth", growth).reshape(-1, growth.shape[-1])),
        "scale": jnp.ones((), jnp.float32),
        "shift": jnp.zeros((), jnp.float32),
        "constants": tables,
        "client_id": jax.device_put(party),
    }
    test_days = days - train_days - validation_days
    sizes = {  # slots, of which so many are counted as examples
        "train": (tables.slots, tables.n_real),
        "validation": (validation_days, validation_days),
        "test": (test_days, test_days),
    }
    start, parts = np.arange(num_clients)[:, None] * len(paid), {}
    for name, (slots, count) in sizes.items():
        index = np.zeros((num_clients, max(1, slots)), np.int32)
        index[:, :slots] = start + np.arange(slots)
        start = start + slots
        num_examples = np.full(num_clients, count, np.int32)
        parts[name] = core.ClientData(
            **pool, **jax.device_put({"index": index, "num_examples": num_examples})
        )
    return parts


def _stored(name: str, values: np.ndarray) -> np.ndarray:
    """Converts positive numbers to 32 bits; checks their range."""
    low, high = values.min(), values.max()
    if not (1 / _LARGEST <= low and high <= _LARGEST):  # also true of NaN
        raise checks.InputError(
            f"Expected real and generated {name} between {1 / _LARGEST:g} and"
            f" {_LARGEST:g}, got {low:g} to {high:g}."
        )
    return values.astype(np.float32)
