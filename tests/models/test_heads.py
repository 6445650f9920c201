"""Features of networks: inputs of the head, of every kind of model that has one."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core, models
from fedjax_pfl.algorithms import common
from tests.models import norms, test_own
from tests.models.toys import fitted

KEY = jax.random.key(0)


class Head(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(4)(x))
        return nn.Dense(3)(x)


class Nested(nn.Module):
    """A head of two layers: the outermost module is the head."""

    @nn.compact
    def __call__(self, x):
        return Head(name="head")(nn.tanh(nn.Dense(5)(x)))


def linear(params, z):
    """Outputs of a last layer, in either layout of the kernel."""
    z, kernel, bias = map(np.asarray, (z, params["kernel"], params["bias"]))
    return z @ (kernel if kernel.shape[0] == z.shape[1] else kernel.T) + bias


MODELS = {
    "mlp": (models.MLP(widths=(6, 5)), ("head",)),
    "batch_norm": (models.MLP(widths=(5,), normalization="batch"), ("head",)),
    "linen": (
        models.from_flax(test_own.Linen(), head="^Dense_1/"),
        ("head", "Dense_1"),
    ),
    "nnx": (models.from_flax(norms.Nnx, head="^output/"), ("head", "output")),
    "roles": (models.ParameterRoles(models.MLP(widths=(5,)), frozen="bias$"), None),
    "lora": (models.lora(models.MLP(widths=(5,)), targets="hidden", rank=1), None),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("key", [None, jax.random.key(3)], ids=["test", "train"])
def test_the_head_maps_features_to_outputs(name, key):
    model, place = MODELS[name]
    model, x = fitted(model), jnp.asarray(np.random.default_rng(0).normal(size=(7, 4)))
    params, running = model.init(KEY), model.first_statistics()
    constants = core.Constants(statistics=running, weight=jnp.ones(7))
    run = functools.partial(model.featured, key=key, constants=constants)
    features, outputs, moved = run(params, x)
    assert features.shape == (7, 5)
    wanted = model.apply(params, x, key=key, constants=constants)
    np.testing.assert_array_equal(outputs, wanted)
    assert (moved is None) == (running is None)
    whole = model.merged(params) if place is None else params
    head = functools.reduce(lambda tree, part: tree[part], place or ("head",), whole)
    np.testing.assert_allclose(linear(head, features), outputs, rtol=1e-12, atol=1e-12)


def test_features_can_be_differentiated_and_mapped():
    model = fitted(models.from_flax(norms.Nnx, head="^output/"))
    params, running = model.init(KEY), model.first_statistics()
    x = jnp.ones((2, 3, 4))

    def total(params, x):
        constants = core.Constants(statistics=running, weight=jnp.ones(3))
        return model.featured(params, x, constants=constants)[0].sum()

    slopes = jax.jit(jax.vmap(jax.grad(total), in_axes=(None, 0)))(params, x)
    assert np.abs(slopes["dense"]["kernel"]).max() > 0
    assert not np.abs(slopes["head"]["output"]["kernel"]).any()


def test_a_head_of_several_layers_is_one_head():
    model = fitted(models.from_flax(Nested()))
    params = model.init(KEY)
    features, outputs, _ = model.featured(params, jnp.ones((2, 4)))
    hidden = linear(params["head"]["Dense_0"], features)
    wanted = linear(params["head"]["Dense_1"], np.maximum(hidden, 0))
    np.testing.assert_allclose(outputs, wanted, rtol=1e-12)


def test_images_have_flat_features():
    made = fp.Federation.from_arrays(
        np.zeros((12, 8, 8)), [0, 1, 2] * 4, [0, 1] * 6, test_fraction=0.2
    )
    for model in (models.SmallCNN(), models.NFResNet18()):
        model = model.for_federation(made)
        params = jax.jit(model.init)(KEY)
        z, outputs, _ = jax.jit(model.featured)(params, jnp.ones((2, 8, 8)))
        assert z.ndim == 2
        np.testing.assert_allclose(linear(params["head"], z), outputs, rtol=1e-9)


def test_models_without_a_head_are_refused():
    network = models.from_functions(
        init=lambda key, x: {"head": jnp.zeros((x.shape[1], 3))},
        apply=lambda params, x: x @ params["head"],
    )
    network = fitted(network)
    with pytest.raises(fp.InputError, match="once, .* got 0 calls"):
        network.featured(network.init(KEY), jnp.ones((2, 4)))
    for model in (
        models.LogisticRegression(),
        models.lora(models.LogisticRegression(), targets="kernel"),
    ):
        with pytest.raises(fp.InputError, match="for MOON, .* got LogisticRegression"):
            common.check_features("MOON", model)
