"""Batch normalization: masks, running statistics as state, against NumPy."""

import dataclasses
import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as fp
from fedjax_pfl import core, testing
from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import byte_counts, struct, tree_paths
from fedjax_pfl.engine import evaluation
from fedjax_pfl.testing import compiled_rounds, toy
from tests import networks
from tests.lanes import few, wide
from tests.models import norms, slopes, toys
from tests.models.toys import fitted

KEY = jax.random.key(0)
FULL = fp.SGD(learning_rate=0.3, batch_size=64)
BATCH = fp.MLP(widths=(5,), normalization="batch")
FEDBN = fp.ParameterRoles(BATCH, personal="_norm/", local_statistics=True)
LOCAL = fp.ParameterRoles(BATCH, local_statistics=True)
KINDS = {"shared": BATCH, "local": LOCAL, "fedbn": FEDBN}


def one_round(algorithm, model, **parts):
    """Model, first state, state after a round of everybody, and its report."""
    federation, model = toy.make_federation(), fitted(model)
    process = fp.FederatedProcess(algorithm=algorithm, **parts)
    process = struct.as_arrays(process, jnp.zeros(()).dtype)
    first = compiled_rounds.init(process, KEY, model, federation)
    vmap = core.Execution()
    return (
        model,
        first,
        *compiled_rounds.run_round(process, first, model, federation, vmap),
    )


def moved(params, rng):
    return jax.tree.map(lambda p: p + rng.normal(size=p.shape), params)


def padded(rng, weight):
    """A batch of six rows, whose padding is huge."""
    x = rng.normal(size=(6, 4))
    x[weight == 0] = 1e6
    y = rng.integers(norms.CLASSES, size=6, dtype=np.int32)
    return core.Batch(x=x, y=y, weight=weight.astype(float))


