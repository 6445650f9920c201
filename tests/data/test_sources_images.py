"""CIFAR, Medical MNIST and FEMNIST from small files of every layout."""

import functools

import numpy as np
import pytest

from fedjax_pfl.data import sources
from tests.data import samples
from tests.data.samples import leaf
from tests.data.test_readers import tar, webp

CIFAR10 = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
CIFAR100 = ["train.bin", "test.bin"]
LAYOUTS = {  # of both: folder or archive, files, label bytes
    "cifar10": ("cifar-10-binary.tar.gz", "cifar-10-batches-bin", CIFAR10, 1),
    "cifar100": ("cifar-100-binary.tar.gz", "cifar-100-binary", CIFAR100, 2),
}


refusal = functools.partial(samples.refusal, sources.load_dataset)


def examples(num_labels, size, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (size, 32, 32, 3), np.uint8)
    return x, rng.integers(0, 10 * num_labels, (size, num_labels), np.uint8)


def records(x, y):
    rows = [y, x.transpose(0, 3, 1, 2).reshape(len(x), -1)]
    return np.concatenate(rows, axis=1).tobytes()


def binary_files(name):
    """Names and contents of small official files, and their examples."""
    _, folder, files, num_labels = LAYOUTS[name]
    parts = [examples(num_labels, 2 + k, seed=k) for k in range(len(files))]
    contents = [records(*part) for part in parts]
    members = [(f"{folder}/{f}", c) for f, c in zip(files, contents, strict=True)]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return members, x, y


def write_members(directory, members):
    for name, content in members:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("archived", [False, True])
def test_official_binary_files(tmp_path, name, nested, archived):
    members, x, y = binary_files(name)
    directory = tmp_path / name if nested else tmp_path
    if archived:  # in any order, with other members
        extra = [("readme.html", b"hello"), ("../" + members[0][0], b"evil")]
        write_members(directory, [(LAYOUTS[name][0], tar(extra + members[::-1]))])
    else:
        write_members(directory, members)
    dataset = sources.load_dataset(name, tmp_path, verify=False)
    np.testing.assert_array_equal(dataset.x, x)
    np.testing.assert_array_equal(dataset.y, y[:, -1])  # the fine label comes last
    assert dataset.x.dtype == np.uint8 and dataset.num_classes == 10 ** y.shape[1]
    assert len(dataset.class_names) == dataset.num_classes
    if name == "cifar100":
        coarse = sources.load_dataset(name, tmp_path, verify=False, labels="coarse")
        np.testing.assert_array_equal(coarse.y, y[:, 0])
        assert coarse.num_classes == len(coarse.class_names) == 20


def test_normalizations(tmp_path):
    members, x, _ = binary_files("cifar10")
    write_members(tmp_path, members)
    mean = {"standard": (0.4914, 0.4822, 0.4465), "half": (0.5, 0.5, 0.5)}
    std = {"standard": (0.2470, 0.2435, 0.2616), "half": (0.5, 0.5, 0.5)}
    for option in mean:
        dataset = sources.load_dataset(
            "cifar10", tmp_path, verify=False, normalization=option
        )
        np.testing.assert_allclose(
            dataset.x * dataset.scale.astype(float) + dataset.shift,
            (x / 255 - mean[option]) / std[option],
            atol=1e-6,  # float32 rounding of values up to 3
        )
    assert "did you mean 'half'" in refusal("cifar10", normalization="hal")
    assert "allowed: coarse, fine" in refusal("cifar100", labels="rough")
    assert "allowed: all, digits, letters" in refusal("femnist", classes="lowercase")


def test_archives_come_before_folders_before_sheets(tmp_path):
    write_sheets10(tmp_path, 1)
    load = sources.source("cifar10").locate
    assert load(str(tmp_path)).layout == "WebP sheets"
    write_members(tmp_path, binary_files("cifar10")[0])
    assert load(str(tmp_path)).layout == "binary folder"
    write_members(tmp_path, [("cifar10/cifar-10-binary.tar.gz", b"")])
    assert load(str(tmp_path)).layout == "binary archive"


