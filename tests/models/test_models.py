"""Every network: exact sizes, gradients, dtypes, the client axis, and its parts."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import core, models, portfolio
from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import checks, tree_paths
from fedjax_pfl.models import modules
from tests.lanes import few, wide

KEY = jax.random.key(3)
TABLE = {"embeddings": jnp.asarray(np.random.default_rng(1).normal(size=(9, 4)))}


def federation(x, num_classes, constants=None, name="given"):
    """One client with all of `x`."""
    data = core.ClientData(
        x=x,
        y=jnp.zeros(len(x), jnp.int32),
        scale=jnp.ones(()),
        shift=jnp.zeros(()),
        index=jnp.arange(len(x), dtype=jnp.int32)[None],
        num_examples=jnp.asarray([len(x)], jnp.int32),
        client_id=jnp.zeros(1, jnp.int32),
        constants=constants,
    )
    return core.Federation(
        train=data,
        validation=data,
        test=data,
        malicious=jnp.zeros(1, bool),
        num_classes=num_classes,
        name=name,
    )


def fitted(model, shape, num_classes, dtype=np.uint8, constants=None):
    x = jax.device_put(np.zeros((2, *shape), dtype))
    return model.for_federation(federation(x, num_classes, constants))


COUNTS = [
    (models.LogisticRegression(), (28, 28), 10, 7_850),
    (models.MLP(), (28, 28), 10, 109_386),
    (models.MLP(widths=(200, 200)), (784,), 10, 199_210),
    (models.CNN(), (32, 32, 3), 10, 268_650),
    (models.CNN1(), (64, 64, 3), 6, 206_678),
    (models.CNN2(outputs=62), (28, 28, 1), 10, 214_590),
    (models.CNN2(), (28, 28), 62, 214_590),
    (models.CNN2(), (28, 28), 10, 51_466),
    (models.SmallCNN(), (32, 32, 3), 10, 67_642),
    (models.FedAcsCNN(), (28, 28), 10, 582_026),
    (models.FedAcsCNN(), (32, 32, 3), 10, 878_538),
    (models.CifarCNN(), (32, 32, 3), 10, 797_962),
    (models.LeNet5(), (32, 32, 3), 10, 62_006),
    (models.NFResNet18(), (32, 32, 3), 100, 189_844),
    (models.VisionTransformer(), (32, 32, 3), 10, 141_898),
    (models.TextEncoder(vocabulary=30_522, max_length=512), (5,), 2, 4_369_666),
]


@pytest.mark.parametrize(("model", "shape", "num_classes", "count"), COUNTS)
def test_exact_number_of_parameters(model, shape, num_classes, count):
    dtype = np.int32 if isinstance(model, models.TextEncoder) else np.uint8
    shapes = jax.eval_shape(fitted(model, shape, num_classes, dtype).init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def test_exact_number_of_parameters_of_the_lstm():
    table = {"embeddings": jnp.zeros((5, 300))}
    model = fitted(models.LSTM(), (25,), 2, np.int32, table)
    shapes = jax.eval_shape(model.init, KEY)
    sizes = {
        name: sum(leaf.size for leaf in jax.tree.leaves(layer))
        for name, layer in shapes.items()
    }
    assert sizes == {
        "lstm_0": 570_368,
        "lstm_1": 525_312,
        "bottleneck": 7_710,
        "head": 31,
    }


# The smallest inputs of every network, so that tests are fast.
SMALL = {
    "logistic_regression": (models.LogisticRegression(), (2, 3), 3),
    "mlp": (models.MLP(widths=(5, 4)), (2, 3), 3),
    "cnn": (models.CNN(), (5, 4), 3),
    "cnn1": (models.CNN1(), (10, 11, 2), 3),
    "cnn2": (models.CNN2(outputs=4), (4, 4), 3),
    "small_cnn": (models.SmallCNN(), (16, 16), 3),
    "fedacs_cnn": (models.FedAcsCNN(), (16, 16), 3),
    "cifar_cnn": (models.CifarCNN(), (16, 16, 3), 3),
    "lenet5": (models.LeNet5(), (17, 16), 3),
    "nf_resnet18": (models.NFResNet18(), (5, 4), 3),
    "lstm": (models.LSTM(width=5), (4,), 3),
    "text_encoder": (
        models.TextEncoder(width=6, heads=2, mlp_width=5, vocabulary=9),
        (4,),
        3,
    ),
    "vision_transformer": (
        models.VisionTransformer(depth=2, width=6, heads=2, mlp_width=5, patch=2),
        (5, 4),
        3,
    ),
}
TOKENS = ("lstm", "text_encoder")


@functools.cache
def small(name):
    """Model, parameters and a batch, in float64."""
    model, shape, num_classes = SMALL[name]
    rng = np.random.default_rng(0)
    constants = TABLE if name == "lstm" else None
    dtype = np.int32 if name in TOKENS else np.uint8
    model = fitted(model, shape, num_classes, dtype, constants)
    x = rng.integers(9, size=(3, *shape)) if name in TOKENS else None
    x = rng.normal(size=(3, *shape)) if x is None else x.astype(np.int32)
    batch = core.Batch(
        x=jnp.asarray(x),
        y=jnp.asarray([0, 2, 2], jnp.int32),
        weight=jnp.ones(3),
        constants=constants,
    )
    return model, drawn(model), batch


def drawn(model):
    """Parameters from NumPy: compiling `init` of every model takes too long."""
    shapes = jax.eval_shape(model.init, KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float64")}
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: 0.2 * rng.normal(size=leaf.shape), shapes)


def loss_of(model, params, batch, key=None):
    outputs = model.apply(params, batch.x, key=key, constants=batch.constants)
    return model.loss(outputs, batch)


@functools.partial(jax.jit, static_argnums=0)
def evaluated(model, params, x, constants=None):
    return model.apply(params, x, constants=constants)


def row_of(tree, row):
    return jax.tree.map(lambda leaf: leaf[row], tree)


def test_every_registered_network_is_tested():
    rest = {"linear_regression", "quadratic", "eiie"}  # which have their own files
    assert set(registry.MODELS) - rest == set(SMALL)
    for name, (model, *_) in SMALL.items():
        assert type(model) is registry.MODELS[name]


@pytest.mark.parametrize("name", [*SMALL, "eiie"])
def test_every_model_starts_where_it_is_told(name):
    policy = portfolio.EIIE(units=4, features=1, window=5)
    model = policy if name == "eiie" else small(name)[0]
    start = drawn(model)
    started = dataclasses.replace(model, initial_params=start)
    started.check_start()
    chex.assert_trees_all_equal(started.init(KEY), start)
    moved = jax.tree.map(lambda leaf: leaf + 1, start)
    other = dataclasses.replace(model, initial_params=moved)
    assert len({model, started, other, dataclasses.replace(started)}) == 3
    wrong = dataclasses.replace(model, initial_params=start | {"more": np.ones(2)})
    with pytest.raises(checks.InputError, match="they also have 'more'; its own are"):
        wrong.check_start()


def gradient_of(model, params, batch, key):
    return jax.grad(loss_of, argnums=1)(model, params, batch, key)


def two_clients(params):
    return jax.tree.map(lambda leaf: np.stack([leaf, 0.5 * leaf]), params)


@functools.cache
def of_two_clients(name):
    """Outputs and gradients of two clients at once."""
    model, params, batch = small(name)

    def one(params, key):
        outputs = evaluated(model, params, batch.x, batch.constants)
        return outputs, gradient_of(model, params, batch, key)

    found = jax.jit(jax.vmap(one))(two_clients(params), jax.random.split(KEY, 2))
    return jax.tree.map(np.asarray, found)


# The residual network takes as long as all others, of whose layers it is made.
each_quick_network = pytest.mark.parametrize(
    "name", few(set(SMALL) - {"nf_resnet18"}, SMALL)
)


COMPARED = ("mlp", "cnn1", "lstm", "text_encoder", "vision_transformer")


@each_quick_network
def test_clients_at_once_equal_one_after_the_other(name):
    """Also: shapes, and finite gradients in training."""
    model, params, batch = small(name)
    outputs, gradients = of_two_clients(name)
    assert outputs.shape == (2, 3, 4 if name == "cnn2" else 3)
    keys = jax.random.split(KEY, 2)
    alone = jax.jit(lambda params, key: gradient_of(model, params, batch, key))
    for client in range(2):
        own = row_of(two_clients(params), client)
        wanted = evaluated(model, own, batch.x, batch.constants)
        np.testing.assert_allclose(outputs[client], wanted, rtol=0, atol=1e-12)
        if name in COMPARED:
            found, wanted = row_of(gradients, client), alone(own, keys[client])
            chex.assert_trees_all_close(found, wanted, rtol=0, atol=1e-12)
    largest = jax.tree.map(lambda leaf: np.abs(leaf).max(), gradients)
    assert np.isfinite(jax.tree.leaves(largest)).all()
    assert min(jax.tree.leaves(largest["head"])) > 0


@pytest.mark.parametrize("name", SMALL)
def test_the_dtype_is_that_of_the_parameters(name):
    """Float32 stays float32 although 64-bit floats are on."""
    model, params, batch = small(name)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    for tree, dtype in ((params, jnp.float64), (single, jnp.float32)):
        found = jax.eval_shape(
            functools.partial(model.apply, constants=batch.constants, key=KEY),
            tree,
            batch.x,
        )
        assert found.dtype == dtype


@each_quick_network
def test_an_accelerator_gets_all_products_of_bfloat16_or_none(name):
    model, params, batch = small(name)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    for rounds in (False, True):
        changed = dataclasses.replace(model, bfloat16_products=rounds)
        gradient = jax.jit(gradient_of, static_argnums=0)
        lowered = gradient.lower(changed, single, batch, KEY)
        lines = re.findall(r".*stablehlo\.dot_general.*", lowered.as_text())
        assert lines
        for line in lines:
            assert ("lhs_precision_type = bf16" in line) == rounds
        kinds = {leaf.dtype for leaf in jax.tree.leaves(lowered.out_info)}
        assert kinds == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("name", "pattern", "count"),
    [
        *((name, "^head/(bias|kernel)$", 2) for name in SMALL),
        *((name, "^head/", 2) for name in SMALL),  # exactly the last layer
        ("cnn", "^conv_", 4),
        ("cnn", "bias$", 4),
        ("mlp", "^hidden_0/kernel$", 1),
        ("nf_resnet18", "^stage_2_", 10),
        ("nf_resnet18", "gain$", 16),
        ("lstm", "^lstm_", 6),
        ("text_encoder", "(query|value)/kernel$", 4),
        ("vision_transformer", "^embeddings/", 3),
        ("lenet5", "nothing", 0),
    ],
)
def test_rules_split_parameters_which_are_joined_again(name, pattern, count):
    _, params, _ = small(name)
    parts = tree_paths.split(params, pattern)
    sizes = [len(jax.tree.leaves(part)) for part in parts]
    assert sizes == [count, len(jax.tree.leaves(params)) - count]
    for first, second in (parts, parts[::-1]):
        chex.assert_trees_all_equal(tree_paths.join(first, second), params)


def initial(name, **fields):
    """Drawn parameters, as NumPy arrays."""
    model = dataclasses.replace(small(name)[0], **fields)
    return jax.tree.map(np.asarray, jax.jit(model.init)(KEY))


@pytest.mark.parametrize(
    ("name", "scheme"), [("mlp", "glorot"), wide("cnn", "he"), wide("lstm", "glorot")]
)
def test_biases_start_at_zero_but_for_pytorch(name, scheme):
    biases, kernels = tree_paths.split(initial(name, initialization=scheme), "bias$")
    assert not any(leaf.any() for leaf in jax.tree.leaves(biases))
    assert all(leaf.all() for leaf in jax.tree.leaves(kernels))


def test_initial_leaves_are_within_the_bound_of_their_own_fan_in():
    """PyTorch's scheme: the inputs of one output, for weights and biases of a layer."""
    fan_in = {"conv_0": 9, "conv_1": 144, "hidden_0": 32, "head": 128}
    params = initial("cnn")
    for layer, inputs in fan_in.items():
        for leaf in params[layer].values():
            assert 0.2 * inputs**-0.5 < abs(leaf).max() <= inputs**-0.5
        assert abs(params[layer]["kernel"]).max() > 0.9 * inputs**-0.5
    for leaf in jax.tree.leaves(initial("lstm")["lstm_0"]):  # its width everywhere
        assert 0.8 * 5**-0.5 < abs(leaf).max() <= 5**-0.5


