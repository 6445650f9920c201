"""Low-rank adapters against the networks whose kernels have them added."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as fp
from fedjax_pfl import core, engine, models
from fedjax_pfl.core import tree_paths
from fedjax_pfl.engine import groups, resident
from fedjax_pfl.models import changed_kernels
from fedjax_pfl.testing import toy
from tests.lanes import few
from tests.models import toys

KEY = jax.random.key(0)
IMAGES = (8, 8, 1)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8)(x.reshape(len(x), 2, -1))
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)(x)
        return nn.Dense(toy.NUM_CLASSES)(x.mean(axis=1))


class Images(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3), strides=2)(x))
        return nn.Dense(toy.NUM_CLASSES)(x.reshape(len(x), -1))


class Nnx(nnx.Module):
    def __init__(self, *, rngs):
        self.first = nnx.Linear(4, 5, rngs=rngs)
        self.head = nnx.Linear(5, toy.NUM_CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.first(x)))


def draw(key, x):
    return {"a": jax.random.normal(key, (4, 5)), "head": jnp.ones((5, toy.NUM_CLASSES))}


def logits(params, x):
    return jnp.einsum("io,bi->ob", params["a"], x).T @ params["head"]


def images():
    x = np.random.default_rng(0).normal(size=(12, *IMAGES))
    return fp.Federation.from_arrays(x, np.arange(12) % 3, np.arange(12) % 3)


NETWORKS = {  # model, targets, number of kernels with adapters
    "mlp": (fp.MLP(widths=(6, 5)), "hidden|head", 3),
    "bfloat16": (fp.MLP(widths=(6, 5), bfloat16_products=True), "hidden_0", 1),
    "cnn": (models.CNN(), "conv_1|hidden", 2),
    "linen_attention": (fp.from_flax(Attention()), "query|value|out", 3),
    "linen_convolution": (fp.from_flax(Images()), "Conv_0", 1),
    "nnx": (fp.from_flax(Nnx), "first|head", 2),
    "functions": (fp.from_functions(draw, logits), "^a$|head", 2),
}
QUICK = ("mlp", "bfloat16", "nnx", "functions")
OF_IMAGES = ("cnn", "linen_convolution")


@functools.cache
def fitted(name, rank=2):
    model, targets, _ = NETWORKS[name]
    adapted = models.LowRank(model=model, targets=targets, rank=rank, scale=0.7)
    federation = images() if name in OF_IMAGES else toy.make_federation()
    return adapted.for_federation(federation), federation


def with_noise(params):
    """The same parameters with adapters whose products are not zero."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda v: v + 0.3 * rng.normal(size=v.shape), params)


def tolerance(name):
    # Sums in another order; of operands that are rounded to 8 bits, each factor too.
    return 2e-2 if name == "bfloat16" else 1e-12


@pytest.mark.parametrize("name", few(QUICK, NETWORKS))
def test_the_first_network_is_the_one_without_adapters(name):
    model, federation = fitted(name)
    params, x = model.init(KEY), federation.train.examples(0).x
    adapters = tree_paths.by_name(params["adapters"])
    assert len(adapters) == 2 * NETWORKS[name][2]
    assert all((v != 0).any() == n.endswith("/a") for n, v in adapters.items())
    own = model.model.init(KEY)
    chex.assert_trees_all_equal(model.merged(params), own)
    np.testing.assert_array_equal(model.apply(params, x), model.model.apply(own, x))


@pytest.mark.parametrize("name", few(QUICK, NETWORKS))
def test_outputs_and_gradients_are_those_of_the_merged_network(name):
    model, federation = fitted(name)
    params, batch = with_noise(model.init(KEY)), federation.train.examples(0)

    def loss(apply, params):
        return model.loss(apply(params, batch.x), batch)

    def by_sums(params, x):
        return model.model.apply(model.merged(params), x)

    for fn in (lambda a: a(params, batch.x), lambda a: jax.grad(loss, 1)(a, params)):
        found, wanted = (
            jax.jit(fn, static_argnums=0)(a) for a in (model.apply, by_sums)
        )
        for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            size = np.abs(other).max()
            np.testing.assert_allclose(
                one, other, rtol=0, atol=tolerance(name) * max(size, 1)
            )


def products(text, shape):
    """Matrix products of a lowered program with an operand of this shape."""
    lines = [line for line in text.splitlines() if "dot_general" in line]
    return [line for line in lines if f"tensor<{shape}x" in line]


