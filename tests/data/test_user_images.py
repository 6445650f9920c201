import functools
import io
import os
import warnings

import numpy as np
import pytest
from PIL import Image

from fedjax_pfl.data.readers import images
from fedjax_pfl.data.sources import user
from tests.data import samples

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 4, 5), np.uint8)
COLOR = RNG.integers(0, 256, (6, 4, 5, 3), np.uint8)


def encoded(pixels, kind="PNG", **options):
    stream = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(stream, kind, **options)
    return stream.getvalue()


def write(root, images):
    """Writes contents or pixels by their path below the root."""
    for name, content in images.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_content = isinstance(content, bytes)
        path.write_bytes(content if is_content else encoded(content))
    return root


def load(path, **options):
    return samples.load(user.ImageFolder(path=path, **options))


refusal = functools.partial(samples.refusal, load)


@pytest.mark.parametrize("layout", ["auto", "class"])
def test_one_folder_per_class(tmp_path, layout):
    names = ["cat/1.png", "cat/10.png", "cat/2.png", "dog/0.png"]
    root = write(tmp_path / "pets", dict(zip(names[::-1], GREY, strict=False)))
    dataset = load(root, layout=layout)
    np.testing.assert_array_equal(dataset.x, GREY[3::-1])  # in the order of names
    assert dataset.x.dtype == np.uint8 and dataset.scale == np.float32(1 / 255)
    assert dataset.y.tolist() == [0, 0, 0, 1] and dataset.num_classes == 2
    assert dataset.class_names == ("cat", "dog") and dataset.name == "pets"
    assert dataset.client is None and dataset.client_names is None


@pytest.mark.parametrize("layout", ["auto", "client"])
def test_one_folder_per_client(tmp_path, layout):
    names = ["ann/cat/a.png", "ann/dog/a.png", "bob/dog/b.png", "zoe/ant/c.png"]
    dataset = load(write(tmp_path, dict(zip(names, COLOR, strict=False))))
    np.testing.assert_array_equal(dataset.x, COLOR[:4])
    assert dataset.y.tolist() == [1, 2, 2, 0]
    assert dataset.class_names == ("ant", "cat", "dog")
    assert dataset.client.tolist() == [0, 0, 1, 2]
    assert dataset.client_names == ("ann", "bob", "zoe")


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {})]
)
@pytest.mark.parametrize("suffix", ["", ".dat"])
def test_formats_are_told_by_their_content(tmp_path, kind, options, suffix):
    images = {
        f"{i % 2}/{i}{suffix}": encoded(pixels, kind, **options)
        for i, pixels in enumerate(COLOR)
    }
    dataset = load(write(tmp_path, images))
    np.testing.assert_array_equal(dataset.x, COLOR[[0, 2, 4, 1, 3, 5]])


def test_jpeg(tmp_path):
    # A smooth image survives the compression but for rounding.
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8) * 4
    content = encoded(smooth, "JPEG", quality=95)
    dataset = load(write(tmp_path, {"a/1.jpeg": content, "b/1": content}))
    assert dataset.x.shape == (2, 16, 16)
    assert np.abs(dataset.x[0].astype(int) - smooth).max() <= 4


def test_one_image_in_color_makes_all_of_them_so(tmp_path):
    dataset = load(write(tmp_path, {"a/1.png": GREY[0], "b/1.png": COLOR[0]}))
    np.testing.assert_array_equal(dataset.x[0], np.stack([GREY[0]] * 3, axis=-1))
    np.testing.assert_array_equal(dataset.x[1], COLOR[0])


def test_modes_of_eight_bits(tmp_path):
    alpha = Image.fromarray(np.dstack([COLOR[0], GREY[0]]))
    palette = Image.fromarray(COLOR[1]).convert("P")
    write(
        tmp_path,
        {
            "a/alpha.png": encoded(alpha),
            "a/palette.png": encoded(palette, transparency=bytes(range(10))),
            "b/animation.webp": encoded(
                Image.fromarray(COLOR[2]),
                "WEBP",
                lossless=True,
                save_all=True,
                append_images=[Image.fromarray(COLOR[3])],
            ),
            "b/bit.png": encoded(Image.fromarray(GREY[0] > 99)),
        },
    )
    x = load(tmp_path).x
    np.testing.assert_array_equal(x[0], COLOR[0])  # transparency is ignored
    np.testing.assert_array_equal(x[1], np.asarray(palette.convert("RGB")))
    np.testing.assert_array_equal(x[2], COLOR[2])
    np.testing.assert_array_equal(x[3, ..., 0], (GREY[0] > 99) * 255)


def test_other_files_are_passed_over(tmp_path):
    images = {"a/1.png": GREY[0], "b/1.png": GREY[1]}
    others = {
        "a/.2.png": b"hidden",
        ".git/x/1.png": b"hidden",
        "a/notes.txt": b"BM is how a bitmap begins",
        "labels.csv": b"a,b\n",
        "a/Thumbs.db": b"\xd0\xcf",
        "a/deeper/still/deeper/yet/notes.txt": b"",
    }
    dataset = load(write(tmp_path, images | others))
    assert dataset.num_samples == 2


def test_sizes(tmp_path):
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1))
    write(tmp_path, {"a/1.png": ramp, "a/2.png": ramp, "b/3.png": ramp[:, :5]})
    sentence = refusal(tmp_path)
    for part in ("1.png' with 8 x 8", "3.png' with 8 x 5", "pass a common size"):
        assert part in sentence
    dataset = load(tmp_path, size=[4, 6])
    assert dataset.x.shape == (3, 4, 6)
    assert (np.diff(dataset.x.astype(int), axis=2) > 0).all()  # still ramps
    assert (dataset.x == dataset.x[:, :1]).all()


