"""Readers of binary files against damaged and foreign ones."""

import gzip
import hashlib
import io
import os
import pathlib
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import binary, files, images
from tests.data import samples

PATH = pathlib.Path("a_file")
Image = pytest.importorskip("PIL.Image")


def refusal(function, *args):
    """Returns the sentence with which a reader refuses, which names the file."""
    sentence = samples.refusal(function, *args)
    assert str(PATH) in sentence
    return sentence


def tar(members, compress=True):
    """Bytes of a tar archive from (name, content or ready `TarInfo`) pairs."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz" if compress else "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return file.getvalue()


def webp(pixels, **options):
    """Bytes of a loss-less WebP image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", lossless=True, **options)
    return file.getvalue()


def mutated(content, changes, keep):
    """A copy with some bytes replaced, cut to a share of its length."""
    changed = bytearray(content)
    for place, value in changes:
        changed[place % len(changed)] = value
    return bytes(changed[: int(keep * len(changed))])


DAMAGE = {
    "changes": st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255))),
    "keep": st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.0, 1.0]),
}


def wanted(sizes):
    return lambda content: binary.read_members(content, PATH, sizes)


def test_members_are_read_by_exact_name():
    rng = np.random.default_rng(0)
    a, b = rng.bytes(5000), rng.bytes(70_000)
    content = tar([("d/readme", b"hello"), ("d/a", a), ("x/a", b"no"), ("d/b", b)])
    found = binary.read_members(content, PATH, {"d/b": 70_000, "d/a": 10_000})
    assert found == {"d/a": a, "d/b": b}


@pytest.mark.parametrize("name", ["../d/a", "/d/a", "./d/a", "d/../d/a", "d/a/"])
def test_paths_out_of_an_archive_are_not_followed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence = refusal(wanted({"d/a": 10}), tar([(name, b"evil")]))
    assert "lacks d/a" in sentence
    assert not list(tmp_path.rglob("*"))  # nothing is ever extracted


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_links_and_folders_are_no_files(kind):
    content = tar([("d/b", b"1"), ("d/a", (kind, "../../etc/passwd"))])
    assert "lacks d/a" in refusal(wanted({"d/a": 10}), content)


def test_a_member_that_is_too_large_is_not_read():
    content = tar([("d/a", bytes(100_000))])
    assert "Expected at most 99999" in refusal(wanted({"d/a": 99_999}), content)


@pytest.mark.parametrize("keep", [0, 1, 9, 200, -9, -1])
def test_a_truncated_archive(keep):
    content = tar([("d/a", np.random.default_rng(0).bytes(9000))])
    sentence = refusal(wanted({"d/a": 9000}), content[:keep])
    assert "not a complete .tar.gz archive" in sentence or "lacks d/a" in sentence


@pytest.mark.parametrize(
    "content", [b"", b"hello", gzip.compress(b"hello" * 999, mtime=0)]
)
def test_other_files_are_no_archives(content):
    refusal(wanted({"d/a": 9}), content)
    refusal(wanted({"d/a": 9}), tar([("d/a", b"1")], compress=False))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**DAMAGE)
def test_damaged_archives_are_refused_or_unchanged(changes, keep):
    member = np.random.default_rng(0).bytes(3000)
    inside = mutated(tar([("d/a", member)], compress=False), changes, keep)
    for content in (
        mutated(tar([("d/a", member)]), changes, keep),
        gzip.compress(inside, 1),  # damage that the checksum of gzip does not see
    ):
        try:
            found = binary.read_members(content, PATH, {"d/a": 3000})
        except checks.InputError:
            continue
        assert set(found) == {"d/a"} and len(found["d/a"]) <= 3000


@pytest.mark.parametrize("num_labels", [1, 2])
def test_records_of_cifar(num_labels):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, (3, num_labels), np.uint8)
    content = b""
    for image, label in zip(images, labels, strict=True):
        # All of red row by row, then green, then blue.
        content += bytes(label) + b"".join(bytes(image[..., c]) for c in range(3))
    x, y = binary.parse_records(content, PATH, num_labels)
    np.testing.assert_array_equal(x, images)
    np.testing.assert_array_equal(y, labels)
    assert x.dtype == y.dtype == np.uint8
    for wrong in (b"", content[:-1], content + b"\0"):
        sentence = refusal(binary.parse_records, wrong, PATH, num_labels)
        assert f"got {len(wrong)} bytes" in sentence


def test_sheets_are_cut_row_by_row():
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 256, (6, 4, 5, 3), np.uint8)
    sheet = np.zeros((8, 15, 3), np.uint8)
    for k, one in enumerate(tiles):
        row, column = divmod(k, 3)
        sheet[4 * row : 4 * row + 4, 5 * column : 5 * column + 5] = one
    two = np.concatenate([tiles[5], tiles[0]], axis=1)
    first, second = images.read_sheets(
        [(webp(sheet), PATH, 6), (webp(two), PATH, 2)], (4, 5)
    )
    np.testing.assert_array_equal(first, tiles)
    np.testing.assert_array_equal(second, tiles[[5, 0]])


