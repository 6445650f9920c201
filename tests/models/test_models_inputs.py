"""Models refuse unfit inputs in a sentence; the LSTM against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import core, models
from fedjax_pfl.core import checks
from fedjax_pfl.models import inputs
from tests.models.test_models import KEY, TABLE, drawn, evaluated, federation, fitted

IMAGE_MODELS = [
    models.CNN(),
    models.CNN1(),
    models.CNN2(),
    models.SmallCNN(),
    models.FedAcsCNN(),
    models.CifarCNN(),
    models.LeNet5(),
    models.NFResNet18(),
    models.VisionTransformer(),
]


def refusal(model, *arguments, **keywords):
    with pytest.raises(checks.InputError) as error:
        fitted(model, *arguments, **keywords)
    message = str(error.value)
    assert type(model).__name__ in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_the_smallest_images_are_as_small_as_possible(model):
    side = model.smallest
    for shape in ((side, side), (side + 1, side, 3)):
        found = fitted(model, shape, 3)
        params = jax.eval_shape(found.init, KEY)
        assert all(leaf.size > 0 for leaf in jax.tree.leaves(params))
    if side == 1:
        return
    small = dataclasses.replace(model, input_shape=(side - 1, side), num_classes=3)
    with pytest.raises(ZeroDivisionError):  # nothing is left of the images: no fan-in
        jax.eval_shape(small.init, KEY)
    message = refusal(model, (side + 5, side - 1), 3)
    assert f"at least {side} x {side} pixels" in message
    assert f"have {side + 5} x {side - 1}" in message


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_image_networks_refuse_other_inputs(model):
    assert "have shape (60,)" in refusal(model, (60,), 3, np.float32)
    assert "int32 token ids" in refusal(model, (32, 32), 3, np.int32)
    assert fitted(model, (32, 32), None).num_classes is None  # predicts numbers


@pytest.mark.parametrize("channels", [1, 3])
def test_images_with_channels_first_get_a_hint(channels):
    message = refusal(models.CNN2(), (channels, 32, 32), 3)
    assert f"({channels}, 32, 32), with {channels} first" in message
    assert "np.moveaxis(x, 1, -1)" in message
    assert fitted(models.CNN2(), (32, 32, channels), 3).num_classes == 3


@pytest.mark.parametrize("model", [models.MLP(), models.LogisticRegression()])
def test_dense_models_refuse_token_ids(model):
    message = refusal(model, (25,), 2, np.int32)
    assert "int32 token ids; use the model 'lstm'" in message
    assert fitted(model, (25,), 2, np.uint8).num_classes == 2


def test_fewer_outputs_than_classes_are_refused():
    with pytest.raises(checks.InputError, match="outputs .* at least 10, got 5"):
        fitted(models.CNN2(outputs=5), (28, 28), 10)


@pytest.mark.parametrize(
    ("shape", "dtype", "constants", "words"),
    [
        ((28, 28, 3), np.uint8, None, "have shape (28, 28, 3)"),
        ((), np.float32, None, "have shape ()"),
        ((25, 2), np.int32, TABLE, "are int32 of shape (25, 2)"),
        ((25,), np.int32, None, "'given' has none"),
        ((25,), np.int32, {"other": jnp.zeros((2, 2))}, "'given' has none"),
        ((25,), np.int32, jnp.zeros((2, 2)), "'given' has none"),
        ((25,), np.int32, {"embeddings": jnp.zeros(2)}, "has shape (2,)"),
    ],
)
def test_the_lstm_refuses_what_it_cannot_read(shape, dtype, constants, words):
    assert words in refusal(models.LSTM(), shape, 2, dtype, constants)


def test_the_lstm_needs_its_constants_when_applied():
    model = fitted(models.LSTM(width=2), (4,), 2, np.int32, TABLE)
    params = drawn(model)
    with pytest.raises(checks.InputError, match="got constants=None"):
        model.apply(params, jnp.zeros((1, 4), jnp.int32))


def numpy_lstm(input_kernel, state_kernel, bias, x):
    """States `[T, B, H]` by the gates' definition, one gate and one step at a time."""
    width = state_kernel.shape[1]
    gates = [slice(k * width, (k + 1) * width) for k in range(4)]
    state = cell = np.zeros((x.shape[1], width))
    states = []
    for row in x:
        i, f, g, o = (
            row @ input_kernel[gate].T + state @ state_kernel[gate].T + bias[gate]
            for gate in gates
        )
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        state = np.tanh(cell) / (1 + np.exp(-o))
        states.append(state)
    return np.stack(states)


