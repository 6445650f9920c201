"""Participation whose randomness, or order, differential privacy can account for."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.local.participation import by_random_bits, check_size

__all__ = ["CyclicCohorts", "PoissonCohort"]

_RARE = 1e-9  # chance of a round in which a capacity of our own choice is too small


@struct.pytree_dataclass
class PoissonCohort(core.Participation):
    """Every client takes part by itself, with the same probability, in every round.

    The number of participants varies, but shapes cannot: a cohort has `capacity` rows.
    Where fewer take part, the others are clients that do no work, keep their states and
    send nothing; where more would, as many of them as there are rows, drawn uniformly,
    do. The time of a round follows the capacity, and that of the draw all clients.

    Attributes:
      rate: static probability q of each client, in (0, 1], exact to 2^-32.
      capacity: static number of rows K; None for the smallest that is too small in at
        most one round of 10^9.

    Example:
      >>> import jax
      >>> cohort, key = PoissonCohort(rate=0.2, capacity=4), jax.random.key(0)
      >>> cohort(key, 10).shape, int(cohort.present(key, 10).sum())
      ((4,), 2)
    """

    rate: float = struct.static_field(default=0.1, above=0, at_most=1)
    capacity: int | None = struct.static_field(default=None, at_least=1)

    def cohort_size(self, num_clients: int) -> int:
        """Counts the rows of a cohort.

        Args:
          num_clients: N.

        Returns:
          K, at most N.

        Raises:
          InputError: if the capacity is above the number of clients.
        """
        if self.capacity is None:
            return _rarely_exceeded(num_clients, self.rate)
        if self.capacity > num_clients:
            raise checks.InputError(
                f"Expected a capacity of at most the number of clients {num_clients},"
                f" got {self.capacity}."
            )
        return self.capacity

    def expected(self, num_clients: int) -> float:
        """Returns how many clients take part on average, q N."""
        return self.rate * num_clients

    def __call__(self, key: core.Key, num_clients: int) -> jax.Array:
        """Draws the rows of a cohort.

        Args:
          key: `[]` key.
          num_clients: N.

        Returns:
          `int32[K]`, distinct and ascending.
        """
        return self._drawn(key, num_clients)[0]

    def present(self, key: core.Key, num_clients: int) -> jax.Array:
        """Returns `bool[K]`: which of the drawn rows take part."""
        return self._drawn(key, num_clients)[1]

    def _drawn(self, key: core.Key, num_clients: int) -> tuple[jax.Array, jax.Array]:
        """Returns the rows with the smallest random bits, and who is below the rate.

        Those below it come first, in an order that is uniform among them.
        """
        size = self.cohort_size(num_clients)
        high, rows = (x[:size] for x in by_random_bits(key, num_clients))
        last = np.uint32(max(int(self.rate * 2**32), 1) - 1)
        rows, is_present = lax.sort((rows, high <= last), num_keys=1)
        return rows, is_present


@functools.lru_cache(maxsize=64)
def _rarely_exceeded(num_clients: int, rate: float) -> int:
    """Returns the smallest K that a binomial number exceeds rarely enough."""
    from scipy import special

    low, high = 1, num_clients
    while low < high:
        middle = (low + high) // 2
        if special.bdtrc(middle, num_clients, rate) <= _RARE:
            high = middle
        else:
            low = middle + 1
    return low


@struct.pytree_dataclass
class CyclicCohorts(core.Participation):
    """Cohorts in turn: who has taken part waits until all others have, too.

    Round r takes the places `r K, ..., r K + K - 1` modulo N of an order of all clients
    that never changes. Between two rounds of a client there are never less than
    `floor(N / K) - 1` others.

    Attributes:
      size: static number of cohort members K, at most the number of clients.
      order: static seed of the order of clients.

    Example:
      >>> cohorts = CyclicCohorts(size=2)
      >>> rounds = [cohorts.in_round(None, 6, r).tolist() for r in range(4)]
      >>> sorted(sum(rounds[:3], [])), rounds[3] == rounds[0]
      ([0, 1, 2, 3, 4, 5], True)
    """

    size: int = struct.static_field(at_least=1)
    order: int = struct.static_field(default=0, at_least=0)

    def cohort_size(self, num_clients: int) -> int:
        """Counts cohort members.

        Args:
          num_clients: N.

        Returns:
          K.

        Raises:
          InputError: if there are fewer clients.
        """
        check_size(self.size, num_clients)
        return self.size

    def separation(self, num_clients: int) -> int:
        """Returns the rounds b in a row of which no client has two, `floor(N / K)`."""
        return num_clients // self.cohort_size(num_clients)

    def in_round(self, key: Any, num_clients: int, round: Any) -> jax.Array:
        """Returns the cohort of a round.

        Args:
          key: not used.
          num_clients: N.
          round: `int32[]` r.

        Returns:
          `int32[K]`, distinct and ascending.
        """
        size = self.cohort_size(num_clients)
        order = np.random.default_rng(self.order).permutation(num_clients)
        order = jnp.asarray(order, jnp.int32)
        turn = num_clients // np.gcd(num_clients, size)  # rounds until all begins anew
        firsts = np.arange(turn) * size % num_clients  # of 64 bits: r K may be large
        first = jnp.asarray(firsts, jnp.int32)[round % turn]
        return jnp.sort(order[(first + jnp.arange(size)) % num_clients])
