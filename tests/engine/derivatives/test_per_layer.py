"""Values per client and layer: derivatives by going back, and descents along them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.algorithms import common
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups, simulation
from fedjax_pfl.engine.derivatives import descent, reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.trainer import Interrupted
from tests.engine.derivatives.test_per_client import (
    KEY,
    MODEL,
    SGD,
    SPEC,
    losses,
    process,
)
from tests.lanes import few

LINEAR = fp.LogisticRegression()
DATA = fp.FederationSpec(
    data.GaussianClasses(dim=40, num_classes=5, examples_per_client=40),
    "by_client",
    num_clients=6,
    validation_fraction=0.2,
)
LAYERED = {  # method, fields and model
    "flame": (
        fp.Flame(lam=0.5, rho=0.1, local=SGD),
        ["lam", "local.learning_rate"],
        LINEAR,
    ),
    "ditto": (fp.Ditto(lam=0.5, local=SGD), ["lam", "local.learning_rate"], LINEAR),
    "fedavg": (fp.FedAvg(local=SGD), ["local.learning_rate"], LINEAR),
    "fedprox": (fp.FedProx(mu=0.5, local=SGD), ["local.learning_rate"], LINEAR),
    "mlp": (fp.Ditto(lam=0.5, local=SGD), ["lam", "local.learning_rate"], MODEL),
}
QUICK = ("flame",)
NUM_ROUNDS = 6


@functools.cache
def planned(method, layers=True):
    """Trainings of two seeds, with equal values for clients, and maybe layers."""
    algorithm, names, model = LAYERED[method]
    fields = [f"algorithm.{name}" for name in names]
    what = trainer.Differentiation(
        tuple(f"per_client.{name}" for name in fields),
        Objective.parse("validation:loss"),
    )
    bare = fp.FederatedProcess(algorithm=algorithm)
    (group,) = grids.groups_of(KEY, bare, model, DATA, {"seed": [0, 1]})
    group = descent.begun(group, fields, per="layer" if layers else "client")
    options = Options(num_rounds=NUM_ROUNDS, evaluate_on="validation")
    (found,) = simulation.check_groups([group], options, trainer=what)
    return found, what


@functools.cache
def backward(method, layers=True):
    return reverse.Backward(*planned(method, layers))


def check_differences(slope, ends):
    """That slopes are those of objectives at both ends, 1e-5 away."""
    above, below = ends
    np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("method", few((*QUICK, "ditto"), LAYERED))
def test_derivatives_in_values_of_layers_are_central_differences(method):
    layers = backward(method)
    rng = np.random.default_rng(0)
    values = {
        name: value * rng.uniform(0.8, 1.2, value.shape)
        for name, value in layers.values().items()
    }
    slopes = layers(values)[1]
    for name, place in itertools.product(values, ((0, 1, 0), (0, 3, 1), (1, 5, 1))):
        step = np.zeros_like(values[name])
        step[place] = 1e-5
        check_differences(
            slopes[name][place],
            [
                layers(values | {name: values[name] + s * step})[0][place[0]]
                for s in (1, -1)
            ],
        )


@pytest.mark.wide
@pytest.mark.parametrize("method", LAYERED)
def test_slopes_of_equal_layers_add_up_to_those_of_clients_and_of_all(method):
    objective, slopes = backward(method)()
    whole, of_clients = backward(method, layers=False)()
    np.testing.assert_allclose(objective, whole, rtol=1e-13)
    for name, slope in slopes.items():
        np.testing.assert_allclose(
            slope.sum(axis=2), of_clients[name], rtol=1e-9, atol=1e-14
        )
    if "per_client.algorithm.lam" not in slopes:
        return  # the server's own learning rate is no client's
    forward = fp.hypergradients(
        *(KEY, fp.FederatedProcess(algorithm=LAYERED[method][0]), LAYERED[method][2]),
        *(DATA, "algorithm.lam", NUM_ROUNDS),
        axes={"seed": [0, 1]},
        progress=False,
    )
    np.testing.assert_allclose(objective, forward.value, rtol=1e-12)
    np.testing.assert_allclose(
        slopes["per_client.algorithm.lam"].sum(axis=(1, 2)),
        forward.derivatives["algorithm.lam"],
        rtol=1e-7,
    )


def test_pieces_for_clients_have_the_derivatives_of_one_pass_for_layers(monkeypatch):
    """Each piece of six rounds is trained once more; values of layers are equal."""
    monkeypatch.setattr(reverse, "_ALL", 0)
    pieces = reverse.Backward(*planned("flame", layers=False))
    assert pieces.kept.pieces in [(2, 3), (3, 2)]
    value, slopes = backward("flame")()
    other, others = pieces()
    np.testing.assert_allclose(other, value, rtol=1e-13)
    for name, slope in slopes.items():
        total = slope.sum(axis=2)
        np.testing.assert_allclose(others[name], total, rtol=1e-9, atol=1e-14)


def test_layers_have_the_proximal_points_of_their_own():
    """Of 1/2 ||x - a||^2 + sum_l lam_l/2 ||x_l - c_l||^2, in closed form."""
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([[3.0]])}
    center = jax.tree.map(jnp.zeros_like, params)
    lam = jnp.array([0.5, 3.0])

    def objective(x):
        near = sum(
            jax.tree.leaves(
                jax.tree.map(lambda u, v: ((u - v) ** 2).sum() / 2, x, params)
            )
        )
        return near + common.pull(lam, x, center)

    solution = {"a": params["a"] / 1.5, "b": params["b"] / 4.0}
    for leaf in jax.tree.leaves(jax.grad(objective)(solution)):
        np.testing.assert_allclose(leaf, 0, atol=1e-15)


def test_a_row_per_client_and_layer():
    slopes = np.arange(20.0).reshape(1, 5, 4)
    found = fp.engine.Hypergradients(
        fields=("per_client.algorithm.lam",),
        objective="validation:loss:personal",
        points=({"seed": 0},),
        values={"per_client.algorithm.lam": np.full((1, 5, 4), 0.5)},
        value=np.ones(1),
        derivatives={"per_client.algorithm.lam": slopes},
        held_fixed=(),
    )
    table = found.table()
    assert len(table) == 20 and {"client", "layer"} <= {*table}
    row = table[(table.client == 3) & (table.layer == 2)]
    assert row["d per_client.algorithm.lam"].item() == slopes[0, 3, 2]


@pytest.mark.parametrize(
    ("algorithm", "name", "shape", "sentence"),
    [
        (fp.Ditto(local=SGD), "lam", (5, 3), r"per layer of a model with 4 \(.*got 3"),
        (fp.Ditto(local=SGD), "lam", (5, 4, 1), r"a value per layer, got an array of"),
        (fp.APFL(local=SGD), "alpha", (5, 4), r"layers can have .*\(none\), got alpha"),
        (fp.Ditto.official(), "local.learning_rate", (5, 4), r"\(lam\), got local"),
    ],
)
def test_values_that_layers_cannot_have_are_refused(algorithm, name, shape, sentence):
    with pytest.raises(checks.InputError, match=sentence):
        losses(process(algorithm, name, np.full(shape, 0.1)))


@pytest.mark.parametrize("method", few(QUICK, LAYERED))
def test_what_moves_shared_values_are_central_differences(method):
    """Of the mean over two seeds."""
    layers = backward(method)
    made = descent.Descent(layers, optax.sgd(1.0), 1)
    _, slopes = made.gathered(*layers(made.spread(made.best)))
    name, values = next(iter(made.best.items()))
    for layer, unit in enumerate(1e-5 * np.eye(values.size)):
        check_differences(
            slopes[name][0, layer],
            [
                layers(made.spread(made.best | {name: values + s * unit}))[0].mean()
                for s in (1, -1)
            ],
        )


def test_layers_learn_values_that_all_clients_and_seeds_share(monkeypatch, tmp_path):
    """The last training is that of the best values, and a finished call is read."""
    counted = backward("flame").kept  # of the same program, which takes seconds
    monkeypatch.setattr(reverse, "kept", lambda planned, names: counted)
    algorithm, names, model = LAYERED["flame"]
    fields = [f"algorithm.{name}" for name in names]
    given = (KEY, fp.FederatedProcess(algorithm=algorithm), model, DATA)
    options = {"seeds": [0, 1], "num_trainings": 4, "progress": False}
    options["evaluate_on"] = "validation"
    options["checkpoints"] = fp.Checkpoints(tmp_path, min_seconds=0)
    learned, again = (
        fp.learn(*given, fields, NUM_ROUNDS, per="layer", **options) for _ in range(2)
    )
    pd.testing.assert_frame_equal(again.path, learned.path, check_exact=True)
    steps = learned.path["objective"]
    assert len(steps) == 4 and steps.min() < steps[0]
    for name in fields:
        values = learned.best[name]
        np.testing.assert_array_equal(again.best[name], values)
        assert len({*values}) == 2
        of_clients = learned.process.per_client[name]
        np.testing.assert_array_equal(of_clients, np.tile(values, (6, 1)))
    (group,) = learned.result.groups
    model, column = group.models.index("personal"), group.data.index("validation")
    reached = group.metrics["loss"][:, -1, model, column].mean()
    np.testing.assert_allclose(reached, steps.min(), rtol=1e-12)
    table = learned.values
    assert table["parameters"].tolist() == [5, 200]
    assert table["layer"].tolist() == ["head/bias", "head/kernel"]
    assert str(learned).endswith("at best.") and "kernel" in str(learned)


def store(directory, **options):
    return fp.Checkpoints(directory, **options).store(0, "Flame")


def run(directory, stop_at=None):
    """Takes five steps, ended after so many; returns the descent."""
    optimizer, kept = optax.adam(0.3), store(directory, min_seconds=1e9)
    made = descent.Descent(backward("flame"), optimizer, 5, kept)
    made.run(lambda: "asked" if made.done == stop_at else None, lambda done, text: None)
    return made


def test_a_descent_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    whole = run(tmp_path / "whole")
    for stop in (1, 3):
        with pytest.raises(Interrupted, match=f"asked at round {NUM_ROUNDS * stop}"):
            run(tmp_path / "parts", stop)
    parts = run(tmp_path / "parts")
    np.testing.assert_array_equal(parts.path, whole.path)
    for name, values in whole.best.items():
        np.testing.assert_array_equal(parts.best[name], values)
    assert whole.path.min() < whole.path[0, 0]
    rounds, kept = [], store(tmp_path / "parts")
    again = descent.Descent(backward("flame"), optax.adam(0.3), 5, kept)
    again.run(lambda: None, lambda done, text: rounds.append(done))
    assert rounds == [5 * NUM_ROUNDS]  # all of it, and nothing trained
    with pytest.raises(checks.InputError, match="another training: trainings was 5"):
        descent.Descent(backward("flame"), optax.adam(0.3), 6, kept)


def test_other_files_beside_checkpoints_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    given = KEY, fp.FederatedProcess(algorithm=fp.Ditto()), MODEL, SPEC
    options = {"per": "client", "checkpoints": fp.Checkpoints(tmp_path)}
    with pytest.raises(checks.InputError, match=r"checkpoints of learn, .*'notes.txt'"):
        fp.learn(*given, "algorithm.lam", 2, **options)


def test_memory_is_about_what_the_compiler_says():
    made, plan = backward("flame"), planned("flame")[0].plan
    # The compiler reports one device, with some of the points.
    needed = made._program.memory_analysis().temp_size_in_bytes * plan.point_devices
    assert 0.8 * made.kept.total <= needed <= 4 * made.kept.total


def test_passes_that_do_not_fit_are_refused_before_they_are_compiled():
    found, what = planned("flame")
    options = Options(num_rounds=200, memory_limit="1MB")
    large = groups.plan(found.group, options)
    sentence = r"200 rounds of 6 clients needs .* of which .* more than the 1 MB"
    with pytest.raises(checks.InputError, match=sentence):
        reverse.Backward(large, what)


@pytest.mark.wide
def test_memory_is_that_of_rows_and_of_local_steps(monkeypatch):
    """Of 205 numbers. Ditto's global part, in which lam has no say, keeps no step."""

    def kept(epochs):
        solver = fp.SGD(epochs=epochs, batch_size=5)
        bare = fp.FederatedProcess(algorithm=fp.Ditto(lam=0.5, local=solver))
        (group,) = grids.groups_of(KEY, bare, LINEAR, DATA, {})
        group = descent.begun(group, ["algorithm.lam"], per="client")
        found = groups.plan(group, Options(num_rounds=6))
        return reverse.kept(found, ("per_client.algorithm.lam",))

    one, two, three = map(kept, (1, 2, 3))
    row = 205 * 8
    assert one.round == two.round == three.round
    assert 6 * row <= one.round <= 5 * 6 * row
    more = two.steps - one.steps
    assert three.steps - two.steps == more
    steps = 6 * -(-int(DATA.build().train.num_examples.max()) // 5)
    assert steps * row <= more <= 1.2 * steps * row
    assert one.pieces == (1, 6)
    whole = one.total
    monkeypatch.setattr(reverse, "_ALL", 0)
    assert one.pieces[0] > 1 and one.total < whole


@pytest.mark.parametrize(
    ("algorithm", "field", "sentence"),
    [
        (fp.APFL(local=SGD), "alpha", r"layers can have .*\(none\), got alpha"),
        (fp.Ditto.official(), "local.learning_rate", r"\(lam\), got local.learning"),
        (fp.Ditto(local=SGD), "local.epochs", "to be a traced number"),
        (fp.Ditto(lam=0.0, local=SGD), "lam", "begin strictly between its limits"),
        (fp.Flame(local=SGD), "lam", "Expected rho"),
    ],
)
def test_fields_that_layers_cannot_learn_are_refused(algorithm, field, sentence):
    trained = fp.FederatedProcess(algorithm=algorithm)
    with pytest.raises(checks.InputError, match=sentence):
        fp.learn(KEY, trained, MODEL, SPEC, f"algorithm.{field}", 5, per="layer")
