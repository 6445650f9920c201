"""Price tables of all parties, their windows, and the sampling of training days.

A party has a block of `T + P * year_days` rows: T real days, the first R for training,
then P generated years. Day j of generated year p is the physical day
`T + p * year_days + j`; its year follows the last training day `R - 1`, not day T - 1.

Examples of a party are numbered in the order of its training list:

    e = 0 .. n_real - 1             real: observed at day l - 1 + e, paid by the growth
                                    from there to the next day, the last by day R - 1
    e = n_real + p * year_days + j  generated: observed at day R - 1 (j = 0) or at day
                                    j - 1 of year p, paid by the growth into day j
    e = -1                          held out (validation, test): no number

In round r the examples of one generated year, `p = min(r // rounds_per_year, P - 1)`,
follow the real ones.
"""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct

__all__ = ["PriceTables", "batch_positions", "previous_example", "windows"]


@struct.pytree_dataclass
class PriceTables:
    """Prices of all parties: the `constants` of a portfolio federation.

    Attributes:
      prices: `float32[rows, m, F]`, positive; feature 0 is the close, and for F = 3
        high and low follow. Party k has the rows from `k * block`.
      days: T, real days of a party.
      train_days: R, real days up to and including the last training price.
      year_days: days of a generated year.
      years: P, generated years; 0 for none.
      rounds_per_year: rounds after which the next generated year replaces the one
        before.
      window: l, days that a decision sees.
    """

    prices: jax.Array
    days: int = struct.static_field(at_least=1)
    train_days: int = struct.static_field()
    window: int = struct.static_field(default=30, at_least=1)
    years: int = struct.static_field(default=0, at_least=0)
    rounds_per_year: int = struct.static_field(default=20, at_least=1)
    year_days: int = struct.static_field(default=252, at_least=1)

    def __post_init__(self):
        least = self.window + 1
        checks.whole("train_days", self.train_days, at_least=least, at_most=self.days)

    @property
    def block(self) -> int:
        """Number of rows of one party."""
        return self.days + self.years * self.year_days

    @property
    def n_real(self) -> int:
        """Number of real training examples of one party."""
        return self.train_days - self.window

    @property
    def slots(self) -> int:
        """Number of training examples of one party, all generated years included."""
        return self.n_real + self.years * self.year_days

    @property
    def num_logical(self) -> int:
        """Number of training examples in one round: real ones, and of one year."""
        return self.n_real + (self.year_days if self.years else 0)


def windows(tables: PriceTables, x: jax.Array) -> jax.Array:
    """Gathers the prices of the last l days, in units of the last close.

    Args:
      tables: prices of all parties.
      x: `int32[..., 3]` first row of the party's block, physical day d, and number of
        the example, which is not read.

    Returns:
      `float32[..., m, l, F]`, oldest day first; `[..., -1, 0]` is 1 up to rounding. A
      window of generated day j < l - 1 goes on backwards in the real days R - 1, R - 2,
      ... A window that would begin before day 0, which only padding has, repeats day 0.
    """
    start, day = x[..., 0, None], x[..., 1, None]
    back = jnp.arange(1 - tables.window, 1, dtype=x.dtype)
    back = jnp.expand_dims(back, range(x.ndim - 1))  # promotion of ranks is an error
    # A window of generated day j < l - 1 goes on backwards in the real days R - 1, ...
    in_year = (day - tables.days) % tables.year_days
    reaches_back = (day >= tables.days) & (in_year + back < 0)
    days = jnp.where(reaches_back, tables.train_days + in_year + back, day + back)
    rows = start + jnp.maximum(days, 0)
    prices = jnp.moveaxis(tables.prices[rows], -3, -2)  # [..., m, l, F]
    return prices / prices[..., -1:, :1]


def previous_example(tables: PriceTables, e: jax.Array) -> jax.Array:
    """Returns the example that was decided one day before.

    Args:
      tables: prices of all parties, which define the numbers.
      e: `int32[...]` numbers of examples, or -1.

    Returns:
      `int32[...]`: `e - 1`; -1 (none) of the first real example and of -1; of the first
      example of every generated year, the last real example.
    """
    starts_year = (e >= tables.n_real) & ((e - tables.n_real) % tables.year_days == 0)
    return jnp.where(starts_year, tables.n_real - 1, jnp.maximum(e - 1, -1))


def batch_positions(
    key: core.Key,
    tables: PriceTables,
    round: jax.Array | int,
    batch_size: int,
    decay: jax.Array | float,
) -> jax.Array:
    """Draws successive examples, recent ones with higher probability.

    The batch starts at s with probability proportional to `q (1 - q)^(last - s)`, s
    from 0 to `last = num_logical - batch_size`, by the inverse of the distribution
    function of this truncated geometric distribution.

    Args:
      key: `[]` key of this batch.
      tables: of the party; `batch_size` is at most `num_logical`.
      round: `int32[]` number of the round, from 0, which selects the generated year.
      batch_size: B, successive examples.
      decay: `[]` q in (0, 1]; at 1 every batch is the most recent one. A traced q
        outside gives an unspecified start within the range.

    Returns:
      `int32[B]` numbers of examples, which are positions in the party's training list.

    Raises:
      InputError: if the batch is longer than the examples, or a concrete q is out of
        range.
    """
    checks.whole("batch_size", batch_size, at_least=1, at_most=tables.num_logical)
    checks.number("decay", decay, above=0, at_most=1)
    last = tables.num_logical - batch_size
    q = jnp.asarray(decay, jnp.result_type(decay, float))
    log_kept = jnp.log1p(-q)  # -inf at q = 1, where the age below is 0
    mass = -jnp.expm1((last + 1) * log_kept)
    uniform = jax.random.uniform(key, dtype=q.dtype)
    # Inverse of the distribution function of a truncated geometric distribution.
    age = jnp.floor(jnp.log1p(-uniform * mass) / log_kept)
    # Rounding can make the largest age one too large. Clipped before the conversion,
    # which is undefined for NaN.
    age = jnp.clip(jnp.nan_to_num(age), 0, last).astype(jnp.int32)
    logical = last - age + jnp.arange(batch_size, dtype=jnp.int32)
    year = jnp.asarray(round, jnp.int32) // tables.rounds_per_year
    year = jnp.clip(year, 0, max(tables.years - 1, 0))
    is_real = logical < tables.n_real
    return logical + jnp.where(is_real, 0, year * tables.year_days)
