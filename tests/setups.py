"""Set-ups that tests of several methods share."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import fedjax_pfl as fp


def process(algorithm, size=None, **fields):
    """A process with cohorts of this size, or with everybody."""
    who = fp.AllClients() if size is None else fp.UniformCohort(size=size)
    return fp.FederatedProcess(algorithm=algorithm, participation=who, **fields)


def counts(problem):
    """Numbers `[N]` of training examples."""
    return np.asarray(problem.federation.train.num_examples, float)


def with_malicious(problem, *clients):
    """The problem, in which these clients are malicious."""
    bad = np.isin(np.arange(problem.federation.num_clients), clients)
    federation = dataclasses.replace(problem.federation, malicious=jnp.asarray(bad))
    return dataclasses.replace(problem, federation=federation)
