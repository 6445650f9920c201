"""Transformers: an encoder of texts and one of images."""

import abc
import dataclasses
import math
from types import ModuleType
from typing import Any, ClassVar, Literal, Self

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import base, inputs

__all__ = ["TextEncoder", "VisionTransformer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Transformer(base.Network):
    """A network of transformer layers; abstract."""

    depth: int
    width: int
    heads: int
    mlp_width: int
    pooling: Literal["mean", "class"] = "mean"
    dropout: float = struct.static_field(default=0.0, at_least=0, below=1)
    epsilon: ClassVar[float] = 1e-12  # BERT's, added to variances in layer norms

    def __post_init__(self):
        super().__post_init__()
        if self.width % self.heads:
            raise checks.InputError(
                f"Expected heads to divide width={self.width}, got {self.heads}."
            )

    @property
    @abc.abstractmethod
    def _positions(self) -> int:
        """Number of positions T of one input."""

    @property
    def rows_per_example(self) -> int:
        """Number of rows of one example in the products with kernels."""
        return self._positions

    @property
    def floats_per_example(self) -> int:
        """Number of floats that the gradient of one example keeps, about."""
        count = self._positions
        # Of each layer: vectors of width, hidden vectors, and weights of the attention.
        floats = 9 * self.width + 5 * self.mlp_width + 3 * self.heads * count
        return self.depth * count * floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder(_Transformer):
    """BERT's encoder: 4,369,666 parameters for 30,522 words, 512 positions, 2 classes.

    Inputs are token ids `int32 [T]`. The embeddings of a word, of its position and of
    its type are added and normed. A layer computes `x = norm(x + attention(x))` and
    `x = norm(x + contract(gelu(expand(x))))`; `head` gets one vector per text. Padding
    contributes exactly zero, both to other positions and to gradients. An id
    outside `[-V, V)` gives NaN.

    Leaves are `embeddings/{words,positions,types}`, `embeddings/norm/{gain,bias}`, in
    every `layer_<i>` `{query,key,value,output,expand,contract}/{kernel,bias}` and
    `{attention_norm,mlp_norm}/{gain,bias}`, and `head`. Embeddings start normal with
    deviation 0.02. `bert_params` reads pretrained ones.

    Attributes:
      depth: number of layers.
      width: W, the length of the vector of a position.
      heads: heads of the attention; their number divides `width`.
      mlp_width: width between the two dense layers of a layer.
      pooling: what `head` gets: the `"mean"` of all positions but padding, or that of
        the `"class"` token, the first.
      dropout: rate on embeddings, on weights of the attention, and on values added to
        a shortcut, in [0, 1).
      vocabulary: V; None for the words of the federation.
      max_length: number of positions, at least T; None for T.
      padding: id of padding, or None without padding.
    """

    depth: int = struct.static_field(default=2, at_least=1)
    width: int = struct.static_field(default=128, at_least=1)
    heads: int = struct.static_field(default=2, at_least=1)
    mlp_width: int = struct.static_field(default=512, at_least=1)
    # Whole numbers up to this one have a float of 32 bits.
    vocabulary: int | None = struct.static_field(
        default=None, at_least=1, at_most=1 << 24
    )
    max_length: int | None = struct.static_field(default=None, at_least=1)
    padding: int | None = struct.static_field(default=0, at_least=0)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's shapes, classes and vocabulary."""
        inputs.require_tokens(self, federation)
        words = inputs.vocabulary_of(federation)
        length = federation.input_shape[0]
        for field, needed in (("vocabulary", words), ("max_length", length)):
            limit = getattr(self, field)
            if limit is not None and needed > limit:
                raise checks.InputError(
                    f"Expected {field} to be at least {needed} for"
                    f" {federation.name!r}, got {limit}."
                )
        return dataclasses.replace(
            self,
            input_shape=federation.input_shape,
            num_classes=inputs.targets_of(self, federation),
            vocabulary=self.vocabulary or words,
            max_length=self.max_length or length,
        )

    @property
    def _positions(self) -> int:
        return math.prod(self.input_shape or ())

    def _module(self, modules: ModuleType, classes: int) -> Any:
        from fedjax_pfl.models import transformer_modules  # imports flax

        return transformer_modules.TextNet(self, classes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionTransformer(_Transformer, base.ImageNetwork):
    """A vision transformer: 141,898 parameters on 32x32x3 with 10 classes.

    Images are cut into square patches, filled up with zeros to whole ones; a dense
    layer and embeddings of positions turn them into vectors. A layer computes
    `x = x + attention(norm(x))` and `x = x + contract(gelu(expand(norm(x))))`; `head`
    gets one vector per image, of normed positions.

    Leaves are `embeddings/patches/{kernel,bias}`, `embeddings/positions`, with a class
    token `embeddings/class`, in `layer_<i>` leaves as in `TextEncoder`, `norm` and
    `head`. Embeddings start normal with deviation 0.5.

    Attributes:
      depth: number of layers.
      width: W, the length of the vector of a patch.
      heads: heads of the attention; their number divides `width`.
      mlp_width: width between the two dense layers of a layer.
      pooling: what `head` gets: the `"mean"` of all patches, or the `"class"` token,
        one more position.
      dropout: rate on embeddings, on weights of the attention, and on values added to
        a shortcut, in [0, 1).
      patch: rows and columns of a patch.
    """

    depth: int = struct.static_field(default=4, at_least=1)
    width: int = struct.static_field(default=64, at_least=1)
    heads: int = struct.static_field(default=4, at_least=1)
    mlp_width: int = struct.static_field(default=128, at_least=1)
    patch: int = struct.static_field(default=4, at_least=1)

    @property
    def _positions(self) -> int:
        sides = (self.input_shape or (1, 1))[:2]
        patches = math.prod(-(-side // self.patch) for side in sides)
        return patches + (self.pooling == "class")

    def _module(self, modules: ModuleType, classes: int) -> Any:
        from fedjax_pfl.models import transformer_modules  # imports flax

        return transformer_modules.PatchNet(self, classes)
