"""The pytrees that cross module borders and the protocols of every pluggable part.

Shape letters: `N` clients, `K` cohort, `S` samples in the pool, `M` padded samples per
client, `B` batch, `C` classes, `*P` the shape of a parameter leaf.
"""

import dataclasses
import enum
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_pfl import struct

__all__ = [
    "Aggregator",
    "Attack",
    "Batch",
    "Budget",
    "ClientData",
    "Downlink",
    "Federation",
    "Key",
    "Model",
    "Params",
    "Participation",
    "RoundContext",
    "RoundInfo",
    "State",
    "Stream",
    "Upload",
    "Work",
    "stream_key",
]

Key = jax.Array
Params = Any


class Stream(enum.IntEnum):
    """Purposes of randomness; each has keys of its own."""

    INIT = 0
    PARTICIPATION = 1
    WORK = 2
    CLIENT = 3
    ATTACK = 4
    AGGREGATION = 5
    SERVER = 6
    EVALUATION = 7
    FEATURE_NOISE = 8


def stream_key(key: Key, stream: Stream, round: jax.Array | int) -> Key:
    """Key of one purpose in one round: `fold_in(fold_in(key, stream), round)`.

    Args:
      key: `[]` key of the run.
      stream: purpose.
      round: `[]` round number.

    Returns:
      `[]` key; fold in a client id where the randomness belongs to a client.
    """
    return jax.random.fold_in(jax.random.fold_in(key, stream), round)


@struct.pytree_dataclass
class Batch:
    """Examples of one client; rows of weight 0 are padding and contribute exactly zero.

    Attributes:
      x: `[B, ...]` scaled inputs; padded rows are zeros.
      y: `[B]` or `[B, ...]` targets.
      weight: `[B]` 1 for examples, 0 for padding.
      constants: pytree shared by all clients (frozen embeddings, tables) or None.
    """

    x: jax.Array
    y: jax.Array
    weight: jax.Array
    constants: Any = None


@struct.pytree_dataclass
class ClientData:
    """Examples of many clients (leading axis N) or, inside a map, of one (no N).

    Attributes:
      x: `[S, ...]` pool of inputs, stored as they came (`uint8` images stay `uint8`).
      y: `[S]` or `[S, ...]` pool of targets.
      scale: `[]` or `[...]` factor applied to `x` in the batch.
      shift: `[]` or `[...]` added after scaling.
      constants: pytree handed to the model with every batch, or None.
      index: `int32[N, M]` rows of the pool; entries past `num_examples` are padding.
      num_examples: `int32[N]` examples per client, may be 0.
      client_id: `int32[N]` identity of each client; randomness follows it.
      labels: `[N, M]` labels that replace `y` (poisoned clients), or None.
      noise_scale: `[N]` std of fixed Gaussian noise added to scaled inputs, or None.
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
    constants: Any = None

    def rows(self) -> dict[str, Any]:
        """The fields with one row per client, by name."""
        return {name: getattr(self, name) for name in _CLIENT_FIELDS}

    def pool(self) -> "ClientData":
        """The data without clients: what all of them share."""
        return dataclasses.replace(self, **dict.fromkeys(_CLIENT_FIELDS))

    def with_rows(self, rows: dict[str, Any]) -> "ClientData":
        """A pool with the rows of some clients, or of one."""
        return dataclasses.replace(self, **rows)

    def gather(
        self, positions: jax.Array, weight: jax.Array, dtype: Any = None
    ) -> Batch:
        """Forms a batch of one client from positions in its own list of examples.

        Args:
          positions: `int32[B]` in `[0, M)`; where `weight` is 0 any value is allowed.
          weight: `[B]` 1 for examples, 0 for padding.
          dtype: floating dtype of the inputs; that of `weight` by default.

        Returns:
          The batch. Padded rows show the pool's row 0 with every non-finite value
          replaced, so that they contribute exactly zero to whatever is computed.
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
                x = x + self.noise_scale.astype(dtype) * self._noise(row, x)
            x = _mask_rows(real, x)
        y = self.y[row] if self.labels is None else self.labels[positions]
        if jnp.issubdtype(y.dtype, jnp.floating):
            y = y.astype(dtype)
        return Batch(
            x=x, y=_mask_rows(real, y), weight=weight, constants=self.constants
        )

    def _noise(self, row: jax.Array, x: jax.Array) -> jax.Array:
        """Noise that belongs to the client and the sample: the same at every access."""
        key = jax.random.fold_in(
            jax.random.key(Stream.FEATURE_NOISE, impl="threefry2x32"), self.client_id
        )
        keys = jax.vmap(lambda r: jax.random.fold_in(key, r))(row)
        return jax.vmap(lambda k: jax.random.normal(k, x.shape[1:], x.dtype))(keys)


_CLIENT_FIELDS = ("index", "num_examples", "client_id", "labels", "noise_scale")


def _per_row(values: jax.Array, dtype: Any) -> jax.Array:
    """Gives values of one input's shape a leading batch axis; scalars stay scalars."""
    values = values.astype(dtype)
    return values[None] if values.ndim else values


def _mask_rows(real: jax.Array, values: jax.Array) -> jax.Array:
    """Replaces the rows that are not real by zeros."""
    return jnp.where(real.reshape(real.shape + (1,) * (values.ndim - 1)), values, 0)


