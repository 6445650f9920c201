"""Base class of generated data sets: one draw per seed, memory checks, precision."""

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets

__all__ = ["Generated", "owners", "require_memory", "rounded"]

_COPIES = 4  # of the examples while they are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated(abc.ABC):
    """Base class of sources that draw their examples."""

    name: ClassVar[str]

    __post_init__ = struct.check_fields

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Draws the data set, once per seed and number of clients."""
        if num_clients is None:
            raise checks.InputError(
                f"Data set {self.name!r} is generated for a number of clients: expected"
                " num_clients, got None."
            )
        require_memory(self.name, num_clients, self.count_numbers(num_clients))
        return _generate(self, seed, num_clients)

    @abc.abstractmethod
    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers that are drawn or computed, at least."""

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, num_clients: int) -> datasets.Dataset:
        """Draws the data set from a generator."""


@functools.lru_cache(maxsize=64)
def _generate(source: Generated, seed: int, num_clients: int) -> datasets.Dataset:
    """Draws a data set, which specifications that differ elsewhere share."""
    rng = datasets.generator(seed, datasets.Purpose.DATASET)
    return source.draw(rng, num_clients)


def require_memory(name: str, num_clients: int, count: int) -> None:
    """Checks that `count` numbers fit into memory, before they are drawn."""
    checks.memory(
        f"Data set {name!r} of {num_clients} clients",
        _COPIES * 8 * count,
        "generate fewer clients, or fewer or smaller examples",
    )


def rounded(values: np.ndarray) -> np.ndarray:
    """Rounds to float32, the stored precision, in float64."""
    largest = np.abs(values).max()
    if not largest <= np.finfo(np.float32).max:
        raise checks.InputError(
            "Expected generated values that fit into 32 bits, got one of size"
            f" {largest:g}; use smaller options."
        )
    return values.astype(np.float32).astype(np.float64)


def owners(num_clients: int, examples: int | np.ndarray) -> np.ndarray:
    """Returns the client `int32[S]` of each example, from its number of examples."""
    return np.repeat(np.arange(num_clients, dtype=np.int32), examples)
