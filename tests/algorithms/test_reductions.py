"""Methods that are FedAvg or local training without their own part, stragglers and all.

The same keys give the same minibatches.
"""

import functools
import operator

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import phi
from fedjax_pfl.testing import toy
from tests import problems
from tests.algorithms import perceptrons
from tests.lanes import wide
from tests.setups import process

LOCAL = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)
CLOSE = {"rtol": 1e-11, "atol": 1e-13}  # some hundred roundings
REFERENCES = {
    "fedavg": fp.FedAvg(local=LOCAL, drop_stragglers=False),
    "uniform": fp.FedAvg(local=LOCAL, weighting="uniform", drop_stragglers=False),
    "local": fp.Local(local=LOCAL),
}


def run(algorithm, **options):
    """States of six rounds of four clients, half of which take one epoch of two."""
    work = fp.Stragglers(fraction=0.5, max_epochs=2)
    whole = process(algorithm, 4, work=work)
    return problems.run(whole, problems.waves(), 6, **options)[0]


@functools.cache
def reference(name):
    return run(REFERENCES[name])


def without_phi(**fields):
    return fp.FedPlus(theta=1.0, local=LOCAL, **fields)


APFL = functools.partial(algorithms.APFL, adaptive=False, local=LOCAL)
PLAIN_MGDA = fp.FedMGDA(eps=0.0, normalize=False, local=LOCAL)
AVERAGED = without_phi(phi=phi.Indicator(), lam=1.0, weighting="examples")


@pytest.mark.parametrize(
    ("algorithm", "place", "name"),
    [
        wide(APFL(alpha=0.0), "server", "fedavg"),
        wide(APFL(alpha=0.3), "server", "fedavg"),
        wide(APFL(alpha=1.0), "clients.v", "local"),
        wide(algorithms.Ditto(lam=0.0, local=LOCAL), "clients.v", "local"),
        wide(algorithms.Ditto(lam=2.0, local=LOCAL), "server", "fedavg"),
        (algorithms.FedACS(mixing=0.0, local=LOCAL), "clients", "local"),
        wide(algorithms.FedACS(pick_quantile=0.99, local=LOCAL), "clients", "local"),
        (
            algorithms.FedALA(adapted="", weight_learning_rate=0.0, local=LOCAL),
            *("server", "fedavg"),
        ),
        (
            algorithms.FedAMP(lam=0.0, start="own", local=LOCAL),
            *("clients", "local"),
        ),
        wide(PLAIN_MGDA, "server", "fedavg"),
        wide(without_phi(lam=0.0), "clients", "local"),
        wide(AVERAGED, "server.c", "fedavg"),
        wide(fp.FedProx(mu=0.0, local=LOCAL), "server", "fedavg"),
        (algorithms.FedSAM(rho=0.0, local=LOCAL), "server", "fedavg"),
        wide(fp.MultiKrum(num_malicious=0, local=LOCAL), "server", "uniform"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_without_its_own_part_a_method_is_another_one(algorithm, place, name):
    found = operator.attrgetter(place)(run(algorithm))["theta"]
    expected = reference(name)
    expected = (expected.clients if name == "local" else expected.server)["theta"]
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert np.abs(expected[-1] - expected[0]).max() > 0.1


@pytest.mark.wide
def test_fedavg_leaves_stragglers_out_and_fedprox_does_not():
    dropped = run(fp.FedAvg(local=LOCAL)).server["theta"]
    assert np.abs(dropped - reference("fedavg").server["theta"]).max() > 1e-3


@functools.cache
def network(algorithm):
    """The last state of three rounds of five clients' networks."""
    states, _ = perceptrons.trained(algorithm, toy.make_federation(), 3)
    return states[-1]


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (algorithms.KNNPer(local=LOCAL), "fedavg"),
        (algorithms.MOON(mu=0.0, local=LOCAL), "fedavg"),
        (algorithms.FedProto(lam=0.0, local=LOCAL), "local"),
    ],
    ids=["knn_per", "moon", "fedproto"],
)
def test_without_its_own_part_a_method_of_networks_is_another_one(algorithm, name):
    place = "clients" if name == "local" else "server"
    pair = (getattr(network(each), place) for each in (algorithm, REFERENCES[name]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), *pair)
