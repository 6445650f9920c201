"""Examples of clients: the pool with its rows, and federations."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.typing import DTypeLike

from fedjax_pfl.core import checks, struct
from fedjax_pfl.core.aliases import Params, Tree
from fedjax_pfl.core.batch import Batch, Constants, with_personal_of
from fedjax_pfl.core.randomness import Key, Stream, seed_key
from fedjax_pfl.core.state import Population

__all__ = ["ClientData", "Federation"]


@struct.pytree_dataclass
class ClientData:
    """Examples of many clients (leading axis N) or, inside a map, of one (no N).

    Attributes:
      x: `[S, ...]` pool of inputs in their original dtype (`uint8` for images).
      y: `[S]` or `[S, ...]` pool of targets.
      scale: `[]` or `[...]` factor applied to `x` in the batch.
      shift: `[]` or `[...]` added after scaling.
      target_units: `[2]` mean m and deviation s of numeric targets; batches have
        (y - m) / s. None for unscaled targets.
      constants: pytree passed to the model with every batch, or None; `Constants` for
        a `RoleModel` or `StatisticsModel`.
      index: `int32[N, M]` rows of the pool; entries past `num_examples` are padding.
      num_examples: `int32[N]` examples per client, may be 0.
      client_id: `int32[N]` identity of each client, from which its randomness derives.
      labels: `[N, M]` labels that replace `y` (poisoned clients), or None.
      noise_scale: `[N]` std of Gaussian noise added to scaled inputs, or None.
      start: pretrained parameters from which the model starts, or None; compiled
        programs receive them with the data.
      numbers: `int32[S]` numbers of the samples in the data set, by which their noise
        is drawn, if positions in the pool differ from these; or None.
      resample_noise: whether training and evaluation draw this noise at every access;
        otherwise, and in full gradients, it is fixed per client and sample.
      num_parts: devices that divide the pool, in parts of equal length with the
        examples of a device's clients; see `core.divided_examples`.
    """

    x: jax.Array
    y: jax.Array
    scale: jax.Array
    shift: jax.Array
    index: jax.Array
    num_examples: jax.Array
    client_id: jax.Array
    labels: jax.Array | None = None
    noise_scale: jax.Array | None = None
    target_units: jax.Array | None = None
    constants: Tree = None
    start: Params = None
    numbers: jax.Array | None = None
    resample_noise: bool = struct.static_field(default=False)
    num_parts: int = struct.static_field(default=1)

    __repr__ = struct.array_repr

    def rows(self) -> dict[str, Any]:
        """Returns the fields with one row per client, by name."""
        rows = {name: getattr(self, name) for name in _CLIENT_FIELDS}
        constants = Constants.of(self.constants)
        trees = {name: getattr(constants, name) for name in _KEPT}
        return rows | {name: tree for name, tree in trees.items() if tree is not None}

    def pool(self) -> "ClientData":
        """Returns the data that all clients share, without rows."""
        data = self.with_rows(dict.fromkeys(_CLIENT_FIELDS))
        if not isinstance(self.constants, Constants):
            return data
        constants = dataclasses.replace(self.constants, **dict.fromkeys(_KEPT))
        return dataclasses.replace(data, constants=constants)

    def with_rows(self, rows: dict[str, Any]) -> "ClientData":
        """Returns a pool with the rows of some clients, or of one."""
        fields = {name: leaf for name, leaf in rows.items() if name not in _KEPT}
        data = dataclasses.replace(self, **fields)
        trees = {name: leaf for name, leaf in rows.items() if name in _KEPT}
        if not trees:
            return data
        constants = dataclasses.replace(Constants.of(self.constants), **trees)
        return dataclasses.replace(data, constants=constants)

    @property
    def personal(self) -> Tree:
        """Parameters that stay with the clients, like the rows, or None."""
        return Constants.of(self.constants).personal

    def with_personal(self, personal: Tree) -> "ClientData":
        """Returns the data with other parameters that stay with the clients."""
        constants = with_personal_of(self.constants, personal)
        return dataclasses.replace(self, constants=constants)

    @property
    def statistics(self) -> Tree:
        """Running statistics: rows of clients, shared ones, or None."""
        return Constants.of(self.constants).running

    def with_statistics(
        self, statistics: Tree = None, *, shared: Tree = None
    ) -> "ClientData":
        """Returns the data with running statistics.

        Args:
          statistics: statistics that stay with the clients, as rows, or None.
          shared: statistics of all clients, or None.
        """
        constants = dataclasses.replace(
            Constants.of(self.constants),
            statistics=statistics,
            shared_statistics=shared,
        )
        return dataclasses.replace(self, constants=constants)

    def gather(
        self,
        positions: jax.Array,
        weight: jax.Array,
        dtype: DTypeLike | None = None,
        *,
        key: Key | None = None,
    ) -> Batch:
        """Forms a batch of one client from positions in its list of examples.

        Args:
          positions: `int32[B]` in `[0, M)`; any value if the weight is 0.
          weight: `[B]` 1 for examples, 0 for padding.
          dtype: floating dtype of the inputs; by default the dtype of `weight`.
          key: `[]` key of this access, for `resample_noise`.

        Returns:
          The batch. Padded rows show the pool's row 0 with every non-finite value
          replaced, so that they contribute exactly zero to all results.
        """
        dtype = weight.dtype if dtype is None else dtype
        real = weight > 0
        row = jnp.where(real, self.index[positions], 0)
        x = self.x[row]
        if jnp.issubdtype(x.dtype, jnp.floating) or x.dtype == jnp.uint8:
            x = x.astype(dtype) * _per_row(self.scale, dtype) + _per_row(
                self.shift, dtype
            )
            if self.noise_scale is not None:
                x = x + self.noise_scale.astype(dtype) * self._noise(row, x, key)
            # Last, since shift and noise make padding nonzero.
            x = _mask_rows(real, x)
        y = self.y[row] if self.labels is None else self.labels[positions]
        if jnp.issubdtype(y.dtype, jnp.floating):
            y = y.astype(dtype)
            if self.target_units is not None:
                mean, deviation = self.target_units.astype(dtype)
                y = (y - mean) / deviation
        constants = self.constants
        # By these weights normalization leaves padding out.
        if self.statistics is not None:
            constants = dataclasses.replace(constants, weight=weight)
        return Batch(x=x, y=_mask_rows(real, y), weight=weight, constants=constants)

    def examples(self, client: int) -> Batch:
        """Returns all examples of one client, in order, as inputs of models.

        Inputs are scaled, and have the client's noise; labels are the poisoned ones of
        a poisoned client.

        Args:
          client: row of the client.

        Returns:
          The batch, of weights 1; its size depends on the client.

        Raises:
          InputError: if there is no such client.
        """
        total = self.num_examples.shape[0]
        if not 0 <= client < total:
            raise checks.InputError(
                f"Expected the number of a client from 0 to {total - 1}, got {client}."
            )
        return _examples(self, client, count=int(np.asarray(self.num_examples)[client]))

    def _noise(self, row: jax.Array, x: jax.Array, key: Key | None) -> jax.Array:
        """Draws noise of this access or, by default, of the client and the samples."""
        if self.resample_noise and key is not None:
            key = jax.random.fold_in(key, Stream.FEATURE_NOISE)
            return jax.random.normal(key, x.shape, x.dtype)
        # By client and sample, so that an example has the same noise in every batch.
        key = jax.random.fold_in(seed_key(Stream.FEATURE_NOISE), self.client_id)
        number = row if self.numbers is None else self.numbers[row]
        keys = jax.vmap(lambda n: jax.random.fold_in(key, n))(number)
        return jax.vmap(lambda k: jax.random.normal(k, x.shape[1:], x.dtype))(keys)


@functools.partial(jax.jit, static_argnames="count")
def _examples(data: ClientData, client: int, *, count: int) -> Batch:
    """Gathers the first examples of a client in one program."""
    rows = jax.tree.map(lambda leaf: leaf[client], data.rows())
    weights = jnp.ones(count, jnp.zeros(()).dtype)
    return data.pool().with_rows(rows).gather(jnp.arange(count), weights)


_KEPT = ("personal", "statistics", "fixed")  # fields of `Constants` with client rows
_CLIENT_FIELDS = (
    *("index", "num_examples", "client_id"),
    *("labels", "noise_scale"),
)


def _total(counts: Tree) -> str:
    """Formats the sum of an array, if it is concrete."""
    is_known = hasattr(counts, "sum") and not isinstance(counts, core.Tracer)
    return f"{int(counts.sum()):,}" if is_known else "unknown"


def _per_row(values: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Gives values of one input's shape a leading batch axis; scalars stay scalars."""
    values = values.astype(dtype)
    return values[None] if values.ndim else values