@pytest.mark.parametrize("name", norms.MODELS)
def test_padding_is_no_part_of_a_batch(name):
    model = fitted(norms.MODELS[name])
    rng, weight = np.random.default_rng(3), np.array([1, 0, 1, 1, 0, 1])
    batch, real = padded(rng, weight), weight > 0
    params, first = moved(networks.init(model, KEY), rng), model.first_statistics()
    layer = norms.LAYERS[name][1]
    assert jax.tree.structure(first) == jax.tree.structure(
        {layer: {"mean": 0, "var": 0}}
    )
    first = jax.tree.map(lambda s: rng.uniform(2, 3, s.shape), first)
    constants = core.Constants(statistics=first, weight=batch.weight)
    outputs, after = networks.with_statistics(
        model, params, batch.x, key=KEY, constants=constants
    )
    outputs = np.asarray(outputs)
    mean, variance = norms.moments(norms.hidden(name, params, batch.x)[real])
    wanted = norms.logits(name, params, batch.x, mean, variance)
    # flax subtracts squares, of values of order ten.
    np.testing.assert_allclose(outputs[real], wanted[real], rtol=1e-10, atol=1e-10)
    for kind, moment in (("mean", mean), ("var", variance)):
        expected = 0.9 * first[layer][kind] + 0.1 * moment
        np.testing.assert_allclose(after[layer][kind], expected, rtol=1e-10)
    # Evaluation is by the running statistics, wherever they stand.
    running = (first[layer]["mean"], first[layer]["var"])
    wanted = norms.logits(name, params, batch.x, *map(np.asarray, running))
    tree = params | {"batch_stats": first}
    for outputs in (
        networks.apply(model, params, batch.x, constants=constants),
        networks.apply(model, tree, batch.x),
    ):
        outputs = np.asarray(outputs)
        np.testing.assert_allclose(outputs[real], wanted[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["ours", wide("linen"), "nnx"])
def test_gradients_of_a_padded_batch_are_those_of_its_examples(name):
    model, loss = fitted(norms.MODELS[name]), fp.local.DataLoss
    weight = np.array([1, 0, 1, 1, 0, 1])
    batch, params = padded(np.random.default_rng(4), weight), networks.init(model, KEY)
    alone = jax.tree.map(lambda leaf: leaf[weight > 0], batch)
    slope = jax.grad(loss(model).with_statistics, argnums=1, has_aux=True)

    @jax.jit
    def at(batch):
        constants = core.Constants(
            statistics=model.first_statistics(), weight=batch.weight
        )
        return slope(KEY, params, dataclasses.replace(batch, constants=constants), None)

    chex.assert_trees_all_close(at(batch), at(alone), rtol=1e-9, atol=1e-12)
    nothing = dataclasses.replace(batch, weight=np.zeros(6))
    gradient, moved = at(nothing)
    chex.assert_trees_all_close(gradient, jax.tree.map(np.zeros_like, params), atol=0)
    chex.assert_trees_all_close(moved, model.first_statistics(), rtol=0)


def test_images_are_normalized_over_their_pixels():
    x = np.random.default_rng(0).normal(size=(6, 6, 6, 2))
    federation = fp.Federation.from_arrays(x, np.arange(6) % 3, np.arange(6) % 2)
    model = fp.models.CNN(normalization="batch").for_federation(federation)
    params, first = networks.init(model, KEY), model.first_statistics()
    weight = jnp.array([1.0, 1, 0, 1, 0, 0])
    constants = core.Constants(statistics=first, weight=weight)
    run = jax.jit(functools.partial(model.apply_with_statistics, key=KEY))
    _, moved = run(params, jnp.asarray(x), constants=constants)
    layer = params["conv_0"]
    filtered = jax.lax.conv_general_dilated(
        jnp.asarray(x),
        layer["kernel"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    pixels = np.asarray(filtered) + np.asarray(layer["bias"])
    pixels = pixels[[0, 1, 3]].reshape(-1, 16)
    mean, variance = norms.moments(pixels)
    found = moved["conv_0_norm"]
    np.testing.assert_allclose(found["mean"], 0.1 * mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * variance, rtol=1e-10)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_group_and_layer_norm_look_at_one_example(kind):
    model = fitted(fp.MLP(widths=(6, 16), normalization=kind))
    rng = np.random.default_rng(1)
    params = moved(networks.init(model, KEY), rng)
    x = rng.normal(size=(5, 4))
    z = x
    for layer, groups in (("hidden_0", 6), ("hidden_1", 8)):
        z = norms.affine(params[layer], z, transposed=True)
        groups = 1 if kind == "layer" else groups
        parts = z.reshape(5, groups, -1)
        gap = parts - parts.mean(axis=2, keepdims=True)
        scale = np.sqrt(parts.var(axis=2, keepdims=True) + norms.EPSILON)
        norm = params[f"{layer}_norm"]
        z = (gap / scale).reshape(z.shape) * np.asarray(norm["scale"])
        z = np.maximum(z + np.asarray(norm["bias"]), 0)
    wanted = norms.affine(params["head"], z, transposed=True)
    for key in (None, KEY):
        outputs = networks.apply(model, params, jnp.asarray(x), key=key)
        np.testing.assert_allclose(outputs, wanted, rtol=1e-9, atol=1e-9)
    assert model.first_statistics() is None


def test_fedavg_averages_statistics_and_fedbn_keeps_them():
    model, first, state, info = one_round(fp.FedAvg(local=FULL), BATCH)
    start = first.server
    rows = [norms.moments(norms.hidden("ours", start, x)) for x, _ in toys.examples()]
    mean, variance = (np.stack(values) for values in zip(*rows, strict=True))
    shares = toy.COUNTS / toy.COUNTS.sum()
    found = state.memory["statistics"]["hidden_0_norm"]
    np.testing.assert_allclose(found["mean"], 0.1 * shares @ mean, atol=1e-12)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * shares @ variance, atol=1e-12)
    assert "statistics" not in state.rows
    # 10 numbers of statistics and 10 of scale and bias, of 8 bytes, of 8 clients.
    own = 5 * 4 + 5 + 3 * 5 + 3  # of the network without normalization
    for words in (info.bytes_up, info.bytes_down):
        assert byte_counts.total(words) == 8 * 8 * (own + 20)
    _, _, state, info = one_round(fp.FedAvg(local=FULL), FEDBN)
    found = state.rows["statistics"]["hidden_0_norm"]
    np.testing.assert_allclose(found["mean"], 0.1 * mean, atol=1e-12)
    np.testing.assert_allclose(found["var"], 0.9 + 0.1 * variance, atol=1e-12)
    assert "statistics" not in state.memory
    assert byte_counts.total(info.bytes_up) == 8 * 8 * own
    scale = state.rows["carry"]["hidden_0_norm"]["scale"]
    assert np.ptp(scale, axis=0).max() > 1e-3
    assert not [name for name in tree_paths.by_name(state.server) if "norm" in name]


FEW = ("apfl", "fedrep")
# Passes over the batch, by which each method moves the statistics of the first network.
MOVING = {
    "apfl": (fp.APFL(local=FULL), 1),
    "apfl_outputs": (fp.APFL(mix="outputs", local=FULL), 1),
    "ditto": (fp.Ditto(local=FULL), 1),
    "fedadmm": (fp.FedADMM(local=FULL), 1),
    "fedpg": (fp.FedPG(local=fp.SGD(learning_rate=0.3)), 1),
    "fedrep": (fp.FedRep(local=FULL), 2),
    "fedrod": (fp.FedROD(local=FULL), 1),
    "flame": (fp.Flame(local=FULL), 1),
    "local": (fp.Local(local=FULL), 1),
    "lp_proj": (fp.LpProj(num_steps=1, inner_steps=1, dim=2), 1),
    "pfedme": (fp.PFedMe(num_steps=1, inner_steps=1, batch_size=64), 1),
    "scaffold": (fp.Scaffold(local=FULL), 1),
    "to_tolerance": (
        fp.Local(local=fp.local.ToTolerance(learning_rate=1e-300, max_steps=1)),
        1,
    ),
}


@pytest.mark.parametrize("name", few(FEW, MOVING))
def test_statistics_are_those_of_the_model_that_a_client_trains(name):
    algorithm, passes = MOVING[name]
    _, _, state, _ = one_round(algorithm, LOCAL)
    kept = 0.9**passes
    start = fitted(BATCH).init(core.stream_key(state.key, core.Stream.INIT, 0))
    found = state.rows["statistics"]["hidden_0_norm"]
    for client, (x, _) in enumerate(toys.examples()):
        mean, variance = norms.moments(norms.hidden("ours", start, x))
        np.testing.assert_allclose(found["mean"][client], (1 - kept) * mean, atol=1e-12)
        wanted = kept + (1 - kept) * variance
        np.testing.assert_allclose(found["var"][client], wanted, atol=1e-12)


def method(name):
    """Any method of the registry, with few steps."""
    solver = fp.SGD(learning_rate=0.1, epochs=2, batch_size=4)
    kind = registry.ALGORITHMS[name]
    found = kind.with_solver(solver) if kind().local is not None else kind()
    if name == "fedacs":  # at the usual one of five clients nobody selects another
        found = dataclasses.replace(found, pick_quantile=0.55)
    return found


# Methods with loops or reports of their own, and FLAME.
OWN = ("apfl", "centralized", "fedpg", "fedrep", "fedrod", "flame", "local", "lp_proj")
OWN += ("majority", "per_fedavg", "pfedme", "splitgp")
TOLD = ("centralized", "local", "splitgp")  # what they do with shared ones


@pytest.mark.parametrize(
    ("name", "is_local"),
    [
        (name, is_local)
        if name in (OWN if is_local else TOLD)
        else wide(name, is_local)
        for is_local in (True, False)
        for name in registry.ALGORITHMS
    ],
)
def test_every_method_trains_with_statistics_or_refuses_them(name, is_local):
    refusals = {
        ("splitgp", False): "without running statistics",
        ("splitgp", True): "network of layers",
        ("centralized", True): "or local statistics for Centralized",
    }
    algorithm, federation = method(name), toy.make_federation()
    if "fine_tune" in algorithm.__dataclass_fields__:
        algorithm = dataclasses.replace(algorithm, fine_tune=fp.SGD())

    def run():
        known, first, after, _ = one_round(algorithm, LOCAL if is_local else BATCH)
        process = fp.FederatedProcess(algorithm=algorithm)
        metrics, _ = evaluation.evaluate(process, after, known, federation)
        return first, after, metrics

    if (name, is_local) in refusals:
        with pytest.raises(fp.InputError, match=refusals[name, is_local]):
            jax.eval_shape(run)
        return
    first, after, metrics = jax.eval_shape(run)
    assert metrics["loss"].shape[1:] == (2, 8)
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, after)
    stays = is_local or not algorithm.shares_statistics
    assert ("statistics" not in first.memory) == stays
    rows = jax.tree.leaves(first.rows.get("statistics"))
    assert [leaf.shape for leaf in rows] == [(8, 5)] * (2 * stays)


PROPERTIES = (
    "states_keep_their_layout",
    "padding_changes_nothing",
    "permuting_clients_permutes_results",
    "absent_clients_are_bit_identical",
    "chunks_change_rounding_only",
)
COSTLY = (
    "loop_reference",
    "states_stay_finite",
    "nonfinite_messages_never_enter",
    "devices_change_rounding_only",
    "grid_equals_single_runs",
    "a_resumed_grid_is_bit_identical",
)


@functools.cache
def subject(name, kind):
    # Another value for a field is for properties of grids.
    field = ("algorithm.local.learning_rate", 0.2) if kind == "fedbn" else None
    return testing.Subject(algorithm=method(name), model=KINDS[kind], field=field)


PAIRS = [
    ("flame", "fedbn"),
    *itertools.product(registry.ALGORITHMS, ("shared", "local")),
]
QUICK = {
    *(("flame", "fedbn", prop) for prop in PROPERTIES),
    ("fedavg", "shared", "permuting_clients_permutes_results"),
}


@pytest.mark.parametrize(
    ("name", "kind", "prop"),
    [
        case if case in QUICK else wide(*case)
        for pair in PAIRS
        for case in ((*pair, prop) for prop in (*PROPERTIES, *COSTLY))
    ],
)
def test_methods_keep_their_properties(name, kind, prop):
    orders = ("padding_changes_nothing", "permuting_clients_permutes_results")
    is_local = kind != "shared"
    if name == "splitgp" or (name == "centralized" and (is_local or prop in orders)):
        pytest.skip("refused, or of the order of clients' examples by its nature")
    if name == "fedfomo" and prop == orders[1]:
        pytest.skip("affinities have clients on two axes")
    testing.check(prop, subject(name, kind))


@pytest.mark.wide
def test_saved_models_predict_and_start_others(tmp_path):
    federation = fp.load_federation("digits", num_clients=4)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    options = {"num_rounds": 2, "progress": False}
    model = fp.MLP(widths=(6,), normalization="batch")
    result = fp.simulate(
        KEY, process, model, federation, models_to=tmp_path / "all", **options
    )
    saved = fp.load_models(tmp_path / "all").find(model="global")
    assert saved.clients is None
    batch, network = federation.test.examples(1), model.for_federation(federation)
    loss = networks.loss(network, networks.apply(network, saved.params, batch.x), batch)
    found = result.groups[0].metrics["loss"][0, -1, 0, 0, 1]
    # Another program, whose sums may be in another order.
    np.testing.assert_allclose(loss, found, rtol=1e-9)
    file = next((tmp_path / "all").rglob("*.safetensors"))
    started = fp.MLP(
        widths=(6,), normalization="batch", initial_params=fp.load_params(file)
    )
    roles = fp.ParameterRoles(started, frozen="^hidden_0/", local_statistics=True)
    for other in (started, roles):
        first = process.init(KEY, other.for_federation(federation), federation)
        running = first.memory.get("statistics")
        if running is None:
            running = jax.tree.map(lambda r: r[2], first.rows["statistics"])
        chex.assert_trees_all_close(running, saved.params["batch_stats"], rtol=0)
    fp.simulate(KEY, process, roles, federation, models_to=tmp_path / "own", **options)
    own = fp.load_models(tmp_path / "own").find(model="global").of(3)
    whole = roles.for_federation(federation).merged(own)
    first, second = (
        net.for_federation(federation).apply(params, batch.x)
        for net, params in ((roles, own), (model, whole))
    )
    np.testing.assert_allclose(first, second, rtol=1e-12)


def test_variables_of_flax_bring_their_statistics():
    linen = norms.Linen().init(KEY, jnp.ones((1, 4)))
    linen = jax.tree.map(lambda leaf: leaf + 1, linen)
    module = norms.Nnx(rngs=nnx.Rngs(0))
    module.norm.mean[...] = jnp.arange(5, dtype=jnp.float32)
    for model, wanted in (
        (fp.from_flax(norms.Linen(), initial_params=linen), linen["batch_stats"]),
        (fp.from_flax(module), {"norm": {"mean": np.arange(5.0), "var": np.ones(5)}}),
        (
            fp.from_flax(norms.Nnx, initial_params=nnx.state(module)),
            {"norm": {"mean": np.arange(5.0), "var": np.ones(5)}},
        ),
    ):
        known = fitted(model)
        known.check_start()
        chex.assert_trees_all_close(known.first_statistics(), wanted, rtol=1e-7)
    assert type(module.norm) is nnx.BatchNorm  # the user's stays as it is


@pytest.mark.parametrize("name", [wide("linen"), "nnx"])
def test_flax_modules_train_as_ours(name):
    """From one start, through several minibatches of every client."""
    ours, other = (fitted(norms.MODELS[n]) for n in ("ours", name))
    params, running = networks.init(ours, KEY), ours.first_statistics()["hidden_0_norm"]
    dense, norm, head = norms.LAYERS[name]
    tree = {norm: params["hidden_0_norm"], "batch_stats": {norm: running}}
    for theirs, layer in ((dense, "hidden_0"), (head, "head")):
        tree[theirs] = params[layer] | {"kernel": params[layer]["kernel"].T}
    whole = params | {"batch_stats": {"hidden_0_norm": running}}
    algorithm = fp.FedAvg(local=fp.SGD(learning_rate=0.2, epochs=2, batch_size=3))
    losses = [
        toys.losses(model, algorithm, num_rounds=3)
        for model in (
            dataclasses.replace(BATCH, initial_params=whole),
            type(other)(module=other.module, initial_params=tree),
        )
    ]
    np.testing.assert_allclose(*losses, rtol=1e-8, atol=1e-10)


@pytest.mark.wide
@pytest.mark.parametrize(
    "model",
    [
        fp.lora(BATCH, targets="^hidden_0/", rank=2, trained="_norm/|^head/"),
        LOCAL,
    ],
)
def test_adapters_and_streamed_trainings_have_statistics(model):
    cohort = fp.UniformCohort(size=3)
    losses = [
        toys.losses(model, fp.FedAvg(), call=call, participation=cohort)
        for call in (fp.simulate, fp.simulate_streamed)
    ]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-12)
    assert np.isfinite(losses[0]).all()


