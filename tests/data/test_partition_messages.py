"""Messages about partitions that cannot be, and clients that are too small."""

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from fedjax_pfl.data import sources
from tests.data import samples
from tests.data.test_partition import draw, labelled


def _build(partition, **fields):
    x = np.arange(26.0)[:, None]
    dataset = fp.data.Dataset(
        name="mine",
        x=x.astype(np.float32),
        y=np.arange(26) % 2,
        num_classes=2,
        client=np.array([0] * 12 + [1] * 12 + [2] + [3]),
    )
    spec = fp.FederationSpec(dataset, partition, **fields)
    return spec.build()


def test_a_client_that_is_too_small_is_left_out_by_what_the_message_says():
    with pytest.raises(checks.InputError) as said:
        _build(fp.ByClient(), num_clients=None)
    assert "has 1 example, too few" in str(said.value)
    assert "(by_client does with min_examples=2)" in str(said.value)
    assert _build(fp.ByClient(min_examples=2), num_clients=None).num_clients == 2
    with checks.as_command(), pytest.raises(checks.InputError) as said:
        _build(fp.ByClient(), num_clients=None)
    assert "--set 'federation.partition.min_examples=2'" in str(said.value)


@pytest.mark.parametrize(
    ("partition", "field"),
    [
        (fp.LabelShards(labels_per_client=3), "labels_per_client"),
        (fp.ByClient(min_examples=30), "min_examples"),
    ],
)
def test_fields_of_partitions_are_named_as_they_are_set(partition, field):
    with pytest.raises(checks.InputError, match=f"Expected {field} to be at most"):
        _build(partition, num_clients=2)
    option = f"--set federation.partition.{field}"
    with checks.as_command(), pytest.raises(checks.InputError) as said:
        _build(partition, num_clients=2)
    assert f"Expected {option} to be at most" in str(said.value)


WRONG = [
    ("DirichletLabels", {"concentration": 0.0}, "above 0, got 0.0"),
    ("DirichletLabels", {"concentration": np.nan}, "got nan"),
    ("DirichletLabels", {"concentration": "0.5"}, "got '0.5'"),
    ("DirichletLabels", {"min_examples": 0}, "at least 1, got 0"),
    ("LabelShards", {"labels_per_client": 0}, "at least 1, got 0"),
    ("LabelShards", {"labels_per_client": 2.0}, "got 2.0"),
    ("LabelShards", {"distinct_labels": 1}, "distinct_labels .* got 1"),
    ("LabelShards", {"in_file_order": 1}, "in_file_order .* got 1"),
    ("PathologicalBlocks", {"labels_per_client": 0}, "got 0"),
    ("PathologicalBlocks", {"unbalanced": "no"}, "true or false"),
    ("PathologicalBlocks", {"min_examples": 0}, "got 0"),
    ("PowerLaw", {"sigma": -1}, "sigma .* at least 0, got -1"),
    ("PowerLaw", {"labels_per_client": 0}, "got 0"),
    ("PowerLaw", {"min_examples": 0}, "got 0"),
    ("QualitySkew", {"sigma": np.inf}, "got inf"),
    ("QualitySkew", {"index_from": -1}, "at least 0, got -1"),
    ("QualitySkew", {"resample": 0}, "resample .* got 0"),
    ("HybridSkew", {"labels_per_client": 0}, "got 0"),
    ("ClassWindows", {"labels_per_client": 0}, "at least 1, got 0"),
    ("ClassWindows", {"mean": np.nan}, "mean .* got nan"),
    ("ClassWindows", {"sigma": -1.0}, "sigma .* at least 0, got -1"),
    ("ClassWindows", {"extra": -1}, "extra .* at least 0, got -1"),
    ("ClassWindows", {"extra": 0.5}, "extra .* got 0.5"),
    ("ClassWindows", {"min_per_class": 0}, "min_per_class .* got 0"),
    ("ByClient", {"min_examples": 0}, "min_examples .* got 0"),
    ("FeatureSkew", {"clients_per_client": 0}, "clients_per_client .* got 0"),
]


@pytest.mark.parametrize(("name", "fields", "sentence"), WRONG)
def test_wrong_fields_get_a_sentence(name, fields, sentence):
    samples.refusal(lambda: getattr(partitions, name)(**fields), match=sentence)


ELEVEN = {"labels_per_client": 11}
TOKENS = datasets.Dataset(name="words", x=np.eye(4, dtype=np.int64), y=np.ones(4))
FEW = labelled(6, 7)
IMPOSSIBLE = [
    ("IID", {}, "digits", 1798, "at least 1798 samples .* has 1797"),
    ("IID", {}, "digits", 0, "num_clients .* at least 1, got 0"),
    ("DirichletLabels", {}, "digits", 180, "at least 1800 .* has 1797"),
    ("DirichletLabels", {}, "quadratic", 5, "needs one class label"),
    ("LabelShards", ELEVEN, "digits", 5, "per_client to be at most 10, .* got 11"),
    ("LabelShards", {}, "digits", 1000, "200 examples of class 0 .* got 178"),
    ("LabelShards", {}, "linear_regression", 5, "needs one class label"),
    ("QuantitySkew", {"min_examples": 100}, "digits", 18, "at least 1800 .* has 1797"),
    ("PathologicalBlocks", {}, "quadratic", 5, "needs one class label"),
    ("PathologicalBlocks", ELEVEN, "digits", 5, "at most 10, .* got 11"),
    ("PathologicalBlocks", {}, "digits", 200, "at least 200 .* of class 0"),
    ("PowerLaw", ELEVEN, "digits", 5, "at most 10, .* 11"),
    ("PowerLaw", {}, "digits", 180, "at least 1800 samples"),
    ("PowerLaw", {"min_examples": 11}, "digits", 160, "of class 8 .* got 174"),
    ("PowerLaw", {}, "linear_regression", 5, "needs one class label"),
    ("QualitySkew", {}, "digits", 1798, "has 1797"),
    ("QualitySkew", {}, TOKENS, 2, "adds noise .* whole numbers"),
    ("HybridSkew", {"min_examples": 100}, "digits", 20, "needs at least 1000 .* has"),
    ("HybridSkew", ELEVEN, "digits", 4, "at most 10"),
    ("ClassWindows", ELEVEN, "digits", 5, "at most 10, .* 11"),
    ("ClassWindows", {}, "quadratic", 5, "needs one class label"),
    ("ClassWindows", {"min_per_class": 8}, FEW, 5, "8 examples of class 0 of .* got 7"),
    ("ByClient", {}, "digits", None, "needs natural clients"),
    ("FeatureSkew", {}, "digits", None, "needs natural clients"),
    *(
        (f"Leaky{kind}", {"min_examples": 1798}, "digits", 2, "has 1797")
        for kind in ("DirichletLabels", "QuantitySkew", "HybridSkew")
    ),
    *(
        (kind.__name__, {}, "digits", None, "needs num_clients, .* got None")
        for name, kind in partitions.PARTITIONS.items()
        if name not in ("by_client", "feature_skew")
    ),
]


@pytest.mark.parametrize(
    ("name", "fields", "dataset", "num_clients", "sentence"), IMPOSSIBLE
)
def test_impossible_partitions_get_a_sentence(
    name, fields, dataset, num_clients, sentence
):
    if isinstance(dataset, str):
        dataset = sources.load_dataset(dataset)
    with pytest.raises(checks.InputError, match=sentence) as error:
        draw(getattr(partitions, name)(**fields), dataset, num_clients)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
