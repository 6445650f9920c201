"""What generated data sets share: one draw per seed, memory checks, precision."""

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets

__all__ = ["Generated", "owners", "require_memory", "rounded"]

_COPIES = 4  # of the examples, that exist while they are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated(abc.ABC):
    """A source that draws its examples."""

    name: ClassVar[str]

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Draws the data set, once per seed and number of clients."""
        if num_clients is None:
            raise checks.InputError(
                f"Data set {self.name!r} is generated for a number of clients: expected"
                " num_clients, got None."
            )
        count = num_clients * self.numbers_per_client + self.common_numbers
        require_memory(self.name, num_clients, count)
        return _generate(self, seed, num_clients)

    @property
    @abc.abstractmethod
    def numbers_per_client(self) -> int:
        """Numbers that are drawn or computed for every client, at least."""

    @property
    def common_numbers(self) -> int:
        """Numbers that are drawn once for all clients."""
        return 0

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws the data set from a generator."""


@functools.lru_cache(maxsize=64)
def _generate(source: Generated, seed: int, num_clients: int) -> datasets.Dataset:
    """Keeps generated sets, so that specifications that differ elsewhere share them."""
    rng = datasets.generator(seed, datasets.Purpose.DATASET)
    return source.draw(rng, num_clients)


def require_memory(name: str, num_clients: int, count: int) -> None:
    """Checks that so many numbers can be drawn, before they are.

    Args:
      name: of the data set.
      num_clients: N.
      count: numbers of all clients together.

    Raises:
      InputError: if there is not enough memory.
    """
    checks.memory(
        f"Data set {name!r} of {num_clients} clients",
        _COPIES * 8 * count,
        "generate fewer clients, or fewer or smaller examples",
    )


def rounded(values: np.ndarray) -> np.ndarray:
    """Rounds to float32, the stored precision."""
    largest = np.abs(values).max()
    if not largest <= np.finfo(np.float32).max:
        raise checks.InputError(
            "Expected generated values that fit into 32 bits, got one of size"
            f" {largest:g}; use smaller options."
        )
    return values.astype(np.float32).astype(np.float64)


def owners(num_clients: int, examples: int | np.ndarray) -> np.ndarray:
    """Client `int32[S]` of each example, from the number or numbers of examples."""
    return np.repeat(np.arange(num_clients, dtype=np.int32), examples)