@pytest.mark.parametrize("name", LAYOUTS)
def test_damaged_binary_files(tmp_path, name):
    archive, folder, files, _ = LAYOUTS[name]
    members, _, _ = binary_files(name)
    write_members(tmp_path, members)
    # Well-formed files of another size cannot be the official ones.
    assert "but the official one" in refusal(name, tmp_path)
    path = tmp_path / folder / files[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert "Expected records of 307" in refusal(name, tmp_path, verify=False)
    path.write_bytes(b"")
    assert "got 0 bytes" in refusal(name, tmp_path, verify=False)
    path.write_bytes(b"\xff" * len(members[0][1]))
    assert "whole numbers from 0 to" in refusal(name, tmp_path, verify=False)
    path.unlink()
    sentence = refusal(name, tmp_path, verify=False)
    assert f"needs {folder}/{files[0]}" in sentence
    write_members(tmp_path, [(archive, tar(members)[:-20])])
    assert "not a complete .tar.gz" in refusal(name, tmp_path, verify=False)
    write_members(tmp_path, [(archive, tar(members[1:]))])
    assert f"lacks {folder}/{files[0]}" in refusal(name, tmp_path, verify=False)
    assert "differs from the official one" in refusal(name, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_pickle_is_never_read(tmp_path, name):
    archive = LAYOUTS[name][0]
    python = archive.replace("binary", "python")
    write_members(tmp_path / name, [(python, b"cos\nsystem\n")])
    sentence = refusal(name, tmp_path)
    assert "never read" in sentence and python in sentence and archive in sentence
    (tmp_path / name / python).unlink()
    sentence = refusal(name, tmp_path)
    for part in (archive, "--data-dir", "FEDJAX_PFL_DATA", "tensorflow-datasets"):
        assert part in sentence


def sheet(x, rows):
    tiles = x.reshape(rows, -1, 32, 32, 3)
    return webp(np.concatenate([np.concatenate(row, axis=1) for row in tiles]))


def npz(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def write_sheets10(directory, rows):
    """Sheets of 2 * rows tiles; labels of two more batches, which are not there."""
    x, _ = examples(1, 8 * rows)
    y = np.random.default_rng(1).integers(0, 10, 12 * rows, np.uint8)
    for k, name in enumerate(("data_batch_1", "data_batch_2", "data_batch_3", "test")):
        part = x[2 * rows * k : 2 * rows * (k + 1)]
        name = "test_batch" if name == "test" else name
        (directory / f"{name}.webp").write_bytes(sheet(part, rows))
    npz(directory / "labels.npz", train=y[: 10 * rows], test=y[10 * rows :])
    return x, np.concatenate([y[: 6 * rows], y[10 * rows :]])


def test_sheets_of_cifar10(tmp_path):
    x, y = write_sheets10(tmp_path, 2)
    dataset = sources.load_dataset("cifar10", tmp_path, verify=False)
    np.testing.assert_array_equal(dataset.x, x)
    np.testing.assert_array_equal(dataset.y, y)
    assert "differs from the official one" in refusal("cifar10", tmp_path)
    (tmp_path / "data_batch_2.webp").write_bytes(sheet(x[:4], 1)[:-30])
    assert "as WEBP" in refusal("cifar10", tmp_path, verify=False)
    (tmp_path / "data_batch_2.webp").write_bytes(sheet(x[:6], 2))
    sentence = refusal("cifar10", tmp_path, verify=False)
    assert "has 64 x 96 pixels, expected 4 tiles of 32 x 32" in sentence


def test_sheets_of_cifar100(tmp_path):
    x, y = examples(2, 9)
    directory = tmp_path / "cifar100_subset"
    coarse = np.arange(100, dtype=np.uint8)[::-1] // 5
    arrays = {"train": y[:6, 1], "test": y[6:, 1], "fine_to_coarse": coarse}
    npz(directory / "labels.npz", **arrays)
    (directory / "train.webp").write_bytes(sheet(x[:6], 2))
    (directory / "test.webp").write_bytes(sheet(x[6:], 3))
    dataset = sources.load_dataset("cifar100", tmp_path, verify=False)
    np.testing.assert_array_equal(dataset.x, x)
    np.testing.assert_array_equal(dataset.y, y[:, 1])
    grouped = sources.load_dataset("cifar100", tmp_path, verify=False, labels="coarse")
    assert grouped.y.tolist() == [19 - label // 5 for label in y[:, 1].tolist()]
    for wrong, sentence in (
        ({"train": y[:5, 1]}, "expected 5 tiles"),
        ({"test": y[6:, 1] + 100}, "fine labels from"),
        ({"test": y[6:]}, "expected integer of shape (None,)"),
        ({"test": y[6:, 1] / 2}, "holds float64 values"),
        ({"test": y[6:, 1].astype(object)}, "pickle"),
    ):
        npz(directory / "labels.npz", **{**arrays, **wrong})
        assert sentence in refusal("cifar100", tmp_path, verify=False)
    npz(directory / "labels.npz", train=y[:6, 1])
    assert "'test'" in refusal("cifar100", tmp_path, verify=False)
    (directory / "labels.npz").write_bytes(b"PK")
    assert "npz" in refusal("cifar100", tmp_path, verify=False)


def test_medical_mnist(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "medical_mnist" / "medical_mnist_28x28.npz"
    arrays = {
        "images": rng.integers(0, 256, (5, 28, 28), np.uint8),
        "labels": np.array([0, 0, 1, 2, 2], np.uint8),
        "names": np.array(["Hand", "Head", "Chest"]),
    }
    npz(path, **arrays)
    dataset = sources.load_dataset("medical_mnist", tmp_path, verify=False)
    np.testing.assert_array_equal(dataset.x, arrays["images"])
    assert dataset.y.tolist() == [0, 0, 1, 2, 2] and dataset.num_classes == 3
    assert dataset.class_names == ("Hand", "Head", "Chest")
    np.testing.assert_allclose(
        np.arange(256) * dataset.scale.astype(float).item() + dataset.shift.item(),
        (np.arange(256) / 255 - 0.3) / 0.3,
        atol=1e-6,  # float32 rounding of values up to 3
    )
    assert "differs from the official one" in refusal("medical_mnist", tmp_path)
    for wrong, sentence in (
        ({"images": arrays["images"][:4]}, "(4, 28, 28) and (5,)"),
        ({"images": arrays["images"][:, 1:]}, "of shape (5, 27, 28)"),
        ({"images": arrays["images"].astype(np.uint16)}, "holds uint16"),
        ({"labels": np.array([0, 0, 1, 2, 3])}, "whole numbers from 0 to 2"),
        ({"names": np.arange(3)}, "expected str_"),
        ({"labels": np.array(3)}, "expected integer of shape (None,)"),
        ({"images": arrays["images"][0, 0]}, "expected uint8 of shape (None, 28, 28)"),
    ):
        npz(path, **{**arrays, **wrong})
        assert sentence in refusal("medical_mnist", tmp_path, verify=False)
    path.unlink()
    assert "tensorflow" not in refusal("medical_mnist", tmp_path)  # it has none


def femnist_arrays():
    rng = np.random.default_rng(0)
    return {
        "images": rng.integers(0, 256, (6, 28, 28), np.uint8),
        "labels": np.array([61, 9, 3, 10, 0, 35], np.uint8),
        "writer": np.array([2, 0, 0, 2, 0, 1], np.uint8),
        "writer_names": np.array(["f0", "f1", "f2"]),
    }


def test_writers_of_femnist(tmp_path):
    arrays = femnist_arrays()
    path = tmp_path / "femnist" / "leaf_femnist_105_writers.npz"
    npz(path, **arrays)
    dataset = sources.load_dataset("femnist", tmp_path, verify=False)
    order = [1, 2, 4, 5, 0, 3]  # writer by writer
    np.testing.assert_array_equal(dataset.x, arrays["images"][order])
    assert dataset.y.tolist() == [9, 3, 0, 35, 61, 10]
    assert dataset.client.tolist() == [0, 0, 0, 1, 2, 2]
    assert dataset.client_names == ("f0", "f1", "f2")
    assert dataset.num_classes == 62 and dataset.class_names[35:37] == ("Z", "a")
    assert dataset.scale.item() == np.float32(1 / 255) and dataset.shift == 0
    light = sources.load_dataset("femnist", tmp_path, verify=False, light_ink=True)
    shown = np.array([255, 0]) * light.scale + light.shift  # paper, ink
    np.testing.assert_allclose(shown, [0, 1], atol=1e-7)
    digits = sources.load_dataset("femnist", tmp_path, verify=False, classes="digits")
    assert digits.y.tolist() == [9, 3, 0] and digits.num_classes == 10
    assert digits.client_names == ("f0",)  # the other writers wrote none
    letters = {**arrays, "labels": np.array([46, 45, 36, 35, 38, 36], np.uint8)}
    npz(path, **letters)
    some = sources.load_dataset("femnist", tmp_path, verify=False, classes="letters")
    # Rows 1, 2 and 4 are of writer 0, row 5 of writer 1; 35 is "Z" and 46 is "k".
    assert some.y.tolist() == [9, 0, 2, 0] and some.num_classes == 10
    np.testing.assert_array_equal(some.x, arrays["images"][[1, 2, 4, 5]])
    assert some.client_names == ("f0", "f1") and some.client.tolist() == [0, 0, 0, 1]
    assert some.class_names == tuple("abcdefghij")
    for wrong, sentence in (
        ({"writer": arrays["writer"] + 1}, "writers below 3"),
        ({"labels": arrays["labels"] + 1}, "writers below 3"),
        ({"labels": arrays["labels"][:5]}, "writers below 3"),
        ({"images": arrays["images"].reshape(6, 14, 56)}, "of shape (6, 14, 56)"),
    ):
        npz(path, **{**arrays, **wrong})
        assert sentence in refusal("femnist", tmp_path, verify=False)
    npz(path, **{**arrays, "labels": arrays["labels"] % 2 + 10})
    for classes in ("digits", "letters"):
        sentence = refusal("femnist", tmp_path, verify=False, classes=classes)
        assert "at least one" in sentence


@pytest.mark.parametrize("inside", ["femnist", "femnist/leaf_json", "."])
def test_leaf_files_of_femnist(tmp_path, inside):
    arrays = femnist_arrays()
    pixels = (arrays["images"].reshape(6, 784) / 255).tolist()
    y = arrays["labels"].tolist()
    train = leaf(ann=(pixels[:2], y[:2]), bob=([], []), cid=(pixels[2:3], y[2:3]))
    test = leaf(bob=(pixels[5:], y[5:]), ann=(pixels[3:5], y[3:5]))
    for part, content in (("train", train), ("test", test)):
        name = f"all_data_{part}.json.gz"
        samples.write(tmp_path / inside / part / name, content)
    dataset = sources.load_dataset("femnist", tmp_path)
    # First the train part, then the test part, merged by user.
    by_user = {"ann": [0, 1, 3, 4], "cid": [2], "bob": [5]}
    rows = sum(by_user.values(), [])
    np.testing.assert_array_equal(dataset.x, arrays["images"][rows])
    assert dataset.y.tolist() == [y[row] for row in rows]
    named = [dataset.client_names[k] for k in dataset.client]
    assert named == [user for user, own in by_user.items() for _ in own]


def test_letters_of_leaf_files_of_femnist(tmp_path):
    labels = [0, 10, 35, *range(36, 62)]
    pixels = [[label / 255] * 784 for label in labels]
    content = leaf(ann=(pixels[::2], labels[::2]), bob=(pixels[1::2], labels[1::2]))
    samples.write(tmp_path / "train" / "a.json", content)
    dataset = sources.load_dataset("femnist", tmp_path, classes="letters")
    kept = [label for k in (0, 1) for label in labels[k::2] if 36 <= label < 46]
    assert dataset.x[:, 0, 0].tolist() == kept and len(kept) == 10
    assert dataset.y.tolist() == [label - 36 for label in kept]
    assert dataset.client.tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[0.5] * 783], [0], "lists of 784 numbers from 0 to 1"),
        ([[0.5] * 784, [0.5] * 783], [0, 0], "lists of 784 numbers"),
        ([["a"] * 784], [0], "lists of 784 numbers"),
        ([[1.01] * 784], [0], "lists of 784 numbers"),
        ([[float("nan")] * 784], [0], "lists of 784 numbers"),
        ([None], [0], "lists of 784 numbers"),
        ([[0.5] * 784], [62], "0 to 61, got 62"),
        ([[0.5] * 784], [True], "0 to 61, got True"),
        ([[0.5] * 784], [1.0], "0 to 61, got 1.0"),
        ([], [], "hold no examples"),
    ],
)
def test_wrong_leaf_files_of_femnist(tmp_path, x, y, sentence):
    samples.write(tmp_path / "train" / "a.json", leaf(eve=(x, y)))
    refused = refusal("femnist", tmp_path)
    assert sentence in refused and ("'eve'" in refused or not x)
