import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import data
from fedjax_pfl.core import checks, struct
from tests.data import samples
from tests.data.samples import PARTS, rows


def spec(**changes):
    fields = {"dataset": "digits", "partition": data.IID(), "num_clients": 12}
    return data.FederationSpec(**{**fields, **changes})


def owned(federation, i):
    """All rows of a client."""
    return np.concatenate([rows(getattr(federation, name), i) for name in PARTS])


def exact_sizes(num_examples, validation_percent, test_percent):
    """Sizes of train, validation and test in integers."""
    validation = num_examples * validation_percent // 100
    test = num_examples * test_percent // 100
    test = np.maximum(test, 1) if test_percent else test
    return num_examples - validation - test, validation, test


@pytest.mark.parametrize(("validation", "test"), [(10, 20), (0, 20), (29, 57), (0, 0)])
def test_every_client_is_split_exactly(validation, test):
    partition = data.DirichletLabels(concentration=0.1, min_examples=5)
    federation = spec(
        partition=partition,
        validation_fraction=validation / 100,
        test_fraction=test / 100,
    ).build()
    counts = [np.asarray(getattr(federation, s).num_examples) for s in PARTS]
    total = np.sum(counts, axis=0)
    np.testing.assert_array_equal(counts, exact_sizes(total, validation, test))
    everything = np.concatenate([owned(federation, i) for i in range(12)])
    np.testing.assert_array_equal(np.sort(everything), np.arange(1797))


def test_clients_own_what_the_partition_gave_them():
    federation = spec(dataset="gaussian_classes", partition="by_client").build()
    client = data.load_dataset("gaussian_classes", num_clients=12).client
    for i in range(12):
        np.testing.assert_array_equal(
            np.sort(owned(federation, i)), np.flatnonzero(client == i)
        )
        assert not np.array_equal(np.sort(owned(federation, i)), owned(federation, i))


def test_shapes_dtypes_and_padding():
    federation = spec(partition=data.DirichletLabels(), malicious_fraction=0.3).build()
    for name in PARTS:
        clients = getattr(federation, name)
        assert clients.index.dtype == jnp.int32
        assert clients.num_examples.dtype == jnp.int32
        assert clients.index.shape == (12, clients.num_examples.max())
        offset = np.arange(clients.index.shape[1])
        padding = offset >= np.asarray(clients.num_examples)[:, None]
        assert (np.asarray(clients.index)[padding] == 0).all()
        np.testing.assert_array_equal(clients.client_id, np.arange(12))
        assert clients.x.dtype == jnp.uint8 and clients.y.dtype == jnp.int32
        assert clients.scale.dtype == jnp.float32
    assert federation.malicious.dtype == jnp.bool_
    assert federation.num_classes == 10 and federation.name == "digits"
    assert federation.num_clients == 12 and federation.input_shape == (8, 8)


def test_an_empty_split_keeps_one_padded_column():
    federation = spec(validation_fraction=0).build()
    assert federation.validation.index.shape == (12, 1)
    assert not federation.validation.num_examples.any()


def test_batches_show_scaled_inputs_and_their_labels():
    digits = data.load_dataset("digits")
    train = spec().build().train
    one = jax.tree.map(lambda leaf: leaf[3], (train.index, train.num_examples))
    client = struct.replace_field(train, "index", one[0])
    batch = client.gather(jnp.arange(4), jnp.ones(4))
    taken = np.asarray(one[0][:4])
    np.testing.assert_array_equal(batch.x, digits.x[taken] / 16)
    np.testing.assert_array_equal(batch.y, digits.y[taken])


def test_the_pool_is_on_the_device_once():
    first = spec().build()
    others = [
        spec(seed=3).build(),
        spec(partition="dirichlet_labels", num_clients=5).build(),
        data.load_federation("digits", malicious_fraction=0.5),
    ]
    for federation in (first, *others):
        for name in PARTS:
            assert getattr(federation, name).x is first.train.x
            assert getattr(federation, name).y is first.train.y
    quadratic = [
        spec(dataset="quadratic", partition=p, seed=s).build().train.x
        for s, p in [(0, "iid"), (0, "by_client"), (1, "iid")]
    ]
    assert quadratic[0] is quadratic[1]
    assert not np.array_equal(quadratic[0], quadratic[2])


