"""Models of flax modules and of functions."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as fp
from fedjax_pfl import engine
from fedjax_pfl.core import struct, tree_paths
from fedjax_pfl.engine import grids, groups, resident
from tests import networks
from tests.models import toys
from tests.models.test_models import evaluated, small

KEY = jax.random.key(0)
CLASSES = 3


def federation(*, regression=False, shape=(4,)):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, *shape)).astype(np.float32)
    y = x.sum(axis=tuple(range(1, x.ndim))) if regression else np.arange(24) % CLASSES
    return fp.Federation.from_arrays(x, y, np.arange(24) % 4)


class Linen(nn.Module):
    width: int = 5

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.Dense(self.width)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(CLASSES)(inputs=x)  # features are found by keyword, too


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x, *, deterministic):
        return nn.Dropout(0.5)(nn.Dense(CLASSES)(x), deterministic=deterministic)


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.BatchNorm(use_running_average=False)(x))


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("counts", "calls", jnp.zeros, ())
        return nn.Dense(CLASSES)(x)


class NnxCounting(nnx.Module):
    def __init__(self, rngs):
        self.calls = nnx.Variable(jnp.zeros(()))
        self.head = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(x)


class Nnx(nnx.Module):
    def __init__(self, depth=11, *, rngs):
        layers = [nnx.Linear(4, 4, rngs=rngs) for _ in range(depth)]
        self.layers = nnx.List(layers) if hasattr(nnx, "List") else layers
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = x + jnp.tanh(layer(x))
        return self.head(self.dropout(x))


def draw(key, x):
    return {"head": {"w": jnp.zeros((x.shape[1], CLASSES)), "b": jnp.zeros(CLASSES)}}


def logits(params, x):
    return x @ params["head"]["w"] + params["head"]["b"][None]


def product(params, x):
    return x @ params


def built(model, **options):
    return model.for_federation(federation(**options))


same = chex.assert_trees_all_equal


def test_linen_modules_are_the_networks_of_the_package_that_have_them():
    for name in ("mlp", "cnn1"):
        model, _, batch = small(name)
        module = model._known_module()
        made = dataclasses.replace(
            fp.from_flax(module),
            input_shape=model.input_shape,
            input_dtype="float64",
            num_classes=model.num_classes,
        )
        params = networks.init(made, KEY)
        same(params, networks.init(model, KEY))
        same(evaluated(made, params, batch.x), evaluated(model, params, batch.x))
        both = (made, model)
        same(*(networks.apply(m, params, batch.x, key=KEY) for m in both))
        outputs = networks.apply(model, params, batch.x)
        same(*(networks.loss(m, outputs, batch) for m in both))
        same(*(networks.metrics(m, outputs, batch) for m in both))


@pytest.mark.parametrize("module", [Linen(), Deterministic(), Nnx(rngs=nnx.Rngs(0))])
def test_dropout_acts_in_training_only(module):
    model = built(fp.from_flax(module))
    params, x = model.init(KEY), jnp.ones((3, 4))
    still, again = model.apply(params, x), model.apply(params, x)
    first, second = (model.apply(params, x, key=jax.random.key(k)) for k in (0, 1))
    same(still, again)
    same(first, model.apply(params, x, key=jax.random.key(0)))
    assert not np.array_equal(first, still) and not np.array_equal(first, second)


def test_nnx_modules_are_drawn_of_a_key_and_run_as_they_are():
    model = built(fp.from_flax(Nnx))
    params = model.init(KEY)
    module = Nnx(rngs=nnx.Rngs(KEY))
    same(params["layers"]["10"]["kernel"], module.layers[10].kernel[...])
    module.eval()
    x = jax.random.normal(KEY, (3, 4), jnp.float32)
    wanted = module(x)
    tolerance = 20 * np.finfo(np.float32).eps  # a dozen layers in float32
    np.testing.assert_allclose(model.apply(params, x), wanted, rtol=0, atol=tolerance)
    assert not np.array_equal(model.init(jax.random.key(1))["head"]["kernel"], wanted)


def test_an_nnx_module_that_exists_is_where_trainings_start():
    module = Nnx(rngs=nnx.Rngs(5))
    model = built(fp.from_flax(module))
    same(model.init(KEY), model.init(jax.random.key(1)))
    same(model.init(KEY)["head"]["bias"], module.head.bias[...])
    other = built(fp.from_flax(Nnx, initial_params=module))
    same(model.init(KEY), other.init(KEY))


@pytest.mark.parametrize("module", [Linen(), Nnx])
def test_parameters_have_the_type_of_the_run(module):
    model = built(fp.from_flax(module))
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(model.init(KEY))}
    assert dtypes == {jnp.zeros(()).dtype}
    assert model.apply(model.init(KEY), jnp.ones((2, 4))).dtype in dtypes


def test_functions_train_as_the_same_model_of_the_package():
    data = federation()
    made = fp.from_functions(draw, logits)
    both = (made, fp.LogisticRegression())
    losses = [toys.losses(model, fp.FedAvg(), data) for model in both]
    # The package's kernels are transposed: the same sums in another order.
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-12)


def test_functions_get_what_they_ask_for():
    seen = []

    def apply(params, x, *, key, constants):
        seen.append((key is None, constants))
        return x @ params

    model = built(fp.from_functions(lambda key: jnp.zeros((4, CLASSES)), apply))
    model.apply(model.init(KEY), jnp.ones((2, 4)), key=KEY, constants=3)
    assert seen[:2] == [(True, None), (False, None)] and seen[-1] == (False, 3)


def test_targets_that_are_numbers_make_a_regression():
    data = federation(regression=True)

    column = fp.from_functions(lambda key: jnp.ones((4, 1)), product)
    flat = fp.from_functions(lambda key: jnp.ones(4), product)
    batch = data.train.examples(0)
    for model in (column.for_federation(data), flat.for_federation(data)):
        outputs = model.apply(model.init(KEY), batch.x)
        assert outputs.shape == batch.y.shape
        # The targets are the sums of the inputs.
        np.testing.assert_allclose(model.loss(outputs, batch), 0, atol=1e-12)
        assert list(model.metrics(outputs, batch)) == ["loss"]


def test_the_head_is_where_methods_look_for_it():
    model = built(fp.from_flax(Linen(), head="^Dense_1/"))
    params = model.init(KEY)
    assert params.keys() == {"Dense_0", "head"} and params["head"].keys() == {"Dense_1"}
    plain = built(fp.from_flax(Linen()))
    same(model.own_params(params), plain.init(KEY))
    x = jnp.ones((2, 4))
    same(model.apply(params, x), plain.apply(plain.init(KEY), x))
    head, body = tree_paths.head_and_body(params, fp.FedPer().head)
    assert body["head"] == {"Dense_1": {"kernel": None, "bias": None}}
    assert head["Dense_0"] == {"kernel": None, "bias": None}
    bias = built(fp.from_flax(Linen(), head="Dense_1/bias$")).init(KEY)
    assert list(bias["head"]["Dense_1"]) == ["bias"]
    assert list(bias["Dense_1"]) == ["kernel"]


START = {"head": {"w": np.full((4, CLASSES), 0.5), "b": np.arange(3.0)}}


def started(params=START, **options):
    """The model of two functions that starts from these parameters."""
    return fp.from_functions(draw, logits, initial_params=params, **options)


def changed(fn):
    return jax.tree.map(fn, START)


def test_every_method_starts_from_the_initial_parameters():
    data, model = federation(), started()
    for algorithm in (fp.FedAvg(), fp.Flame(), fp.Ditto()):
        process = fp.FederatedProcess(algorithm=algorithm)
        group = groups.single(KEY, process, model, data)
        planned = groups.plan(group, engine.Options(num_rounds=1))
        trainer = resident.Resident(planned)
        # An argument of the program, not a constant in it.
        assert "0.5" not in trainer._program(("init",)).lowered().as_text()
        trainer.begin()
        server = jax.tree.leaves(trainer.states.server)
        starts = jax.tree.leaves(START)
        for start in starts:
            shaped = [leaf for leaf in server if leaf.shape[1:] == start.shape]
            assert any(np.array_equal(leaf[0], start) for leaf in shaped)
        trainer.close()


def test_models_are_compared_and_described_by_content():
    one, other = (started(changed(np.copy)) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert one != started(changed(lambda leaf: leaf + 1))
    digest = one.initial_params.digest
    assert struct.plain_fields(one, "model")["model.initial_params"].endswith(
        f"{digest})"
    )
    linen = struct.plain_fields(fp.from_flax(Linen(width=7)), "model")
    assert linen["model.module"] == "Linen" and linen["model.module.width"] == 7
    assert fp.from_flax(Linen()) == fp.from_flax(Linen())
    for model in (fp.from_flax(Nnx), fp.from_flax(Nnx(rngs=nnx.Rngs(0)))):
        described = struct.plain_fields(model, "model")
        assert described["model.module"] == "Nnx"
        assert not any("0x" in str(value) for value in described.values())


def raising(params, x):
    raise ValueError("no\nsuch thing")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fp.from_flax(Normalized()), "it raised ModifyScopeVariableError"),
        (lambda: fp.from_flax(Counting()), "no state but .*BatchNorm, got counts"),
        (lambda: fp.from_flax(NnxCounting), "no state but .*BatchNorm, got Variable"),
        (lambda: fp.from_flax(NnxCounting(nnx.Rngs(0))), "BatchNorm, got Variable"),
        (lambda: fp.from_flax(nn.Dense(2)), r"\[B, 3\], a logit per class.* \[2, 2\]"),
        (
            lambda: fp.from_flax(nn.Embed(3, 4)),
            r"Embed to take .*\[2, 4\].*ValueError",
        ),
        (lambda: fp.from_functions(draw, raising), "raised ValueError: no"),
        (lambda: fp.from_functions(draw, lambda p: p), "TypeError"),
        (lambda: fp.from_functions(lambda k: {}, logits), "KeyError|have param"),
        (
            lambda: fp.from_functions(lambda k: jnp.ones((4, 3), int), product),
            "floating-point numbers, but",
        ),
        (lambda: fp.from_functions(draw, "logits"), "apply to be a function"),
        (lambda: fp.from_flax(Linen), "linen module such as"),
        (lambda: fp.from_flax(3), "got 3"),
        (lambda: fp.from_flax(lambda rngs: 3), "to make an nnx module of rngs"),
        (lambda: fp.from_flax(Linen(width=[1])), "fields of Linen that are hashable"),
        (lambda: fp.from_flax(Linen(), head="nosuch"), "head='nosuch' to match some"),
        (lambda: fp.from_flax(Linen(), head="("), "head to be a regular expression"),
        (
            lambda: fp.from_functions(
                lambda k: (jnp.ones((4, 3)), jnp.ones(3)),
                lambda p, x: x @ p[0] + p[1][None],
                head="1",
            ),
            "nested dictionaries",
        ),
        (lambda: started(head="head/b"), "match every parameter below 'head/'"),
        (lambda: started({"head": {}}), "they have no 'head/b'"),
        (lambda: started(START | {"more": np.ones(2)}), "they also have 'more'"),
        (lambda: started(changed(lambda v: v[:2])), r"'head/b' as float64\[3\], got f"),
        (lambda: started(changed(lambda v: v.astype(int))), "got int64"),
        (
            lambda: started(changed(lambda v: v * np.nan)),
            "finite numbers, but 'head/b'",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(make, words):
    with pytest.raises(fp.InputError, match=words):
        built(make()).check_start()


@pytest.mark.parametrize("network", [Linen(), Nnx(rngs=nnx.Rngs(0)), logits])
def test_raw_networks_are_told_what_makes_models_of_them(network):
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    words = r"from_flax\(module\).*from_functions\(init, apply\)"
    with pytest.raises(fp.InputError, match=words):
        fp.simulate(KEY, process, network, federation(), num_rounds=1)
    with pytest.raises(fp.InputError, match=words):
        axes = {"model": [network]}
        fp.grid(KEY, process, fp.MLP(), fp.FederationSpec(), axes, num_rounds=1)


def test_variables_of_linen_are_initial_parameters():
    module = Linen()
    variables = module.init(KEY, jnp.ones((1, 4)))
    model = built(fp.from_flax(module, initial_params=variables))
    same(model.init(jax.random.key(1)), jax.tree.map(jnp.float64, variables["params"]))


@pytest.mark.wide
def test_modules_train_in_every_execution_and_are_saved(tmp_path):
    data = federation()
    start = Linen().init(jax.random.key(3), jnp.ones((1, 4)))
    model = fp.from_flax(Linen(), head="^Dense_1/", initial_params=start)
    method = fp.FedPer(local=fp.SGD(learning_rate=0.5))
    losses = toys.losses(model, method, data, models_to=tmp_path / "models")
    for execution in ("loop", "chunk=2", "shard"):
        others = toys.losses(model, method, data, execution=execution)
        # Sums of a few float64 in another order, over two rounds.
        np.testing.assert_allclose(others, losses, rtol=0, atol=1e-12)
    saved = fp.load_models(tmp_path / "models").find(model="personal").of(2)
    batch, known = data.test.examples(2), model.for_federation(data)
    loss = known.loss(known.apply(saved, batch.x), batch)
    np.testing.assert_allclose(losses[0, -1, 0, 0, 2], loss, rtol=0, atol=1e-12)


class Stop(fp.Callback):
    """An error after the first round."""

    def evaluated(self, evaluation):
        if evaluation.round == 1:
            raise RuntimeError("stopped")


@pytest.mark.wide
def test_pretrained_models_train_streamed_and_resume_to_the_last_bit(tmp_path):
    data, model = federation(), started()
    cohort = {"participation": fp.UniformCohort(size=2)}
    train = functools.partial(toys.losses, model, fp.Flame(), data, **cohort)
    losses = train()
    streamed = train(call=fp.simulate_streamed, eval_clients=4)
    # Another program, whose sums may be in another order.
    np.testing.assert_allclose(streamed, losses, rtol=0, atol=1e-12)
    kept = {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=0)}
    with pytest.raises(RuntimeError, match="stopped"):
        train(callbacks=[Stop()], **kept)
    np.testing.assert_array_equal(train(**kept), losses)


def test_a_grid_sweeps_fields_of_a_module():
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    axes = {"model.module.width": [5, 6], "seed": [0, 1]}
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    made = grids.groups_of(KEY, process, fp.from_flax(Linen()), spec, axes)
    assert [group.model.module.width for group in made] == [5, 6]
    assert [len(group.points) for group in made] == [2, 2]
    assert made[0].points[1] == {"model.module.width": 5, "seed": 1}
