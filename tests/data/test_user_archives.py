import gzip
import json
import struct
import zipfile

import numpy as np
import pytest

from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import load, refusal, write

X = np.arange(12.0).reshape(4, 3)


def archive(path, compress=False, **arrays):
    (np.savez_compressed if compress else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_npz(tmp_path, compress):
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6), np.uint8)
    path = archive(
        tmp_path / "mine.npz",
        compress,
        x=images,
        y=["b", "a", "b", "c"],
        client=[5, 5, 9, 5],
        other=np.asfortranarray(X),
        truth=np.array([1.5, 2, 3, 4], ">f8"),
        extra=np.array([None]),  # pickled, but not asked for
    )
    dataset = load(user.Npz(path=path))
    assert dataset.name == "mine" and dataset.scale == np.float32(1 / 255)
    np.testing.assert_array_equal(dataset.x, images)
    assert dataset.y.tolist() == [1, 0, 1, 2]
    assert dataset.client.tolist() == [0, 0, 1, 0]
    assert dataset.client_names == ("5", "9") and dataset.class_names == tuple("abc")
    other = load(user.Npz(path=path, x="other", y="truth", client="y"))
    np.testing.assert_array_equal(other.x, X)
    assert other.y.tolist() == [1.5, 2, 3, 4] and other.client.tolist() == [1, 0, 1, 2]
    assert load(user.Npz(path=path)) is dataset


