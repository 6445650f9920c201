"""Pieces of the tests of privacy: a process, malicious clients, an exact epsilon."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize, stats

import fedjax_pfl as fp
from tests import problems

SGD = problems.full_gradient_steps(2, 0.3)


def vectors(size):
    """Vectors of any size, and not only finite ones."""
    odd = st.sampled_from([np.nan, np.inf, 1e300, 0.0])
    return arrays.arrays(np.float64, size, elements=st.floats(-1e6, 1e6) | odd)


def process(*transforms, who, algorithm=None, **fields):
    algorithm = fp.FedAvg(local=SGD) if algorithm is None else algorithm
    fields = {"aggregator": fp.aggregators.Mean()} | fields
    return fp.FederatedProcess(
        algorithm=algorithm, participation=who, transforms=transforms, **fields
    )


@fp.pytree_dataclass
class Sends(fp.core.Attack):
    """Malicious clients send one vector, whatever it is."""

    vector: jax.Array

    def __call__(self, key, state, messages, malicious, reference):
        def replaced(rows):
            return jnp.where(malicious[:, None], self.vector[None], rows)

        return jax.tree.map(replaced, messages), state


def exact_epsilon(mu, delta):
    """Epsilon of a Gaussian mechanism of sensitivity / deviation mu, by SciPy."""

    def excess(epsilon):
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b)) - delta

    return optimize.brentq(excess, 0, 200, xtol=1e-12)
