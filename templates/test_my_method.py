"""MyMethod has the properties of every method, and does what its equation says."""

import jax
import my_method
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import testing
from fedjax_pfl.testing import toy

# Another model, aggregator or attack: testing.Subject(my_method.MyMethod(), model=...).
METHOD = my_method.MyMethod()


@pytest.mark.parametrize("name", testing.PROPERTIES)
def test_conformance(name):
    testing.check(name, METHOD)


def test_one_round_on_quadratics():
    """With f_i = |theta - c_i|^2 / 2 one full step of length 1 ends at c_i."""
    federation = toy.make_federation(classes=False)
    model = fp.models.Quadratic().for_federation(federation)
    exact = fp.SGD(learning_rate=1.0, batch_size=int(toy.COUNTS.max()))
    process = fp.FederatedProcess(algorithm=my_method.MyMethod(step=0.25, local=exact))
    start = process.init(jax.random.key(0), model, federation)
    after, _ = process.round(start, model, federation)
    mean = np.average(toy.targets(), axis=0, weights=toy.COUNTS)
    w = start.server["theta"]
    np.testing.assert_allclose(after.server["theta"], w + 0.25 * (mean - w), atol=1e-5)
    np.testing.assert_allclose(after.clients["theta"], toy.targets(), atol=1e-5)
