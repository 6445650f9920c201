"""Natural clients: who is left out, who is drawn, how they are grouped."""

import numpy as np
import pytest

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import partition as partitions
from tests.data.test_partition import draw


def owned(client):
    """Examples of the given natural clients."""
    y = np.zeros(len(client))
    return datasets.Dataset(name="own", x=y, y=y, client=np.array(client))


def rows_of(parts):
    return [parts.rows(i).tolist() for i in range(len(parts.index))]


@pytest.mark.parametrize("num_clients", [3, None])
def test_by_client_follows_the_ids(num_clients):
    parts = draw(partitions.ByClient(), owned([7, 2, 7, 5, 2]), num_clients)
    assert rows_of(parts) == [[1, 4], [3], [0, 2]]


def test_by_client_leaves_out_small_ones():
    dataset = owned([7, 2, 7, 5, 2, 7])
    partition = partitions.ByClient(min_examples=2)
    assert rows_of(draw(partition, dataset, None)) == [[1, 4], [0, 2, 5]]
    with pytest.raises(checks.InputError, match="at most 2, .* with 2 or more .* 3"):
        draw(partition, dataset, 3)
    with pytest.raises(checks.InputError, match="min_examples to be at most 3, .* 4"):
        draw(partitions.ByClient(min_examples=4), dataset, None)


def test_by_client_draws_some_of_many_in_the_order_of_their_ids():
    client = np.repeat(np.arange(100), 1 + np.arange(100) % 7)[::-1]
    dataset = owned(client)
    chosen = []
    for seed in range(20):
        parts = draw(partitions.ByClient(), dataset, 10, seed)
        ids = [set(client[rows]) for rows in rows_of(parts)]
        assert all(len(i) == 1 for i in ids)
        ids = [i.pop() for i in ids]
        assert ids == sorted(ids)
        assert parts.num_examples.tolist() == [1 + i % 7 for i in ids]
        chosen.append(ids)
    assert len({tuple(ids) for ids in chosen}) == 20
    assert len(np.unique(chosen)) > 75  # 1 - 0.9 ** 20 = 0.88 of the hundred


def test_feature_skew_groups_writers_in_file_order():
    # In the order of their first examples: 9, 3, 7, 1, 5.
    dataset = owned([9, 3, 9, 7, 1, 3, 5, 9])
    parts = draw(partitions.FeatureSkew(), dataset, 2)
    assert rows_of(parts) == [[0, 2, 7, 1, 5], [3, 4]]  # 5 // 2 each; 5 is unused
    parts = draw(partitions.FeatureSkew(clients_per_client=1), dataset, 2)
    assert rows_of(parts) == [[0, 2, 7], [1, 5]]
    assert len(draw(partitions.FeatureSkew(), dataset, None).index) == 5
    pairs = draw(partitions.FeatureSkew(clients_per_client=2), dataset, None)
    assert rows_of(pairs) == [[0, 2, 7, 1, 5], [3, 4]]


def test_feature_skew_of_femnist_has_338_writers_for_each_of_ten_clients():
    client = np.repeat(np.arange(3383), 2)
    parts = draw(partitions.FeatureSkew(), owned(client), 10)
    for i in range(10):
        assert set(client[parts.rows(i)]) == set(range(338 * i, 338 * (i + 1)))


@pytest.mark.parametrize(
    ("partition", "num_clients", "sentence"),
    [
        (partitions.ByClient(), 4, "at most 3, the number .* of own with .* got 4"),
        (partitions.ByClient(), 0, "at least 1, got 0"),
        (partitions.FeatureSkew(), 4, "needs 4 natural clients .* has 3"),
        (partitions.FeatureSkew(clients_per_client=2), 2, "needs 4 .* of 2 each"),
        (partitions.FeatureSkew(clients_per_client=5), None, "needs 5 natural"),
        (partitions.FeatureSkew(), 0, "at least 1, got 0"),
    ],
)
def test_impossible_groups_get_a_sentence(partition, num_clients, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        draw(partition, owned([7, 2, 7, 5, 2]), num_clients)
