"""Damaged, generated and malicious data files: a correct data set, or one sentence."""

import gzip
import io
import json
import os
import pathlib
import resource
import shutil
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import strategies as st

from fedjax_pfl.core import checks
from fedjax_pfl.data import sources
from tests.trust import files, inputs

CELLS = [
    *("", "0", "1", "-1", "1.5", "1e308", "1e999", "-1e-320", "9007199254740993", "NA"),
    *("nan", "inf", "-Infinity", "true", "False", "red", "\u00e9", "\u0661", "1,5"),
    *("1 2", '"', '"a', '"a""b"', '"a\nb"', "'", "\t", ";", "\ufeff", "\u2028", "0x1"),
    "9" * 400,
]
VALUES = [
    *(b"0", b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b"true", b"9" * 5000),
    *(b"-9223372036854775808", b"18446744073709551616", b'"\\ud800"', b'"\\u0000"'),
    *(b"[" * 2000, b"[[0.5]]", b"1.5", b'""', b'"3"', b"\xff\xff", b"\0", b"\r", b","),
]
DTYPES = "bool u1 i1 i4 >i4 i8 u8 f2 f4 >f8 f8 c8 U3 S3 O M8[s] m8[D] V4".split()


def read(form, given):
    """Reads files in a new place; the sentence of a refusal, or None."""
    with inputs.place() as folder:
        files.write(folder, given)
        try:
            with inputs.bounded():
                dataset = form.load(folder)
        except checks.InputError as error:
            assert inputs.is_sentence(str(error)), str(error)
            return str(error)
        files.check_dataset(dataset)
    return None


def replaced(draw, content):
    """Text with a piece between separators replaced by something odd."""
    marks = [k for k, byte in enumerate(content) if byte in b',:[]{}\n "']
    start = draw(st.sampled_from(marks or [0])) + 1
    end = next((k for k in marks if k >= start), len(content))
    value = draw(st.sampled_from([*VALUES, *(cell.encode() for cell in CELLS)]))
    return content[:start] + value + content[end:]