def _mask_rows(real: jax.Array, values: jax.Array) -> jax.Array:
    """Replaces padded rows by zeros."""
    return jnp.where(real.reshape(real.shape + (1,) * (values.ndim - 1)), values, 0)


@struct.pytree_dataclass
class Federation:
    """Training, validation and test examples of all clients, on the device.

    Each part has its pool; if one data set was split, all three have the same arrays.
    Parts with different pools share no examples; all examples have one shape.

    Attributes:
      train: examples that clients train on.
      validation: examples for selection (hybrid model, best round).
      test: examples for evaluation.
      malicious: `bool[N]` clients with messages that an attack replaces.
      others: `int32[N, c]` other clients, with test examples that are added to the
        client's if a model is evaluated on `others`; or None.
      samples: by `others` and `everybody`, `int32[N, T, 2]`: the test examples for that
        evaluation, as owner and number among the owner's test examples, as many as the
        client has test examples; or None for all test examples.
      cluster: `int32[N]` known cluster of each client, or None.
      extra_examples: `int32[N]` examples that a client got beyond its draw, or None.
      unseen: clients that never train, with the same pool, or None; none of the N.
      num_classes: number of classes, or None if targets are not classes.
      name: name of the data set, for result files.
      leaky: whether clients may share examples, so that training has seen test
        examples.
      class_names: C names, or None.
      client_names: N names, or None if clients have numbers only.
      notes: sentences about the preparation of the data, for summaries.
    """

    train: ClientData
    validation: ClientData
    test: ClientData
    malicious: jax.Array
    others: jax.Array | None = None
    samples: dict[str, jax.Array] | None = None
    cluster: jax.Array | None = None
    extra_examples: jax.Array | None = None
    unseen: "Federation | None" = None
    num_classes: int | None = struct.static_field(default=None)
    name: str = struct.static_field(default="federation")
    leaky: bool = struct.static_field(default=False)
    class_names: tuple[str, ...] | None = struct.static_field(default=None)
    client_names: tuple[str, ...] | None = struct.static_field(default=None)
    notes: tuple[str, ...] = struct.static_field(default=())

    def __repr__(self) -> str:
        """Shows the sizes in one line, without the arrays."""
        parts = {n: getattr(self, n) for n in ("train", "validation", "test")}
        if not all(isinstance(part, ClientData) for part in parts.values()):
            return object.__repr__(self)  # a placeholder that JAX makes
        counts = [f"{n} {_total(p.num_examples)}" for n, p in parts.items()]
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return (
            f"Federation({self.name!r}, {self.num_clients} clients, examples:"
            f" {', '.join(counts)}, inputs {self.train.x.dtype}"
            f"{list(self.input_shape)}{self._shown_scale()}{classes})"
        )

    def _shown_scale(self) -> str:
        """Returns the models' inputs in words, if they differ from the pool's."""
        x, scale, shift = self.train.x, self.train.scale, self.train.shift
        is_image = x.dtype == jnp.uint8
        if not is_image and not jnp.issubdtype(x.dtype, jnp.floating):
            return ""
        is_known = not any(
            isinstance(value, core.Tracer | jax.ShapeDtypeStruct)
            for value in (scale, shift)
        )
        if not is_known or scale.size > 1 or np.any(shift):
            return ", to models as scaled floats"
        if scale == 1:
            return ", to models as floats" if is_image else ""
        return f", to models as floats divided by {1 / float(scale):g}"

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self.malicious.shape[-1]

    @property
    def population(self) -> Population:
        """Totals over all clients."""
        total = self.train.num_examples.sum(dtype=jnp.int32)
        return Population(num_clients=self.num_clients, num_examples=total)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])
