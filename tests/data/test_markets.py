"""Federations of trading parties: layout, leakage, purity, grids."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data, portfolio
from fedjax_pfl.command.presets.experiment import Experiment, Grid, apply_settings
from fedjax_pfl.portfolio.markets import base

WINDOW, TEST, YEAR = 8, 20, 252


@dataclasses.dataclass(frozen=True)
class Given:
    """A market source around arrays; `which` tells them apart."""

    which: str
    name = "given"

    def load(self, *, data_dir, features):
        return MARKETS[self.which]


def market(prices, listed=None, dates=None):
    days, assets = prices.shape[:2]
    if dates is None:
        dates = np.datetime64("2020-01-01") + np.arange(days)
    return base.Market(
        name="given",
        dates=dates,
        tickers=tuple(f"T{k}" for k in range(assets)),
        prices=prices,
        listed=np.zeros(assets, int) if listed is None else np.asarray(listed),
    )


def prices(days=90, assets=6, features=1, seed=0):
    rng = np.random.default_rng(seed)
    close = np.exp(np.cumsum(rng.normal(0, 0.02, (days, assets)), axis=0))
    columns = [close, close * 1.01, close * 0.99][:features]
    return np.stack(columns, axis=-1)


def spoiled(values, first):
    """The same with other prices from a day on."""
    other = prices(len(values), values.shape[1], values.shape[2], seed=9)
    return np.concatenate([values[:first], 7 * other[first:]])


MARKETS = {
    "plain": market(prices()),
    "spoiled test": market(spoiled(prices(), 90 - TEST)),
    "three": market(prices(features=3)),
    "late": market(prices(), [0, 0, 69, 0, 61, 62]),
    "hole": market(
        prices(),
        dates=np.datetime64("2020-01-01") + np.arange(90) + 60 * (np.arange(90) > 10),
    ),
    "huge": market(prices() * 1e31),
}


def spec(which="plain", **fields):
    small = {"num_clients": 4, "assets_per_client": 3, "window": WINDOW}
    small |= {"test_days": TEST, "years": 2, "rounds_per_year": 3}
    return portfolio.PortfolioSpec(Given(which), **(small | fields))


@jax.jit
def gathered(part, client, positions):
    """Windows and growth of some examples of one party."""
    rows = jax.tree.map(lambda leaf: leaf[client], part.rows())
    positions = jnp.asarray(positions, jnp.int32)
    batch = part.with_rows(rows).gather(positions, jnp.ones(len(positions)))
    assert batch.x.dtype == jnp.int32
    return batch, portfolio.windows(batch.constants, batch.x)


@pytest.mark.wide
@pytest.mark.parametrize("features", [1, 3])
def test_real_examples_show_the_past_and_pay_the_next_day(features):
    which = "plain" if features == 1 else "three"
    given = spec(which, validation_days=5, features=features)
    federation, source = given.build(), MARKETS[which]
    train_days = 90 - TEST - 5
    assert federation.num_classes is None and federation.input_shape == (3,)
    counts = {"train": train_days - WINDOW, "validation": 5, "test": TEST}
    observed = {"train": WINDOW - 1, "validation": train_days - 1, "test": 90 - TEST}
    observed["test"] -= 1
    for name, count in counts.items():
        part = getattr(federation, name)
        np.testing.assert_array_equal(part.num_examples, [count] * 4)
        for client, names in enumerate(given.tickers()):
            own = [source.tickers.index(ticker) for ticker in names]
            assert len(set(own)) == 3
            batch, seen = gathered(part, client, np.arange(count))
            for k in range(count):
                day = observed[name] + k
                past = source.prices[day - WINDOW + 1 : day + 1, own]
                # Prices and quotients are rounded to 32 bits.
                expected = (past / past[-1:, :, :1]).swapaxes(0, 1)
                np.testing.assert_allclose(seen[k], expected, rtol=4e-7)
                paid = source.prices[day + 1, own, 0] / source.prices[day, own, 0]
                np.testing.assert_allclose(batch.y[k], [1, *paid], rtol=1e-7)
            number = np.arange(count) if name == "train" else np.full(count, -1)
            np.testing.assert_array_equal(batch.x[:, 2], number)


def test_generated_examples_continue_the_last_training_price():
    federation = spec(validation_days=5, num_clients=2).build()
    tables = federation.train.constants
    assert federation.train.index.shape == (2, tables.slots)
    assert tables.slots == 90 - TEST - 5 - WINDOW + 2 * YEAR
    block = np.asarray(tables.prices).reshape(2, tables.block, 3)
    for client in range(2):
        for year in range(2):
            start = tables.n_real + year * YEAR
            batch, seen = gathered(federation.train, client, start + np.arange(YEAR))
            np.testing.assert_array_equal(batch.x[:, 2], start + np.arange(YEAR))
            first = 90 + year * YEAR
            own = block[client, first : first + YEAR]
            path = np.concatenate([block[client, : tables.train_days], own])
            paid = path[tables.train_days :] / path[tables.train_days - 1 : -1]
            np.testing.assert_allclose(batch.y[:, 1:], paid, rtol=4e-7)
            for j in (0, 1, WINDOW - 1, WINDOW, YEAR - 1):
                end = tables.train_days + j
                past = path[end - WINDOW : end]
                expected = (past / past[-1:]).T
                np.testing.assert_allclose(seen[j, :, :, 0], expected, rtol=4e-7)


def test_training_knows_nothing_of_the_test_period():
    """Neither real examples nor generators see prices after the training period."""
    plain, other = spec().build(), spec("spoiled test").build()
    count = plain.train.constants.slots
    days = 90 - TEST
    for client in range(4):
        found = gathered(plain.train, client, np.arange(count))
        expected = gathered(other.train, client, np.arange(count))
        jax.tree.map(np.testing.assert_array_equal, found[0].y, expected[0].y)
        np.testing.assert_array_equal(found[1], expected[1])
    tables = [f.train.constants.prices.reshape(4, -1, 3) for f in (plain, other)]
    np.testing.assert_array_equal(tables[0][:, :days], tables[1][:, :days])
    np.testing.assert_array_equal(tables[0][:, 90:], tables[1][:, 90:])
    assert (tables[0][:, days:90] != tables[1][:, days:90]).all()


def years_of(given, client, period):
    tables = given.build().train.constants
    start = client * tables.block + tables.days + period * YEAR
    return np.asarray(tables.prices[start : start + YEAR])


def test_a_generated_year_is_a_function_of_seed_client_and_period():
    base_spec = spec()
    year = years_of(base_spec, 2, 1)
    for fields in ({"years": 5}, {"num_clients": 7}, {"malicious_fraction": 0.5}):
        changed = dataclasses.replace(base_spec, **fields)
        np.testing.assert_array_equal(years_of(changed, 2, 1), year)
        assert changed.tickers()[2] == base_spec.tickers()[2]
    for client, period in ((2, 0), (1, 1)):
        assert (years_of(base_spec, client, period) != year).any()
    assert (years_of(dataclasses.replace(base_spec, seed=1), 2, 1) != year).any()


def test_every_party_has_one_generator():
    """A Markov path has historical returns only, a Brownian one none of them."""
    given = spec(num_clients=12)
    tables = given.build().train.constants
    block = np.asarray(tables.prices, np.float64).reshape(12, tables.block, 3)
    is_markov = []
    for own in block:
        returns = np.diff(np.log(own[: tables.train_days]), axis=0)
        years = own[tables.days :].reshape(2, YEAR, 3)
        made = np.diff(np.log(years), axis=1).reshape(-1, 3)
        near = [
            np.abs(made[:, k, None] - returns[None, :, k]).min(axis=1) < 1e-6
            for k in range(3)
        ]
        is_markov.append(np.mean(near) > 0.5)
        assert np.mean(near) > 0.99 or np.mean(near) < 0.1
    assert 0 < sum(is_markov) < 12


def test_high_and_low_of_generated_days_are_those_of_training_days():
    tables = spec("three", features=3, num_clients=2).build().train.constants
    relative = np.asarray(tables.prices) / np.asarray(tables.prices)[..., :1]
    expected = np.broadcast_to([1, 1.01, 0.99], relative.shape)
    np.testing.assert_allclose(relative, expected, rtol=3e-7)


def test_late_assets_are_left_out_or_have_a_flat_past():
    given = spec("late", num_clients=30, generators=())
    names = {name for party in given.tickers() for name in party}
    # 70 training days: T4 has 9 prices, one more than a window; T5 has 8, T2 one.
    assert names == {"T0", "T1", "T3", "T4"}
    assert given.build().train.constants.years == 0


def test_malicious_parties_share_the_pool():
    plain = spec().build()
    other = spec(malicious_fraction=0.5).build()
    assert other.train.x is plain.train.x
    assert other.train.constants is plain.train.constants
    assert int(other.malicious.sum()) == 2


@dataclasses.dataclass(frozen=True)
class Constant(fp.core.Model):
    """A policy that ignores prices: one share for all assets, the rest is cash."""

    num_assets: int = 0

    def for_federation(self, federation):
        return Constant(federation.train.y.shape[1] - 1)

    def init(self, key):
        return {"share": jnp.zeros(())}

    def apply(self, params, x, *, key=None, constants=None):
        seen = portfolio.windows(constants, x)
        logits = params["share"] + 0 * seen[:, :, -1, 0]
        cash = jnp.zeros((len(x), 1), logits.dtype)
        return jax.nn.softmax(jnp.concatenate([cash, logits], axis=1))

    def loss(self, outputs, batch):
        values = self.metrics(outputs, batch)["loss"] * batch.weight
        return values.sum() / batch.weight.sum()

    def metrics(self, outputs, batch):
        return {"loss": -jnp.log(jnp.maximum((outputs * batch.y).sum(axis=1), 1e-9))}


def test_a_grid_over_seeds_markets_and_numbers_of_malicious_parties():
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.1, batch_size=30))
    )
    small = portfolio.SyntheticMarket(num_days=80, num_assets=6)
    given = dataclasses.replace(spec(), market=small, years=1)
    result = fp.grid(
        jax.random.key(0, impl="threefry2x32"),
        process,
        Constant(),
        given,
        {"seed": [0, 1], "federation.market.seed": [0, 3]},
        num_rounds=1,
        progress=False,
    )
    (group,) = result.groups
    assert result.status == ("ok",) * 4
    table = result.table()
    assert set(table["dataset"]) == {"synthetic"}
    assert set(table["federation.market.seed"]) == {0, 3}
    assert group.config["federation.generators"] == ["gbm", "markov"]


def test_settings_of_commands():
    process = fp.FederatedProcess(algorithm=fp.FedAvg())
    grid = Grid(process, Constant(), portfolio.PortfolioSpec())
    experiment = Experiment("portfolio", (grid,), num_rounds=1)
    settings = [
        "federation.market.seed=3,4",
        'federation.generators=["gan"]',
        "federation.test_from=2019-01-01",
    ]
    (changed,) = apply_settings(experiment, settings).grids
    assert changed.axes == {"federation.market.seed": (3, 4)}
    assert changed.spec.generators == ("gan",)
    assert changed.spec.test_from == "2019-01-01"
    settings = ["federation.market=prices", "federation.market.path=my.csv"]
    (changed,) = apply_settings(experiment, settings).grids
    assert changed.spec.market == portfolio.PriceFile(path="my.csv")


def test_description_and_statistics():
    given = spec(seed=np.int64(3))
    described = given.describe()
    assert described["market"] == "Given" and described["market.which"] == "plain"
    assert described["seed"] == 3 and type(described["seed"]) is int
    assert hash(given) == hash(dataclasses.replace(given))
    found = data.describe(given.build())
    assert found.num_train.tolist() == [90 - TEST - WINDOW] * 4
    assert found.leak == 0 and found.label_counts is None


def test_dates_choose_days():
    given = spec(train_from="2020-01-11", test_from="2020-03-01", test_to="2020-03-10")
    tables = given.build().test.constants
    assert (tables.days, tables.train_days) == (60, 50)
    np.testing.assert_array_equal(given.build().test.num_examples, [10] * 4)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"test_days": 82}, "8 are left for training, of which a window of 8 needs"),
        ({"test_days": 200}, "0 are left for training"),
        ({"validation_days": 63}, "7 are left for training"),
        ({"window": 1}, "Expected window to be a whole number of at least 2"),
        ({"assets_per_client": 7}, "has 6 assets with at least 9 training prices"),
        ({"test_from": "2019-01-01"}, "0 are left for training"),
        ({"test_from": "2021-01-01"}, "no day from test_from=2021-01-01 on"),
        ({"test_from": "01.02.2020"}, "Expected test_from to be a date YYYY-MM-DD"),
        ({"test_to": "2020-02-31"}, "Expected test_to to be a date YYYY-MM-DD"),
        ({"train_from": "2020-03-01", "test_from": "2020-02-01"}, "before test_from"),
        ({"test_from": "2020-02-01", "test_to": "2020-01-01"}, "before test_to"),
        ({"train_from": "2030-01-01"}, "has no day from 2030-01-01 to its last"),
        ({"generators": ("gmb",)}, "Unknown generator 'gmb' \\(did you mean 'gbm'"),
        ({"generators": (3,)}, "Expected generators to be names in GENERATORS"),
        ({"features": 2}, "Expected features to be 1 \\(close\\) or 3"),
        ({"market": "sinthetic"}, "Unknown market 'sinthetic' \\(did you mean"),
        ({"market": "prices"}, "Expected the path of a .csv"),
        ({"market": portfolio.SyntheticMarket}, "market to be a name in MARKETS"),
        ({"market": Given("hole")}, "no day between 2020-01-11 and 2020-03-12"),
        ({"market": Given("huge")}, "prices between 1e-30 and 1e\\+30"),
        ({"malicious_fraction": 1.0}, "malicious"),
        ({"years": -1}, "Expected years to be"),
        ({"seed": -1}, "Expected seed to be"),
        ({"num_clients": 10**9}, "GB of memory"),
    ],
)
def test_bad_input_gets_one_sentence(fields, sentence):
    with pytest.raises(fp.InputError, match=sentence):
        dataclasses.replace(spec(), **fields).build()
