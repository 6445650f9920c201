"""Random or cyclic participation with an epsilon for differential privacy."""

import bisect
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.local.participation import by_random_bits, check_size

__all__ = ["CyclicCohorts", "PoissonCohort"]

_RARE = 1e-9  # probability of a round in which the default capacity is too small


@struct.pytree_dataclass
class PoissonCohort(core.Participation):
    """Every client takes part independently, with the same probability.

    The number of participants varies, but shapes cannot: a cohort has `capacity` rows.
    If fewer clients take part, the other rows are clients that do no work, keep their
    states and send no messages. If more would take part, a uniform subset does. The
    time of a round depends on the capacity, that of the draw on the number of clients.

    Attributes:
      rate: static probability q of each client, in (0, 1], exact to 2^-32.
      capacity: static number of rows K; None for the smallest number that is exceeded
        with a probability of at most 1e-9 per round.

    Example:
      >>> import jax
      >>> cohort, key = PoissonCohort(rate=0.2, capacity=4), jax.random.key(0)
      >>> cohort(key, 10).shape, int(cohort.present(key, 10).sum())
      ((4,), 2)
    """

    rate: float = struct.static_field(default=0.1, above=0, at_most=1)
    capacity: int | None = struct.static_field(default=None, at_least=1)

    def cohort_size(self, num_clients: int) -> int:
        """Counts the rows of a cohort, K; an `InputError` for a capacity above N."""
        if self.capacity is None:
            return _rarely_exceeded(num_clients, self.rate)
        if self.capacity > num_clients:
            raise checks.InputError(
                f"Expected a capacity of at most the number of clients {num_clients},"
                f" got {self.capacity}."
            )
        return self.capacity

    def expected(self, num_clients: int) -> float:
        """Returns the expected number of participants, q N."""
        return self.rate * num_clients

    def __call__(self, key: core.Key, num_clients: int) -> jax.Array:
        """Draws the rows `int32[K]` of a cohort, distinct and ascending."""
        return self._draw(key, num_clients)[0]

    def present(self, key: core.Key, num_clients: int) -> jax.Array:
        """Returns whether the drawn rows take part, `bool[K]`."""
        return self._draw(key, num_clients)[1]

    def _draw(self, key: core.Key, num_clients: int) -> tuple[jax.Array, jax.Array]:
        """Returns rows with the smallest random bits, and whether they take part."""
        size = self.cohort_size(num_clients)
        high, rows = (x[:size] for x in by_random_bits(key, num_clients))
        # Participants have bits below the rate, and their order is uniform.
        threshold = np.uint32(max(int(self.rate * 2**32), 1) - 1)
        rows, is_present = lax.sort((rows, high <= threshold), num_keys=1)
        return rows, is_present


@functools.lru_cache(maxsize=64)
def _rarely_exceeded(num_clients: int, rate: float) -> int:
    """Returns the smallest K that a binomial number exceeds with a low probability."""
    from scipy import special

    def is_rare(size: int) -> bool:
        return special.bdtrc(size, num_clients, rate) <= _RARE

    return 1 + bisect.bisect_left(range(1, num_clients), True, key=is_rare)


@struct.pytree_dataclass
class CyclicCohorts(core.Participation):
    """Cohorts in turn: a client takes part again after all others have.

    Round r takes the places `r K, ..., r K + K - 1` modulo N of a fixed order of all
    clients. Between two rounds of a client there are at least `floor(N / K) - 1` other
    rounds.

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
        """Counts cohort members, K; an `InputError` if there are fewer clients."""
        check_size(self.size, num_clients)
        return self.size

    def separation(self, num_clients: int) -> int:
        """Returns b = `floor(N / K)`: no client is in two of b consecutive rounds."""
        return num_clients // self.cohort_size(num_clients)

    def in_round(
        self, key: core.Key | None, num_clients: int, round: jax.Array | int
    ) -> jax.Array:
        """Returns the cohort of round r, `int32[K]`, distinct and ascending."""
        size = self.cohort_size(num_clients)
        # On the host: the order is a constant of the program.
        order = np.random.default_rng(self.order).permutation(num_clients)
        order = jnp.asarray(order, jnp.int32)
        turn = num_clients // np.gcd(num_clients, size)  # rounds of one period
        starts = np.arange(turn) * size % num_clients  # of 64 bits: r K may be large
        start = jnp.asarray(starts, jnp.int32)[round % turn]
        return jnp.sort(order[(start + jnp.arange(size)) % num_clients])