@pytest.mark.wide
@pytest.mark.parametrize("model", [BATCH, FEDBN])
def test_unseen_clients_are_evaluated(model):
    spec = fp.FederationSpec(dataset="digits", num_clients=6, unseen_fraction=0.34)
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=FULL))
    result = fp.simulate(
        KEY, process, model, spec.build(), num_rounds=1, progress=False
    )
    assert np.isfinite(result.groups[0].unseen["loss"]).all()


@pytest.mark.wide
def test_derivatives_go_through_statistics():
    local = fp.SGD(learning_rate=0.3, batch_size=4, epochs=1)
    slopes.check_in_lam(KEY, FEDBN, local, at_least=1e-5)


class Spectral(nn.Module):
    """A layer whose running statistics are no batch normalization's."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        norm = nn.SpectralNorm(nn.Dense(norms.CLASSES))
        return norm(x, update_stats=train)


class Turned(nn.Module):
    """A layer that normalizes values whose first axis is not the batch."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(x.reshape(-1, 2))
        return nn.Dense(norms.CLASSES)(x.reshape(-1, 4))


def noisy():
    return {
        "transforms": (fp.ClipNorm(norm=1.0), fp.GaussianNoise(multiplier=1.0)),
        "aggregator": fp.aggregators.Mean(),
    }


