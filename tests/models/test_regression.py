"""Networks for targets that are numbers, and targets in units of their own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import registry
from fedjax_pfl.core import Batch
from fedjax_pfl.engine import stacking
from tests import networks
from tests.lanes import few
from tests.models.test_models_inputs import numpy_lstm

CLASSES_ONLY = {"fedproto", "fedrod", "knn_per", "majority", "splitgp"}
SOME = ("flame", "fedrep", "moon", "per_fedavg")  # FedAvg: the other tests
SERIES = fp.models.LSTM(width=4, num_layers=1, bottleneck=None)


def arrays(shape=(5,), count=240, scale=1.0, shift=0.0):
    """Examples of four clients, and targets that a network can learn."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, *shape)).astype(np.float32)
    flat = x.reshape(count, -1)
    y = np.abs(flat[:, 0]) + 0.5 * flat[:, 1]
    return x, (y * scale + shift).astype(np.float32), np.arange(count) % 4


def federation(shape=(5,), scale=1.0, shift=0.0, **options):
    return fp.Federation.from_arrays(
        *arrays(shape, scale=scale, shift=shift), **options
    )


def trained(made, model, algorithm=None, rounds=20, **options):
    process = fp.FederatedProcess(algorithm=algorithm or fp.FedAvg())
    options = {"num_rounds": rounds, "progress": False} | options
    return fp.simulate(jax.random.key(0), process, model, made, **options)


def value(result, metric, when="last"):
    table = result.table()
    table = table[(table["metric"] == metric) & (table["stat"] == "mean")]
    return table[(table["data"] == "own test") & (table["when"] == when)][
        "value"
    ].item()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (fp.MLP(widths=(8,)), (5,)),
        (fp.models.CNN2(), (8, 8)),
        (SERIES, (6,)),
        (SERIES, (6, 2)),
    ],
)
def test_networks_predict_one_number_per_example(model, shape):
    made = federation(shape)
    model = model.for_federation(made)
    params = networks.init(model, jax.random.key(0))
    x, y, _ = arrays(shape, count=9)
    outputs = networks.apply(model, params, jnp.asarray(x))
    assert outputs.shape == (9,)
    batch = Batch(x=jnp.asarray(x), y=jnp.asarray(y), weight=jnp.arange(9.0) % 2)
    errors = (np.asarray(outputs, np.float64) - y) ** 2 / 2
    loss, found = (f(model, outputs, batch) for f in (networks.loss, networks.metrics))
    np.testing.assert_allclose(loss, errors[1::2].mean(), 1e-5)
    np.testing.assert_allclose(found["loss"], errors, 1e-5)