@pytest.mark.parametrize(
    ("shape", "num_tiles"), [((8, 15), 5), ((8, 15), 7), ((9, 15), 6), ((8, 14), 4)]
)
def test_sheets_of_the_wrong_size(shape, num_tiles):
    content = webp(np.zeros((*shape, 3), np.uint8))
    sentence = refusal(images.read_sheets, [(content, PATH, num_tiles)], (4, 5))
    assert f"{shape[0]} x {shape[1]} pixels" in sentence
    assert f"expected {num_tiles} tiles of 4 x 5" in sentence


def test_other_images_and_bombs_are_no_sheets(monkeypatch):
    png = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(png, "PNG")
    good = webp(np.zeros((8, 8, 3), np.uint8))
    for content in (png.getvalue(), b"", b"RIFF", good[:20]):
        assert "decoded as WEBP" in refusal(
            images.read_sheets, [(content, PATH, 4)], (4, 4)
        )
    for limit in (40, 20):  # Pillow warns above its limit and raises above twice
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert f"at most {limit} pixels" in refusal(
            images.read_sheets, [(good, PATH, 4)], (4, 4)
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**DAMAGE)
def test_damaged_sheets(changes, keep):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    content = mutated(webp(pixels), changes, keep)
    try:
        (tiles,) = images.read_sheets([(content, PATH, 4)], (4, 4))
    except checks.InputError:
        return
    assert tiles.shape == (4, 4, 4, 3) and tiles.dtype == np.uint8


@settings(max_examples=100, deadline=None, derandomize=True)
@given(**DAMAGE)
def test_damaged_idx(changes, keep):
    good = bytes([0, 0, 8, 1, 0, 0, 0, 40]) + bytes(range(40))
    content = mutated(good, changes, keep)
    try:
        array = binary.parse_idx(content, PATH, 1)
    except checks.InputError:
        assert content != good
        return
    assert array.tobytes() == content[8:]


def test_idx_of_nothing():
    empty = bytes([0, 0, 8, 3]) + bytes(4) + b"\xff" * 8  # 0 x 2^32 - 1 x 2^32 - 1
    assert "and at least one" in refusal(binary.parse_idx, empty, PATH, 3)


def test_text_in_utf8():
    assert files.read_text(b"\xef\xbb\xbfa\r\n\xc3\xa9\n", PATH) == "a\n\u00e9\n"
    assert files.read_text(b"", PATH) == ""
    sentence = refusal(files.read_text, b"one\ntwo\xff\n", PATH)
    assert "line 2 holds the byte 0xff" in sentence
    assert "UTF-8" in refusal(files.read_text, "text".encode("utf-16"), PATH)


def test_plain_files_come_before_compressed_ones(tmp_path):
    for name in ("b.json", "b.json.gz", "a.json.gz", "c.txt", "d.json.gz.part"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder.json").mkdir()
    found = files.find_files(tmp_path, "*.json")
    assert [path.name for path in found] == ["a.json.gz", "b.json"]
    assert files.find_files(tmp_path, "*.json*")[:2] == found
    assert files.find_files(tmp_path, "b.json") == (tmp_path / "b.json",)
    assert files.find_files(tmp_path, "a.json") == (tmp_path / "a.json.gz",)
    assert files.find_files(tmp_path, "folder.json") == ()


def test_fingerprints_and_unreadable_files(tmp_path):
    path = tmp_path / str(PATH)
    path.write_bytes(b"12345")
    ((time, size),) = files.fingerprint([path])
    assert size == 5 and time == path.stat().st_mtime_ns
    path.unlink()
    assert "No such file" in refusal(files.fingerprint, [path])
    assert "No such file" in refusal(files.read_bytes, path)
    assert "No such file" in refusal(files.read_content, path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_file(kind, tmp_path):
    path = tmp_path / str(PATH)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    wanted = "symbolic links" if kind == "loop" else f"to be a file, but it is a {kind}"
    assert wanted in refusal(files.fingerprint, [path])
    files.check_inside(path, str(tmp_path))


def test_what_unpacks_to_very_much_is_refused(tmp_path):
    path = tmp_path / f"{PATH}.gz"
    path.write_bytes(gzip.compress(bytes(70 << 20), mtime=0))
    assert "more than 200 times its size" in refusal(files.read_content, path)
    archive = tar([("d/b", bytes(70 << 20))])
    assert "more than 200 times its size" in refusal(wanted({"d/a": 9}), archive)


def test_checksums_are_those_of_the_content():
    digest = hashlib.sha256(b"abc").hexdigest()
    files.check_sha256(b"abc", PATH, digest)
    sentence = refusal(files.check_sha256, b"abd", PATH, digest)
    assert digest in sentence and "verify=False" in sentence
