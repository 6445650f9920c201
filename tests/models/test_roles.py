"""Frozen and personal parameters, against NumPy and against methods with heads."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import core, engine, models, testing
from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.core import byte_counts
from fedjax_pfl.engine import groups, resident
from fedjax_pfl.testing import compiled_rounds, toy
from tests.lanes import few, wide
from tests.models import slopes, toys

KEY = jax.random.key(0)
FULL = fp.SGD(learning_rate=0.3, batch_size=64)
BASE = np.random.default_rng(5).normal(size=(4, 6))


def draw(key, x):
    keys = jax.random.split(key)
    return {
        "base": jax.random.normal(keys[0], BASE.shape),
        "head": 0.1 * jax.random.normal(keys[1], (6, toy.NUM_CLASSES)),
    }


def logits(params, x):
    return (x @ params["base"]) @ params["head"]


def network(**options):
    return fp.from_functions(draw, logits, **options)


def start():
    return {"base": BASE, "head": np.full((6, toy.NUM_CLASSES), 0.1)}


def trained(algorithm, model, *, rounds=2, participation=None):
    """A trainer after some rounds."""
    participation = participation or fp.AllClients()
    process = fp.FederatedProcess(algorithm=algorithm, participation=participation)
    data = toy.make_federation()
    group = groups.single(KEY, process, model, data)
    options = engine.Options(num_rounds=rounds, eval_every=rounds, execution="vmap")
    trainer = resident.Resident(groups.plan(group, options))
    trainer.begin()
    reports = trainer.advance(np.ones(1, bool), 0, rounds)
    state = jax.tree.map(lambda leaf: leaf[0], trainer.states)
    return state, reports, trainer


def numpy_gradient(head, x, y):
    """Gradient of the mean cross-entropy of `softmax(x base head)` in the head."""
    features = x @ BASE
    scores = np.exp(features @ head)
    shares = scores / scores.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return features.T @ shares / len(y)


def test_fedavg_on_a_frozen_base_is_numpy_s():
    model = fp.ParameterRoles(network(initial_params=start()), frozen="^base")
    state, reports, trainer = trained(fp.FedAvg(local=FULL), model)
    head = start()["head"]
    shares = toy.COUNTS / toy.COUNTS.sum()
    for _ in range(2):
        pairs = zip(shares, toys.examples(), strict=True)
        head = sum(a * (head - 0.3 * numpy_gradient(head, x, y)) for a, (x, y) in pairs)
    # Two rounds of sums of a few dozen float64.
    np.testing.assert_allclose(state.server["head"], head, rtol=0, atol=1e-12)
    assert list(jax.tree.leaves(state.server)) == [state.server["head"]]
    # Of each round, what 8 clients send and receive of 18 numbers of 8 bytes.
    for words in (reports.bytes_up, reports.bytes_down):
        np.testing.assert_array_equal(byte_counts.total(words[0, :2]), 8 * 18 * 8)
    shapes = {leaf.shape for leaf in jax.tree.leaves(state)}
    assert not any(shape[-2:] == BASE.shape for shape in shapes)
    # An argument of the programs, which all clients share: no constant, no client axis.
    text = trainer._program(("segment",)).lowered().as_text()
    assert "tensor<4x6xf64>" in text and "8x4x6xf64" not in text
    assert f"{BASE[0, 0]:.5f}"[:7] not in text
    trainer.close()


def test_flame_on_a_frozen_base_is_numpy_s():
    model = fp.ParameterRoles(network(initial_params=start()), frozen="^base")
    state, _, trainer = trained(fp.Flame(lam=0.5, kappa=2.0, local=FULL), model)
    trainer.close()
    w = start()["head"]
    theta, w_local, dual = ([value] * 8 for value in (w, w, 0 * w))
    for _ in range(2):
        for i, (x, y) in enumerate(toys.examples()):
            slope = numpy_gradient(theta[i], x, y) + 0.5 * (theta[i] - w_local[i])
            theta[i] = theta[i] - 0.3 * slope
            w_local[i] = (theta[i] + 2 * (w - dual[i])) / 3
            dual[i] = dual[i] + w_local[i] - w
        w = np.mean(np.add(w_local, dual), axis=0)
    for found, wanted in (
        (state.server["head"], w),
        (state.clients.theta["head"], theta),
        (state.clients.p["head"], dual),
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_personal_parameters_under_fedavg_are_fedper():
    local = fp.SGD(learning_rate=0.3, epochs=2, batch_size=3, momentum=0.5)
    cohort = {"participation": fp.UniformCohort(size=5)}
    plain, roles = network(), fp.ParameterRoles(network(), personal="^head")
    one, _, first = trained(fp.FedPer(head="^head", local=local), plain, **cohort)
    other, _, second = trained(fp.FedAvg(local=local), roles, **cohort)
    np.testing.assert_allclose(other.server["base"], one.server["base"], rtol=1e-12)
    np.testing.assert_allclose(
        other.rows["carry"]["head"], one.clients["head"], rtol=1e-12
    )
    assert np.ptp(other.rows["carry"]["head"], axis=0).max() > 0.01
    data = ("test", "validation")
    metrics = [t.evaluate(data, is_last=True)[1]["loss"] for t in (first, second)]
    np.testing.assert_allclose(*metrics, rtol=1e-12)
    saved = second.trained(0, np.arange(8), ("global",))["global"]
    np.testing.assert_array_equal(saved["head"], other.rows["carry"]["head"])
    for trainer in (first, second):
        trainer.close()


PERSONAL = {
    "ditto": fp.Ditto(local=FULL),
    "flame": fp.Flame(lam=0.5, local=FULL),
    "local": fp.Local(local=FULL),
    "pfedme": fp.PFedMe(
        lam=0.5, num_steps=1, inner_steps=1, inner_learning_rate=0.3, batch_size=64
    ),
    "fedpg": fp.FedPG(local=fp.SGD(learning_rate=0.3)),
    "scaffold": fp.Scaffold(local=FULL),
    "apfl": fp.APFL(local=FULL),
}


@pytest.mark.parametrize("name", few(("apfl", "ditto"), PERSONAL))
def test_personal_parameters_descend_the_loss_of_the_personal_model(name):
    """After one full-batch step from the common start, by autodiff of the whole."""
    model = fp.ParameterRoles(network(initial_params=start()), personal="^base")
    state, _, trainer = trained(PERSONAL[name], model, rounds=1)
    trainer.close()
    whole = network(initial_params=start()).for_federation(toy.make_federation())
    slope = jax.jit(jax.grad(lambda p, b: whole.loss(whole.apply(p, b.x), b)))
    for client, (x, y) in enumerate(toys.examples()):
        batch = core.Batch(x=x, y=y, weight=np.ones(len(y)))
        wanted = BASE - 0.3 * np.asarray(slope(start(), batch)["base"])
        np.testing.assert_allclose(
            state.rows["carry"]["base"][client], wanted, rtol=0, atol=1e-12
        )


@pytest.mark.wide
def test_both_roles_pass_the_conformance_of_methods():
    model = fp.ParameterRoles(fp.MLP(widths=(3, 3)), personal="^head/", frozen="n_0/")
    local = fp.SGD(learning_rate=0.1, epochs=2, batch_size=4)
    subject = testing.Subject(
        algorithm=fp.Flame(lam=1.0, kappa=2.0, local=local),
        model=model,
        field=("algorithm.kappa", 0.5),
    )
    results = testing.check_algorithm(subject)
    assert [r.status for r in results].count("skipped") <= 1


@pytest.mark.parametrize(
    ("algorithm", "refusal"),
    [
        (fp.PerFedAvg(), "got PerFedAvg with minibatches"),
        (fp.Centralized(), "for Centralized"),
        (fp.LpProj(), "got LpProj with minibatches"),
        (fp.SplitGP(), "network of layers .* got ParameterRoles"),
        (fp.FedACS(), None),
        (fp.FedPlus(), None),
        (fp.FedRep(head="^hidden_1"), None),
        (fp.FedROD(head="^hidden_1"), None),
        (fp.FedFomo(), None),
        (fp.FedADMM(), None),
        (fp.FedAvg(fine_tune=fp.SGD()), None),
        (fp.Ditto.official(), None),
        (fp.APFL(mix="outputs"), None),
        (fp.FedPG(gradient="epochs", search=common_descent.Armijo()), None),
    ],
)
def test_methods_train_personal_parameters_or_refuse_them_by_name(algorithm, refusal):
    model = fp.ParameterRoles(fp.MLP(widths=(3, 3)), personal="^head/")
    federation = toy.make_federation()
    model = model.for_federation(federation)
    process = fp.FederatedProcess(algorithm=algorithm)

    def rounds():
        state = process.init(KEY, model, federation)
        return state, process.round(state, model, federation)[0]

    if refusal is not None:
        with pytest.raises(fp.InputError, match=refusal):
            jax.eval_shape(rounds)
        return
    first, after = jax.eval_shape(rounds)
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, after)
    assert first.rows["carry"]["head"]["bias"].shape == (8, toy.NUM_CLASSES)


@pytest.mark.parametrize("execution", [*map(wide, ("loop", "chunk=3")), "shard"])
def test_executions_agree(execution):
    model = fp.ParameterRoles(fp.MLP(widths=(3, 3)), personal="^head/", frozen="n_0/")
    losses = [
        toys.losses(model, fp.APFL(local=FULL), execution=how)
        for how in ("vmap", execution)
    ]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-11)


@pytest.mark.wide
def test_derivatives_go_through_personal_and_frozen_parameters():
    model = fp.ParameterRoles(fp.MLP(widths=(3, 3)), personal="^head/", frozen="n_0/")
    slopes.check_in_lam(KEY, model, FULL, at_least=1e-4)


@pytest.mark.wide
def test_seeds_share_what_is_frozen_and_draw_the_rest():
    model = fp.ParameterRoles(fp.MLP(widths=(3,)), frozen="^hidden_0/", seed=7)
    federation = toy.make_federation()
    fitted = model.for_federation(federation)
    one, other = (fitted.init(jax.random.key(seed)) for seed in (0, 1))
    assert not np.array_equal(one["head"]["kernel"], other["head"]["kernel"])
    whole = [fitted.merged(params) for params in (one, other)]
    drawn = fitted.model.init(core.seed_key(7))["hidden_0"]
    chex.assert_trees_all_equal(drawn, *(params["hidden_0"] for params in whole))
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=FULL))
    keys = [jax.random.key(seed) for seed in (0, 1)]
    together = compiled_rounds.group(
        keys[0], process, model, federation, process, points=[{"seed": 0}, {"seed": 1}]
    )
    together = dataclasses.replace(together, keys=keys)
    losses = []
    for group in (
        together,
        *(groups.single(k, process, model, federation) for k in keys),
    ):
        options = engine.Options(num_rounds=2, eval_every=2, execution="vmap")
        trainer = resident.Resident(groups.plan(group, options))
        trainer.begin()
        trainer.advance(np.ones(len(group.points), bool), 0, 2)
        losses.append(trainer.evaluate(("test",), is_last=True)[1]["loss"])
        trainer.close()
    np.testing.assert_allclose(losses[0], np.concatenate(losses[1:]), rtol=1e-12)


def test_clients_that_never_trained_begin_with_the_first_personal_parameters():
    spec = fp.FederationSpec(dataset="digits", num_clients=6, unseen_fraction=0.34)
    model = fp.ParameterRoles(fp.LogisticRegression(), personal="bias")
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=FULL))
    result = fp.simulate(
        KEY, process, model, spec.build(), num_rounds=1, progress=False
    )
    assert np.isfinite(result.groups[0].unseen["loss"]).all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"frozen": "nosuch"}, "frozen='nosuch' to m"),
        ({"frozen": "base", "personal": "b|h"}, "in common, but both match 'base'"),
        ({"frozen": "."}, "clients share; the model's"),
        ({"frozen": "("}, "frozen to be a regular"),
        ({"seed": -1}, "seed to be a whole number"),
        ({"model": logits}, "model for ParameterRoles"),
        (
            {"model": models.MLP(initial_params={"head": np.ones(2)}), "frozen": "^h"},
            "they also have 'head'",
        ),
    ],
)
def test_roles_that_do_not_fit_are_one_sentence(fields, words):
    with pytest.raises(fp.InputError, match=words):
        trained(fp.FedAvg(), fp.ParameterRoles(**{"model": network()} | fields))


@pytest.mark.parametrize("roles", [wide({"frozen": "^base"}), {"personal": "^base"}])
def test_streamed_trainings_freeze_and_keep_what_is_personal(roles):
    model = fp.ParameterRoles(network(), **roles)
    losses = [
        toys.losses(
            model, fp.Flame(), call=call, participation=fp.UniformCohort(size=3)
        )
        for call in (fp.simulate, fp.simulate_streamed)
    ]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-12)