def test_malicious_clients_are_counted_nested_and_change_nothing_else():
    honest = spec().build()
    assert not honest.malicious.any()
    previous = np.zeros(12, bool)
    for fraction in (0.1, 0.25, 0.5, 0.9):
        federation = spec(malicious_fraction=fraction).build()
        malicious = np.asarray(federation.malicious)
        assert malicious.sum() == round(fraction * 12)
        assert (malicious >= previous).all()
        previous = malicious
        for name in PARTS:
            np.testing.assert_array_equal(
                getattr(federation, name).index, getattr(honest, name).index
            )
    other = spec(malicious_fraction=0.5, seed=1).build().malicious
    assert (other != spec(malicious_fraction=0.5).build().malicious).any()


def test_splits_of_other_fractions_are_nested():
    small, large = (spec(test_fraction=f).build().test for f in (0.2, 0.5))
    for i in range(12):
        assert set(rows(small, i)) < set(rows(large, i))


def test_the_seed_decides_everything_and_only_the_seed():
    first, again, other = spec(), spec(), spec(seed=1)
    for name in PARTS:
        index = getattr(first.build(), name).index
        np.testing.assert_array_equal(index, getattr(again.build(), name).index)
        assert not np.array_equal(index, getattr(other.build(), name).index)


def test_the_split_is_random():
    # 1797 samples in one client: the test positions are uniform over the file, and the
    # mean of n uniform positions has standard error 1 / sqrt(12 n).
    test = rows(spec(num_clients=1).build().test, 0)
    assert abs(test.mean() / 1796 - 0.5) < 5 / np.sqrt(12 * len(test))


def test_own_arrays():
    own = data.Dataset(
        name="own",
        x=np.arange(12.0)[:, None],
        y=np.zeros(12),
        client=np.repeat([4, 9], 6),
        constants={"table": np.ones(3)},
    )
    federation = data.from_dataset(own, data.ByClient(), num_clients=2)
    assert sorted(owned(federation, 1)) == list(range(6, 12))
    assert federation.train.constants["table"].shape == (3,)
    assert federation.num_classes is None


def test_sizes_do_not_suffer_from_binary_fractions():
    own = data.Dataset(name="own", x=np.zeros((100, 1)), y=np.zeros(100))
    assert 0.29 * 100 < 29
    federation = data.from_dataset(own, data.IID(), num_clients=1, test_fraction=0.29)
    assert federation.test.num_examples == 29


def test_specifications_are_hashable_values():
    assert spec() == spec(dataset=data.DATASETS["digits"](), partition="iid")
    assert len({spec(), spec(partition="iid"), spec(seed=1)}) == 2
    assert spec(data_dir="a").data_dir == "a"


def test_dotted_names():
    changed = struct.replace_field(
        spec(dataset="quadratic", partition="dirichlet_labels"), "dataset.dim", 7
    )
    changed = struct.replace_field(changed, "partition.concentration", np.float64(0.1))
    changed = struct.replace_field(changed, "seed", np.int64(5))
    assert changed.dataset == data.Quadratic(dim=7)
    flat = changed.describe()
    assert json.loads(json.dumps(flat)) == flat
    assert flat["dataset"] == "quadratic" and flat["dataset.dim"] == 7
    assert flat["partition"] == "DirichletLabels"
    assert flat["partition.concentration"] == 0.1 and flat["seed"] == 5
    swapped = struct.replace_field(changed, "partition", "by_client")
    assert swapped.build().input_shape == (7,)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_clients": 0}, "num_clients .* at least 1, got 0"),
        ({"num_clients": 2.5}, "num_clients .* got 2.5"),
        ({"num_clients": 1798}, "at least 1798 samples"),
        ({"num_clients": 1000}, "has 1 example, too few"),
        ({"seed": -1}, "seed .* at least 0, got -1"),
        ({"malicious_fraction": 1.1}, "malicious_fraction .* at most 1, got 1.1"),
        ({"malicious_fraction": float("nan")}, "malicious_fraction .* got nan"),
        ({"test_fraction": 1.0}, "test_fraction .* below 1, got 1.0"),
        ({"test_fraction": -0.1}, "test_fraction .* got -0.1"),
        ({"validation_fraction": -0.1}, "validation_fraction .* got -0.1"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, "below 1, got 0.5 . 0.5"),
        ({"dataset": "digit"}, "Unknown data set 'digit' .did you mean 'digits'"),
        ({"dataset": data.DATASETS["digits"]}, "object such as Digits"),
        ({"dataset": 3}, "object such as Digits.*got 3"),
        ({"partition": "idd"}, "Unknown partition 'idd' .did you mean 'iid'"),
        ({"partition": data.IID}, "partition to be one of iid, .*got the class IID"),
        ({"partition": None}, "partition to be one of iid, .*got None"),
        ({"label_poisoning": 3}, "label_poisoning to be one of uniform_labels"),
        ({"feature_noise": "loud"}, "Unknown feature noise 'loud'"),
        ({"num_others": 12}, "num_others to be at most 11"),
        ({"num_clients": None}, "num_clients"),
        ({"dataset": "quadratic", "num_clients": None}, "num_clients, got None"),
        (
            {"partition": data.QualitySkew(), "feature_noise": data.FeatureNoise()},
            "noise of the partition or feature_noise, got both",
        ),
        (
            {
                "dataset": "quadratic",
                "partition": "by_client",
                "label_poisoning": "uniform_labels",
            },
            "needs one class label per example",
        ),
        ({"dataset": "mnist", "data_dir": "absent"}, "absent' does not exist"),
        ({"num_client": 3}, "Unknown field .*did you mean 'num_clients'"),
    ],
)
def test_wrong_fields_get_a_sentence(changes, sentence):
    fields = {"dataset": "digits", "partition": data.IID(), "num_clients": 12}
    samples.refusal(data.load_federation, **{**fields, **changes}, match=sentence)


