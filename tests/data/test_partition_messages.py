"""Messages about clients that are too small name what to type."""

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks


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
