"""Readers of binary files against damaged and foreign ones."""

import gzip
import hashlib
import io
import os
import pathlib
import tarfile

import numpy as np
import pytest

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