def numpy_logits(model, params, tokens):
    """Logits of the specification: embeddings, layers, last step, bottleneck, head."""
    x = np.asarray(TABLE["embeddings"])[tokens.T]
    for number in range(model.num_layers):
        x = numpy_lstm(**params[f"lstm_{number}"], x=x)
    x = x[-1]
    for name in ("bottleneck", "head"):
        if name in params:
            x = x @ params[name]["kernel"].T + params[name]["bias"]
    if model.num_classes == 2:
        return np.concatenate([np.zeros_like(x), x], axis=1)
    return x


@pytest.mark.parametrize(
    ("fields", "num_classes"),
    [({}, 2), ({"num_layers": 3}, 3), ({"bottleneck": None, "num_layers": 1}, 2)],
)
def test_the_lstm_is_the_network_of_the_specification(fields, num_classes):
    model = fitted(models.LSTM(width=6, **fields), (7,), num_classes, np.int32, TABLE)
    assert model.embedding_size == 4
    params = drawn(model)
    tokens = np.random.default_rng(0).integers(9, size=(5, 7)).astype(np.int32)
    found = evaluated(model, params, tokens, TABLE)
    wanted = numpy_logits(model, params, tokens)
    assert found.shape == (5, num_classes)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_two_classes_are_a_sigmoid_of_one_output():
    model = fitted(models.LSTM(width=6), (7,), 2, np.int32, TABLE)
    params = drawn(model)
    assert params["head"]["kernel"].shape == (1, 30)
    tokens = jnp.asarray(np.random.default_rng(0).integers(9, size=(5, 7)), jnp.int32)
    y = jnp.asarray([0, 1, 1, 0, 1], jnp.int32)
    outputs = evaluated(model, params, tokens, TABLE)
    batch = core.Batch(x=tokens, y=y, weight=jnp.ones(5), constants=TABLE)
    z, sign = np.asarray(outputs[:, 1]), 1 - 2 * np.asarray(y)
    found = model.metrics(outputs, batch)
    np.testing.assert_allclose(found["loss"], np.log1p(np.exp(sign * z)), rtol=1e-12)
    np.testing.assert_array_equal(found["accuracy"], (z > 0) == y)


def test_an_unknown_token_shows_as_nan_in_its_own_row():
    model = fitted(models.LSTM(width=3), (2,), 2, np.int32, TABLE)
    params = drawn(model)
    tokens = jnp.asarray([[0, 8], [9, 0]], jnp.int32)
    found = np.asarray(evaluated(model, params, tokens, TABLE))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1, 1])


def test_classes_are_needed():
    numbers = federation(jnp.zeros((2, 3)), None, name="prices")
    with pytest.raises(checks.InputError, match="targets of 'prices' are numbers"):
        inputs.classes_of(models.MLP(), numbers)


def test_several_targets_per_example_are_refused():
    given = federation(jnp.zeros((2, 3)), None)
    several = dataclasses.replace(given.train, y=jnp.zeros((2, 3)))
    given = dataclasses.replace(given, train=several)
    with pytest.raises(checks.InputError, match=r"one number per .* shape \(3,\)"):
        models.LinearRegression().for_federation(given)
    labels = dataclasses.replace(several, y=jnp.zeros((2, 3), jnp.int32))
    given = dataclasses.replace(given, train=labels, num_classes=3)
    with pytest.raises(checks.InputError, match=r"one class per .* shape \(3,\)"):
        models.LogisticRegression().for_federation(given)