def npy(descr, shape, data=b""):
    """The bytes of an array whose header may promise anything."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    size = struct.pack("<H", len(header))
    return b"\x93NUMPY\x01\x00" + size + header.encode("latin1") + data


def forged(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("member", "part"),
    [
        (npy("'<f4'", (1 << 40, 1 << 40)), "its header promises"),
        (npy("'<f4'", (-1, 4), b"0" * 16), "its header promises"),
        (npy("'<f4'", (2, 2), b"0" * 15), "has 15 bytes, but its header promises 16"),
        (npy("'<f4'", (2, 2), b"0" * 17), "has 17 bytes, but its header promises 16"),
        (npy("'<f4'", (1 << 14,), b"0" * (1 << 16)), "max_bytes=50,000"),
        (npy("'|O'", (1,), b"cos\nsystem\n(S'true'\ntR."), "never read"),
        (npy("[('a', '<f4')]", (1,), b"0000"), "never read"),
        (npy("'<c8'", (1,), b"0" * 8), "expected numbers or text"),
        (npy("'<U1'", (4,), b"\xff" * 16), "not a complete npz"),
        (npy("__import__('os')", (1,)), "not a complete npz"),
        (npy("'<f4'", "(" * 500), "not a complete npz"),
        (npy("'<f4'", ("a",)), "not a complete npz"),
        (b"\x93NUMPY\x09\x00", "not a complete npz"),
        (b"", "not a complete npz"),
        (b"text", "not a complete npz"),
    ],
)
def test_forged_arrays(tmp_path, member, part):
    path = forged(tmp_path / "mine.npz", x=member, y=npy("'<f4'", (1,), b"0000"))
    assert part in refusal(load, user.Npz(path=path, max_bytes=50_000))


def test_odd_names_in_an_archive_are_not_shown(tmp_path):
    path = forged(tmp_path / "mine.npz", **{"a\nb": b"", "y": b""})
    sentence = refusal(load, user.Npz(path=path))
    assert sentence.startswith("Unknown array") and sentence.endswith("allowed: y.")


def test_the_limit_of_memory_counts_all_arrays(tmp_path):
    path = archive(tmp_path / "mine.npz", x=X, y=np.arange(4.0))
    assert load(user.Npz(path=path, max_bytes=128)).num_samples == 4
    assert "max_bytes=127" in refusal(load, user.Npz(path=path, max_bytes=127))


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n1,2\n", gzip.compress(b"a", mtime=0), npy("'<f8'", (1,), b"0" * 8)],
)
def test_files_that_are_no_archive(tmp_path, content):
    (tmp_path / "mine.npz").write_bytes(content)
    assert "not a complete npz" in refusal(load, user.Npz(path=tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"x": "inputs"}, "Unknown array"),
        ({"y": "xx"}, "did you mean 'x'"),
        ({"client": "clients"}, "Unknown array"),
        ({"client": "x"}, "list of names or a list of numbers"),
        ({"x": 3}, "x to be text"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"path": "absent.npz"}, "no file or folder"),
        ({"path": "."}, "holds no file of the kind .npz"),
    ],
)
def test_wrong_options(tmp_path, options, part):
    path = archive(tmp_path / "mine.npz", x=X, y=[0, 1, 1, 0])
    sentence = refusal(lambda: load(user.Npz(**{"path": path, **options})))
    assert part in sentence


LEAF = samples.leaf(u2=([[1, 2, 3, 4], [5, 6, 7, 8]], [9, 3]), u1=([[0, 0, 0, 1]], [3]))
MORE = samples.leaf(u1=([[0.5, 0, 0, 0]], [3]), u3=([[2, 2, 2, 2]], [4]))


def test_leaf_file(tmp_path):
    path = write(tmp_path / "all.json", LEAF)
    dataset = load(user.LeafJson(path=path, shape=[2, 2]))
    assert dataset.x.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[0, 0], [0, 1]]]
    assert dataset.x.dtype == np.int32 and dataset.name == "all"
    assert dataset.y.tolist() == [1, 0, 0] and dataset.class_names == ("3", "9")
    assert dataset.client.tolist() == [1, 1, 0] and dataset.client_names == ("u1", "u2")


def test_leaf_folder_merges_users(tmp_path):
    write(tmp_path / "leaf" / "test" / "a.json", MORE)
    write(tmp_path / "leaf" / "train" / "b.json.gz", LEAF)
    write(tmp_path / "leaf" / "train" / "b.json", LEAF)  # plain counts, not both
    write(tmp_path / "leaf" / ".hidden.json", "damaged")
    dataset = load(user.LeafJson(path=tmp_path / "leaf"))
    assert dataset.name == "leaf" and dataset.client_names == ("u1", "u2", "u3")
    assert np.bincount(dataset.client).tolist() == [2, 2, 1]
    of_first = dataset.x[dataset.client == 0]
    assert of_first.tolist() == [[0, 0, 0, 1], [0.5, 0, 0, 0]]  # test is last
    assert dataset.class_names == ("3", "4", "9")


def changed(x=None, y=None):
    content = json.loads(json.dumps(LEAF))
    content["user_data"]["u1"].update({} if x is None else {"x": [x]})
    content["user_data"]["u1"].update({} if y is None else {"y": [y]})
    return content


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (changed(x=[1, 2, 3]), "x of the LEAF data"),
        (changed(x=["a", "b", "c", "d"]), "x of the LEAF data"),
        (changed(x="text"), "x of the LEAF data"),
        (changed(x=[10**40, 0, 0, 0]), "x of the LEAF data"),
        (changed(x=[float("nan"), 0, 0, 0]), "finite"),
        (changed(y=0.5), "y of the LEAF data"),
        (changed(y=float("inf")), "y of the LEAF data"),
        (changed(y="a"), "y of the LEAF data"),
        (changed(y=[1]), "y of the LEAF data"),
        ({"users": [], "num_samples": [], "user_data": {}}, "hold no example"),
        ("{", "not a LEAF file"),
        ("[]", "not a LEAF file"),
    ],
)
def test_leaf_data_that_are_no_numbers(tmp_path, content, part):
    path = write(tmp_path / "all.json", content)
    assert part in refusal(load, user.LeafJson(path=path))


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((3, 2), r"inputs of the shape (3, 2)"),
        (4, "a list such as (28, 28)"),
        ((), r"inputs of the shape ()"),
        ((2, -2), "each number of shape"),
    ],
)
def test_wrong_shapes(tmp_path, shape, part):
    path = write(tmp_path / "all.json", LEAF)
    assert part in refusal(lambda: load(user.LeafJson(path=path, shape=shape)))


def test_leaf_folders_without_files_or_with_links_out(tmp_path):
    write(tmp_path / "elsewhere.json", LEAF)
    (tmp_path / "leaf").mkdir()
    source = user.LeafJson(path=tmp_path / "leaf")
    assert "holds no .json" in refusal(load, source)
    (tmp_path / "leaf" / "all.json").symlink_to(tmp_path / "elsewhere.json")
    assert "leads out of the folder" in refusal(load, source)
