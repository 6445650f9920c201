"""Participation in a round, and budgets of local work."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct

__all__ = [
    "NO_CAP",
    "AllClients",
    "ClientBudgets",
    "FullWork",
    "Stragglers",
    "UniformCohort",
    "by_random_bits",
    "check_size",
]

NO_CAP = 2**30
_LARGE = 65536


@struct.pytree_dataclass
class AllClients(core.Participation):
    """Every client takes part in every round.

    Example:
      >>> import jax
      >>> AllClients()(jax.random.key(0), 3).tolist()
      [0, 1, 2]
    """

    def cohort_size(self, num_clients: int) -> int:
        """Counts cohort members: all `num_clients`."""
        return num_clients

    def __call__(self, key: core.Key, num_clients: int) -> jax.Array:
        """Returns `int32[N]`, all rows in order; the key is unused."""
        del key
        return jnp.arange(num_clients, dtype=jnp.int32)


@struct.pytree_dataclass
class UniformCohort(core.Participation):
    """A cohort drawn uniformly without replacement in every round.

    With more than 65,536 clients, and more than 8 per cohort member, the time of a draw
    depends on the size of the cohort only.

    Attributes:
      size: static number of cohort members K, at most the number of clients.
      among: static; number of clients from which cohorts are drawn, the first ones; the
        others never take part. None for all.

    Example:
      >>> import jax
      >>> cohort = UniformCohort(size=10)(jax.random.key(0), 1_000_000)
      >>> cohort.shape, bool((cohort[1:] > cohort[:-1]).all())
      ((10,), True)
    """

    size: int = struct.static_field(at_least=1)
    among: int | None = struct.static_field(default=None)

    def __post_init__(self):
        if self.among is not None:
            checks.whole("among", self.among, at_least=self.size)

    def cohort_size(self, num_clients: int) -> int:
        """Counts cohort members, K; an `InputError` if there are fewer clients."""
        check_size(self.size, num_clients)
        if self.among is not None and self.among > num_clients:
            raise checks.InputError(
                "Expected the among to be at most the number of clients"
                f" {num_clients}, got among={self.among}."
            )
        return self.size

    def eligible(self, num_clients: int) -> int:
        """Returns the number of clients from which cohorts are drawn."""
        return num_clients if self.among is None else self.among

    def __call__(self, key: core.Key, num_clients: int) -> jax.Array:
        """Draws a cohort `int32[K]`, distinct and ascending."""
        size = self.cohort_size(num_clients)
        num_clients = self.eligible(num_clients)
        # Sorting N numbers takes longer than drawing 2 K with replacement.
        sparse = num_clients > _LARGE and num_clients > 8 * size
        draw = _draw_distinct if sparse else _draw_by_sorting
        return jnp.sort(draw(key, num_clients, size))


def check_size(size: int, num_clients: int) -> None:
    """Refuses cohorts of more members than there are clients."""
    if size > num_clients:
        raise checks.InputError(
            "Expected the cohort size to be at most the number of clients"
            f" {num_clients}, got size={size}."
        )


def by_random_bits(key: core.Key, num_clients: int) -> tuple[jax.Array, jax.Array]:
    """Sorts rows `int32[N]` by 64 random bits; returns their upper half first."""
    high, low = jax.random.bits(key, (2, num_clients), jnp.uint32)
    rows = jnp.arange(num_clients, dtype=jnp.int32)
    high, _, rows = lax.sort((high, low, rows), num_keys=2)
    return high, rows


def _draw_by_sorting(key: core.Key, num_clients: int, size: int) -> jax.Array:
    """Returns the rows that come first when all rows are sorted by random bits."""
    return by_random_bits(key, num_clients)[1][:size]


def _draw_distinct(key: core.Key, num_clients: int, size: int) -> jax.Array:
    """Returns the first `size` distinct of `2 size + 64` draws with replacement."""
    # With N > max(65536, 8 size), about size / 4 draws repeat an earlier one; that more
    # than size + 64 do has a probability below 1e-200.
    count = 2 * size + 64
    draws = jax.random.randint(key, (count,), 0, num_clients, jnp.int32)
    position = jnp.arange(count, dtype=jnp.int32)
    draws, position = lax.sort((draws, position), num_keys=2)
    repeated = jnp.concatenate([jnp.zeros(1, bool), draws[1:] == draws[:-1]])
    # Back in the order of the draws, repeated ones last.
    _, rows = lax.sort((jnp.where(repeated, count, position), draws), num_keys=1)
    return rows[:size]


@struct.pytree_dataclass
class FullWork(core.Work):
    """Every cohort member does all of its local work."""

    def __call__(self, key: core.Key, client_ids: jax.Array) -> core.Budget:
        """Returns budgets without caps for clients `int32[K]`; the key is unused."""
        del key
        cap = jnp.full(client_ids.shape, NO_CAP, jnp.int32)
        return _capped(cap, jnp.zeros(client_ids.shape, bool))


@struct.pytree_dataclass
class Stragglers(core.Work):
    """Stragglers that stop early, drawn in every round.

    As in FedProx's experiments, `round((1 - fraction) K)` of the K members do all of
    their work, and each of the others has time for a number of epochs uniform in 1,
    ..., max_epochs - 1. A client's draw depends on the key and its id only, and the
    stragglers on the draws of the cohort: every method sees the same stragglers.

    Attributes:
      fraction: `[]` fraction of stragglers, between 0 and 1.
      max_epochs: static, at least 2; the local epochs of the other members, or their
        local steps if a method counts steps.

    Example:
      >>> import jax
      >>> work = Stragglers(fraction=0.5, max_epochs=2)
      >>> sorted(work(jax.random.key(0), jax.numpy.arange(4)).epochs.tolist())
      [1, 1, 1073741824, 1073741824]
    """

    fraction: float = struct.traced_field(default=0.5, at_least=0, at_most=1)
    max_epochs: int = struct.static_field(default=20, at_least=2)
    chooses: ClassVar[str] = "who lags behind, and by how much"

    def __call__(self, key: core.Key, client_ids: jax.Array) -> core.Budget:
        """Draws budgets `[K]` of a round; other members have no cap."""

        def draw(client_id: jax.Array) -> tuple[jax.Array, jax.Array]:
            bits_key, epochs_key = jax.random.split(jax.random.fold_in(key, client_id))
            epochs = jax.random.randint(epochs_key, (), 1, self.max_epochs, jnp.int32)
            return jax.random.bits(bits_key, (), jnp.uint32), epochs

        bits, epochs = jax.vmap(draw)(client_ids)
        count = client_ids.shape[0]
        slots = jnp.arange(count, dtype=jnp.int32)
        # By id if bits are equal, so that the order of the cohort does not matter.
        order = lax.sort((bits, client_ids, slots), num_keys=2)[2]
        place = jnp.zeros_like(slots).at[order].set(slots)
        straggler = place >= jnp.round((1 - self.fraction) * count).astype(jnp.int32)
        return _capped(jnp.where(straggler, epochs, NO_CAP), straggler)


@struct.pytree_dataclass
class ClientBudgets(core.Work):
    """Every client has its number of local epochs, the same in every round.

    Attributes:
      epochs: static tuple of numbers of epochs (steps if a method counts steps), each
        at least 0; client i has entry i modulo the length. A method's number of epochs
        is a second cap.

    Example:
      >>> import jax
      >>> ClientBudgets(epochs=(1, 5))(None, jax.numpy.arange(3)).epochs.tolist()
      [1, 5, 1]
    """

    epochs: tuple[int, ...] = struct.static_field(default=(1, 5))

    def __post_init__(self):
        if not isinstance(self.epochs, tuple) or not self.epochs:
            raise checks.InputError(
                "Expected epochs to be a tuple of whole numbers, at least one, got"
                f" {self.epochs!r}."
            )
        for number in self.epochs:
            checks.whole("every number of epochs", number, at_least=0)

    def __call__(self, key: core.Key, client_ids: jax.Array) -> core.Budget:
        """Returns the budgets of clients `int32[K]`; the key is unused."""
        del key
        numbers = jnp.asarray(self.epochs, jnp.int32)
        epochs = numbers[client_ids % len(self.epochs)]
        return _capped(epochs, jnp.zeros(client_ids.shape, bool))


def _capped(epochs: jax.Array, straggler: jax.Array) -> core.Budget:
    """Returns budgets with caps on epochs only."""
    steps = jnp.full(epochs.shape, NO_CAP, jnp.int32)
    return core.Budget(epochs=epochs, steps=steps, straggler=straggler)
