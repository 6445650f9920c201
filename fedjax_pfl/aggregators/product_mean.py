"""The mean of the changes that low-rank factors make, in place of that of the factors.

Clients with factors A_k `[in, rank]` and B_k `[rank, out]` change a kernel by A_k B_k.
The mean of these products,

    M = sum_k s_k A_k B_k = [A_1 ... A_K] [s_1 B_1; ...; s_K B_K],

has up to K times the rank. The rule takes its best approximation of the rank that there
is, `M ~ U S V'` by singular values (Eckart-Young), and returns

    A = U / sqrt(3),    B = sqrt(3) S V',

so that columns of A have the length that they are drawn with, also where M has a
smaller rank, and the largest changes come first: clients of a smaller rank, which have
the first columns, get the best approximation of theirs.

M is formed if it is smaller than the factors side by side; else both factors go
through a QR decomposition, and the singular values are those of a matrix of K rank
rows.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, factorizations, struct, tree_paths

__all__ = ["ProductMean", "ProductMeanInfo"]

_ADAPTERS = "adapters"
_LENGTH = 3**-0.5  # of a column of A as `fp.lora` draws it, on average


@struct.pytree_dataclass
class ProductMeanInfo:
    """Report of a round's approximations.

    Attributes:
      left_out: `[]` in [0, 1], share of the length of the mean products that their
        approximation leaves out; of all kernels together.
    """

    left_out: jax.Array


@struct.pytree_dataclass
class ProductMean(core.Aggregator):
    """Mean of products of factors, as factors of their rank; weighted by examples.

    Parameters without adapters are averaged as by `WeightedMean`. Rows of weight 0 and
    rows with a non-finite value take no part; if none is left, the reference is
    returned. Not robust. For methods with clients that begin a round at the server's
    model, as in FedAvg: the columns of A have a new basis every round, so that memories
    of a client or a server's optimizer would have another meaning.
    Derivatives of trainings do not exist for equal singular values.

    Example:
      >>> import jax
      >>> a = jnp.array([[[1.0], [0.0]], [[-1.0], [0.0]]])
      >>> b = jnp.array([[[2.0]], [[-2.0]]])
      >>> rows = {"adapters": {"kernel": {"a": a, "b": b}}}
      >>> zeros = jax.tree.map(lambda leaf: 0 * leaf[0], rows)
      >>> mean, _ = ProductMean()(jax.random.key(0), rows, jnp.ones(2), zeros)
      >>> factors = mean["adapters"]["kernel"]
      >>> (factors["a"] @ factors["b"]).round(4).tolist()
      [[2.0], [0.0]]
    """

    def check_state(self, state: core.State) -> None:
        """Refuses methods that keep factors from one round to the next."""
        rows = [state.rows.get(name) for name in ("messages", "transforms")]
        parts = (state.clients, rows, state.memory.get("optimizer"))
        names = tree_paths.by_name(parts)
        if any(_ADAPTERS in name.split("/") for name in names):
            raise checks.InputError(
                "Expected a method whose clients begin every round at the server's"
                " model, such as FedAvg without a server optimizer and memories of"
                " transforms, for ProductMean, which gives the factors of adapters a"
                " new basis in every round."
            )

    def __call__(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, ProductMeanInfo]:
        """Averages messages `[K, *P]`, factors of adapters by their products."""
        names = tree_paths.by_name(messages)
        kernels = _kernels(names)
        valid = (weights > 0) & client_rows.finite_rows(messages, weights.shape[0])
        shares = jnp.where(valid, weights, 0)
        # Shares s_k of sum 1: products of factors are averaged, not added.
        shares = shares / jnp.where(valid.any(), shares.sum(), 1)
        mean = tree_paths.by_name(client_rows.weighted_mean(messages, shares))
        total = lost = jnp.zeros(())
        for kernel in kernels:
            a, b = (
                jnp.where(valid[:, None, None], names[f"{kernel}/{part}"], 0)
                for part in "ab"
            )
            # M = sum_k s_k A_k B_k ~ U S V'; A = U / sqrt(3), B = sqrt(3) S V'.
            left, values, right = _decomposed(a, shares[:, None, None] * b)
            rank = a.shape[-1]
            mean[f"{kernel}/a"] = _LENGTH * left[:, :rank]
            mean[f"{kernel}/b"] = values[:rank, None] * right[:rank] / _LENGTH
            # Singular values beyond the rank are the length that is left out.
            total += jnp.square(values).sum()
            lost += jnp.square(values[rank:]).sum()
        average = jax.tree.unflatten(jax.tree.structure(reference), mean.values())
        average = jax.tree.map(
            lambda new, old: jnp.where(valid.any(), new, old), average, reference
        )
        left_out = jnp.sqrt(lost / jnp.where(total > 0, total, 1))
        return average, ProductMeanInfo(left_out=left_out)


def _kernels(names: dict[str, Any]) -> list[str]:
    """Returns the names of adapters, without the names of factors."""
    factors = [name for name in names if _ADAPTERS in name.split("/")]
    kernels = list(dict.fromkeys(name.rpartition("/")[0] for name in factors))
    for kernel in kernels:
        if {f"{kernel}/a", f"{kernel}/b"} - names.keys():
            raise checks.InputError(
                "Expected both factors of every adapter among the messages for"
                f" ProductMean, got one of {kernel!r}."
            )
    if not kernels:
        raise checks.InputError(
            "Expected a model with adapters, as of fp.lora, for ProductMean, got one"
            f" with {', '.join(names)}."
        )
    return kernels


def _decomposed(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the SVD of `sum_k a_k b_k`, of `[K, in, rank]` and `[K, rank, out]`."""
    count, inputs, rank = a.shape
    outputs = b.shape[-1]
    left = jnp.moveaxis(a, 0, 1).reshape(inputs, count * rank)
    right = b.reshape(count * rank, outputs)
    # The matrix itself is smaller than the factors side by side.
    if count * rank >= min(inputs, outputs):
        return factorizations.svd(client_rows.dot(left, right))
    cols, upper = factorizations.qr(left)
    rows, lower = factorizations.qr(right.T)
    # Q R (Q' R')^T: the singular values are those of a matrix of K rank rows.
    inner = factorizations.svd(client_rows.dot(upper, lower.T))
    return client_rows.dot(cols, inner[0]), inner[1], client_rows.dot(inner[2], rows.T)
