"""Initial parameters of every model of the package."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import portfolio
from tests.models import test_models

KEY = jax.random.key(0)
MODELS = {
    name: lambda name=name: test_models.small(name)[0] for name in test_models.SMALL
}
MODELS["eiie"] = lambda: portfolio.EIIE(units=4, features=1, window=5)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_starts_where_it_is_told(name):
    model = MODELS[name]()
    start = test_models.drawn(model)
    started = dataclasses.replace(model, initial_params=start)
    started.check_start()
    jax.tree.map(np.testing.assert_array_equal, started.init(KEY), start)
    moved = jax.tree.map(lambda leaf: leaf + 1, start)
    other = dataclasses.replace(model, initial_params=moved)
    assert len({model, started, other, dataclasses.replace(started)}) == 3
    wrong = dataclasses.replace(model, initial_params=start | {"more": np.ones(2)})
    with pytest.raises(fp.InputError, match="they also have 'more'; its own are"):
        wrong.check_start()