def test_standardized_convolutions_start_normal_with_gain_1():
    layer = modules.StandardizedConv(filters=40, size=3)
    found = jax.jit(layer.init)(KEY, jnp.zeros((1, 2, 2, 20)))["params"]
    assert (found["gain"] == 1).all() and found["gain"].shape == (40,)
    # Relative standard error of the variance of 7,200 draws: sqrt(2 / 7200).
    np.testing.assert_allclose(found["kernel"].var() * 180, 1, atol=4 * 0.017)


def test_grey_images_may_have_a_channel_axis():
    model, params, batch = small("lenet5")
    with_axis = dataclasses.replace(model, input_shape=(*model.input_shape, 1))
    found = evaluated(with_axis, params, np.asarray(batch.x)[..., None])
    np.testing.assert_array_equal(found, evaluated(model, params, batch.x))


@pytest.mark.parametrize(
    ("name", "rate", "off"),
    [
        ("cnn1", 0.2, 0.0),
        ("cifar_cnn", (0.2, 0.5), (0.0, 0.0)),
        ("text_encoder", 0.5, 0),
        ("vision_transformer", 0.5, 0),
    ],
)
def test_dropout_acts_where_there_is_a_key_and_follows_it(name, rate, off):
    model, params, batch = small(name)
    model = dataclasses.replace(model, dropout=rate)
    run = jax.jit(
        lambda model, key: model.apply(params, batch.x, key=key), static_argnums=0
    )
    evaluated = run(model, None)
    np.testing.assert_array_equal(evaluated, run(model, None))
    trained = run(model, KEY)
    assert (trained != evaluated).all() and np.isfinite(trained).all()
    np.testing.assert_array_equal(trained, run(model, KEY))
    assert (trained != run(model, jax.random.key(4))).any()
    without = dataclasses.replace(model, dropout=off)
    np.testing.assert_array_equal(run(without, KEY), evaluated)


