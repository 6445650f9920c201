"""Damaged files of every kind give data or one sentence."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import binary, images, prices, text
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.test_readers import PATH, tar, webp
from tests.data.test_readers_text import GLOVE, PLAY, TABLE
from tests.data.test_user_archives import X, archive
from tests.data.test_user_images import COLOR, encoded, write

TILES = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
MEMBER = [("d/a", np.random.default_rng(0).bytes(3000))]
SIZES = {"d/a": 3000}


def npz(compress):
    """An archive of three arrays."""
    stream = io.BytesIO()
    archive(stream, compress, x=X, y=[0, 1, 1, 0], client=[1, 2, 1, 1])
    return stream.getvalue()


def read_npz(content, folder):
    path = samples.write(folder / "damaged.npz", content)
    return samples.load(user.Npz(path=path))


def read_image(content, folder):
    write(folder / "images", {"a/1.png": content, "b/1.png": COLOR[0]})
    return samples.load(user.ImageFolder(path=folder / "images"))


def is_member(found, _):
    return found.keys() == SIZES.keys() and len(found["d/a"]) <= 3000


def is_anything(found, _):
    return True


READERS = {  # content, a reader of it in a folder, and whether what it read is right
    "idx": (
        bytes([0, 0, 8, 1, 0, 0, 0, 40]) + bytes(range(40)),
        lambda content, _: binary.parse_idx(content, PATH, 1),
        lambda found, content: found.tobytes() == content[8:],
    ),
    "archive": (
        tar(MEMBER),
        lambda content, _: binary.read_members(content, PATH, SIZES),
        is_member,
    ),
    "inside an archive": (  # damage that the checksum of gzip does not see
        tar(MEMBER, compress=False),
        lambda content, _: binary.read_members(gzip.compress(content, 1), PATH, SIZES),
        is_member,
    ),
    "sheet": (
        webp(TILES),
        lambda content, _: images.read_sheets([(content, PATH, 4)], (4, 4))[0],
        lambda found, _: found.shape == (4, 4, 4, 3) and found.dtype == np.uint8,
    ),
    **{
        name: (content, lambda content, _, read=read: read(content, PATH), is_anything)
        for name, content, read in (
            ("prices", TABLE, prices.parse_prices),
            ("vectors", GLOVE, text.read_vectors),
            ("play", PLAY, text.read_speeches),
        )
    },
    **{  # the checksums of the archive vouch for the values
        f"npz {compress}": (
            npz(compress),
            read_npz,
            lambda found, _: np.array_equal(found.x, X),
        )
        for compress in (False, True)
    },
    **{
        kind: (
            encoded(COLOR[0], kind),
            read_image,
            lambda found, _: np.array_equal(found.x[1], COLOR[0]),
        )
        for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF")
    },
}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_files_give_data_or_a_sentence(tmp_path_factory, name, data):
    good, read, is_right = READERS[name]
    if data.draw(st.integers(0, 9)):
        content = samples.mutated(data, good)
    else:
        content = data.draw(st.binary(max_size=60))
    try:
        found = read(content, tmp_path_factory.getbasetemp() / "damage")
    except checks.InputError as error:
        assert str(error).endswith(".") and "\n" not in str(error)
    else:
        assert is_right(found, content)