@struct.pytree_dataclass
class Federation:
    """Training, validation and test examples of all clients, on the device.

    Attributes:
      train: examples that clients train on.
      validation: examples that choose (hybrid model, best round).
      test: examples that judge.
      malicious: `bool[N]` clients whose messages an attack replaces.
      num_classes: number of classes, or None where targets are not classes.
      name: name of the data set, for result files.
    """

    train: ClientData
    validation: ClientData
    test: ClientData
    malicious: jax.Array
    num_classes: int | None = struct.static_field(default=None)
    name: str = struct.static_field(default="federation")

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self.malicious.shape[-1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])


@struct.pytree_dataclass
class State:
    """What a training is at one moment; owned by the process.

    Attributes:
      server: no leaf has a client axis.
      clients: every leaf has leading axis N.
      messages: last received messages, leading axis N, or None.
      aggregate: mean of `messages`, kept incrementally (`[*P]`), or None.
      attack: state of the attack, or None.
      nonfinite: `int32[]` non-finite messages and state rows met so far.
      round: `int32[]` number of finished rounds.
      key: `[]` key of the run.
    """

    server: Any
    clients: Any
    messages: Any
    aggregate: Any
    attack: Any
    nonfinite: jax.Array
    round: jax.Array
    key: Key


@struct.pytree_dataclass
class Downlink:
    """What clients receive: `shared` by all, `own` with leading axis K or None."""

    shared: Any
    own: Any = None


@struct.pytree_dataclass
class Upload:
    """What clients send; leading axis K once mapped over the cohort.

    Attributes:
      message: what an attack may replace.
      weight: `[]` honest number of examples; 0 means dropped.
      aux: side information (losses, affinities), never attacked, or None.
    """

    message: Any
    weight: jax.Array
    aux: Any = None


@struct.pytree_dataclass
class Budget:
    """How much local work a cohort member may do; leading axis K once drawn.

    Attributes:
      epochs: `int32[]` cap on local epochs.
      steps: `int32[]` cap on local steps.
      straggler: `bool[]` whether the client was slowed down.
    """

    epochs: jax.Array
    steps: jax.Array
    straggler: jax.Array


@struct.pytree_dataclass
class RoundContext:
    """What hooks may know of a round.

    Attributes:
      key: `[]` key of the server's own randomness in this round.
      round: `int32[]` round number, from 0.
      cohort: `int32[K]` rows of the cohort's members.
      num_clients: N.
    """

    key: Key
    round: jax.Array
    cohort: jax.Array
    num_clients: int = struct.static_field()


@struct.pytree_dataclass
class RoundInfo:
    """What a round reports; stacked over rounds by the driver.

    Attributes:
      cohort: `int32[K]` who took part.
      client: pytree of `[K]` values from the clients' updates.
      aggregator: pytree of values from the aggregator.
      num_nonfinite: `int32[]` messages and state rows of this round that were not
        finite.
      floats_up: `float32[]` numbers sent by clients.
      floats_down: `float32[]` numbers sent to clients.
    """

    cohort: jax.Array
    client: Any
    aggregator: Any
    num_nonfinite: jax.Array
    floats_up: jax.Array
    floats_down: jax.Array


class Model(Protocol):
    """A frozen, hashable object without arrays.

    `for_federation` fills in what the data decide (input shape, number of outputs).
    """

    def for_federation(self, federation: Federation) -> "Model":
        """Returns the model with input shape and number of outputs filled in."""
        ...

    def init(self, key: Key) -> Params:
        """Draws initial parameters."""
        ...

    def apply(
        self,
        params: Params,
        x: jax.Array,
        *,
        key: Key | None = None,
        constants: Any = None,
    ) -> jax.Array:
        """Computes outputs `[B, ...]`; without a key in evaluation mode."""
        ...

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Weighted mean loss `[]` of a batch; 0 for an empty one."""
        ...

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Per-example values `[B]` by name, always including `loss`."""
        ...


class Aggregator(Protocol):
    """Combines messages into one; the reference where all weights are zero."""

    @property
    def incremental(self) -> str | None:
        """Weighting of a mean that can be kept: `"uniform"`, `"weighted"`, or None."""
        ...

    def __call__(
        self, key: Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps `[K, *P]`, weights `[K]`, reference `[*P]` to `([*P], info)`."""
        ...


class Attack(Protocol):
    """Replaces the messages of malicious clients, and only those."""

    def init(self, messages: Any) -> Any:
        """State of the attack before the first round, or None."""
        ...

    def __call__(
        self, key: Key, state: Any, messages: Any, malicious: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps messages `[K, *P]` and `malicious bool[K]` to `(messages, state)`.

        `key` is `[K]`, one key per client: randomness belongs to the client.
        """
        ...


class Participation(Protocol):
    """Chooses the cohort of a round."""

    def cohort_size(self, num_clients: int) -> int:
        """Static number K of cohort members."""
        ...

    def __call__(self, key: Key, num_clients: int) -> jax.Array:
        """Distinct rows `int32[K]`."""
        ...


class Work(Protocol):
    """Draws the budgets of a cohort."""

    def __call__(self, key: Key, client_ids: jax.Array) -> Budget:
        """Budgets `[K]` for clients `int32[K]`; the same for every method."""
        ...
