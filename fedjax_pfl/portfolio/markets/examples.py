"""The decisions of all parties as examples, and their generated years."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, portfolio
from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.portfolio.markets import base, generators

__all__ = ["client_data", "generate_years"]

_LARGEST = 1e30  # of prices and relative changes, and 1 over the smallest


def client_data(
    real: np.ndarray,  # float64[N, T, m, F] prices of every party's assets
    generated: np.ndarray,  # float64[N, P, Y, m, F]
    train_days: int,  # R, the first days
    validation_days: int,  # after these; the test has the others
    *,
    window: int,
    rounds_per_year: int,
) -> dict[str, core.ClientData]:
    """Lays out the examples of all parties: train, validation and test of one pool."""
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
    # Of every example: the day of the growth that pays it, and of the decision.
    paid = np.r_[window:train_days, days : days + later, train_days:days]
    observed = paid - 1
    # A generated year follows the last training day.
    is_first = (paid >= days) & ((paid - days) % year_days == 0)
    observed[is_first] = train_days - 1
    close = prices[..., 0]
    growth = close[:, paid] / close[:, observed]
    growth = np.pad(growth, ((0, 0), (0, 0), (1, 0)), constant_values=1)  # of cash
    party = np.arange(num_clients, dtype=np.int32)
    # First row of the party, day, and number; -1 for held-out examples.
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
    sizes = {  # slots, and how many of them count as examples
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


def generate_years(
    market: base.Market,
    universes: np.ndarray,
    train_days: int,
    kinds: Sequence[generators.Generator],
    *,
    seed: int,
    years: int,
    year_days: int,
) -> np.ndarray:
    """Generates prices `[N, P, year_days, m, F]` after the last training price."""
    # Year p of client k depends on the seed, k, p and the client's training prices
    # alone: more clients or years leave it as it is.
    train = market.prices[:train_days]
    returns = np.diff(np.log(train[..., 0]), axis=0)
    # The first return is the one after the first price.
    is_unlisted = np.arange(1, train_days)[:, None] <= market.listed
    returns = np.where(is_unlisted, np.nan, returns)
    num_clients, num_assets = universes.shape
    prices = np.empty((num_clients, years, year_days, num_assets, train.shape[-1]))
    if years == 0:
        return prices

    rng = functools.partial(datasets.generator, seed)
    # Every client draws one of the generators.
    drawn = [
        rng(datasets.Purpose.GENERATORS, k).integers(len(kinds))
        for k in range(num_clients)
    ]
    for number, generator in enumerate(kinds):
        members = [client for client, kind in enumerate(drawn) if kind == number]
        fits = [rng(datasets.Purpose.AUGMENTATION, client, 0) for client in members]
        histories = [returns[:, universes[client]] for client in members]
        for client, sample in zip(members, generator.fit(fits, histories), strict=True):
            rngs = [
                rng(datasets.Purpose.AUGMENTATION, client, 1 + year)
                for year in range(years)
            ]
            path = np.cumsum(sample(rngs, year_days), axis=1)
            past = train[:, universes[client]]
            close = past[-1, :, 0] * np.exp(path)
            listing_day = int(market.listed[universes[client]].max())
            # High and low, relative to the close, are those of random training days.
            days = [r.integers(listing_day, train_days, year_days) for r in rngs]
            relative = past / past[..., :1]
            prices[client] = close[..., None] * relative[np.stack(days)]
    return prices
