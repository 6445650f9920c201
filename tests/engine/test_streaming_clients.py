"""Streamed trainings: clients that are measured, that never trained, or differ."""

import numpy as np
import pytest

import fedjax_pfl as fp
from tests.engine.test_streaming import KEY, SGD, assert_same, make_process
from tests.lanes import wide

FEDAVG = make_process("fedavg")
RANKS = (1, 2, 4, 4, 4, 2, 3, 1, 1)


def federation():
    """Nine clients, and three that never train."""
    return fp.load_federation("digits", num_clients=12, unseen_fraction=0.25)


def both(process, model=None, data=None, **options):
    """The histories of a training in memory and of the streamed one."""
    data = federation() if data is None else data
    model = fp.LogisticRegression() if model is None else model
    given = {"eval_every": 4, "progress": False, "eval_clients": "all"} | options
    execution = given.pop("execution", "vmap")
    return [
        simulate(KEY, process, model, data, 8, execution=way, **given).groups[0]
        for simulate, way in (
            (fp.simulate, "vmap"),
            (fp.simulate_streamed, execution),
        )
    ]


@pytest.mark.parametrize(
    ("name", "execution"), [wide("flame", "vmap"), ("fedavg", "shard=2")]
)
def test_clients_that_never_trained_are_measured(name, execution):
    """As in memory, next to all clients that train."""
    held, streamed = both(make_process(name), execution=execution)
    assert_same(held, streamed)
    assert streamed.unseen_models == held.unseen_models != ()
    for metric, values in held.unseen.items():
        np.testing.assert_allclose(streamed.unseen[metric], values, rtol=0, atol=1e-12)


def test_participants_of_the_last_round_are_measured():
    """The history is about those who are measured at some time."""
    held, streamed = both(FEDAVG, eval_clients="participants")
    is_measured = held.evaluated.any(axis=(0, 1, 2))
    assert 3 < is_measured.sum() < 9
    for name, values in held.metrics.items():
        np.testing.assert_allclose(
            streamed.metrics[name], values[..., is_measured], rtol=0, atol=1e-12
        )


def test_clients_have_ranks_or_statistics_of_their_own():
    data = fp.load_federation("digits", num_clients=9)
    options = {"data": data, "evaluate_on": "test"}
    adapters = fp.lora(fp.MLP(widths=(8,)), targets="^hidden_0/", rank=4, ranks=RANKS)
    products = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=SGD),
        participation=fp.UniformCohort(size=3),
        aggregator=fp.aggregators.ProductMean(),
    )
    assert_same(*both(products, adapters, **options))
    normalized = fp.MLP(widths=(8,), normalization="batch")
    statistics = fp.ParameterRoles(normalized, local_statistics=True)
    assert_same(*both(FEDAVG, statistics, **options))
