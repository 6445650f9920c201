"""Padding, pooling and dropout of transformers; the one of images against NumPy."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core, models
from fedjax_pfl.core import checks, tree_paths
from tests.lanes import wide
from tests.models import bert_numpy
from tests.models.test_models import (
    KEY,
    TABLE,
    drawn,
    evaluated,
    federation,
    fitted,
    gradient_of,
    small,
)

TOKENS = np.array([[3, 1, 8, 0, 0], [4, 0, 0, 0, 0], [5, 6, 7, 8, 1]], np.int32)


@functools.cache
def text_encoder(**fields):
    """An encoder of nine words and its parameters, in float64."""
    own = {"width": 6, "heads": 2, "mlp_width": 5, "vocabulary": 9, "max_length": 7}
    model = fitted(models.TextEncoder(**own | fields), (5,), 3, np.int32)
    return model, drawn(model)


def batch_of(tokens, weight=None):
    count = len(tokens)
    weight = jnp.ones(count) if weight is None else jnp.asarray(weight)
    return core.Batch(
        x=jnp.asarray(tokens), y=jnp.zeros(count, jnp.int32), weight=weight
    )


def with_word(params, row, value):
    """Parameters in which one word has another vector."""
    words = np.array(params["embeddings"]["words"])
    words[row] = value
    return params | {"embeddings": params["embeddings"] | {"words": words}}


@pytest.mark.parametrize("value", [7.0, 1e200, np.nan])
def test_the_vector_of_padding_is_never_seen(value):
    model, params = text_encoder()
    changed = with_word(params, 0, value)
    wanted = evaluated(model, params, TOKENS)
    np.testing.assert_array_equal(evaluated(model, changed, TOKENS), wanted)
    gradient = jax.jit(gradient_of, static_argnums=0)(
        model, changed, batch_of(TOKENS), None
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    words = np.asarray(gradient["embeddings"]["words"])
    assert not words[0].any()
    assert words[[1, 3, 4, 5, 6, 7, 8]].any(axis=1).all() and not words[2].any()


def test_padding_alone_gives_the_bias_and_rows_without_weight_no_gradient():
    model, params = text_encoder()
    tokens = np.concatenate([TOKENS, np.zeros((1, 5), np.int32)])
    logits = evaluated(model, params, tokens)
    np.testing.assert_array_equal(logits[3], params["head"]["bias"])
    gradient = jax.jit(gradient_of, static_argnums=0)
    with_row = gradient(model, params, batch_of(tokens, [1.0, 1, 1, 0]), None)
    without = gradient(model, params, batch_of(TOKENS), None)
    chex.assert_trees_all_close(with_row, without, rtol=0, atol=1e-14)


def test_without_padding_the_id_0_is_a_word():
    model, params = text_encoder(padding=None)
    other = evaluated(model, with_word(params, 0, 7.0), TOKENS)
    wanted = evaluated(model, params, TOKENS)
    assert (other[:2] != wanted[:2]).all()
    np.testing.assert_array_equal(other[2], wanted[2])


def test_an_unknown_word_shows_as_nan_in_its_own_row():
    model, params = text_encoder()
    tokens = TOKENS.copy()
    tokens[1, 1] = 9
    found = np.asarray(evaluated(model, params, tokens))
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_sizes_come_from_the_federation():
    x = jnp.asarray(TOKENS)
    known = models.TextEncoder().for_federation(federation(x, 2))
    assert (known.vocabulary, known.max_length) == (9, 5)
    assert known.input_shape == (5,) and known.num_classes == 2
    more = {"embeddings": jnp.zeros((20, 3))}  # words that do not occur
    known = models.TextEncoder().for_federation(federation(x, 2, more))
    assert known.vocabulary == 20
    given = models.TextEncoder(vocabulary=50, max_length=8)
    known = given.for_federation(federation(x, 2, TABLE))
    assert (known.vocabulary, known.max_length) == (50, 8)


@pytest.mark.parametrize(
    ("fields", "shape", "dtype", "words"),
    [
        ({}, (28, 28), np.uint8, r"token ids, int32 \[tokens\], .* uint8 of shape"),
        ({}, (5,), np.float32, "are float32 of shape"),
        ({"max_length": 4}, (5,), np.int32, "max_length to be at least 5 .* got 4"),
        ({"vocabulary": 8}, (5,), np.int32, "vocabulary to be at least 9 .* got 8"),
    ],
)
def test_what_an_encoder_cannot_read(fields, shape, dtype, words):
    model = models.TextEncoder(**fields)
    with pytest.raises(checks.InputError, match=words):
        fitted(model, shape, 2, dtype, TABLE)


@pytest.mark.parametrize("name", ["text_encoder", wide("vision_transformer")])
def test_a_network_is_cut_after_any_of_its_layers(name):
    model, params, batch = small(name)
    assert model.layers == ("embeddings", "layer_0", "layer_1")
    for number, layer in enumerate(model.layers, start=1):
        features, logits = model.features(params, batch.x, layer)
        assert features.shape[0] == 3 and features.shape[2] == 6
        np.testing.assert_array_equal(logits, model.apply(params, batch.x))
        cut = models.EarlyExit(network=model, exit_after=number)
        early, _ = jax.eval_shape(cut.apply, cut.init(KEY), batch.x)
        assert early.shape == (3, 3)
        front, _ = tree_paths.split(params, cut.front)
        own = {path.split("/")[0] for path in jax.tree.leaves(tree_paths.names(front))}
        assert own == set(model.layers[:number])


def dense(layer, x):
    return x @ layer["kernel"].T + layer["bias"]


def norm(layer, x):
    x = x - x.mean(-1, keepdims=True)
    return layer["gain"] * x / np.sqrt((x**2).mean(-1, keepdims=True)) + layer["bias"]


def numpy_layer(layer, x, heads):
    """A layer whose norms come first."""
    normed = norm(layer["attention_norm"], x)
    parts = (dense(layer[name], normed) for name in ("query", "key", "value"))
    x = x + dense(layer["output"], bert_numpy.attention(*parts, heads))
    hidden = dense(layer["expand"], norm(layer["mlp_norm"], x))
    return x + dense(layer["contract"], bert_numpy.gelu(hidden))


def numpy_logits(model, params, image):
    """Logits of one image `[height, width, channels]`, patch by patch."""
    size = model.patch
    corners = [
        (row, column)
        for row in range(0, image.shape[0], size)
        for column in range(0, image.shape[1], size)
    ]
    x = []
    for row, column in corners:
        patch = np.zeros((size, size, image.shape[2]))  # what is beyond stays zero
        part = image[row : row + size, column : column + size]
        patch[: part.shape[0], : part.shape[1]] = part
        x.append(dense(params["embeddings"]["patches"], patch.reshape(-1)))
    if model.pooling == "class":
        x.insert(0, params["embeddings"]["class"].reshape(-1))
    x = np.stack(x) + params["embeddings"]["positions"]
    for number in range(model.depth):
        x = numpy_layer(params[f"layer_{number}"], x, model.heads)
    x = norm(params["norm"], x)
    return dense(params["head"], x[0] if model.pooling == "class" else x.mean(axis=0))


@pytest.mark.parametrize("pooling", ["mean", "class"])
@pytest.mark.parametrize("shape", [(5, 4, 3), (4, 6)])
def test_the_vision_transformer_is_that_of_numpy(pooling, shape):
    model = models.VisionTransformer(
        depth=2, width=6, heads=3, mlp_width=5, patch=2, pooling=pooling
    )
    model = fitted(model, shape, 4)
    params = drawn(model)
    images = np.random.default_rng(0).normal(size=(3, *shape))
    with_channels = images.reshape(3, *shape[:2], -1)
    expected = [numpy_logits(model, params, image) for image in with_channels]
    # Norms of ours have 1e-12 beside the variance.
    np.testing.assert_allclose(
        evaluated(model, params, images), np.stack(expected), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("name", ["text_encoder", "vision_transformer"])
@pytest.mark.parametrize("fields", [{}, {"width": 32, "mlp_width": 96, "heads": 8}])
def test_what_a_gradient_keeps_of_an_example_is_about_what_is_said(name, fields):
    """By which clients are mapped one by one or all at once."""
    model, _, batch = small(name)
    model = dataclasses.replace(model, **fields)
    params = jax.eval_shape(model.init, KEY)

    def kept(count):
        x = jax.ShapeDtypeStruct((count, *batch.x.shape[1:]), batch.x.dtype)
        pull = jax.eval_shape(
            lambda p, x: jax.vjp(lambda p: model.apply(p, x), p)[1], params, x
        )
        return sum(leaf.size for leaf in jax.tree.leaves(pull))

    example = (kept(20) - kept(10)) / 10
    assert example / 2 < model.floats_per_example < 2 * example


def test_adapters_of_query_and_value_and_frozen_embeddings():
    x = jnp.asarray(TOKENS)
    model, params = text_encoder()
    model = dataclasses.replace(model, initial_params=params)
    roles = fp.ParameterRoles(model, frozen="^embeddings/")
    moved = roles.for_federation(federation(x, 3)).init(KEY)
    assert not jax.tree.leaves(moved["embeddings"])
    chex.assert_trees_all_equal(moved["layer_1"], params["layer_1"])
    adapted = fp.lora(model, targets="query|value", trained="^head/", rank=2)
    moved = jax.eval_shape(adapted.for_federation(federation(x, 3)).init, KEY)
    head = 3 * 6 + 3
    factors = 2 * 2 * (6 * 2 + 2 * 6)  # layers, kernels, both factors
    assert sum(leaf.size for leaf in jax.tree.leaves(moved)) == head + factors


@pytest.mark.wide
def test_a_text_encoder_trains_with_flame():
    """Sentences whose best guess is known to be right more often than not."""
    source = fp.data.SyntheticSentiment(
        num_words=6,
        min_words=3,
        num_topics=1,
        words_per_topic=12,
        polar_words=5,
        polarity=0.9,
        agreement=0.95,
    )
    data = fp.FederationSpec(source, fp.ByClient(), num_clients=5)
    model = models.TextEncoder(depth=1, width=8, mlp_width=8)
    process = fp.FederatedProcess(
        algorithm=fp.Flame(lam=1.0, kappa=1.0, local=fp.SGD(learning_rate=0.1))
    )
    result = fp.simulate(KEY, process, model, data.build(), num_rounds=10)
    table = result.summary().set_index("model")
    assert table["status"].eq("ok").all()
    assert float(table.loc["personal", "accuracy"]) > 0.6
