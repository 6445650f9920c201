"""Linen modules of transformers, built by the fields of `models.transformers`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.models import attention
from fedjax_pfl.models.modules import Dense, Dropout

__all__ = ["Norm", "PatchEmbeddings", "PatchNet", "TextNet", "Transformer", "Words"]

_DEVIATION = 0.02  # of initial embeddings of tokens, as in BERT; a norm follows
_SPREAD = 0.5  # of embeddings of patches: SGD hardly moves ones far below the patches
_TYPES = 2  # of BERT's tokens: the first text and the second one


def _embeddings(
    module: nn.Module, name: str, *shape: int, deviation: float = _DEVIATION
) -> jax.Array:
    return module.param(name, nn.initializers.normal(deviation), shape)


class Norm(nn.Module):
    """Layer norm with a gain and a bias per column."""

    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[rows, W]` to `[rows, W]`."""
        gain = self.param("gain", nn.initializers.ones, x.shape[1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[1:])
        return attention.layer_norm(gain, bias, x, self.epsilon)


class Transformer(nn.Module):
    """Attention, then two dense layers with GELU, each with norm and shortcut."""

    fields: Any
    is_normed_first: bool  # whether norms precede both parts, or follow both sums

    def _dense(self, name: str, width: int) -> Dense:
        return Dense(width, self.fields.initialization, name=name)

    def _attention(self, x: jax.Array, batch: int, mask: jax.Array | None) -> jax.Array:
        width = x.shape[1]
        mixed = attention.attend(
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
        x = attention.patches(x, self.fields.patch)
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
        return x[:, 0] if is_class else attention.average(x, mask)

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
