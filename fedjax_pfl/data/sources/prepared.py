"""Data sets that tensorflow-datasets has prepared; nothing is downloaded here.

Only this file imports tensorflow-datasets, inside one function. TensorFlow is not
needed to read, but the records must have been prepared as `array_record`:
`tfds.builder(name, data_dir=..., file_format="array_record").download_and_prepare()`.
Examples are in tensorflow-datasets' own order.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["LAYOUT", "download", "find_prepared", "read_examples", "read_images"]

LAYOUT = "tensorflow-datasets"
_CLASS = ("pythonClassName", "python_class_name", "type")  # fields of features.json


def find_prepared(root: Path, builder: str) -> tuple[Path, ...]:
    """Returns the files of a set that tensorflow-datasets prepared in a folder."""
    folder = root / builder
    if not any(folder.glob("**/dataset_info.json")):
        return ()
    return tuple(sorted(path for path in folder.glob("**/*") if path.is_file()))


def read_images(
    builder: str, paths: Sequence[Path], labels: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Reads `uint8[S, H, W, channels]` and `int[S, len(labels)]`, train then test."""
    examples = list(read_examples(builder, paths, ("train", "test")))
    y = [[example[label] for label in labels] for example in examples]
    return np.stack([example["image"] for example in examples]), np.array(y)


def read_examples(
    builder: str, paths: Sequence[Path], splits: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yields the decoded examples of all splits, one split after the other."""
    for path in paths:
        if path.name == "features.json":
            _check_classes(path)
    folder = next(path for path in paths[0].parents if path.name == builder)
    try:
        import tensorflow_datasets as tfds  # several seconds, paid only by its users

        sources: Any = tfds.data_source(
            builder, data_dir=str(folder.parent), split=list(splits), download=False
        )
        for source in sources:
            for row in range(len(source)):
                yield {
                    # Bytes of a text that are not UTF-8 are replaced, or no example
                    # could be read.
                    name: value.decode(errors="replace")
                    if isinstance(value, bytes)
                    else value
                    for name, value in source[row].items()
                }
    except ImportError as error:  # of this package, or of what it needs for images
        raise checks.InputError(
            f"The prepared data set '{folder}' needs tensorflow-datasets"
            f' ({_one_line(error)}): pip install "fedjax_pfl[data]".'
        ) from error
    except Exception as error:  # its readers raise many kinds on damaged files
        raise checks.InputError(
            f"tensorflow-datasets cannot read '{folder}': {_one_line(error)}."
        ) from error


def download(builder: str, folder: Path) -> None:
    """Downloads a data set by tensorflow-datasets, which compares checksums."""
    import tensorflow_datasets as tfds

    maker = tfds.builder(builder, data_dir=str(folder), file_format="array_record")
    maker.download_and_prepare()


def _check_classes(path: Path) -> None:
    """Refuses a file of features that would make tensorflow-datasets import others'."""
    try:
        waiting: list[Any] = [[json.loads(path.read_text("utf-8"))]]
    except (OSError, ValueError, RecursionError) as error:
        raise checks.InputError(f"Cannot read '{path}': {_one_line(error)}.") from error
    while waiting:
        value = waiting.pop()
        inner = value if isinstance(value, dict) else dict(enumerate(value))
        for name, entry in inner.items():
            if isinstance(entry, str) and entry.lstrip()[:1] in ("{", "["):
                with contextlib.suppress(ValueError, RecursionError):
                    entry = json.loads(entry)  # as older files have it
            if isinstance(entry, dict | list):
                waiting.append(entry)
            elif name in _CLASS and not str(entry).startswith("tensorflow_datasets."):
                raise checks.InputError(
                    f"Expected '{path}' to name classes of tensorflow-datasets, which"
                    f" are imported, got {json.dumps(entry)}."
                )


def _one_line(error: Exception) -> str:
    """Returns the beginning of a message."""
    return " ".join(str(error).split())[:200].rstrip(".")