def rearchived(draw, content):
    """An archive of arrays with one array's file mutated and all checksums right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(sorted(members)))
    members[name] = inputs.mutated(draw, members[name])
    return files.zipped(members)


@st.composite
def damaged(draw):
    """Name of a format and files, one of them damaged."""
    name = draw(st.sampled_from(sorted(files.FORMATS)))
    given = dict(files.FORMATS[name].files)
    file = draw(st.sampled_from(sorted(given)))
    content = given[file]
    kind = draw(st.sampled_from(["bytes", "inside", "inside", "text", "text"]))
    if draw(st.sampled_from([False] * 30 + [True])):
        del given[file]
        return name, given
    change = inputs.mutated if kind != "text" else replaced
    if kind != "bytes" and file.endswith(".gz"):
        given[file] = files.packed(change(draw, gzip.decompress(content)))
    elif kind == "inside" and file.endswith(".npz"):
        given[file] = rearchived(draw, content)
    else:
        given[file] = change(draw, content)
    return name, given


def test_damaged_files(request):
    trials = inputs.Trials(request, default=150, long=6000)
    trials.run(
        "damaged files",
        damaged(),
        lambda given: read(files.FORMATS[given[0]], given[1]),
    )


SELDOM = st.sampled_from([False] * 5 + [True])


@st.composite
def tables(draw):
    """A table with a few odd cells, rows or characters, and options to read it."""
    columns = ["a", "b", "y", "c"]
    if draw(SELDOM):
        columns = draw(st.lists(st.sampled_from(["a", "y", "", "a b"]), max_size=4))
    rows = [columns]
    for k in range(draw(st.integers(1, 6))):
        rows.append([str((k + position) % 3) for position in range(len(columns))])
    for _ in range(draw(st.sampled_from([0, 0, 1, 2])) if columns else 0):
        column = draw(st.integers(0, len(columns) - 1))
        cell = st.sampled_from(CELLS)
        odd, everywhere = draw(cell), draw(st.booleans())
        for row in rows[1:] if everywhere else [draw(st.sampled_from(rows))]:
            row[column] = odd if draw(st.booleans()) else draw(cell)
    if draw(SELDOM):
        rows.append(draw(st.lists(st.sampled_from(CELLS), max_size=5)))
    end = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    mark = " " if draw(SELDOM) else draw(st.sampled_from([",", ";", "\t"]))
    text = end.join(mark.join(row) for row in rows)
    codec = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    options = {
        "label": "y" if not draw(SELDOM) else draw(st.sampled_from(["a", "", "z"])),
        "client": draw(st.sampled_from([None, "c", "b"])),
        "task": draw(st.sampled_from(["auto", "auto", "classification", "regression"])),
        "scaling": draw(st.sampled_from(["standard", "minmax", "none"])),
        "scale": draw(st.sampled_from(["all", "client"])),
        "missing": draw(st.sampled_from(["refuse", "drop", "mean", "class"])),
        "time": draw(st.sampled_from([None, None, "a"])),
        "decimal": draw(st.sampled_from([".", ".", ","])),
        "thousands": draw(st.sampled_from([None, None, ",", " "])),
        "comment": draw(st.sampled_from([None, "#", '"'])),
    }
    codec = codec if draw(SELDOM) else "utf-8"
    return text.encode(codec, errors="replace"), options


def test_tables(request):
    def is_refused(given):
        content, options = given
        form = files.Format({}, lambda f: sources.Csv(path=f / "t.csv", **options))
        return read(form, {"t.csv": content})

    inputs.Trials(request, default=80, long=2500).run("tables", tables(), is_refused)


JSON = st.recursive(
    st.sampled_from([None, True, 0, 1, -1, 2.5, 1e300, 10**25, "", "ann", "\ud800"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["ann", "x", "y"]), inner, max_size=2),
    ),
    max_leaves=6,
)


@st.composite
def leaf_files(draw):
    """A LEAF file, some parts of which are something else."""
    users = {}
    for name in draw(st.lists(st.sampled_from(["ann", "bob", "\ud800"]), max_size=2)):
        x = st.lists(st.sampled_from([0.5, 1, 2]), min_size=2, max_size=2)
        number = draw(st.integers(0, 3))
        rows = st.lists(x, min_size=number, max_size=number)
        classes = st.lists(st.integers(0, 2), min_size=number, max_size=number)
        odd = draw(st.sampled_from([False] * 5 + [True]))
        users[name] = (draw(JSON if odd else rows), draw(classes))
    content = json.loads(files.leaf(**users))
    if draw(st.sampled_from([False] * 4 + [True])):
        content[draw(st.sampled_from(sorted(content)))] = draw(JSON)
    return json.dumps(draw(st.sampled_from([content] * 9 + [[content]]))).encode()


def test_leaf_files(request):
    form = files.Format({}, lambda f: sources.LeafJson(path=f / "a.json"))
    trials = inputs.Trials(request, default=50, long=1500)
    trials.run("LEAF files", leaf_files(), lambda text: read(form, {"a.json": text}))


@st.composite
def any_arrays(draw, usual):
    """An array of a usual type and shape, or of any."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES if draw(SELDOM) else usual)))
    shape = (4, *draw(st.sampled_from([[], [], [3], [2, 2], [1]])))
    if draw(SELDOM):
        shape = tuple(draw(st.lists(st.sampled_from([4, 1, 0]), max_size=3)))
    size = int(np.prod(shape))
    if dtype.kind == "O":
        return np.array([draw(st.sampled_from([1, "a", None]))] * 4, object)
    if dtype.kind in "US":
        return np.array(list("abca") * size, dtype)[:size].reshape(shape)
    raw = bytes(range(256)) * (1 + size * dtype.itemsize // 256)
    if draw(SELDOM):
        raw = draw(st.binary(min_size=1, max_size=8)) * (1 + size * dtype.itemsize)
    elif dtype.kind in "biuf":
        return (np.arange(size) % 3).astype(dtype).reshape(shape)
    return np.frombuffer(raw[: size * dtype.itemsize], dtype).reshape(shape)


def test_arrays(request):
    trials = inputs.Trials(request, default=60, long=2000)
    form = files.Format({}, lambda f: sources.Npz(path=f / "a.npz"))
    some = {
        "x": any_arrays(["f8", "f4", "i4", "u1", "bool", ">f8"]),
        "y": any_arrays(["i8", "U3", "f4", "u1"]),
    }
    arrays = st.fixed_dictionaries(some, optional={"client": any_arrays(["i8", "U3"])})
    trials.run(
        "arrays", arrays, lambda given: read(form, {"a.npz": files.npz(**given)})
    )


def npy(header, body=b""):
    """Bytes of an array with any header."""
    text = repr(header).encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def archive(**members):
    """An archive of arrays whose files are given."""
    return files.zipped({f"{name}.npy": member for name, member in members.items()})


def bomb(size):
    """A gzip file of so many zeros: of one block, and members that are all alike."""
    return gzip.compress(bytes(1 << 20)) * (size >> 20)


def pax(name, size):
    """A tar archive whose extended header claims to be of some size."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf(tarfile.GNU_FORMAT)


def png(width, height):
    """A picture that claims a size and has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk


HUGE = {"descr": "<f8", "fortran_order": False, "shape": (2**31, 2**31)}
BIG = {"descr": "|u1", "fortran_order": False, "shape": (2**33,)}
NONE = {"descr": "<f8", "fortran_order": False, "shape": (0, 2**62)}
ABSURD = {
    "idx of 2^62 values": ("idx", b"\0\0\x08\x03" + b"\x80\0\0\0" * 3),
    "idx of nothing": ("idx", b"\0\0\x08\x03" + bytes(4) + b"\xff" * 8),
    "npz of 2^62 values": ("npz", archive(x=npy(HUGE), y=npy(HUGE))),
    "npz of 8 GiB": ("npz", archive(x=npy(BIG), y=npy(BIG))),
    "npz of nothing": ("npz", archive(x=npy(NONE), y=npy(NONE))),
    "npz with a long header": ("npz", archive(x=npy("(" * 60000), y=npy(HUGE))),
    "npz out of its place": ("npz", archive(**{"../../x": npy(HUGE), "/y": b""})),
    "table bomb": ("csv.gz", bomb(1 << 30)),
    "many columns": ("csv", b"c," * 300_000 + b"y\n"),
    "one long line": ("csv", b"a,y\n" + b"x" * 10**7),
    "tar bomb": ("cifar archive", bomb(1 << 30)),
    "tar header of 8 GB": ("cifar archive", gzip.compress(pax("x", 8 * 10**9))),
    "picture of 10^19 pixels": ("images", png(2**31 - 1, 2**31 - 1)),
    "picture of 10^8 pixels": ("images", png(10**4, 10**4)),
    "json bomb": ("leaf", b"[" * 10**6),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_sizes_take_no_memory(name):
    kind, content = ABSURD[name]
    form = files.FORMATS[kind]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read(form, dict(form.files) | {sorted(form.files)[0]: content})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kB


def test_members_that_lead_out_of_an_archive_write_nothing(tmp_path):
    good = dict(gzip_members())
    evil = files.tar({"../evil": b"1", "/tmp/evil": b"2"} | good)
    form = files.FORMATS["cifar archive"]
    (name,) = form.files
    assert read(form, {name: files.packed(evil)}) is None
    with inputs.place() as folder:
        files.write(folder, {f"a/b/{name}": files.packed(evil)})
        form.load(folder / "a/b")
        assert inputs.contents(folder).keys() == {f"a/b/{name}"}


def gzip_members():
    """Names and contents of a good archive."""
    (content,) = files.FORMATS["cifar archive"].files.values()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as opened:
        for member in opened:
            yield member.name, opened.extractfile(member).read()


class Trap:
    """Pickled, it writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (pathlib.Path.write_text, (self.path, "sprung"))


@pytest.mark.parametrize("name", ["x", "y", "client"])
def test_nothing_is_unpickled(name, tmp_path):
    trap = np.empty(4, object)
    trap[:] = Trap(tmp_path / "trap")
    arrays = {"x": np.eye(4), "y": np.arange(4), "client": np.arange(4)}
    with inputs.place() as folder:
        path = folder / "a.npz"
        np.savez(path, **(arrays | {name: trap}))
        with pytest.raises(checks.InputError, match="never read"):
            sources.Npz(path=path).load(data_dir=None, seed=0, num_clients=None)
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("name", ["t.csv", "a.npz", "a.json", "cat/a.png"])
@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "device"])
def test_what_is_no_file(name, kind, tmp_path):
    """A pipe or a device would be read for ever."""
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "loop" else "/dev/zero")
    given = path.parents[1] if name == "cat/a.png" else path
    with inputs.bounded(), pytest.raises(checks.InputError) as caught:
        source = sources.user.source_for(
            str(given), label="y" if "csv" in name else None
        )
        source.load(data_dir=None, seed=0, num_clients=None)
    assert inputs.is_sentence(str(caught.value))
    shutil.rmtree(tmp_path / "data")