def make_dataset(**changes):
    """Three natural clients whose examples are mixed in the pool."""
    client = np.arange(60) % 3
    fields = {"name": "mine", "x": np.arange(60.0)[:, None], "y": np.arange(60) % 4}
    return data.Dataset(**{**fields, "num_classes": 4, "client": client, **changes})


def test_ordered_examples_are_trained_on_first_and_tested_on_last():
    federation = data.from_dataset(
        make_dataset(ordered=True), data.ByClient(), num_clients=None
    )
    for i in range(3):
        together = [rows(getattr(federation, name), i) for name in PARTS]
        assert [len(part) for part in together] == [14, 2, 4]
        np.testing.assert_array_equal(np.concatenate(together), np.arange(i, 60, 3))


@pytest.mark.parametrize("poisoning", data.LABEL_POISONINGS)
def test_only_training_labels_of_malicious_clients_are_poisoned(poisoning):
    changes = {"malicious_fraction": 0.5, "label_poisoning": poisoning}
    federation = spec(**changes).build()
    honest = spec(malicious_fraction=0.5).build()
    assert federation.test.labels is None and federation.validation.labels is None
    assert honest.train.labels is None
    malicious = np.asarray(federation.malicious)
    labels = np.asarray(federation.train.labels)
    for i in range(12):
        own = rows(federation.train, i)
        true = np.asarray(federation.train.y)[own]
        found = labels[i, : len(own)]
        assert (found == true).all() == (not malicious[i])
        assert found.min() >= 0 and found.max() < 10
    batch = jax.vmap(
        lambda fields: (
            federation.train.pool()
            .with_rows(fields)
            .gather(jnp.arange(5), jnp.ones(5))
            .y
        )
    )(federation.train.rows())
    np.testing.assert_array_equal(batch, labels[:, :5])


def test_more_malicious_clients_leave_the_labels_of_others_alone():
    few, many = (
        spec(malicious_fraction=f, label_poisoning="uniform_labels").build()
        for f in (0.25, 0.75)
    )
    both = np.asarray(few.malicious)
    assert (np.asarray(many.malicious) | ~both).all()
    np.testing.assert_array_equal(few.train.labels[both], many.train.labels[both])


@jax.jit
def batch_of(federation, client, key=None):
    part = federation.test
    own = part.pool().with_rows(jax.tree.map(lambda leaf: leaf[client], part.rows()))
    return own.gather(jnp.arange(20), jnp.ones(20), key=key)


