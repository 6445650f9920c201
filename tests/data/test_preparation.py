"""Columns of numbers are scaled by training rows alone."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn import preprocessing

import fedjax_pfl as fp
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import PARTS, rows

SCALERS = {
    "standard": preprocessing.StandardScaler,
    "minmax": preprocessing.MinMaxScaler,
}
NUM_CLIENTS, NUM_ROWS = 4, 25


pytestmark = pytest.mark.usefixtures("rows_of_the_file")


def frame():
    """Clients with different means; a text between two columns of numbers."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(NUM_CLIENTS), NUM_ROWS)
    size = len(owner)
    return pd.DataFrame(
        {
            "site": [f"s{k}" for k in owner],
            "age": rng.normal(size=size) * (1 + owner) + 100 * owner,
            "color": rng.choice(["red", "blue"], size),
            "income": 1e6 + rng.random(size),
            "y": np.arange(size) % 2,
        }
    )


NUMBERS = ["age", "income"]
COLUMNS = [0, 3]  # the color has two features between them


def spec(path, **options):
    names = {field.name for field in dataclasses.fields(fp.FederationSpec)}
    own = {name: options.pop(name) for name in names & options.keys()}
    source = user.Csv(path=path, label="y", client="site", **options)
    return fp.FederationSpec(source, fp.ByClient(), num_clients=None, **own)


@pytest.fixture
def path(tmp_path):
    return samples.write(tmp_path / "a.csv", frame().to_csv(index=False))


def check_scaled(scaler, federation, numbers, fitted, shown=None):
    """Compares clients' inputs with scikit-learn, fitted on some rows of the pool."""
    scaled = scaler().fit(numbers[fitted])
    for client in range(federation.num_clients) if shown is None else shown:
        for part in PARTS:
            own = rows(getattr(federation, part), client)
            x = np.asarray(getattr(federation, part).x)[own]
            expected = scaled.transform(numbers[own])
            # One rounding to float32 of values of order 1.
            np.testing.assert_allclose(x[:, COLUMNS], expected, rtol=1e-6, atol=1e-6)
            assert set(np.ravel(x[:, 1:3])) <= {0.0, 1.0}


@pytest.mark.parametrize("scaling", SCALERS)
def test_scales_are_those_of_all_training_rows(path, scaling):
    federation = spec(path, scaling=scaling).build()
    fitted = np.concatenate([rows(federation.train, k) for k in range(NUM_CLIENTS)])
    check_scaled(SCALERS[scaling], federation, frame()[NUMBERS].to_numpy(), fitted)


@pytest.mark.parametrize("scaling", SCALERS)
def test_every_client_may_have_a_scale_of_its_own(path, scaling):
    federation = spec(path, scaling=scaling, scale="client", train_examples=9).build()
    for client in range(NUM_CLIENTS):
        fitted = rows(federation.train, client)
        assert len(fitted) == 9
        numbers = frame()[NUMBERS].to_numpy()
        check_scaled(SCALERS[scaling], federation, numbers, fitted, [client])


@pytest.mark.parametrize("scale", ["all", "client"])
def test_unseen_clients_are_no_training_clients(path, scale):
    federation = spec(path, scale=scale, unseen_fraction=0.5).build()
    numbers, unseen = frame()[NUMBERS].to_numpy(), federation.unseen
    assert federation.num_clients == unseen.num_clients == 2
    if scale == "all":
        fitted = np.concatenate([rows(federation.train, k) for k in range(2)])
        for each in (federation, unseen):
            check_scaled(SCALERS["standard"], each, numbers, fitted)
        return
    for each in (federation, unseen):
        for client in range(2):
            own = rows(each.train, client)
            check_scaled(SCALERS["standard"], each, numbers, own, [client])


def test_test_rows_leave_no_trace_in_training_inputs(tmp_path, path):
    before = spec(path).build()
    changed = frame()
    changed.loc[rows(before.test, 1), "age"] = 1e6
    after = spec(samples.write(tmp_path / "b.csv", changed.to_csv(index=False))).build()
    for part in PARTS[:2]:
        x = [samples.inputs(getattr(each, part)) for each in (before, after)]
        for own, same in zip(*x, strict=True):
            np.testing.assert_array_equal(own, same)
    assert samples.inputs(after.test)[1][:, 0].min() > 1e3  # not clipped