@pytest.mark.parametrize("name", ["mlp", "linen_attention", "functions"])
def test_clients_share_one_product_with_the_frozen_kernel(name):
    """Sizes are such that no other array has the shape of all clients' kernels."""
    model, _ = fitted(name, rank=1)
    params, x = model.init(KEY), jnp.ones((17, 4))
    kernels = list(model._kernels(model.model.init(KEY)).values())
    shapes = [k.shape[::-1] if name == "mlp" else k.shape for k in kernels]
    clients = jax.tree.map(lambda v: jnp.stack([v] * 19), params["adapters"])

    def outputs(adapters, base):
        return jax.vmap(lambda own: model.apply(base | {"adapters": own}, x))(adapters)

    def loss(adapters, base):
        return outputs(adapters, base).sum()

    for fn in (outputs, jax.grad(loss)):
        lowered = jax.jit(fn).lower(clients, params).as_text()
        for shape in ("x".join(map(str, shape)) for shape in shapes):
            shared = products(lowered, shape)
            assert shared and not any("batching_dims" in line for line in shared)
            assert f"tensor<19x{shape}x" not in lowered


def test_only_products_use_the_factors():
    kernel, left, right = (jnp.ones(s) for s in ((3, 4), (3, 1), (1, 4)))
    changed = changed_kernels.Changed(kernel, left, right)
    for fn in (
        lambda w, x: w,
        lambda w, x: (w**2).sum() + x.sum(),
        lambda w, x: w @ w.T,
        lambda w, x: jax.nn.relu(w.astype(jnp.float32).T) @ x.T.astype(jnp.float32),
        lambda w, x: jnp.stack([x @ w, x @ (w + 1)]),
        lambda w, x: {"both": (w @ jnp.ones((4, 2)), jax.jit(jnp.dot)(x, w))},
        lambda w, x: jax.lax.scan(lambda c, _: (c @ w @ w.T, None), x, None, 2)[0],
    ):
        x = jnp.arange(6.0).reshape(2, 3)
        found = changed_kernels.call(fn, changed, x)
        chex.assert_trees_all_equal(found, fn(kernel + 1, x))


def test_clients_train_their_adapters_and_merge_them(tmp_path):
    data = toy.make_federation()
    start = fp.MLP(widths=(6, 5)).for_federation(data).init(KEY)
    network = fp.MLP(widths=(6, 5), initial_params=start)
    model = fp.lora(network, targets="^hidden", rank=2, scale=2.0, trained="^head/")
    process = fp.FederatedProcess(
        algorithm=fp.Flame(local=fp.SGD(learning_rate=0.3, batch_size=64))
    )
    options = {"num_rounds": 3, "progress": False, "models_to": tmp_path / "models"}
    result = fp.simulate(KEY, process, model, data, **options)
    saved = fp.load_models(tmp_path / "models").find(model="personal").of(3)
    known, batch = model.for_federation(data), data.test.examples(3)
    merged, plain = known.merged(saved), network.for_federation(data)
    outputs = plain.apply(merged, batch.x)
    np.testing.assert_allclose(outputs, known.apply(saved, batch.x), rtol=1e-10)
    loss = result.groups[0].metrics["loss"][0, -1, 1, 0, 3]
    np.testing.assert_allclose(loss, plain.loss(outputs, batch), rtol=1e-10)
    assert not np.array_equal(merged["head"]["bias"], start["head"]["bias"])
    np.testing.assert_array_equal(merged["hidden_0"]["bias"], start["hidden_0"]["bias"])
    change = merged["hidden_0"]["kernel"] - start["hidden_0"]["kernel"]
    assert np.linalg.matrix_rank(change, tol=1e-9) == 2


def test_adapters_may_be_all_that_is_personal():
    data = toy.make_federation()
    model = fp.lora(
        fp.MLP(widths=(6,)),
        targets="^hidden",
        rank=2,
        trained="^head/",
        personal="^adapters/",
    ).for_federation(data)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    state = jax.eval_shape(lambda: process.init(KEY, model, data))
    assert set(tree_paths.by_name(state.server)) == {"head/bias", "head/kernel"}
    assert state.rows["carry"]["adapters"]["hidden_0"]["kernel"]["a"].shape == (8, 4, 2)


RANKS = (1, 2, 3, 3, 2, 1, 1, 2)


def of_ranks(**options):
    network = fp.MLP(widths=(6,))
    options = {"targets": "^hidden", "rank": 3, "scale": 2.0, "ranks": RANKS} | options
    return fp.lora(network, **options)