def test_an_lstm_reads_series_in_their_order():
    made = federation((6, 2))
    model = SERIES.for_federation(made)
    params = networks.init(model, jax.random.key(0))
    x, _, _ = arrays((6, 2), count=3)
    outputs = networks.apply(model, params, jnp.asarray(x))
    states = numpy_lstm(**params["lstm_0"], x=x.astype(float).swapaxes(0, 1))
    wanted = states[-1] @ params["head"]["kernel"].T + params["head"]["bias"]
    np.testing.assert_allclose(outputs, wanted[:, 0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:With K=4 clients per round")
@pytest.mark.parametrize(
    "name", few((*SOME, *CLASSES_ONLY), sorted(registry.ALGORITHMS))
)
def test_every_method_trains_on_numbers_or_asks_for_classes(name):
    algorithm = registry.ALGORITHMS[name]()
    if name in CLASSES_ONLY:
        with pytest.raises(fp.InputError, match="a model of classes .* got MLP"):
            trained(federation(), fp.MLP(widths=(4,)), algorithm, rounds=1)
        return
    if name == "lp_proj":  # its steps are made for losses of bounded slope
        algorithm = dataclasses.replace(algorithm, lam=0.01)
    result = trained(federation(), fp.MLP(widths=(4,)), algorithm, rounds=2)
    last = result.clients()
    assert np.isfinite(last[last["metric"] == "loss"]["value"]).all()


def test_training_rows_give_the_units():
    """Mean and deviation are those of the training rows alone."""
    made = federation(scale=40_000, shift=150_000, scale_targets=True)
    _, y, _ = arrays(scale=40_000, shift=150_000)
    rows = np.concatenate(
        [made.train.index[k, :n] for k, n in enumerate(made.train.num_examples)]
    )
    wanted = [y[rows].mean(dtype=np.float64), y[rows].std(dtype=np.float64)]
    np.testing.assert_allclose(made.train.target_units, wanted, rtol=1e-6)
    shown = made.test.examples(0).y
    own = y[np.asarray(made.test.index[0, : made.test.num_examples[0]])]
    np.testing.assert_allclose(shown, (own - wanted[0]) / wanted[1], atol=1e-5)
    assert federation().train.target_units is None


def test_units_do_not_change_what_is_learned():
    """Targets of any unit and origin train the same network."""
    small = trained(federation(scale_targets=True), fp.MLP(widths=(8,)))
    large = federation(scale=2.0**15, shift=2.0**17, scale_targets=True)
    large = trained(large, fp.MLP(widths=(8,)))
    np.testing.assert_allclose(value(small, "loss"), value(large, "loss"), rtol=1e-3)
    assert value(small, "loss") < 0.2  # half the variance is 0.5


@pytest.fixture(scope="module")
def in_units(tmp_path_factory):
    """Data in units of their own, a network, its training and the saved models."""
    made = federation(scale=40_000, shift=150_000, scale_targets=True)
    model = fp.MLP(widths=(8,)).for_federation(made)
    place = tmp_path_factory.mktemp("models") / "models"
    result = trained(made, model, rounds=80, models_to=place)
    return made, model, result, fp.load_models(place)


def test_errors_are_in_the_units_of_the_targets(in_units):
    made, model, result, models = in_units
    (group,) = result.groups
    mean, deviation = np.asarray(made.test.target_units, np.float64)
    d, own = group.data.index("test"), {}
    params = models.find().params
    for client in range(made.num_clients):
        batch = made.test.examples(client)
        outputs = networks.apply(model, params, batch.x)
        y, predicted = (np.asarray(v, np.float64) for v in (batch.y, outputs))
        y, predicted = y * deviation + mean, predicted * deviation + mean
        own["rmse"] = np.sqrt(np.mean((predicted - y) ** 2))
        own["mae"] = np.mean(np.abs(predicted - y))
        own["r2"] = 1 - np.sum((predicted - y) ** 2) / np.sum((y - y.mean()) ** 2)
        for name, wanted in own.items():
            found = group.metrics[name][0, -1, 0, d, client]
            np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert value(result, "rmse") < 20_000
    assert "rmse" in str(result) and "r2" in str(result)


@pytest.mark.wide
def test_a_grid_over_seeds_is_its_trainings_and_shares_the_examples(tmp_path):
    x, y, owner = arrays(scale=100.0)
    frame = pd.DataFrame(x, columns=list("abcde")).assign(y=y, owner=owner)
    frame.to_csv(tmp_path / "own.csv", index=False)
    source = fp.data.Csv(
        path=str(tmp_path / "own.csv"), label="y", client="owner", scaling="none"
    )
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None)
    made = [dataclasses.replace(spec, seed=seed).build() for seed in (0, 1)]
    units = np.stack([one.train.target_units for one in made])
    assert (units[0] != units[1]).all()
    rows, pool = stacking.federation_rows(made)
    assert pool.train.y is made[0].train.y
    np.testing.assert_array_equal(rows["pool"].train.target_units, units)
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    args = (jax.random.key(0), process, fp.MLP(widths=(4,)), spec)
    options = {"num_rounds": 2, "progress": False}
    several = fp.grid(*args, {"seed": [0, 1]}, **options)
    for seed, point in enumerate(several.groups[0].metrics["loss"]):
        single = fp.grid(*args, {"seed": [seed]}, **options)
        loss = single.groups[0].metrics["loss"][0]
        np.testing.assert_allclose(point, loss, rtol=1e-5)


def test_saved_models_say_their_units(in_units):
    made, network, _, models = in_units
    model = models.find(model="global")
    mean, deviation = model.target_units
    np.testing.assert_allclose(made.train.target_units, (mean, deviation))
    x, y, _ = arrays(scale=40_000, shift=150_000)
    predicted = networks.apply(network, model.of(0), jnp.asarray(x)) * deviation + mean
    assert np.sqrt(np.mean((predicted - y) ** 2)) < y.std() / 2


def test_units_are_refused_where_targets_are_no_numbers():
    with pytest.raises(fp.InputError, match="one number per example as targets"):
        fp.Federation.from_arrays(np.eye(4), [0, 1, 0, 1], scale_targets=True)