def test_columns_that_are_constant_in_training_become_zero(tmp_path):
    train = rows(
        spec(samples.write(tmp_path / "a.csv", table([0.1] * 40))).build().train, 0
    )
    values = np.where(np.isin(np.arange(40), train), 0.1, 7.0)
    path = samples.write(tmp_path / "b.csv", table(values))
    federation = spec(path).build()
    assert federation.train.x[:, 0].tolist() == [0] * 40
    kept = spec(path, scaling="none").build()
    np.testing.assert_allclose(kept.train.x[:, 0], values, rtol=1e-6)


def table(values):
    rows = [f"s,{value},{k / 7},{k % 2}" for k, value in enumerate(values)]
    return "\n".join(["site,a,b,y", *rows])


def test_equal_specifications_share_one_pool(path):
    first, again = spec(path).build(), spec(path, num_others=1).build()
    assert first.train.x is again.train.x is again.test.x
    other = spec(path, seed=1).build()
    assert other.train.x is not first.train.x
    plain = [spec(path, scaling="none", seed=seed).build() for seed in (0, 1)]
    assert plain[0].train.x is plain[1].train.x


def test_users_that_are_held_out_are_scaled_by_their_own_rows(path):
    recipe = spec(path, held_out_users=0.5)
    held = recipe.pretraining()
    numbers = frame()[NUMBERS].to_numpy()[np.isin(frame()["site"], names(held))]
    expected = preprocessing.StandardScaler().fit_transform(numbers)
    np.testing.assert_allclose(held.x[:, COLUMNS], expected, rtol=1e-6, atol=1e-6)
    federation = recipe.build()
    fitted = np.concatenate([rows(federation.train, k) for k in range(2)])
    others = frame()[NUMBERS].to_numpy()[~np.isin(frame()["site"], names(held))]
    check_scaled(SCALERS["standard"], federation, others, fitted)
    whole = fp.data.from_dataset(held, fp.IID(), num_clients=1)
    check_scaled(SCALERS["standard"], whole, numbers, rows(whole.train, 0))


def names(dataset):
    return [dataset.client_names[k] for k in set(dataset.client.tolist())]


def test_arrays_are_scaled_if_asked(path):
    x = frame()[NUMBERS].to_numpy()
    y, owner = frame()["y"], frame()["site"]
    plain = fp.Federation.from_arrays(x, y, owner)
    np.testing.assert_array_equal(plain.train.x, x.astype(np.float32))
    options = {"scaling": "minmax", "scale": "client"}
    scaled = fp.Federation.from_arrays(x, y, owner, **options)
    same = spec(path, **options).build()
    np.testing.assert_array_equal(scaled.train.x, np.asarray(same.train.x)[:, COLUMNS])
    images = fp.Federation.from_arrays(x[:, None, :], y, owner, **options)
    np.testing.assert_array_equal(images.train.x[:, 0], scaled.train.x)


@pytest.mark.parametrize(
    ("x", "options", "part"),
    [
        (np.eye(4), {"scaling": "max"}, "did you mean 'minmax'"),
        (np.eye(4), {"scaling": "minmax", "scale": "clients"}, "did you mean 'client'"),
        (np.eye(4), {"scale": "client"}, "which changes nothing"),
        (np.eye(4, dtype=int), {"scaling": "minmax"}, "floating numbers"),
        (np.eye(4)[0], {"scaling": "minmax"}, "floating numbers"),
    ],
)
def test_wrong_options_of_arrays(x, options, part):
    arrays = (x, [0, 1, 0, 1], [0] * 4)
    assert part in samples.refusal(fp.Federation.from_arrays, *arrays, **options)


def test_clients_that_share_rows_have_one_scale(path):
    recipe = dataclasses.replace(
        spec(path, scale="client"),
        partition=fp.data.LeakyDirichletLabels(),
        num_clients=3,
    )
    assert "without shared examples for scale='client'" in samples.refusal(recipe.build)
