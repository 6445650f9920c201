"""Coverage-guided fuzzing of one file reader, in a process of its own.

    python -m tests.trust.fuzz_reader READER FOLDER [options of libFuzzer]

FOLDER gets `corpus/`, which starts with a valid file, and `crash-*` files: bytes on
which the reader did something else than returning a correct data set or refusing them
in one sentence. libFuzzer prints the traceback, and the status is not 0.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["fedjax_pfl.data"]):
    from fedjax_pfl.core import checks
    from tests.trust import files, inputs


@dataclasses.dataclass(frozen=True)
class Reader:
    """What is fuzzed: one file of a format, made of the fuzzer's bytes.

    Attributes:
      form: the format, whose other files stay as they are.
      file: name of the file.
      start: bytes that make a valid file.
      wrap: from the fuzzer's bytes to the content of the file.
    """

    form: files.Format
    file: str
    start: bytes
    wrap: Callable[[bytes], bytes] = bytes


def _file(name, number=0):
    """A reader of the file of a format as it is."""
    form = files.FORMATS[name]
    file = sorted(form.files)[number]
    return Reader(form, file, form.files[file])


def _npy(content):
    """An archive whose array x is given byte by byte, with the right checksum."""
    return files.zipped({"x.npy": content, "y.npy": files.npy([1, 0, 2])})


class _Planted:
    """A reader with a fault that is known, to see that faults are found."""

    def __init__(self, folder):
        self.folder = folder

    @atheris.instrument_func
    def load(self, **_):
        content = (self.folder / "planted").read_bytes()
        if len(content) > 1 and content[0] == 70 and content[1] == 85:
            raise IndexError(content)
        raise checks.InputError("No fault.")


_TAR = files.tar(files.CIFAR10)
READERS = {
    "csv": _file("csv"),
    "dialect": _file("csv dialect"),
    "folder": _file("csv folder"),
    "parquet": _file("parquet"),
    "npz": _file("npz"),
    "npy": Reader(files.FORMATS["npz"], "a.npz", files.npy([[1.0], [2], [3]]), _npy),
    "leaf": _file("leaf", 1),
    "png": _file("images", 0),
    "bmp": _file("images", 3),
    "idx": _file("idx", 2),
    "tar": Reader(
        files.FORMATS["cifar archive"], "cifar-10-binary.tar.gz", _TAR, files.packed
    ),
    "cifar": _file("cifar folder"),
    "sheets": _file("cifar sheets", 2),
    "tweets": _file("sent140", 1),
    "vectors": _file("sent140", 0),
    "speeches": _file("shakespeare"),
    "prices": _file("stocks"),
    "planted": Reader(files.Format({"planted": b"F"}, _Planted), "planted", b"FA"),
}


def main(name, folder, *options):
    """Fuzzes one reader until libFuzzer's options say that it is enough."""
    reader, folder = READERS[name], pathlib.Path(folder).absolute()
    data, corpus = folder / "data", folder / "corpus"
    files.write(data, reader.form.files)
    files.write(corpus, {"valid": reader.start})
    path, number = data / reader.file, 0

    def read_one(content):
        nonlocal number
        number += 1
        path.write_bytes(reader.wrap(content))
        os.utime(path, ns=(number, number))  # nothing is known of this file yet
        try:
            with inputs.bounded():
                files.check_dataset(reader.form.load(data))
        except checks.InputError as error:
            assert inputs.is_sentence(str(error)), str(error)

    flags = [f"-artifact_prefix={folder}/", "-timeout=0", "-rss_limit_mb=3000"]
    atheris.Setup([name, *flags, *options, str(corpus)], read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
