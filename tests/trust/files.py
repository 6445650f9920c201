"""A small valid instance of every file format, and what is true of any data set."""

import dataclasses
import gzip
import io
import json
import pathlib
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from fedjax_pfl.data import sources

RNG = np.random.default_rng(0)
LABELS = (3, 1, 4)


@dataclasses.dataclass(frozen=True)
class Format:
    """Files of one data set, and what reads them.

    Attributes:
      files: bytes by name below a folder.
      source: from the folder and its place, the source to load.
    """

    files: Mapping[str, bytes]
    source: Callable[[pathlib.Path], Any]

    def load(self, folder):
        """Loads the files below a folder."""
        return self.source(folder).load(data_dir=str(folder), seed=0, num_clients=None)


def write(folder, files):
    """Puts files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def check_dataset(dataset):
    """Checks what every data set promises."""
    x, y = dataset.x, dataset.y
    assert x.size and len(x) == len(y) == dataset.num_samples
    assert x.dtype in (np.uint8, np.int32, np.float32)
    assert np.isfinite(x).all() and np.isfinite(y).all()
    assert np.isfinite(dataset.scale).all() and np.isfinite(dataset.shift).all()
    if dataset.num_classes is not None:
        assert y.dtype == np.int32 and 0 <= y.min() <= y.max() < dataset.num_classes
    if dataset.class_names is not None:
        assert len(dataset.class_names) == dataset.num_classes
    if dataset.client is not None:
        assert dataset.client.shape == (len(x),) and dataset.client.min() >= 0
    if dataset.client_names is not None:
        assert dataset.client.max() < len(dataset.client_names)
    for name in (*(dataset.class_names or ()), *(dataset.client_names or ())):
        name.encode()


def npz(compress=False, **arrays):
    """Bytes of an archive of arrays."""
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **arrays)
    return file.getvalue()


def parquet(**columns):
    """Bytes of a parquet file."""
    file = io.BytesIO()
    pd.DataFrame(columns).to_parquet(file)
    return file.getvalue()


def npy(values):
    """Bytes of one array."""
    file = io.BytesIO()
    np.save(file, np.array(values))
    return file.getvalue()


def zipped(members):
    """Bytes of a zip archive, the same every time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def idx(array):
    """Bytes of an idx file of unsigned bytes."""
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def tar(members):
    """Bytes of a tar archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def image(kind, shape, **options):
    """Bytes of an image of random pixels."""
    file = io.BytesIO()
    pixels = RNG.integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def leaf(**users):
    """Bytes of a LEAF file, from `(x, y)` by user."""
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
        }
    ).encode()


def packed(content):
    """Compressed with gzip, the same every time."""
    return gzip.compress(content, mtime=0)


def _named(name, **options):
    return lambda folder: sources.source(name, **options, verify=False)


_TABLE = "a,b,y,c\n" + "".join(
    f"{k / 3:.3f},{'red' if k % 3 else 'blue'},{k % 2},client {k % 4}\n"
    for k in range(12)
)
_NUMBERS = leaf(ann=([[0.5, 1], [2, 3]], [0, 1]), bob=([[1, 1.5]], [2]))
_TWEETS = leaf(
    ann=([["1", "d", "q", "u", "good day, sir", ""]], [1]),
    bob=([["2", "d", "q", "u", "bad night", ""], ["3", "d", "q", "u", "day"]], [0, 1]),
)
_PLAY = "".join(
    f"{name}:\n{line * 4}\n\n"
    for name, line in (("ANN", "to be or not. "), ("BOB", "Nay!\nAye? "))
)
_PRICES = "date,ticker,adj_close\n" + "".join(
    f"2020-01-{day:02d},{ticker},{(day * 7 + k * 3) % 11 + 1.5}\n"
    for day in range(1, 9)
    for k, ticker in enumerate(("AA", "BB"))
)
_IMAGES, _DIGITS = RNG.integers(0, 256, (3, 28, 28), np.uint8), np.array(LABELS)
_ARRAYS = {
    "x": RNG.normal(size=(4, 3)),
    "y": ["b", "a", "b", "c"],
    "client": [5, 5, 9, 5],
}
_FEMNIST = {
    "images": _IMAGES,
    "labels": _DIGITS,
    "writer": [0, 1, 1],
    "writer_names": ["ann", "bob"],
}
CIFAR10 = {
    f"cifar-10-batches-bin/{name}.bin": bytes([k]) + RNG.bytes(3072)
    for k, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"])
}
_CIFAR100 = {
    f"cifar-100-binary/{name}.bin": bytes([3, 44]) + RNG.bytes(3072)
    for name in ("train", "test")
}
_SHEET = image("WEBP", (32, 32, 3), lossless=True)

FORMATS = {
    "csv": Format(
        {"t.csv": _TABLE.encode()},
        lambda f: sources.Csv(path=f / "t.csv", label="y", client="c"),
    ),
    "csv.gz": Format(
        {"t.csv.gz": packed(_TABLE.encode())},
        lambda f: sources.Csv(path=f / "t.csv.gz", label="a", scaling="minmax"),
    ),
    "csv dialect": Format(
        {"t.csv": b"#x\n" + _TABLE.replace(",", ";").replace(".", ",").encode()},
        lambda f: sources.Csv(
            path=f / "t.csv",
            label="y",
            time="a",
            missing="class",
            **{"decimal": ",", "thousands": ".", "comment": "#", "encoding": "latin-1"},
        ),
    ),
    "csv folder": Format(
        {f"s/{name}.csv": _TABLE.encode() for name in "pq"},
        lambda f: sources.Csv(path=f / "s", label="y", missing="mean"),
    ),
    "parquet": Format(
        {"t.parquet": parquet(a=[1.0, 2, 3], b=["x", None, "z"], y=[0, 1, 0])},
        lambda f: sources.Csv(path=f / "t.parquet", label="y", missing="drop"),
    ),
    "npz folder": Format(
        {f"s/{name}.npz": npz(**_ARRAYS) for name in "pq"},
        lambda f: sources.Npz(path=f / "s"),
    ),
    "npz": Format({"a.npz": npz(**_ARRAYS)}, lambda f: sources.Npz(path=f / "a.npz")),
    "npz deflated": Format(
        {"a.npz": npz(True, x=_IMAGES, y=_DIGITS)},
        lambda f: sources.Npz(path=f / "a.npz"),
    ),
    "leaf": Format(
        {"train/a.json": _NUMBERS, "test/a.json.gz": packed(_NUMBERS)},
        lambda f: sources.LeafJson(path=f),
    ),
    "images": Format(
        {
            "cat/a.png": image("PNG", (6, 5)),
            "cat/b.webp": image("WEBP", (6, 5, 3)),
            "dog/c.jpeg": image("JPEG", (6, 5, 3)),
            "dog/d.bmp": image("BMP", (6, 5)),
        },
        lambda f: sources.ImageFolder(path=f),
    ),
    "idx": Format(
        {
            f"mnist/{part}-{what}-ubyte": idx(array)
            for part in ("train", "t10k")
            for what, array in (("images-idx3", _IMAGES), ("labels-idx1", _DIGITS))
        },
        _named("mnist"),
    ),
    "cifar archive": Format(
        {"cifar-10-binary.tar.gz": packed(tar(CIFAR10))}, _named("cifar10")
    ),
    "cifar folder": Format(_CIFAR100, _named("cifar100", labels="coarse")),
    "cifar sheets": Format(
        {
            "cifar100/train.webp": _SHEET,
            "cifar100/test.webp": _SHEET,
            "cifar100/labels.npz": npz(
                train=[1], test=[0], fine_to_coarse=np.arange(100) // 5
            ),
        },
        _named("cifar100"),
    ),
    "medical": Format(
        {
            "medical_mnist_28x28.npz": npz(
                images=_IMAGES, labels=[0, 1, 0], names=["a", "b"]
            )
        },
        _named("medical_mnist"),
    ),
    "femnist": Format(
        {"leaf_femnist_105_writers.npz": npz(**_FEMNIST)}, _named("femnist")
    ),
    "femnist leaf": Format(
        {"femnist/train/a.json": leaf(ann=([[0.25] * 784, [1] * 784], [3, 61]))},
        _named("femnist", classes="digits"),
    ),
    "sent140": Format(
        {
            "sent140/train/a.json": _TWEETS,
            "glove/glove.2d.txt": b"day 0.5 1\nbad -1 2e-3\ngood 1 1\n, 0 1\n",
        },
        _named("sent140", num_words=4),
    ),
    "shakespeare": Format(
        {"tiny_shakespeare.txt": _PLAY.encode()},
        _named("shakespeare", context=8, stride=3),
    ),
    "stocks": Format({"stocks/p.csv": _PRICES.encode()}, _named("stocks", window=3)),
}
