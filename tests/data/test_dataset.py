import numpy as np
import pytest

from fedjax_pfl import data
from fedjax_pfl.data import dataset as datasets
from tests.data import samples

# What NumPy reads from a damaged file: a character with a number that none has.
BEYOND_UNICODE = str(np.array([98, 0x10006F0], np.uint32).view("<U2")[0])


def make(**changes):
    fields = {"name": "mine", "x": np.eye(3), "y": [0, 1, 1], "num_classes": 2}
    return datasets.Dataset(**{**fields, **changes})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (np.uint8, np.uint8),
        (np.int64, np.int32),
        (np.uint16, np.int32),
        (np.float64, np.float32),
        (np.float16, np.float32),
    ],
)
def test_inputs_are_stored_in_the_dtype_of_the_pool(given, stored):
    dataset = make(x=np.eye(3).astype(given))
    assert dataset.x.dtype == stored
    np.testing.assert_array_equal(dataset.x, np.eye(3))


def test_targets_follow_the_kind_of_task():
    assert make(y=np.array([0, 1, 1], np.uint8)).y.dtype == np.int32
    assert make(y=[0, 1, 1], num_classes=None).y.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": np.eye(4)}, r"as many inputs as targets, .* \(4, 4\) and \(3,\)"),
        ({"x": np.zeros((0, 2)), "y": []}, r"at least one, .* \(0, 2\) and \(0,\)"),
        ({"x": [["a"], ["b"], ["c"]]}, "mine.x to be an array of numbers"),
        ({"x": [[1], [1, 2], [3]]}, "mine.x to be an array of numbers"),
        ({"x": [[0], [1], [np.nan]]}, "mine.x to be finite in 32 bits, .* row 2"),
        ({"x": [[0], [2**31], [0]]}, "mine.x to fit 32 bits"),
        ({"x": [[0], [1e300], [0]]}, "mine.x to be finite in 32 bits, .* row 1"),
        ({"x": np.zeros((3, 0), int)}, r"numbers in each, .* \(3, 0\) and \(3,\)"),
        ({"y": np.zeros((3, 0)), "num_classes": None}, r"numbers in each, .* \(3, 0\)"),
        ({"scale": 1e300}, "mine.scale in 32 bits to be finite numbers, got inf"),
        ({"class_names": ("a", "\ud800")}, "every name in mine to be text in UTF-8"),
        ({"class_names": ("a", BEYOND_UNICODE)}, "every name in mine to be text"),
        ({"y": [0, 1, 2]}, "mine.y to hold whole numbers from 0 to 1, got .* 0 to 2"),
        ({"y": [0, -1, 1]}, "mine.y to hold whole numbers from 0 to 1"),
        ({"y": [0.0, 1.0, 1.0]}, "mine.y to hold whole numbers .* float64"),
        ({"num_classes": 0}, "mine.num_classes to be a whole number of at least 1"),
        ({"scale": np.nan}, "mine.scale to be finite numbers"),
        ({"shift": np.zeros(2)}, r"shape \(2,\) of mine.shift does not fit \(3,\)"),
        ({"shift": np.zeros((1, 3))}, r"shape \(1, 3\) of mine.shift"),
        ({"client": [0, 1]}, "mine.client to hold 3 whole numbers"),
        ({"client": [0.0, 1.0, 2.0]}, "mine.client to hold 3 whole numbers"),
        ({"client": [0, -1, 2]}, "client to hold 3 whole numbers of at least 0, .*-1"),
        ({"class_names": ("a",)}, "class_names to have 2 names, got 1"),
        ({"client_names": ("a",)}, "client_names for every client, got 1"),
        (
            {"client": [0, 5, 2], "client_names": ("a", "b")},
            "client_names for every client, got 2",
        ),
    ],
)
def test_wrong_arrays_get_a_sentence(changes, sentence):
    samples.refusal(make, **changes, match=sentence)


def test_generators_belong_to_seed_and_purpose():
    def draw(seed, purpose):
        return datasets.generator(seed, purpose).random()

    drawn = {draw(seed, purpose) for seed in (0, 1) for purpose in datasets.Purpose}
    assert len(drawn) == 2 * len(datasets.Purpose)
    assert draw(0, 0) != datasets.generator(0, 0, 1).random()
    child = np.random.SeedSequence(5).spawn(4)[datasets.Purpose.SPLIT]
    assert draw(5, datasets.Purpose.SPLIT) == np.random.default_rng(child).random()


def test_scale_may_be_one_value_per_channel():
    images = np.zeros((4, 5, 6, 3), np.uint8)
    dataset = datasets.Dataset(
        name="mine", x=images, y=np.zeros(4), scale=np.arange(3), shift=np.full(1, 0.5)
    )
    assert dataset.scale.shape == (1, 1, 3) and dataset.shift.shape == (1, 1, 1)


def test_arrays_are_copies_that_a_cpu_device_shares():
    x = np.ones((5, 3), np.float32)
    dataset = datasets.Dataset(name="mine", x=x, y=np.zeros(5))
    x[:] = 7
    assert (dataset.x == 1).all()
    federation = data.from_dataset(dataset, data.IID(), num_clients=1)
    assert federation.train.x.unsafe_buffer_pointer() == dataset.x.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        dataset.x[0] = 0
