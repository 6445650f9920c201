"""Trainings of models on a few clients, and the examples of the toy federation."""

import jax
import numpy as np

import fedjax_pfl as fp
from fedjax_pfl.testing import toy


def fitted(model):
    """The model with the shapes of the toy federation."""
    return model.for_federation(toy.make_federation())


def examples():
    """Training inputs and labels of every client, as NumPy arrays."""
    data = toy.make_federation().train
    x, y, index = (np.asarray(leaf) for leaf in (data.x, data.y, data.index))
    return [(x[index[i, :n]], y[index[i, :n]]) for i, n in enumerate(toy.COUNTS)]


def losses(
    model, algorithm, data=None, *, call=fp.simulate, participation=None, **options
):
    """Losses after no, one and two rounds, by predictor, data and client."""
    participation = participation or fp.AllClients()
    process = fp.FederatedProcess(algorithm=algorithm, participation=participation)
    options = {"num_rounds": 2, "progress": False} | options
    data = toy.make_federation() if data is None else data
    result = call(jax.random.key(0), process, model, data, **options)
    return result.groups[0].metrics["loss"]