def own_objective(key, params, batch, context):
    return jnp.zeros(())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fitted(fp.from_flax(Spectral())), "no state but the running stat.*Sp"),
        (lambda: fitted(fp.from_flax(Turned())), r"batch's 2 examples, got shape \[4,"),
        (lambda: fp.MLP(normalization="instance"), "Unknown normalization"),
        (
            lambda: fitted(fp.ParameterRoles(fp.MLP(), local_statistics=True)),
            "running statistics, such as MLP.* got MLP",
        ),
        (lambda: fp.ParameterRoles(BATCH, local_statistics=1), "true or false, got 1"),
        (
            lambda: fitted(BATCH).apply(fitted(BATCH).init(KEY), jnp.ones((2, 4))),
            "with their running statistics 'batch_stats'",
        ),
        (
            lambda: fitted(
                fp.MLP(
                    widths=(5,),
                    normalization="batch",
                    initial_params=networks.init(fitted(BATCH), KEY),
                )
            ).check_start(),
            "have no 'batch_stats/hidden_0_norm/mean'",
        ),
        (
            lambda: jax.eval_shape(
                lambda: one_round(fp.FedAvg(), BATCH, **noisy())[1:]
            ),
            "sent without noise",
        ),
        (
            lambda: jax.eval_shape(
                lambda: fp.SGD().solve(
                    core.ClientView(key=KEY, round=jnp.int32(0), data=one_client()),
                    own_objective,
                    {"w": jnp.zeros(2)},
                )
            ),
            "an objective of its own",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(make, words):
    with pytest.raises(fp.InputError, match=words):
        make()


def one_client():
    """Examples of a client with statistics."""
    data = toy.make_federation().train
    data = data.with_rows(jax.tree.map(lambda leaf: leaf[0], data.rows()))
    return data.with_statistics(fitted(BATCH).first_statistics())
