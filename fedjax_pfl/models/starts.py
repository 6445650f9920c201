"""Parameters that trainings start from, of any model."""

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct, tree_paths

__all__ = ["Pretrained", "Startable"]


class Pretrained:
    """Parameters to start from, NumPy arrays; equal to others of the same SHA-256."""

    def __init__(self, params: core.Params, digest: str | None = None):
        """Takes a tree; the digest is only given for tracers."""
        # Programs take the tree as an argument, so that it is compiled into none; it is
        # a tree of tracers then.
        self.params, self.digest = params, digest or _digest(params)

    @functools.cached_property
    def on_device(self) -> core.Params:
        """The tree on the device, for all trainings that start from it."""
        return jax.tree.map(_of_run, self.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pretrained) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Pretrained(sha256 {self.digest})"


def _of_run(leaf: jax.Array) -> jax.Array:
    """Returns an array in the floating type of the run, without a copy if it has it."""
    return jnp.asarray(leaf, jnp.zeros(()).dtype)


def _digest(params: core.Params) -> str:
    """Computes the digest of a tree of arrays."""
    digest = hashlib.sha256()
    for name, leaf in tree_paths.by_name(params).items():
        digest.update(f"{name} {leaf.dtype} {leaf.shape} ".encode())
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _pretrained(params: core.Params) -> Pretrained | None:
    """Takes a user's initial parameters to the host."""
    if params is None or isinstance(params, Pretrained):
        return params
    if isinstance(params, Iterator):
        raise checks.InputError(
            f"Expected initial_params to be a tree of arrays, got {params!r}."
        )
    for name, leaf in tree_paths.by_name(params).items():
        values = np.asarray(leaf)
        if values.dtype.kind not in "fiuV" or not np.isfinite(values).all():
            raise checks.InputError(
                f"Expected initial_params of finite numbers, but {name!r} has others."
            )
    # Copied: the digest must stay that of the values.
    return Pretrained(jax.tree.map(np.array, params))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Startable(core.Model):
    """A model with initial parameters that all trainings may share; abstract.

    Attributes:
      initial_params: tree of arrays like `init` returns, from which every training of
        every method starts; None draws the parameters of each. Running statistics, of a
        network that has some, stand there below `batch_stats`.
    """

    initial_params: core.Params = None

    def __post_init__(self):
        struct.check_fields(self)
        start = _pretrained(self.initial_params)
        object.__setattr__(self, "initial_params", start)  # the class is frozen

    @property
    def name(self) -> str:
        """Name of the network, for messages."""
        return type(self).__name__

    @abc.abstractmethod
    def _draw(self, key: core.Key) -> core.Params:
        """Draws parameters, with first running statistics as `statistics.joined`."""

    def _start(self, key: core.Key) -> core.Params:
        """Draws the initial parameters, or returns the given ones."""
        if self.initial_params is None:
            return self._draw(key)
        return jax.tree.map(_of_run, self.initial_params.params)

    def init(self, key: core.Key) -> core.Params:
        """Draws the parameters, or returns those to start from."""
        return statistics.split(self._start(key))[0]

    def first_statistics(self) -> core.Tree:
        """Returns running statistics before the first round; None without any."""
        # Without the start, on which it does not depend, the cache has one entry.
        if not _has_statistics(dataclasses.replace(self, initial_params=None)):
            return None
        running = statistics.split(self._start(core.seed_key(0)))[1]
        return jax.tree.map(_of_run, running)

    def _require_statistics(self, running: core.Tree) -> None:
        """Refuses to run a network with running statistics without these."""
        if running is None and self.first_statistics() is not None:
            raise checks.InputError(
                f"Expected parameters of {self.name} with their running statistics"
                f" {statistics.NAME!r}, or constants with them."
            )

    def starting_at(self, params: core.Params) -> Self:
        """Returns the model with an argument of the program to start from."""
        assert self.initial_params is not None
        start = Pretrained(params, self.initial_params.digest)
        return dataclasses.replace(self, initial_params=start)

    def check_start(self) -> None:
        """Refuses initial parameters that do not fit the network."""
        if self.initial_params is None:
            return
        variables = jax.eval_shape(self._draw, core.seed_key(0))
        shapes = tree_paths.by_name(variables)
        start = tree_paths.by_name(self.initial_params.params)
        for leaf in sorted(start.keys() ^ shapes.keys()):
            problem = "have no" if leaf in shapes else "also have"
            raise checks.InputError(
                f"Expected initial_params with the leaves of {self.name}'s own"
                f" parameters, but they {problem} {leaf!r}; its own are"
                f" {', '.join(shapes)}."
            )
        for leaf, spec in shapes.items():
            shape, dtype = start[leaf].shape, start[leaf].dtype
            if shape != spec.shape or not jnp.issubdtype(dtype, jnp.floating):
                raise checks.InputError(
                    f"Expected initial_params like those of {self.name}, with {leaf!r}"
                    f" as {spec.dtype}{[*spec.shape]}, got {dtype}{[*shape]}."
                )


@functools.lru_cache(maxsize=32)
def _has_statistics(model: Startable) -> bool:
    """Returns whether a model has running statistics, without computing them."""
    variables = jax.eval_shape(model._draw, core.seed_key(0))
    return statistics.split(variables)[1] is not None
