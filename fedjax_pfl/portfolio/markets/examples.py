"""The decisions of all parties as examples of a federation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, portfolio
from fedjax_pfl.core import checks
from fedjax_pfl.portfolio.markets import periods

__all__ = ["client_data"]

_LARGEST = 1e30  # of prices and relative changes, and 1 over the smallest


def client_data(
    real: np.ndarray,
    generated: np.ndarray,
    split: periods.Split,
    *,
    window: int,
    rounds_per_year: int,
) -> dict[str, core.ClientData]:
    """Lays out what all parties decide and are paid.

    Args:
      real: `float64[N, T, m, F]` prices of every party's assets.
      generated: `float64[N, P, Y, m, F]` generated ones.
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
    days, numbers = _observed(tables)
    first = np.arange(num_clients) * tables.block
    x = np.empty((num_clients, len(days), 3), np.int32)
    x[..., 0], x[..., 1], x[..., 2] = first[:, None], days, numbers
    y = _stored("growth", _growth(real[..., 0], generated[..., 0], tables))
    pool = core.ClientData(
        x=jax.device_put(x.reshape(-1, 3)),
        y=jax.device_put(y.reshape(-1, y.shape[-1])),
        scale=jnp.ones((), jnp.float32),
        shift=jnp.zeros((), jnp.float32),
        constants=tables,
        index=jnp.zeros((num_clients, 1), jnp.int32),
        num_examples=jnp.zeros(num_clients, jnp.int32),
        client_id=jax.device_put(np.arange(num_clients, dtype=np.int32)),
    )
    sizes = {
        "train": (0, tables.slots, tables.n_real),
        "validation": (tables.slots, split.validation_days, split.validation_days),
        "test": (len(days) - split.test_days, split.test_days, split.test_days),
    }
    own = np.arange(num_clients)[:, None] * len(days)
    found = {}
    for name, (start, slots, count) in sizes.items():
        index = own + start + np.arange(slots)
        padding = np.zeros((num_clients, max(1 - slots, 0)), np.int64)
        index = np.concatenate([index, padding], axis=1).astype(np.int32)
        found[name] = dataclasses.replace(
            pool,
            index=jax.device_put(index),
            num_examples=jax.device_put(np.full(num_clients, count, np.int32)),
        )
    return found


def _stored(name: str, values: np.ndarray) -> np.ndarray:
    """Positive numbers in 32 bits, checked."""
    low, high = values.min(), values.max()
    if not (1 / _LARGEST <= low and high <= _LARGEST):  # which a NaN is not
        raise checks.InputError(
            f"Expected {name} between {1 / _LARGEST:g} and {_LARGEST:g}, real and"
            f" generated ones, got {low:g} to {high:g}."
        )
    return values.astype(np.float32)


def _observed(tables: portfolio.PriceTables) -> tuple[np.ndarray, np.ndarray]:
    """Physical day and number of every example of a party: training, then held out."""
    in_year = np.arange(tables.year_days)
    starts = tables.days + np.arange(tables.years)[:, None] * tables.year_days
    generated = np.where(in_year == 0, tables.train_days - 1, starts + in_year - 1)
    days = [
        np.arange(tables.window - 1, tables.train_days - 1),
        generated.reshape(-1),
        np.arange(tables.train_days - 1, tables.days - 1),
    ]
    numbers = [np.arange(tables.slots), np.full(len(days[-1]), -1)]
    return np.concatenate(days), np.concatenate(numbers)


def _growth(
    real: np.ndarray, generated: np.ndarray, tables: portfolio.PriceTables
) -> np.ndarray:
    """Computes the growth of every example `float64[N, examples, m+1]`, cash first."""
    paid = real[:, 1:] / real[:, :-1]  # [N, T-1, m], by the day before
    last = np.broadcast_to(
        real[:, None, None, tables.train_days - 1],
        (*generated.shape[:2], 1, real.shape[-1]),
    )
    before = np.concatenate([last, generated[:, :, :-1]], axis=2)
    made = (generated / before).reshape(len(real), -1, real.shape[-1])
    end = tables.train_days - 1
    growth = [paid[:, tables.window - 1 : end], made, paid[:, end:]]
    growth = np.concatenate(growth, axis=1)
    return np.concatenate([np.ones_like(growth[..., :1]), growth], axis=-1)
