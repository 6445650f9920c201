"""Linen modules of transformers, built by the fields of `models.transformers`."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models import layers
from fedjax_pfl.models.modules import Dense, Dropout

__all__ = ["Norm", "PatchEmbeddings", "PatchNet", "TextNet", "Transformer", "Words"]

_DEVIATION = 0.02  # of initial embeddings of tokens, as in BERT; a norm follows
_SPREAD = 0.5  # of embeddings of patches: SGD hardly moves ones far below the patches
_TYPES = 2  # of BERT's tokens: the first text and the second one


def _embeddings(
    module: nn.Module, name: str, *shape: int, deviation: float = _DEVIATION
) -> jax.Array:
    return module.param(name, nn.initializers.normal(deviation), shape)


def _scores(query: jax.Array, key: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Computes weights `[B, heads, T, T]` of keys, exactly 0 for masked keys."""
    scale = query.shape[-1] ** -0.5
    scores = layers.product(query * scale, key.swapaxes(2, 3))
    if mask is not None:
        # The least number, not -inf: a sequence of padding alone stays finite.
        lowest = jnp.finfo(scores.dtype).min
        scores = jnp.where(mask[:, None, None, :], scores, lowest)
    return jax.nn.softmax(scores, axis=3)


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    batch: int,
    heads: int,
    mask: jax.Array | None = None,
    drop: Callable[[jax.Array], jax.Array] = lambda weights: weights,
) -> jax.Array:
    """Mixes values `[B * T, W]`: `softmax(query key^T / sqrt(W / heads)) value`."""
    # Positions of all sequences are rows of one matrix, so that a dense layer is one
    # product; every head has its own columns.
    rows, width = query.shape

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(batch, rows // batch, heads, -1).swapaxes(1, 2)

    weights = drop(_scores(split(query), split(key), mask))
    mixed = layers.product(weights, split(value))
    return mixed.swapaxes(1, 2).reshape(rows, width)


def _average(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Averages `[B, T, W]` over positions; a sequence of padding alone gives zeros."""
    if mask is None:
        return x.mean(axis=1)
    total = jnp.where(mask[:, :, None], x, 0).sum(axis=1)
    count = jnp.maximum(mask.sum(axis=1), 1).astype(x.dtype)
    return total / count[:, None]


def _patches(x: jax.Array, size: int) -> jax.Array:
    """Cuts images `[B, ...]` into patches `[B, patches, size * size * channels]`."""
    batch, height, width, channels = x.shape
    fill = ((0, 0), (0, -height % size), (0, -width % size), (0, 0))
    # Zeros fill up images to whole patches.
    x = jnp.pad(x, fill) if any(map(sum, fill)) else x
    rows, columns = x.shape[1] // size, x.shape[2] // size
    x = x.reshape(batch, rows, size, columns, size, channels).swapaxes(2, 3)
    return x.reshape(batch, rows * columns, size * size * channels)


class Norm(nn.Module):
    """Layer norm: `gain (x - mean) / sqrt(var + epsilon) + bias`."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[rows, W]` to `[rows, W]`."""
        gain = self.param("gain", nn.initializers.ones, x.shape[1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[1:])
        centered = x - x.mean(axis=1, keepdims=True)
        variance = (centered**2).mean(axis=1, keepdims=True)
        scaled = gain[None] * (centered * jax.lax.rsqrt(variance + self.epsilon))
        return scaled + bias[None]


class Transformer(nn.Module):
    """Attention, then two dense layers with GELU, each with norm and shortcut."""

    fields: Any
    is_normed_first: bool  # whether norms precede both parts, or follow both sums

    def _dense(self, name: str, width: int) -> Dense:
        return Dense(width, self.fields.initialization, name=name)

    def _attention(self, x: jax.Array, batch: int, mask: jax.Array | None) -> jax.Array:
        width = x.shape[1]
        mixed = _attend(
            *(self._dense(name, width)(x) for name in ("query", "key", "value")),
            batch=batch,
            heads=self.fields.heads,
            mask=mask,
            drop=Dropout(self.fields.dropout),
        )
        return self._dense("output", width)(mixed)

    def _mlp(self, x: jax.Array) -> jax.Array:
        hidden = self._dense("expand", self.fields.mlp_width)(x)
        hidden = jax.nn.gelu(hidden, approximate=False)
        return self._dense("contract", x.shape[1])(hidden)

    @nn.compact
    def __call__(self, x: jax.Array, batch: int, mask: jax.Array | None) -> jax.Array:
        """Maps `[B * T, W]` to `[B * T, W]`; `mask bool[B, T]` is False for padding."""
        parts = (
            ("attention_norm", lambda x: self._attention(x, batch, mask)),
            ("mlp_norm", self._mlp),
        )
        for name, part in parts:
            norm = Norm(self.fields.epsilon, name=name)
            inner = part(norm(x) if self.is_normed_first else x)
            x = x + Dropout(self.fields.dropout)(inner)
            x = x if self.is_normed_first else norm(x)
        return x


class Words(nn.Module):
    """Sum of the embeddings of a word, its position and its type, with a layer norm."""

    fields: Any

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Maps `int[B, T]` to `[B, T, W]`; an unknown token gives NaN."""
        width = self.fields.width
        words = _embeddings(self, "words", self.fields.vocabulary, width)
        positions = _embeddings(self, "positions", self.fields.max_length, width)
        types = _embeddings(self, "types", _TYPES, width)  # texts have the first
        shift = positions[: tokens.shape[1]] + types[:1]
        x = jnp.take(words, tokens, axis=0, mode="fill", fill_value=jnp.nan)
        x = x + shift[None]
        # Attention weighs padding by 0, but 0 times a non-finite value is not 0.
        x = x if mask is None else jnp.where(mask[:, :, None], x, 0)
        x = Norm(self.fields.epsilon, name="norm")(x.reshape(-1, width))
        return x.reshape(*tokens.shape, width)


class PatchEmbeddings(nn.Module):
    """A dense layer on every patch, after a class token if there is one."""

    fields: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images `[B, height, width, channels]` to `[B, T, W]`."""
        width = self.fields.width
        x = _patches(x, self.fields.patch)
        batch, count, values = x.shape
        dense = Dense(width, self.fields.initialization, name="patches")
        x = dense(x.reshape(batch * count, values)).reshape(batch, count, width)
        if self.fields.pooling == "class":
            token = _embeddings(self, "class", 1, 1, width, deviation=_SPREAD)
            token = jnp.broadcast_to(token, (batch, 1, width))
            x = jnp.concatenate([token, x], axis=1)
        shape = x.shape[1:]
        return x + _embeddings(self, "positions", *shape, deviation=_SPREAD)[None]


class _Stack(nn.Module):
    """Transformer layers between embeddings and a head."""

    fields: Any
    outputs: int

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head."""
        numbers = range(self.fields.depth)
        return ("embeddings", *(f"layer_{number}" for number in numbers))

    def _run(self, x: jax.Array, mask: jax.Array | None, **options: Any) -> jax.Array:
        """Runs the layers on `[B, T, W]`; sown values of padding are zero."""

        def sow(x: jax.Array) -> None:
            seen = x.reshape(shape)
            seen = seen if mask is None else jnp.where(mask[:, :, None], seen, 0)
            self.sow("intermediates", "layers", seen)

        shape = x.shape
        sow(x)
        x = Dropout(self.fields.dropout)(x).reshape(-1, shape[2])
        for name in self.layers[1:]:
            x = Transformer(self.fields, name=name, **options)(x, shape[0], mask)
            sow(x)
        return x.reshape(shape)

    def _pooled(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Maps `[B, T, W]` to `[B, W]`."""
        is_class = self.fields.pooling == "class"
        return x[:, 0] if is_class else _average(x, mask)

    def _head(self, x: jax.Array) -> jax.Array:
        return Dense(self.outputs, self.fields.initialization, name="head")(x)


class TextNet(_Stack):
    """Embeddings of tokens, layers, one vector per text, head."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps ids `[B, T]`, in any type, to logits `[B, outputs]`."""
        # Networks give inputs the type of the parameters, which holds ids exactly.
        tokens = tokens.astype(jnp.int32)
        padding = self.fields.padding
        mask = None if padding is None else tokens != padding
        x = Words(self.fields, name="embeddings")(tokens, mask)
        x = self._run(x, mask, is_normed_first=False)
        return self._head(self._pooled(x, mask))


class PatchNet(_Stack):
    """Embeddings of patches, layers, a layer norm, one vector per image, head."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps images `[B, height, width(, channels)]` to logits `[B, outputs]`."""
        x = x if x.ndim == 4 else x[..., None]
        x = PatchEmbeddings(self.fields, name="embeddings")(x)
        x = self._run(x, None, is_normed_first=True)
        norm = Norm(self.fields.epsilon, name="norm")
        x = norm(x.reshape(-1, x.shape[2])).reshape(x.shape)
        return self._head(self._pooled(x, None))
