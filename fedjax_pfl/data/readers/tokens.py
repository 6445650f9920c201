"""Token ids of texts, by a tokenizer in a file."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import published
from fedjax_pfl.data.readers import files

__all__ = ["MINILM", "find_tokenizer", "token_ids"]

MINILM = "minilm"
"""Name of the tokenizer of `published.minilm`."""
_PADDING = ("[PAD]", "<pad>")


def find_tokenizer(name: str) -> Path:
    """Returns the file of a tokenizer, by its path or the name `minilm`."""
    if name == MINILM:
        return published.minilm() / "tokenizer.json"
    path = Path(os.path.expanduser(name)).absolute()
    if not path.is_file():
        raise checks.InputError(
            f"Expected tokenizer to be {MINILM!r} or the path of a tokenizer.json, but"
            f" there is no file '{path}'."
        )
    return path


def token_ids(texts: Sequence[str], path: Path, length: int | None) -> np.ndarray:
    """Converts texts to ids `int32[S, length]`, cut or padded at the end."""
    try:
        import tokenizers  # pyright: ignore[reportMissingImports] (an extra)
    except ImportError as error:
        raise checks.InputError(
            "Expected the library tokenizers, of the extra `text`: pip install"
            " tokenizers."
        ) from error
    content = files.read_text(files.read_content(path), path)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        reason = " ".join(str(error).split()).rstrip(".")
        raise checks.InputError(
            f"Expected '{path}' to be a tokenizer.json: {reason}."
        ) from error
    padding = [token for token in _PADDING if tokenizer.token_to_id(token) is not None]
    if not padding:
        raise checks.InputError(
            f"Expected the tokenizer in '{path}' to have a token for padding,"
            f" {' or '.join(_PADDING)}."
        )
    fill = {"pad_token": padding[0], "pad_id": tokenizer.token_to_id(padding[0])}
    tokenizer.enable_padding(length=length, **fill)  # replaces what the file says
    added = tokenizer.num_special_tokens_to_add(is_pair=False)
    if length is None:
        tokenizer.no_truncation()
    elif length > added:
        tokenizer.enable_truncation(length)
    else:
        raise checks.InputError(
            f"Expected texts of more than the {added} tokens that '{path}' adds to"
            f" each, got {length}."
        )
    encodings = tokenizer.encode_batch(list(texts))
    return np.array([encoding.ids for encoding in encodings], np.int32)
