"""Requirements of models on a federation's inputs and targets, one sentence each."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks

__all__ = [
    "are_tokens",
    "classes_of",
    "embedding_size",
    "require_images",
    "require_numbers",
    "require_targets",
    "require_tokens",
    "targets_of",
    "vocabulary_of",
]

_CHANNELS = (1, 2, 3, 4)


def classes_of(model: core.Model, federation: core.Federation) -> int:
    """Counts classes of a federation."""
    if federation.num_classes is not None and federation.train.y.ndim != 1:
        raise checks.InputError(
            f"{type(model).__name__} needs one class per example, but the targets of"
            f" {federation.name!r} have the shape {federation.train.y.shape[1:]}."
        )
    if federation.num_classes is None:
        raise checks.InputError(
            f"{type(model).__name__} needs classes, but the targets of "
            f"{federation.name!r} are numbers; use the "
            "model 'linear_regression' or 'mlp'."
        )
    weights = model.class_weights
    if weights is not None and len(weights) != federation.num_classes:
        raise checks.InputError(
            f"Expected class_weights of {type(model).__name__} for each of"
            f" {federation.num_classes} classes, got {len(weights)}."
        )
    return federation.num_classes


def targets_of(model: core.Model, federation: core.Federation) -> int | None:
    """Counts classes of a federation, None where targets are numbers."""
    if federation.num_classes is not None:
        return classes_of(model, federation)
    require_targets(model, federation)
    return None


def require_targets(model: core.Model, federation: core.Federation) -> None:
    """Checks that there is one target per example."""
    if federation.train.y.ndim != 1:
        raise checks.InputError(
            f"{type(model).__name__} needs one number per example as the target, but"
            f" those of {federation.name!r} have the shape"
            f" {federation.train.y.shape[1:]}."
        )


def are_tokens(federation: core.Federation) -> bool:
    """Returns whether inputs are token ids: whole numbers other than `uint8` pixels."""
    dtype = federation.train.x.dtype
    return jnp.issubdtype(dtype, jnp.integer) and dtype != jnp.uint8


def require_numbers(model: core.Model, federation: core.Federation) -> None:
    """Checks that the inputs are not token ids."""
    if are_tokens(federation):
        raise checks.InputError(
            f"{type(model).__name__} needs floating-point or uint8 inputs, but those "
            f"of {federation.name!r} are {federation.train.x.dtype} token ids; use the "
            "model 'lstm' or 'text_encoder', or convert them to floats."
        )


def require_images(
    model: core.Model, federation: core.Federation, smallest: int
) -> None:
    """Checks that the inputs are images, and large enough."""
    require_numbers(model, federation)
    shape, name = federation.input_shape, type(model).__name__
    if len(shape) not in (2, 3):
        raise checks.InputError(
            f"{name} needs images, [height, width] or [height, width, channels], but "
            f"the inputs of {federation.name!r} have shape {shape}; use the model "
            "'mlp'."
        )
    if len(shape) == 3 and shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        raise checks.InputError(
            f"{name} needs the channels of images last, but the inputs of"
            f" {federation.name!r} have shape {shape}, with {shape[0]} first; move"
            " them with np.moveaxis(x, 1, -1)."
        )
    if min(shape[:2]) < smallest:
        raise checks.InputError(
            f"{name} needs images of at least {smallest} x {smallest} pixels, but "
            f"those of {federation.name!r} have {shape[0]} x {shape[1]}; use the model "
            "'mlp'."
        )


def require_tokens(model: core.Model, federation: core.Federation) -> None:
    """Checks that the inputs are sequences of token ids."""
    if not are_tokens(federation) or len(federation.input_shape) != 1:
        raise checks.InputError(
            f"{type(model).__name__} needs sequences of token ids, int32 [tokens], but"
            f" the inputs of {federation.name!r} are {federation.train.x.dtype} of"
            f" shape {federation.input_shape}."
        )


def vocabulary_of(federation: core.Federation) -> int:
    """Counts token ids: rows of the data set's embeddings, or up to the largest id."""
    if (table := _embeddings(federation)) is not None:
        return table.shape[0]
    parts = (federation.train, federation.validation, federation.test)
    # Parts of one data set share a pool, which is read once.
    pools = {id(part.x): part.x for part in parts}
    return 1 + max(int(x.max()) for x in pools.values())


def _embeddings(federation: core.Federation) -> jax.Array | None:
    """Returns `constants["embeddings"]`, or None."""
    constants = federation.train.constants
    return constants.get("embeddings") if isinstance(constants, dict) else None


def embedding_size(model: core.Model, federation: core.Federation) -> int:
    """Returns the length E of the frozen embeddings `[V, E]` of token sequences."""
    require_tokens(model, federation)
    table, name = _embeddings(federation), type(model).__name__
    shape = None if table is None else tuple(table.shape)
    if shape is None or len(shape) != 2:
        raise checks.InputError(
            f"{name} needs constants['embeddings'] of shape [words, size], but the "
            f"data set {federation.name!r} has "
            + ("none." if shape is None else f"shape {shape}.")
        )
    return shape[1]