@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_networks_without_dropout_ignore_the_key(name):
    model, params, batch = small(name)
    run = jax.jit(
        lambda key: model.apply(params, batch.x, key=key, constants=batch.constants)
    )
    np.testing.assert_array_equal(run(None), run(KEY))


def test_the_expectation_of_dropout_is_the_evaluation_where_all_is_linear():
    """Large biases keep every ReLU after the dropout open."""
    model, params, batch = small("cnn1")
    hidden = params["hidden_0"] | {"bias": params["hidden_0"]["bias"] + 100}
    params = params | {"hidden_0": hidden}
    keys = jax.random.split(KEY, 1000)
    found = jax.jit(jax.vmap(lambda key: model.apply(params, batch.x, key=key)))(keys)
    found, wanted = np.asarray(found), evaluated(model, params, batch.x)
    error = found.std(axis=0) / np.sqrt(len(keys))
    assert (error > 0).all()
    assert (abs(found.mean(axis=0) - wanted) < 5 * error).all()


def test_dropout_comes_before_the_relu():
    """Negative hidden values are zero either way; a dropped one has no gradient."""
    model, params, batch = small("cifar_cnn")
    model = dataclasses.replace(model, dropout=(0.0, 0.5))

    def biases(bias):
        changed = params | {"hidden_1": params["hidden_1"] | {"bias": bias}}
        return model.apply(changed, batch.x[:1], key=KEY).sum()

    gradient = np.asarray(jax.jit(jax.grad(biases))(params["hidden_1"]["bias"] + 100))
    head = params["head"]["kernel"].sum(axis=0)
    dropped = gradient == 0
    assert 0.3 < dropped.mean() < 0.7
    np.testing.assert_allclose(gradient[~dropped], 2 * head[~dropped], rtol=1e-12)


