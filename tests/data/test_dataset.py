import numpy as np
import pytest

from fedjax_pfl import checks
from fedjax_pfl.data import dataset as datasets


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


def test_arrays_are_read_only_and_the_users_stay_writable():
    x = np.ones((3, 2), np.float32)
    dataset = make(x=x)
    with pytest.raises(ValueError, match="read-only"):
        dataset.x[0, 0] = 2
    x[0, 0] = 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": np.eye(4)}, "as many inputs as targets and at least one, got 4 and 3"),
        ({"x": np.zeros((0, 2)), "y": []}, "at least one, got 0 and 0"),
        ({"x": [["a"], ["b"], ["c"]]}, "mine.x to be an array of numbers"),
        ({"x": [[1], [1, 2], [3]]}, "mine.x to be an array of numbers"),
        ({"x": [[0], [1], [np.nan]]}, "mine.x to be finite in 32 bits, .* row 2"),
        ({"x": [[0], [1e300], [0]]}, "mine.x to be finite in 32 bits, .* row 1"),
        ({"y": [0, 1, 2]}, "mine.y to hold whole numbers from 0 to 1, got .* 0 to 2"),
        ({"y": [0, -1, 1]}, "mine.y to hold whole numbers from 0 to 1"),
        ({"y": [0.0, 1.0, 1.0]}, "mine.y to hold whole numbers .* float64"),
        ({"num_classes": 0}, "mine.num_classes to be a whole number of at least 1"),
        ({"scale": np.nan}, "mine.scale to be a finite number"),
        ({"shift": np.zeros(2)}, r"mine.shift to have shape \(\) or \(3,\), got \(2,"),
        ({"client": [0, 1]}, "mine.client to hold 3 whole numbers"),
        ({"client": [0.0, 1.0, 2.0]}, "mine.client to hold 3 whole numbers"),
    ],
)
def test_wrong_arrays_get_a_sentence(changes, sentence):
    with pytest.raises(checks.InputError, match=sentence) as error:
        make(**changes)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_generators_belong_to_seed_and_purpose():
    def draw(seed, purpose):
        return datasets.generator(seed, purpose).random()

    drawn = {draw(seed, purpose) for seed in (0, 1) for purpose in datasets.Purpose}
    assert len(drawn) == 8
    child = np.random.SeedSequence(5).spawn(4)[datasets.Purpose.SPLIT]
    assert draw(5, datasets.Purpose.SPLIT) == np.random.default_rng(child).random()