def test_feature_noise_has_its_size_and_belongs_to_client_and_example():
    clean = spec().build()
    noise = data.FeatureNoise(std=0.5, graded=True)
    noisy = spec(feature_noise=noise).build()
    keys = jax.random.split(jax.random.key(0), 2)
    for client in (0, 5, 11):
        difference = batch_of(noisy, client).x - batch_of(clean, client).x
        size = difference.size
        wanted = 0.5 * (client + 1) / 12
        # The standard error of a normal sample's standard deviation is sd / sqrt(2 n).
        assert abs(difference.std() - wanted) < 5 * wanted / np.sqrt(2 * size)
        for key in keys:
            np.testing.assert_array_equal(
                batch_of(noisy, client, key).x, batch_of(noisy, client).x
            )
    first, second = (batch_of(noisy, i).x - batch_of(clean, i).x for i in (10, 11))
    assert np.abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.2


def test_feature_noise_is_the_same_in_32_bits():
    noisy = spec(feature_noise=data.FeatureNoise(std=0.5)).build()
    with jax.enable_x64(False):
        narrow = batch_of(noisy, 3).x
    # Other roundings of the same draws; other draws would differ by some 0.5.
    np.testing.assert_allclose(narrow, batch_of(noisy, 3).x, atol=1e-4)


def test_resampled_noise_follows_the_key():
    noisy = spec(feature_noise=data.FeatureNoise(resample=True)).build()
    one, two = jax.random.split(jax.random.key(0), 2)
    x = batch_of(noisy, 3, one).x
    np.testing.assert_array_equal(x, batch_of(noisy, 3, one).x)
    assert (x != batch_of(noisy, 3, two).x).all()
    np.testing.assert_array_equal(batch_of(noisy, 3).x, batch_of(noisy, 3).x)


def test_quality_skew_gives_the_federation_its_noise():
    federation = spec(partition=data.QualitySkew(sigma=0.6, resample=True)).build()
    np.testing.assert_allclose(
        federation.train.noise_scale, 0.6 * np.arange(12) / 12, rtol=1e-6
    )
    assert federation.train.resample_noise and federation.test.resample_noise


def test_own_arrays_with_natural_clients():
    x = np.random.default_rng(0).normal(size=(40, 3))
    owner = np.repeat(["zoe", "al", "zoe", "bea"], 10)
    labels = np.where(x[:, 0] > 0, "spam", "ham")
    federation = data.Federation.from_arrays(x, labels, owner)
    assert federation.num_clients == 3 and federation.num_classes == 2
    assert federation.class_names == ("ham", "spam")
    for i, name in enumerate(("al", "bea", "zoe")):
        own = np.sort(owned(federation, i))
        np.testing.assert_array_equal(own, np.flatnonzero(owner == name))
        np.testing.assert_allclose(np.asarray(federation.train.x)[own], x[own], 1e-6)


def test_own_arrays_are_distributed_where_there_are_no_clients():
    x, y = jnp.ones((50, 2)), np.linspace(0, 1, 50)
    federation = data.Federation.from_arrays(x, y, num_clients=5, seed=3)
    assert federation.num_classes is None
    assert np.asarray(federation.train.num_examples).tolist() == [7] * 5
    samples.refusal(data.Federation.from_arrays, x, y, match="num_clients")
    with pytest.raises(checks.InputError, match="did you mean 'test_fraction'"):
        data.Federation.from_arrays(x, y, num_clients=5, test_fractoin=0.5)


def test_few_training_examples_keep_the_proportions_of_classes():
    everything = spec(num_clients=4).build()
    few = spec(num_clients=4, train_examples=50).build()
    assert np.asarray(few.train.num_examples).tolist() == [50] * 4
    np.testing.assert_array_equal(few.test.index, everything.test.index)
    y = np.asarray(few.train.y)
    for i in range(4):
        kept, own = rows(few.train, i), rows(everything.train, i)
        assert set(kept) <= set(own)
        counts, whole = (np.bincount(y[r], minlength=10) for r in (kept, own))
        assert (np.abs(counts - 50 * whole / len(own)) <= 1).all()
    more = spec(num_clients=4, train_examples=10**6).build()
    np.testing.assert_array_equal(more.train.index, everything.train.index)


def test_few_training_examples_without_classes():
    federation = spec(
        dataset="linear_regression", partition="by_client", train_examples=7
    ).build()
    assert np.asarray(federation.train.num_examples).tolist() == [7] * 12
    samples.refusal(spec, train_examples=0, match="train_examples .* got 0")