@pytest.mark.parametrize("kind", [models.MLP, models.LogisticRegression])
def test_examples_count_as_their_classes_do_in_the_loss(kind):
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    weight, class_weights = rng.integers(2, size=20) * 1.0, (1.0, 9.0, 0.5)
    batch = core.Batch(x=np.zeros((20, 1)), y=jnp.asarray(y), weight=weight)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(20), y]
    each = weight * np.array(class_weights)[y]
    model = kind(num_classes=3, class_weights=class_weights)
    outputs = jnp.asarray(logits)
    wanted = (losses * each).sum() / each.sum()
    np.testing.assert_allclose(model.loss(outputs, batch), wanted, rtol=1e-6)
    np.testing.assert_allclose(model.metrics(outputs, batch)["loss"], losses, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.CNN(initialization="kaiming"), "Unknown initialization"),
        (lambda: models.MLP(bfloat16_products="no"), "bfloat16_products"),
        (lambda: models.LogisticRegression(bfloat16_products=1), "bfloat16_products"),
        (lambda: models.CNN1(dropout=1.0), "dropout .* below 1, got 1.0"),
        (lambda: models.CifarCNN(dropout=0.2), "tuple, each part a number, got 0.2"),
        (lambda: models.CifarCNN(dropout=(0.2, -1)), "at least 0"),
        (lambda: models.CNN2(outputs=0), "outputs .* at least 1"),
        (lambda: models.NFResNet18(residual_scale="a"), "residual_scale"),
        (lambda: models.LSTM(width=0), "width .* at least 1, got 0"),
        (lambda: models.LSTM(num_layers=1.5), "num_layers"),
        (lambda: models.LSTM(bottleneck=0), "bottleneck"),
        (lambda: models.TextEncoder(heads=3), "heads to divide width=128, got 3"),
        (lambda: models.TextEncoder(depth=0), "depth .* at least 1, got 0"),
        (lambda: models.TextEncoder(dropout=1), "dropout .* below 1, got 1"),
        (lambda: models.TextEncoder(pooling="max"), "Unknown pooling"),
        (lambda: models.TextEncoder(vocabulary=(1 << 24) + 1), "vocabulary .* at most"),
        (lambda: models.VisionTransformer(patch=0), "patch .* at least 1, got 0"),
        (lambda: models.MLP(widths=[3]), "tuple, each part a whole number"),
        (lambda: models.MLP(class_weights=(1.0, -2.0)), "class_weights"),
        (
            lambda: fitted(models.MLP(class_weights=(1.0, 2.0)), (2,), 10),
            "for each of 10 classes, got 2",
        ),
        (lambda: models.CNN().init(KEY), "call for_federation"),
    ],
)
def test_wrong_fields_get_one_sentence(make, message):
    with pytest.raises(checks.InputError, match=message):
        make()
