"""Whatever data and options: a partition, or one sentence; never an endless loop."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions

COUNTS, FLAGS = st.integers(1, 4), st.booleans()
FIELDS = {
    "concentration": st.sampled_from([5e-324, 1e-9, 0.05, 0.5, 3.0, 1e9, 1e300]),
    "min_examples": COUNTS | st.integers(5, 40),
    **dict.fromkeys(("labels_per_client", "index_from"), COUNTS),
    **dict.fromkeys(("distinct_labels", "in_file_order", "unbalanced"), FLAGS),
    "clients_per_client": st.none() | COUNTS,
    "extra": st.integers(0, 3),
    "min_per_class": COUNTS,
}
OTHERS = {  # values of a field in one partition
    partitions.PowerLaw: {
        "labels_per_client": st.none() | COUNTS,
        "sigma": st.sampled_from([0.0, 1e-300, 1.0, 100.0, 1e308]),
    },
    partitions.ClassWindows: {
        "mean": st.sampled_from([-1e308, 1.0, 1e308]),
        "sigma": st.sampled_from([0.0, 1.0, 1e308]),
    },
}


def options_of(kind):
    """Partitions of a kind, with values of all of its fields."""
    names = {field.name for field in dataclasses.fields(kind)}
    given = {name: FIELDS[name] for name in names & FIELDS.keys()}
    return st.builds(kind, **given | OTHERS.get(kind, {}))


SMALLEST = (  # what gives every client at least `min_examples`
    partitions.DirichletLabels,
    partitions.PathologicalBlocks,
    partitions.QuantitySkew,
    partitions.PowerLaw,
    partitions.ByClient,
    partitions.LeakyDirichletLabels,
    partitions.LeakyQuantitySkew,
)
EXHAUSTIVE = (
    partitions.IID,
    partitions.DirichletLabels,
    partitions.QuantitySkew,
    partitions.QualitySkew,
)


def random_dataset(rng, num_samples, num_classes):
    """Classes of different sizes, and natural clients with gaps between their ids."""
    y = rng.integers(rng.integers(num_classes, size=num_samples) + 1)
    client = rng.integers(0, 1 + num_samples // 5, num_samples) * 7
    x = np.zeros((num_samples, 1))
    return datasets.Dataset(
        name="random", x=x, y=y, num_classes=num_classes, client=client
    )


@pytest.mark.filterwarnings("ignore:Partition 'class_windows' wants")
@pytest.mark.parametrize("name", partitions.PARTITIONS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    options=st.data(),
    seed=st.integers(0, 2**32),
    num_samples=st.integers(1, 500),
    num_classes=st.integers(1, 6),
    num_clients=st.none() | st.integers(1, 15),
)
def test_a_partition_or_a_sentence(
    name, options, seed, num_samples, num_classes, num_clients
):
    kind = options.draw(options_of(partitions.PARTITIONS[name]))
    dataset = random_dataset(np.random.default_rng(seed), num_samples, num_classes)
    try:
        parts = kind(np.random.default_rng(seed), dataset, num_clients)
    except checks.InputError as error:
        sentence = str(error)
        assert sentence.endswith(".") and "\n" not in sentence
        event("refused")
        return
    event("partition")
    if num_clients is None:
        assert kind.name in ("by_client", "feature_skew")
        num_clients = len(parts.index)
    rows_of, sizes = parts.index, parts.num_examples
    assert rows_of.shape == (num_clients, sizes.max())
    assert sizes.shape == (num_clients,)
    assert rows_of.dtype == np.int32 and sizes.dtype == np.int32
    owned = [parts.rows(i) for i in range(num_clients)]
    for padded, rows in zip(rows_of, owned, strict=True):
        assert len(np.unique(rows)) == len(rows) >= 1
        assert rows.min() >= 0 and rows.max() < num_samples
        assert (padded[len(rows) :] == 0).all()
    every = np.concatenate(owned)
    is_shared = len(np.unique(every)) < len(every)
    if kind.name == "class_windows":  # where a class has too few examples
        assert parts.leaky == is_shared
    else:
        assert parts.leaky == kind.name.startswith("leaky_")
        assert parts.leaky or not is_shared
    if isinstance(kind, EXHAUSTIVE):
        assert len(every) == num_samples
    if isinstance(kind, SMALLEST):
        assert sizes.min() >= kind.min_examples
    again = kind(np.random.default_rng(seed), dataset, num_clients)
    np.testing.assert_array_equal(again.index, rows_of)


EXTREMES = [
    partitions.DirichletLabels(concentration=5e-324, min_examples=70),
    partitions.DirichletLabels(concentration=1e6, min_examples=1),
    partitions.LabelShards(labels_per_client=10, distinct_labels=True),
    partitions.PathologicalBlocks(labels_per_client=10, unbalanced=True),
    partitions.QuantitySkew(concentration=5e-324, min_examples=70),
    partitions.QuantitySkew(concentration=1e300, min_examples=69),
    partitions.PowerLaw(sigma=20.0, labels_per_client=10),
    partitions.ClassWindows(mean=3.0),
    partitions.HybridSkew(concentration=1e-6, min_examples=70),
    partitions.LeakyDirichletLabels(concentration=1e6),
    partitions.LeakyDirichletLabels(concentration=5e-324, min_examples=18),
    partitions.FeatureSkew(),
    partitions.ByClient(),
]


@pytest.mark.parametrize("partition", EXTREMES, ids=repr)
def test_seventy_thousand_examples_over_a_thousand_clients(partition):
    y = np.arange(70_000) % 10
    dataset = datasets.Dataset(
        name="large",
        x=y[:, None] * 1.0,
        y=y,
        num_classes=10,
        client=np.random.default_rng(0).integers(3400, size=70_000),
    )
    start = time.process_time()
    parts = partition(np.random.default_rng(0), dataset, 1000)
    parts.validate(70_000, 1000)
    assert time.process_time() - start < 5  # measured: below 0.6 s each
