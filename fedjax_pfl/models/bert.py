"""Sizes and pretrained weights of BERT's encoder, from the published files."""

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, tree_paths
from fedjax_pfl.models import initializers
from fedjax_pfl.models.transformers import TextEncoder

__all__ = ["bert_encoder", "bert_params"]

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SIZES = {  # of a configuration -> fields of the encoder
    "num_hidden_layers": "depth",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp_width",
    "vocab_size": "vocabulary",
}
_SUPPORTED = {  # entries of a configuration, if present
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "layer_norm_eps": TextEncoder.epsilon,
}
_EMBEDDINGS = {
    "words": "word_embeddings.weight",
    "positions": "position_embeddings.weight",
    "types": "token_type_embeddings.weight",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp_norm": "output.LayerNorm",
}
_FLOATS = ("F64", "F32", "F16", "BF16")
# The numbers of the positions, and layers that pretraining put on top of the encoder.
_UNUSED = re.compile(r"embeddings\.position_ids|(pooler|cls)\..*")
_PREFIX = "bert."  # of all names, in files of a model with a head


def bert_encoder(folder: str | os.PathLike[str], **fields: Any) -> TextEncoder:
    """Makes an encoder of the sizes in a published folder's `config.json`.

    Args:
      folder: folder of the files, such as `fp.data.minilm()`.
      **fields: fields of the encoder that the file does not set.

    Returns:
      The encoder, without its weights: `bert_params` reads the parameters.

    Raises:
      InputError: if the file cannot be read, or describes another network than BERT's.
    """
    path = pathlib.Path(folder) / _CONFIG
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise checks.InputError(f"Cannot read '{path}': {error.strerror}.") from error
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise checks.InputError(f"Expected '{path}' to hold an object of JSON.")
    for name, value in _SUPPORTED.items():
        # Absent names pass.
        if config.get(name, value) != value:
            raise checks.InputError(
                f"Expected {name} to be {value!r} in '{path}', got {config[name]!r}."
            )
    missing = [name for name in _SIZES if name not in config]
    if missing:
        raise checks.InputError(f"Expected {missing[0]!r} in '{path}'.")
    sizes = {field: config[name] for name, field in _SIZES.items()}
    return TextEncoder(**sizes, padding=config.get("pad_token_id", 0), **fields)


def bert_params(
    path: str | os.PathLike[str], model: TextEncoder, key: core.Key
) -> core.Params:
    """Reads pretrained weights of an encoder by their published names.

    Of positions the first `max_length` are read. What pretraining has put on top of
    the encoder (`pooler`, `cls`) is left out, and the head is drawn.

    Args:
      path: a `.safetensors` file, or a folder with `model.safetensors`.
      model: an encoder that has the federation's shapes.
      key: `[]` key of the head.

    Returns:
      Parameters of the model; pretrained ones in 32 bits.

    Raises:
      InputError: if the file cannot be read, if names are missing or superfluous, if an
        array has another shape than the encoder's, or if the file is quantized.
    """
    path = pathlib.Path(path)
    path = path / _WEIGHTS if path.is_dir() else path
    # Shapes name all leaves; only the head, which is not pretrained, is drawn.
    encoder = jax.eval_shape(model.init, key)
    outputs, width = encoder.pop("head")["kernel"].shape
    names = jax.tree.leaves(tree_paths.names(encoder))
    shapes = [leaf.shape for leaf in jax.tree.leaves(encoder)]
    published = [_published(name) for name in names]
    arrays = _read(path, dict(zip(published, shapes, strict=True)))
    body = zip((name.split("/") for name in names), arrays, strict=True)
    scheme = model.initialization
    head = initializers.layer(key, (outputs, width), width, outputs, scheme)
    return tree_paths.nested(body) | {"head": head}


def _published(name: str) -> str:
    """Returns BERT's name of a parameter, such as `layer_0/query/kernel`."""
    layer, part, *leaf = name.split("/")
    ending = {"kernel": "weight", "gain": "weight", "bias": "bias"}
    if layer == "embeddings":
        suffix = f"LayerNorm.{ending[leaf[0]]}" if leaf else _EMBEDDINGS[part]
        return f"embeddings.{suffix}"
    place = _LAYER[part]
    return f"encoder.layer.{layer.removeprefix('layer_')}.{place}.{ending[leaf[0]]}"


def _read(
    path: pathlib.Path, shapes: Mapping[str, tuple[int, ...]]
) -> list[np.ndarray]:
    """Reads arrays `float32` by name, each of its shape; of positions maybe a part."""
    import safetensors  # needed only here

    try:
        with safetensors.safe_open(path, framework="flax") as file:
            stored = {n: file.get_slice(n) for n in file.keys()}  # noqa: SIM118
            prefix = _PREFIX if any(n.startswith(_PREFIX) for n in stored) else ""
            stored = {name.removeprefix(prefix): part for name, part in stored.items()}
            _check(path, stored, shapes)
            return [
                # Of positions the encoder may need fewer than there are.
                np.asarray(stored[name][: shape[0]], np.float32)
                for name, shape in shapes.items()
            ]
    except (OSError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise checks.InputError(
            f"Expected '{path}' to be a file of safetensors: {reason}."
        ) from error


def _check(
    path: pathlib.Path, stored: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuses a file that does not hold the encoder's weights."""
    used = {name: part for name, part in stored.items() if not _UNUSED.fullmatch(name)}
    for name, part in sorted(used.items()):
        if (kind := part.get_dtype()) not in _FLOATS:
            raise checks.InputError(
                f"Expected weights of floating-point numbers in '{path}', but {name!r}"
                f" is {kind}; quantized files are refused."
            )
    missing, extra = shapes.keys() - used.keys(), used.keys() - shapes.keys()
    for names, words in ((missing, "lacks"), (extra, "also has")):
        if names:
            tail = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise checks.InputError(
                f"Expected '{path}' to hold the weights of an encoder of this depth,"
                f" but it {words} {min(names)!r}{tail}."
            )
    for name, shape in sorted(shapes.items()):
        size = tuple(used[name].get_shape())
        is_longer = "position" in name and size[1:] == shape[1:] and size[0] > shape[0]
        if size != shape and not is_longer:
            raise checks.InputError(
                f"Expected {name!r} of shape {shape} in '{path}', got {size}."
            )