def test_clients_train_the_first_columns_of_their_rank():
    """One step of SGD of every client, against networks with summed kernels."""
    data = toy.make_federation()
    model, plain = of_ranks().for_federation(data), fp.MLP(widths=(6,))
    plain = plain.for_federation(data)
    step = fp.SGD(learning_rate=0.3, batch_size=64)
    process = fp.FederatedProcess(algorithm=fp.Local(local=step))
    group = groups.single(KEY, process, of_ranks(), data)
    options = engine.Options(num_rounds=2, eval_every=1, execution="vmap")
    trainer = resident.Resident(groups.plan(group, options))
    trainer.begin()
    thetas = []
    for number in range(2):
        trainer.advance(np.ones(1, bool), number, 1)
        theta = trainer.states.clients["adapters"]["hidden_0"]["kernel"]
        thetas.append({part: np.array(leaf[0]) for part, leaf in theta.items()})
    trainer.close()
    frozen = tree_paths.nested(
        (name.split("/"), leaf) for name, leaf in model.frozen_params().items()
    )
    for client, rank in enumerate(RANKS):
        batch = data.train.examples(client)
        a, b = (thetas[0][part][client] for part in "ab")

        def loss(a, b, batch=batch):
            kernel = frozen["hidden_0"]["kernel"] + 2.0 * (a @ b).T
            hidden = frozen["hidden_0"] | {"kernel": kernel}
            params = frozen | {"hidden_0": hidden}
            return plain.loss(plain.apply(params, batch.x), batch)

        slopes = jax.jit(jax.grad(loss, (0, 1)))(a[:, :rank], b[:rank])
        # A step of a few dozen float64 numbers.
        moved = (a[:, :rank] - 0.3 * slopes[0], b[:rank] - 0.3 * slopes[1])
        found = (thetas[1]["a"][client], thetas[1]["b"][client])
        np.testing.assert_allclose(found[0][:, :rank], moved[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(found[1][:rank], moved[1], rtol=0, atol=1e-13)
        np.testing.assert_array_equal(found[0][:, rank:], a[:, rank:])
        np.testing.assert_array_equal(found[1][rank:], 0)
        assert np.abs(found[1][:rank]).max() > 0


@pytest.mark.wide
def test_models_are_merged_and_judged_at_the_rank_of_the_client(tmp_path):
    data = toy.make_federation()
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.3, batch_size=64))
    )
    place = tmp_path / "models"
    options = {"num_rounds": 2, "progress": False, "models_to": place}
    result = fp.simulate(KEY, process, of_ranks(), data, **options)
    saved = fp.load_models(place).find(model="global").params
    model = of_ranks().for_federation(data)
    plain = fp.MLP(widths=(6,)).for_federation(data)
    start = model.merged(model.init(KEY))
    for client in (0, 1, 2):
        merged = model.merged(saved, client=client)
        change = merged["hidden_0"]["kernel"] - start["hidden_0"]["kernel"]
        assert np.linalg.matrix_rank(change, tol=1e-9) == RANKS[client]
        batch = data.test.examples(client)
        loss = plain.loss(plain.apply(merged, batch.x), batch)
        found = result.groups[0].metrics["loss"][0, -1, 0, 0, client]
        np.testing.assert_allclose(found, loss, rtol=1e-10)
    with pytest.raises(fp.InputError, match="client to be a whole number"):
        model.merged(saved, client=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": "nosuch"}, "targets='nosuch' to match some of the model's kern"),
        ({"targets": "bias"}, "kernels among head/bias"),
        ({"rank": 4}, "at most 3, the smaller side of 'head/kernel'"),
        ({"targets": "("}, "targets to be a regular expression"),
        ({"rank": 0}, "rank to be a whole number"),
        ({"trained": "("}, "trained to be a regular expression"),
        ({"scale": np.nan}, "scale to be a finite number"),
        ({"personal": "^adapters"}, "which clients share"),
        ({"ranks": (1, 2)}, "ranks for the 8 clients of 'toy', got 2"),
        ({"ranks": (4,) * 8}, "every one of ranks to be a whole number .* at most 3"),
        ({"ranks": (0,) * 8}, "every one of ranks to be a whole number of at least 1"),
        ({"ranks": [1] * 8}, "ranks to be a tuple"),
    ],
)
def test_adapters_that_do_not_fit_are_one_sentence(options, words):
    options = {"targets": "head", "rank": 3} | options
    with pytest.raises(fp.InputError, match=words):
        toys.fitted(fp.lora(fp.MLP(widths=(5,)), **options))


def test_adapters_need_names():
    nameless = fp.from_functions(lambda key: jnp.ones((4, 3)), lambda p, x: x @ p)
    with pytest.raises(fp.InputError, match="nested dictionaries without 'adapters'"):
        fp.lora(nameless, targets="").for_federation(toy.make_federation())
    with pytest.raises(fp.InputError, match="model for adapters"):
        fp.lora(core, targets="")