@pytest.mark.parametrize(
    ("images", "options", "part"),
    [
        ({"notes.txt": b""}, {}, "holds no PNG, JPEG, WebP or BMP image"),
        ({"1.png": GREY[0], "a/2.png": GREY[0]}, {}, "class/file or client/"),
        ({"x/y/z/1.png": GREY[0]}, {}, "class/file or client/"),
        ({"a/1.png": GREY[0], "b/c/1.png": GREY[0]}, {}, "layout class/file"),
        ({"a/1.png": GREY[0], "b/2.png": GREY[0]}, {"layout": "client"}, "a/1.png"),
        ({"a/b/1.png": GREY[0]}, {"layout": "class"}, "a/b/1.png"),
        ({"train/a/1.png": GREY[0], "Test/b/c/2.png": GREY[0]}, {}, "layout part/"),
        ({"train/a/1.png": GREY[0], "val/b/2.png": GREY[0]}, {}, "to have test exam"),
        ({"a/1.png": GREY[0], "a/2.png": GREY[1]}, {}, "at least two classes"),
        ({"a/1.png": b"", "b/2.png": GREY[0]}, {}, "a/1.png' cannot be decoded"),
        ({"a/1.jpg": b"GIF89a", "b/2.png": GREY[0]}, {}, "a/1.jpg' cannot be"),
        ({"a/1.png": encoded(GREY[0])[:-30], "b/2.png": GREY[0]}, {}, "a/1.png' can"),
        ({"a/1.png": GREY[0].astype(np.uint16), "b/1.png": GREY[0]}, {}, "mode 'I;16'"),
        ({"a/1\n.png": GREY[0]}, {}, r"1\n.png' in"),
        ({"a/1.png": GREY[0]}, {"layout": "classes"}, "did you mean 'class'"),
        ({"a/1.png": GREY[0]}, {"size": 28}, "size to be a list such as (28, 28)"),
        ({"a/1.png": GREY[0]}, {"size": (28, 28, 3)}, "height and a width"),
        ({"a/1.png": GREY[0]}, {"size": (0, 28)}, "each number of size"),
        (
            {"a/1.png": GREY[0], "b/1.png": GREY[0]},
            {"size": (1 << 20, 1 << 20)},
            "need 2,199,023,255,552 bytes",
        ),
    ],
)
def test_wrong_folders(tmp_path, images, options, part):
    assert part in refusal(write(tmp_path, images), **options)


def test_parts_may_be_called_clients(tmp_path):
    images = {"train/a/1.png": GREY[0], "test/b/2.png": GREY[1]}
    dataset = load(write(tmp_path, images), layout="client")
    assert dataset.client_names == ("test", "train")


def test_no_folder(tmp_path):
    write(tmp_path, {"file": b""})
    assert "is not a directory" in refusal(tmp_path / "file")
    assert "no file or folder" in refusal(tmp_path / "absent")


def test_links_stay_inside(tmp_path):
    write(tmp_path / "elsewhere", {"1.png": GREY[2]})
    root = write(tmp_path / "root", {"a/1.png": GREY[0], "b/1.png": GREY[1]})
    (root / "b" / "2.png").symlink_to(root / "a" / "1.png")
    (root / "b" / "loop").symlink_to(root)
    (root / "b" / "2-broken").symlink_to(root / "a" / "absent.png")
    assert "layout" in refusal(root)  # b/loop/a/1.png lies too deep
    (root / "b" / "loop").unlink()
    np.testing.assert_array_equal(load(root).x[-1], GREY[0])
    (root / "c").symlink_to(tmp_path / "elsewhere")
    assert "c' leads out of the folder" in refusal(root)


def test_unreadable_folders(tmp_path, monkeypatch):
    root = write(tmp_path, {"a/1.png": GREY[0], "b/1.png": GREY[1]})

    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", deny)  # permissions do not bind every user
    assert "Permission denied" in refusal(root)


@pytest.mark.parametrize("limit", [100, 15])  # 15: even twice the limit is exceeded
def test_bombs_are_refused(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    large = np.zeros((11, 10), np.uint8)
    root = write(tmp_path, {"a/1.png": large, "b/1.png": large})
    assert f"at most {limit} pixels" in refusal(root, size=(2, 2))


def test_warnings_of_pillow_stay_inside(tmp_path, monkeypatch):
    original = Image.open

    def warn(*args, **kwargs):
        warnings.warn("Corrupt EXIF data", stacklevel=1)
        return original(*args, **kwargs)

    root = write(tmp_path, {"a/1.png": GREY[0], "b/1.png": GREY[1]})
    monkeypatch.setattr(Image, "open", warn)
    assert load(root).num_samples == 2  # here a warning would be an error


def test_images_are_read_once_until_they_change(tmp_path, monkeypatch):
    decoded = []
    original = images.read_images
    monkeypatch.setattr(
        images,
        "read_images",
        lambda paths, *rest: decoded.append(paths) or original(paths, *rest),
    )
    root = write(tmp_path, {"a/1.png": GREY[0], "b/1.png": GREY[1]})
    first = load(root)
    assert load(root) is first and len(decoded) == 1
    write(root, {"b/2.png": GREY[2]})
    assert load(root).num_samples == 3
    os.utime(root / "b" / "2.png", ns=(1, 1))
    assert load(root) is not first and len(decoded) == 3
