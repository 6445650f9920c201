"""Pieces of the tests of privacy: processes, attackers, draws, exact epsilons."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize, stats

import fedjax_pfl as fp
from fedjax_pfl.core import Stream, sharding, stream_key
from tests import problems

SGD = problems.full_gradient_steps(2, 0.3)
KEY = jax.random.key(0)
EVERYBODY = fp.AllClients()


def vectors(size):
    """Vectors of any size, and not only finite ones."""
    odd = st.sampled_from([np.nan, np.inf, 1e300, 0.0])
    return arrays.arrays(np.float64, size, elements=st.floats(-1e6, 1e6) | odd)


def process(*transforms, who=EVERYBODY, algorithm=None, **fields):
    algorithm = fp.FedAvg(local=SGD) if algorithm is None else algorithm
    fields = {"aggregator": fp.aggregators.Mean()} | fields
    return fp.FederatedProcess(
        algorithm=algorithm, participation=who, transforms=transforms, **fields
    )


def assert_refused(match, check, *, transforms, **fields):
    with pytest.raises(fp.InputError, match=match):
        check(process(*transforms, **fields))


@fp.pytree_dataclass
class Sends(fp.core.Attack):
    """Malicious clients send one vector, whatever it is."""

    vector: jax.Array

    def __call__(self, key, state, messages, malicious, reference):
        def replaced(rows):
            return jnp.where(malicious[:, None], self.vector[None], rows)

        return jax.tree.map(replaced, messages), state


def normal(round, size, *, key=KEY, fold=None):
    """Draws of a round's noise, of JAX's own Threefry."""
    words = jax.random.key_data(stream_key(key, Stream.NOISE, round))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    key = key if fold is None else jax.random.fold_in(key, fold)
    return np.asarray(jax.random.normal(jax.random.split(key, 1)[0], (size,), float))


def resumed(whole, problem, states, at):
    """The state after one round in chunks; the rounds after a pause are the same."""
    w, given = states.server["theta"], (problem.model, problem.federation)
    rounds = len(w) - 1  # also of the other run: one compiled program
    middle = dataclasses.replace(jax.tree.map(lambda leaf: leaf[at], states), key=KEY)
    later, _, _ = problems.run(whole, problem, rounds, state=middle)
    np.testing.assert_array_equal(later.server["theta"][: rounds - at + 1], w[at:])
    chunk = sharding.Execution(mode="chunk", chunk_size=1)
    new, _ = jax.jit(lambda state: whole.round(state, *given, chunk))(middle)
    np.testing.assert_allclose(new.server["theta"], w[at + 1], rtol=1e-12)
    return new


def advantage(first, second, epsilon):
    """Sampled `max_t P(T > t | first) - e^epsilon P(T > t | second)`."""
    first, second = np.sort(first), np.sort(second)
    above = np.arange(len(first), 0, -1) / len(first)
    other = 1 - np.searchsorted(second, first) / len(second)
    return (above - math.exp(epsilon) * other).max()


def allowed(delta, seeds):
    """Delta, and what the largest of many correlated errors may add to it."""
    return delta + 5 * 0.5 / math.sqrt(seeds)  # each is below 0.5 / sqrt(seeds)


def exact_epsilon(mu, delta):
    """Epsilon of a Gaussian mechanism of sensitivity / deviation mu, by SciPy."""

    def excess(epsilon):
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b)) - delta

    return optimize.brentq(excess, 0, 200, xtol=1e-12)
