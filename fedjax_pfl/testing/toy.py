"""A small ragged federation with poisoned padding."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core

__all__ = [
    "COUNTS",
    "NUM_CLASSES",
    "NUM_CLIENTS",
    "SHAPE",
    "leaves",
    "make_federation",
    "targets",
]

NUM_CLIENTS = 8
COUNTS = np.array([5, 2, 9, 4, 7, 1, 6, 3])
SHAPE = (4,)
NUM_CLASSES = 3


def make_federation(
    *,
    order: np.ndarray | None = None,
    padding: int = 0,
    dtype: np.dtype | type | None = None,
    classes: bool = True,
    malicious: Sequence[int] = (2,),
) -> core.Federation:
    """Makes eight clients with 1 to 9 examples of four numbers, alike in all splits.

    Row 0 of the pool is NaN, the last one 1e38; padded slots point at both, so that any
    use of padding shows.

    Args:
      order: rows of the clients, a permutation of 0 to 7; None for their own order.
      padding: padded slots per client more than the largest one needs, at least 0.
      dtype: of the inputs; None for JAX's default floats.
      classes: whether the examples have labels, of three classes; else their targets
        are zeros, for `Quadratic` with the minimizers `targets()`.
      malicious: clients with messages that an attack may replace.

    Returns:
      The federation.
    """
    dtype = jnp.zeros(()).dtype if dtype is None else dtype
    order = np.arange(NUM_CLIENTS) if order is None else np.asarray(order)
    rng = np.random.default_rng(0)
    # Drawn before the order applies: permuted clients keep their examples.
    total = COUNTS.sum()
    owner = np.repeat(np.arange(NUM_CLIENTS), COUNTS)
    x = rng.normal(size=(total, *SHAPE))
    # Clients differ in the mean of their examples.
    x += 0.5 * rng.normal(size=(NUM_CLIENTS, *SHAPE))[owner]
    x = np.concatenate([np.full((1, *SHAPE), np.nan), x, np.full((1, *SHAPE), 1e38)])
    if classes:
        y = jnp.asarray(np.r_[-1, rng.integers(NUM_CLASSES, size=total), 99], jnp.int32)
    else:
        y = jnp.zeros((total + 2,), dtype)
    slots = COUNTS.max() + padding
    # Padded slots alternate between the rows of NaN and of 1e38.
    padding_rows = np.where(np.arange(slots) % 2, 0, total + 1)
    index = np.tile(padding_rows, (NUM_CLIENTS, 1))
    for client in range(NUM_CLIENTS):
        index[client, : COUNTS[client]] = 1 + np.flatnonzero(owner == client)
    is_malicious = np.isin(np.arange(NUM_CLIENTS), malicious)
    data = core.ClientData(
        x=jnp.asarray(x, dtype),
        y=y,
        scale=jnp.ones((), dtype),
        shift=jnp.zeros((), dtype),
        index=jnp.asarray(index[order], jnp.int32),
        num_examples=jnp.asarray(COUNTS[order], jnp.int32),
        client_id=jnp.asarray(order, jnp.int32),
    )
    return core.Federation(
        train=data,
        validation=data,
        test=data,
        malicious=jnp.asarray(is_malicious[order]),
        num_classes=NUM_CLASSES if classes else None,
        name="toy",
    )


def targets() -> np.ndarray:
    """Returns minimizers `[N, 4]` of the quadratics: means of clients' examples."""
    federation = make_federation(classes=False)
    x = np.asarray(federation.train.x)
    index = np.asarray(federation.train.index)
    return np.stack([x[index[i, :n]].mean(axis=0) for i, n in enumerate(COUNTS)])


def leaves(tree: core.Tree) -> list[np.ndarray]:
    """Returns numeric leaves as NumPy arrays, keys as their data."""

    def plain(leaf: jax.Array) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.asarray(leaf)

    return [plain(leaf) for leaf in jax.tree.leaves(tree)]
